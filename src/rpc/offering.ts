/**
 * Offers the commands that this worker owns to sessions, by `Downlink.offer`. One command of a device is on offer at a
 * time, the oldest first, so commands arrive in order and none twice. A command that no listener took is offered again
 * when a listener opens, and after growing pauses.
 */
import type { Clock } from '../base/clock.ts';
import { assert } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Scheduler } from '../base/scheduler.ts';
import type { Downlink, OpenedCause } from '../downlink/downlink.ts';
import type { OldestFirst } from './oldest-first.ts';
import type { RpcRequest } from './rpc.ts';
import type { Command, Waiters } from './waiters.ts';

interface OfferingDeps {
  downlink: Downlink;
  clock: Clock;
  scheduler: Scheduler;
  waiters: Waiters;
  order: OldestFirst;
}

interface OlderWait {
  readonly command: Command;
  /** Monotonic time at which the command has waited long enough. */
  readonly endsAt: number;
  /** The pause before PostgreSQL is asked again. */
  pauseMs: number;
}

/** The offers to the sessions of one device. */
interface Delivery {
  /** The command that is on offer. */
  offering: Command | undefined;
  /**
   * A confirmation of the offered command that arrived before the answer to the offer; applied when the offer settles.
   */
  earlyConfirm: (() => void) | undefined;
  isRunning: boolean;
  /** True when the oldest command must be offered after the offer that runs. */
  offersAgain: boolean;
  /** Stops the timer of the next offer of a command that no listener took. */
  stopRepeat: (() => void) | undefined;
  /** The pause before that offer. */
  repeatMs: number;
  /** The time in which workers must answer an offer: longer after an answer that came too late. */
  offerWaitMs: number;
  /** True when no worker answered the last offer in time. */
  wasUntaken: boolean;
  /** The wait of a command for older ones that PostgreSQL names; undefined when no command has waited for them. */
  olderWait: OlderWait | undefined;
  /** Ends the notices of sessions that open. */
  leave(): void;
}

export class Offering {
  readonly #deps: OfferingDeps;
  readonly #deliveries = new Map<number, Delivery>();

  constructor(deps: OfferingDeps) {
    this.#deps = deps;
  }

  /** Called when this worker begins to own the command. */
  begin({ device, stage }: Command): void {
    const delivery = this.#deliveries.get(device);
    if (delivery) {
      delivery.repeatMs = limits.rpcRepeatMsMin;
    } else {
      const leave = this.#deps.downlink.onOpened(device, 'rpc', (cause) => {
        if (cause === 'opened') this.#deps.order.opened(device);
        this.#noticed(device, cause);
        this.offer(device);
      });
      this.#deps.order.begin(device);
      this.#deliveries.set(device, {
        offering: undefined,
        earlyConfirm: undefined,
        isRunning: false,
        offersAgain: false,
        stopRepeat: undefined,
        repeatMs: limits.rpcRepeatMsMin,
        offerWaitMs: limits.offerWaitMs,
        wasUntaken: false,
        olderWait: undefined,
        leave,
      });
    }
    if (stage === 'queued') this.offer(device);
  }

  /** Called when this worker owns no command of the device any more. An offer that runs is not repeated. */
  end(device: number): void {
    const delivery = this.#deliveries.get(device);
    if (delivery === undefined) return;
    this.#deliveries.delete(device);
    delivery.stopRepeat?.();
    this.#deps.order.end(device);
    delivery.leave();
  }

  /** Offers the oldest command that waits: now, or after the offer that runs. */
  offer(device: number): void {
    void this.#deliver(device);
  }

  /** True while a session may take the command: its reply may arrive before the answer to the offer. */
  isOffered(command: Command): boolean {
    return this.#deliveries.get(command.device)?.offering === command;
  }

  /**
   * Tells the command the outcome of its delivery: now, or, when the command is on offer, after the offer was taken.
   */
  confirm(command: Command, delivered: boolean, error?: string): void {
    const confirm = () => command.confirmed(delivered, error);
    const delivery = this.#deliveries.get(command.device);
    if (delivery?.offering === command) {
      delivery.earlyConfirm = confirm;
      return;
    }
    // The offer ended as doubtful, and the session took the command nevertheless: no other session may get it.
    if (delivered && command.stage === 'queued') this.#taken(command);
    confirm();
  }

  async #deliver(device: number): Promise<void> {
    const delivery = this.#deliveries.get(device);
    if (!delivery) return;
    delivery.offersAgain = true;
    void this.#announce(device);
    if (delivery.isRunning) return;
    delivery.isRunning = true;
    // Waits for the subscription to the channel of replies, on which listeners also announce that they opened.
    await this.#deps.downlink.inForce(device);
    while (delivery.offersAgain && this.#deliveries.get(device) === delivery) {
      delivery.offersAgain = false;
      await this.#offerNext(device, delivery);
    }
    delivery.isRunning = false;
  }

  /**
   * Announces commands once this worker receives what other owners announce. Of two owners, the one that announces
   * first then receives the announcement of the other one, and answers it. An earlier announcement may have no
   * receiver.
   */
  async #announce(device: number): Promise<void> {
    const { downlink, order } = this.#deps;
    await downlink.inForce(device);
    order.announceSoon(device);
  }

  async #offerNext(device: number, delivery: Delivery): Promise<void> {
    const { downlink, clock, waiters, order } = this.#deps;
    const command = waiters.line(device)?.queued[0];
    if (!command || command.deadline <= clock.monotonic() || order.mustWait(command)) return;
    const { id, method, params, oneway, persistent } = command;
    const request: RpcRequest = { id, method, params, confirm: persistent || oneway };
    assert(delivery.offering === undefined, 'one command of a device is on offer at a time');
    delivery.offering = command;
    let isHeldUp = false;
    let isEarly = false;
    const outcome = await downlink.offer(device, 'rpc', request, {
      now: () => {
        isHeldUp = order.yields(command);
        return !isHeldUp && waiters.has(command);
      },
      granted: (isGranted) => command.granted(isGranted),
      waitMs: delivery.offerWaitMs,
      stored:
        command.wanted &&
        (async () => {
          const { isWanted, older } = await command.wanted!();
          if (!isWanted) command.withdrawn();
          isEarly = isWanted && this.#isEarly(delivery, command, older);
          return isWanted && !isEarly;
        }),
    });
    const { earlyConfirm } = delivery;
    delivery.offering = undefined;
    delivery.earlyConfirm = undefined;
    const isTaken = outcome === 'taken' || earlyConfirm !== undefined;
    order.offered(device, isTaken);
    delivery.wasUntaken = outcome === 'untaken';
    // A caller gets the answer that its command may have run, and the command ends; a persistent one is offered again.
    if (outcome === 'doubtful' && !isTaken && waiters.has(command)) command.doubtful();
    if (isTaken) {
      delivery.repeatMs = limits.rpcRepeatMsMin;
      delivery.offerWaitMs = Math.max(delivery.offerWaitMs / 2, limits.offerWaitMs);
      if (waiters.has(command)) {
        this.#taken(command);
        earlyConfirm?.();
      }
      delivery.offersAgain = true;
    } else if (!waiters.has(command)) {
      delivery.offersAgain = true;
    } else if (outcome === 'away') {
      for (const queued of [...(waiters.line(device)?.queued ?? [])]) if (queued !== command) queued.away();
      command.away();
      // A caller has its answer now. A persistent command waits, also when no gap of the bus is reported.
      if (waiters.has(command)) this.#repeatLater(device, delivery);
    } else if (isHeldUp) {
      // A session exists, but an older command was announced while this one was offered.
      order.mustWait(command);
    } else if (isEarly) {
      this.#readLater(device, delivery);
    } else {
      this.#repeatLater(device, delivery);
    }
  }

  /**
   * True while older commands of other owners must go first, for at most `rpcElderMsMax`. PostgreSQL names them: an
   * owner that begins to own commands of the device does not know the announcements of the others yet, and an owner
   * that was paused may have forgotten them.
   */
  #isEarly(delivery: Delivery, command: Command, older: readonly number[]): boolean {
    const { clock, order } = this.#deps;
    const { device } = command;
    const unsettled = order.unsettled(device, older);
    if (unsettled.length === 0) return false;
    const now = clock.monotonic();
    if (delivery.olderWait?.command !== command) {
      const endsAt = now + limits.rpcElderMsMax;
      delivery.olderWait = { command, endsAt, pauseMs: limits.rpcElderReadMsMin };
    }
    if (now < delivery.olderWait.endsAt) return true;
    order.settle(device, unsettled);
    return false;
  }

  /**
   * After a gap of the bus the pauses between offers begin again. After an answer that came too late for the last offer
   * the next offer waits longer: a worker that always needs more than the wait would never get the command.
   */
  #noticed(device: number, cause: OpenedCause): void {
    const delivery = this.#deliveries.get(device);
    if (delivery === undefined) return;
    if (cause === 'gap') delivery.repeatMs = limits.rpcRepeatMsMin;
    if (cause !== 'late' || !delivery.wasUntaken) return;
    delivery.wasUntaken = false;
    delivery.offerWaitMs = Math.min(2 * delivery.offerWaitMs, limits.offerWaitMsMax);
  }

  #taken(command: Command): void {
    const { waiters, order } = this.#deps;
    waiters.take(command);
    order.left(command);
    command.taken();
  }

  /**
   * Offers a command again that must let older ones of other owners go first. A short pause is often enough: the older
   * one was taken, and its new status is on the way to PostgreSQL.
   */
  #readLater(device: number, delivery: Delivery): void {
    const wait = delivery.olderWait!;
    delivery.stopRepeat?.();
    delivery.stopRepeat = this.#deps.scheduler.after(wait.pauseMs, () => {
      delivery.stopRepeat = undefined;
      wait.pauseMs = Math.min(2 * wait.pauseMs, limits.rpcElderReadMsMax);
      this.offer(device);
    });
  }

  /**
   * Offers the command again later. No listener is known to have taken the command, but a listener may exist on a
   * worker that answered too late or not at all: such a listener opened before the command came and is not announced
   * again. The pauses are random within a quarter, so that commands of many devices are not offered in the same
   * millisecond. The pauses double and end above `rpcRepeatMsMax`: a later listener is announced when it opens, and
   * commands of offline devices need no further work.
   */
  #repeatLater(device: number, delivery: Delivery): void {
    if (delivery.repeatMs > limits.rpcRepeatMsMax) return;
    const waitMs = delivery.repeatMs * (0.75 + Math.random() / 2);
    delivery.stopRepeat ??= this.#deps.scheduler.after(waitMs, () => {
      delivery.stopRepeat = undefined;
      delivery.repeatMs *= 2;
      this.offer(device);
    });
  }
}
