/**
 * Sends commands to devices. The worker that a caller asked owns the command until its deadline. The owner offers the
 * oldest command to one session at a time, by `Downlink.offer`, and takes the reply from any session. Replies come on
 * the device's shard channel, to which an owner subscribes while it has a command.
 */
import type { Clock } from '../base/clock.ts';
import { messageOf, tooLarge, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import { Turns } from '../base/turns.ts';
import type { Bus } from '../bus/bus.ts';
import type { Downlink } from '../downlink/downlink.ts';
import type { Queries } from '../postgres/client.ts';
import type { RpcNumbers } from './numbers.ts';
import { busAway, type Climb, type RpcCall, type RpcOutcome, type RpcRequest } from './rpc.ts';
import { answerRpc } from './store.ts';
import { type Command, isOlder, Waiters } from './waiters.ts';

export interface RpcDeps {
  postgres: Queries;
  downlink: Downlink;
  bus: Bus;
  numbers: RpcNumbers;
  clock: Clock;
  log: Log;
  metrics: Metrics;
}

/** The device that replies to a command. */
export interface ReplyingDevice {
  readonly number: number;
  readonly tenantId: string;
}

/** The state of the commands of one device. */
interface Delivery {
  offering: Command | undefined;
  /**
   * A confirmation of the offered command that arrived before the answer to the offer; applied when the offer settles.
   */
  early: (() => void) | undefined;
  running: boolean;
  /** A session opened while an offer ran. */
  again: boolean;
  /** Commands that wait at other owners, as these owners announced. */
  foreign: Set<number>;
  elderTimer: NodeJS.Timeout | undefined;
  announceTimer: NodeJS.Timeout | undefined;
  /** Timer of the next offer of a command that no listener took, and the pause before that offer. */
  repeatTimer: NodeJS.Timeout | undefined;
  repeatMs: number;
  leave(): void;
}

export class Rpc {
  readonly #deps: RpcDeps;
  readonly #waiters: Waiters;
  readonly #deliveries = new Map<number, Delivery>();
  /** Commands that were announced to other owners. */
  readonly #announced = new Set<Command>();
  /** Commands with a waiting caller at this worker, each with the function that fails the caller. */
  readonly #calls = new Map<Command, (error: unknown) => void>();
  /** Replies that are stored. A device may send any number of them, and without any command. */
  readonly #stores = new Turns({
    atOnceMax: limits.rpcRepliesAtOnceMax,
    waitingMax: limits.rpcRepliesWaitingMax,
    refusal: () => unavailable('rpc_replies', 'Too many replies to commands are being stored; send this one again.'),
  });

  constructor(deps: RpcDeps) {
    this.#deps = deps;
    this.#waiters = new Waiters({
      clock: deps.clock,
      perDeviceMax: limits.rpcWaitingPerDeviceMax,
      commandsMax: limits.rpcWaitingMax,
      bytesMax: limits.rpcWaitingBytesMax,
      deviceBytesMax: limits.rpcWaitingBytesPerDeviceMax,
      customerBytesMax: limits.rpcWaitingBytesPerCustomerMax,
      tenantBytesMax: limits.rpcWaitingBytesPerTenantMax,
      onEmpty: (device) => this.#leave(device),
    });
    deps.downlink.watch('rpc-climb', (device, message) => this.#climbed(device, message as Climb));
    deps.metrics.observed('rpc_waiting', 'Commands that wait for a session or a reply.', () => this.#waiters.size);
    deps.metrics.observed(
      'rpc_waiting_bytes',
      'Bytes of commands that wait for a session or a reply.',
      () => this.#waiters.bytes,
    );
  }

  get waiting(): number {
    return this.#waiters.size;
  }

  /** The number of commands that this worker could still own. */
  get room(): number {
    return this.#waiters.room;
  }

  refusal(call: RpcCall): Error | undefined {
    return this.#waiters.refusal(call);
  }

  /**
   * Sends a command and waits until it is delivered (one-way) or replied to, or until its deadline. The command is
   * withdrawn when `callerGone` fires: then nothing reads the outcome.
   */
  async call(call: RpcCall, callerGone?: AbortSignal): Promise<RpcOutcome> {
    const { clock, numbers } = this.#deps;
    const refusal = this.#waiters.refusal(call);
    if (refusal) throw refusal;
    const waitMs = Math.min(call.expirationTime - clock.now(), limits.rpcWaitMsMax);
    if (waitMs <= 0) return { kind: 'unreachable' };
    const deadline = clock.monotonic() + waitMs;
    const id = await numbers.next(call);
    if (callerGone?.aborted) return { kind: 'unreachable' };
    const { device, tenantId, customerId, method, params, oneway } = call;
    return await new Promise((resolve, reject) => {
      const end = (outcome: RpcOutcome) => {
        this.drop(command);
        resolve(outcome);
      };
      const fail = (error: unknown) => {
        this.drop(command);
        reject(error);
      };
      const command: Command = {
        ...{ device, tenantId, customerId, id, method, params, oneway, deadline },
        ...{ persistent: false, stage: 'queued', heapAt: -1 },
        isWanted: () => Promise.resolve(true),
        taken: () => {},
        confirmed: (delivered, error) => {
          if (error !== undefined) fail(tooLarge('rpc_undeliverable', error));
          else if (!delivered) this.retry(command);
          else if (oneway) end({ kind: 'delivered' });
        },
        replied: (text) => end(oneway ? { kind: 'delivered' } : { kind: 'replied', text }),
        expired: () => end({ kind: command.stage === 'taken' ? 'unanswered' : 'unreachable' }),
        away: () => fail(busAway()),
        withdrawn: () => {},
      };
      this.hold(command);
      this.#calls.set(command, fail);
      callerGone?.addEventListener('abort', () => end({ kind: 'unreachable' }), { once: true });
    });
  }

  /**
   * Takes the reply of a device to a command, by any session on any worker. A reply without a waiting caller is
   * ignored.
   */
  async reply({ number: device, tenantId }: ReplyingDevice, id: number, text: string): Promise<void> {
    const { downlink, bus, postgres } = this.#deps;
    const command = this.#offered(device, id);
    if (command) {
      await command.replied(text);
      return;
    }
    if (!bus.connected) throw busAway();
    downlink.send(device, 'rpc-climb', { kind: 'reply', id, text } satisfies Climb);
    // A command that outlives restarts may have no owner at the moment.
    await this.#stores.run(tenantId, `device ${device}`, () => answerRpc(postgres, device, id, text));
  }

  /** Takes ownership of the command; throws when there is no room for it. */
  hold(command: Command): void {
    const { device } = command;
    this.#waiters.add(command);
    const delivery = this.#deliveries.get(device);
    if (delivery) {
      delivery.repeatMs = limits.rpcRepeatMsMin;
    } else {
      const leave = this.#deps.downlink.onOpened(device, 'rpc', () => void this.#deliver(device));
      const none = {
        offering: undefined,
        early: undefined,
        running: false,
        again: false,
        elderTimer: undefined,
        announceTimer: undefined,
        repeatTimer: undefined,
        repeatMs: limits.rpcRepeatMsMin,
      };
      this.#deliveries.set(device, { ...none, foreign: new Set(), leave });
    }
    if (command.stage === 'queued') void this.#deliver(device);
  }

  /** Ends the ownership. Returns false when this worker did not own the command. */
  drop(command: Command): boolean {
    this.#calls.delete(command);
    const dropped = this.#waiters.remove(command);
    this.#announceGone(command);
    return dropped;
  }

  /** The session that took the command did not deliver it. */
  retry(command: Command): void {
    if (!this.#waiters.has(command) || command.stage !== 'taken') return;
    this.#waiters.requeue(command);
    void this.#deliver(command.device);
  }

  /** Refuses all waiting callers, who may send the command again to another server. */
  close(): void {
    const fault = unavailable('draining', 'This server is stopping; send the command again.');
    for (const fail of [...this.#calls.values()]) fail(fault);
    this.#waiters.close();
  }

  /** Makes one offer at a time for each device, so that commands arrive in order and none twice. */
  async #deliver(device: number): Promise<void> {
    const delivery = this.#deliveries.get(device);
    if (!delivery) return;
    delivery.again = true;
    // A device that listens has taken the command by then.
    delivery.announceTimer ??= setTimeout(() => {
      delivery.announceTimer = undefined;
      this.#announce(device);
    }, limits.rpcAnnounceMs);
    if (delivery.running) return;
    delivery.running = true;
    // The reply comes on the channel that also announces new listeners.
    await this.#deps.downlink.inForce(device);
    while (delivery.again && this.#deliveries.get(device) === delivery) {
      delivery.again = false;
      await this.#offerNext(device, delivery);
    }
    delivery.running = false;
  }

  async #offerNext(device: number, delivery: Delivery): Promise<void> {
    const { downlink, clock } = this.#deps;
    const command = this.#waiters.line(device)?.queued[0];
    if (!command || command.deadline <= clock.monotonic() || this.#isElderElsewhere(command, delivery)) return;
    const { id, method, params, oneway, persistent } = command;
    const request: RpcRequest = { id, method, params, confirm: persistent || oneway };
    delivery.offering = command;
    let isHeldBack = false;
    const outcome = await downlink.offer(device, 'rpc', request, {
      now: () => {
        isHeldBack = this.#hasElder(command, delivery);
        return !isHeldBack && this.#waiters.has(command);
      },
      stored: persistent ? () => this.#isStillStored(command) : undefined,
    });
    const { early } = delivery;
    delivery.offering = undefined;
    delivery.early = undefined;
    if (outcome === 'taken' || early) {
      delivery.repeatMs = limits.rpcRepeatMsMin;
      if (this.#waiters.has(command)) {
        this.#waiters.take(command);
        this.#announceGone(command);
        command.taken();
        early?.();
      }
      delivery.again = true;
    } else if (!this.#waiters.has(command)) {
      delivery.again = true;
    } else if (outcome === 'away') {
      for (const queued of [...(this.#waiters.line(device)?.queued ?? [])]) queued.away();
    } else if (isHeldBack) {
      // A session exists, but an older command was announced while this one was offered.
      this.#isElderElsewhere(command, delivery);
    } else {
      this.#repeatLater(device, delivery);
    }
  }

  /**
   * Offers the command again later. No listener took the command in time, but a listener may exist on a worker that
   * answered too late: such a listener opened before the command came and will not be announced. Pauses differ a
   * little, so that commands of many devices are not offered in the same millisecond. Pauses double and end at
   * `rpcRepeatMsMax`: a later listener announces itself when it opens, and commands of offline devices cost nothing
   * more.
   */
  #repeatLater(device: number, delivery: Delivery): void {
    if (delivery.repeatMs > limits.rpcRepeatMsMax) return;
    delivery.repeatTimer ??= setTimeout(
      () => {
        delivery.repeatTimer = undefined;
        delivery.repeatMs *= 2;
        void this.#deliver(device);
      },
      delivery.repeatMs * (0.75 + Math.random() / 2),
    );
  }

  /** Reads the store: another worker may have deleted the command, and its message may still be in transit. */
  async #isStillStored(command: Command): Promise<boolean> {
    const isWanted = await command.isWanted();
    if (!isWanted) command.withdrawn();
    return isWanted;
  }

  /**
   * Workers that own commands of one device announce to each other which commands wait, so that a session gets the
   * oldest first. An owner that died withdraws nothing, so after `rpcElderWaitMs` the younger command is offered.
   */
  #isElderElsewhere(command: Command, delivery: Delivery): boolean {
    if (!this.#hasElder(command, delivery)) return false;
    delivery.elderTimer ??= setTimeout(() => {
      delivery.elderTimer = undefined;
      delivery.foreign.clear();
      void this.#deliver(command.device);
    }, limits.rpcElderWaitMs);
    return true;
  }

  #hasElder(command: Command, { foreign }: Delivery): boolean {
    for (const id of foreign) if (isOlder(id, command.id)) return true;
    return false;
  }

  #climbed(device: number, message: Climb): void {
    const delivery = this.#deliveries.get(device);
    if (!delivery) return;
    const command = this.#waiters.find(device, message.id);
    switch (message.kind) {
      case 'reply':
        if (command && this.#offered(device, message.id)) void this.#replied(command, message.text);
        return;
      case 'confirm': {
        if (!command) return;
        const confirm = () => command.confirmed(message.delivered, message.error);
        if (delivery.offering === command) delivery.early = confirm;
        else confirm();
        return;
      }
      case 'withdraw':
        command?.withdrawn();
        return;
      case 'held':
        if (command) return;
        delivery.foreign.add(message.id);
        if (message.isNew) this.#announceHeld(device);
        return;
      case 'gone':
        if (delivery.foreign.delete(message.id)) void this.#deliver(device);
        return;
    }
  }

  async #replied(command: Command, text: string): Promise<void> {
    try {
      await command.replied(text);
    } catch (error) {
      this.#deps.log.warn('rpc_reply_unwritten', { reason: messageOf(error) });
    }
  }

  /** Returns a command that a session may have taken: a reply may arrive before the answer to the offer. */
  #offered(device: number, id: number): Command | undefined {
    const command = this.#waiters.find(device, id);
    const isOffered = command?.stage === 'taken' || this.#deliveries.get(device)?.offering === command;
    return isOffered ? command : undefined;
  }

  /**
   * Runs when no listener took the command: announces the waiting commands of this worker and requests those of other
   * owners.
   */
  #announce(device: number): void {
    for (const command of this.#waiters.line(device)?.queued ?? []) {
      if (this.#announced.has(command)) continue;
      this.#announced.add(command);
      this.#climb(device, { kind: 'held', id: command.id, isNew: true });
    }
  }

  #announceHeld(device: number): void {
    for (const { id } of this.#waiters.line(device)?.queued.filter((command) => this.#announced.has(command)) ?? []) {
      this.#climb(device, { kind: 'held', id, isNew: false });
    }
  }

  #announceGone(command: Command): void {
    if (this.#announced.delete(command)) this.#climb(command.device, { kind: 'gone', id: command.id });
  }

  #climb(device: number, message: Climb): void {
    this.#deps.downlink.send(device, 'rpc-climb', message);
  }

  #leave(device: number): void {
    const delivery = this.#deliveries.get(device);
    this.#deliveries.delete(device);
    clearTimeout(delivery?.elderTimer);
    clearTimeout(delivery?.announceTimer);
    clearTimeout(delivery?.repeatTimer);
    delivery?.leave();
  }
}
