/**
 * Holds requests until an event, or until 408 at the deadline. All polls of a worker share one cap and one timer:
 * deadlines are kept in slots of `pollTickMs`, so that a poll needs no timer of its own. A client that disconnects
 * frees its place at once.
 */
import { type Clock, systemClock } from '../base/clock.ts';
import { badRequest, Fault, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';
import { devicePlaceOwners, type PlaceOwner, Places } from '../base/places.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import type { CachedDevice } from '../device/model/cached-device.ts';
import type { TokenCache } from '../device/token-cache.ts';
import type { ListenerCloseReason } from '../downlink/downlink.ts';
import { type Answer, type Exchange, faultAnswer } from '../uws/exchange.ts';

interface LongPollsDeps {
  tokens: TokenCache;
  metrics: Metrics;
  clock?: Clock;
  scheduler?: Scheduler;
  heldMax: number;
  /** The wait of a request without `timeout`. */
  waitMsDefault: number;
  /** The longest wait. */
  waitMsMax: number;
}

const plainTimeout = /^timeout=(\d{1,15})$/;

const allHeld = unavailable('polls_held', 'This server has its maximum of waiting polls; try again later.', 5);
const shareHeld = new Fault(
  'polls_held_share',
  'The device, its customer or its tenant has too many waiting polls: poll less often.',
  5,
);

/** The answer when no event came in time. */
const expired: Answer = { status: 408 };

export class LongPolls {
  readonly #deps: LongPollsDeps;
  readonly #slots = new Map<number, Set<Poll>>();
  readonly #outcomes: { answered: Counter; expired: Counter; refused: Counter; gone: Counter };
  readonly #places: Places;
  readonly #clock: Clock;
  /** Ends the ticks, which run while polls are held. */
  #endTicks: (() => void) | undefined;
  #lastSlot = 0;
  #closed = false;

  constructor(deps: LongPollsDeps) {
    this.#deps = deps;
    this.#clock = deps.clock ?? systemClock;
    this.#places = new Places(deps.heldMax);
    const { metrics } = deps;
    const outcome = (name: string) => metrics.counter('http_polls_total', 'Long polls by outcome.', { outcome: name });
    this.#outcomes = {
      answered: outcome('answered'),
      expired: outcome('expired'),
      refused: outcome('refused'),
      gone: outcome('gone'),
    };
    metrics.observed('http_polls_held', 'Long polls that wait for an update or a command.', () => this.#places.held);
  }

  /**
   * Returns the requested wait. Absent and 0 mean the default; a longer wait than allowed is shortened; any other value
   * is 400.
   */
  waitMs(query: string): number {
    // Most devices send this form, which needs no parser.
    const text = query === '' ? '' : (plainTimeout.exec(query)?.[1] ?? new URLSearchParams(query).get('timeout'));
    if (text === null || text === '') return this.#deps.waitMsDefault;
    if (!/^\d{1,15}$/.test(text)) {
      throw badRequest('timeout', 'The parameter "timeout" must be a whole number of milliseconds, not negative.');
    }
    return Math.min(Number(text) || this.#deps.waitMsDefault, this.#deps.waitMsMax);
  }

  /**
   * Holds the exchange. Exactly one of `Poll.answer`, the deadline or a disconnect ends the poll, and then `Poll.onEnd`
   * is called. Returns undefined when no place was free and the client was refused. The answer `atDeadline` is 408
   * without a body by default.
   */
  hold(
    exchange: Exchange,
    token: string,
    device: CachedDevice,
    waitMs: number,
    atDeadline = expired,
  ): Poll | undefined {
    if (exchange.done) return undefined;
    const owners = devicePlaceOwners(device);
    const outcome = this.#closed ? 'full' : this.#places.take(owners);
    if (outcome !== 'taken') {
      this.#outcomes.refused.add(1);
      exchange.refuse(outcome === 'full' ? allHeld : shareHeld);
      return undefined;
    }
    this.#start();
    // The timer would never visit a slot that has passed already.
    const slot = Math.max(Math.ceil((this.#clock.monotonic() + waitMs) / limits.pollTickMs), this.#lastSlot + 1);
    const poll = new Poll(this, exchange, { token, device, owners, slot, atDeadline });
    const polls = this.#slots.get(slot);
    if (polls) polls.add(poll);
    else this.#slots.set(slot, new Set([poll]));
    return poll;
  }

  /** Called when the credentials of the poll's device changed or the device was deleted. Ends the poll if necessary. */
  async recheck(poll: Poll, reason: ListenerCloseReason): Promise<void> {
    if (reason === 'device_deleted') {
      poll.answer(faultAnswer(new Fault('device_deleted', 'Device was deleted!')));
      return;
    }
    try {
      const device = await this.#deps.tokens.lookup(poll.token);
      if (device?.number !== poll.device.number) poll.answer(expired);
    } catch (error) {
      // The token was valid when the poll began; the next poll of the device checks it again.
      if (!(error instanceof Fault)) throw error;
    }
  }

  /** Ends all polls as at their deadline, so that clients poll another server. */
  close(): void {
    this.#closed = true;
    for (const polls of [...this.#slots.values()]) for (const poll of [...polls]) poll.expireAndClose();
  }

  /** Called by `Poll` only. */
  ended(poll: Poll, outcome: 'answered' | 'expired' | 'gone'): void {
    this.#places.release(poll.owners);
    this.#outcomes[outcome].add(1);
    const polls = this.#slots.get(poll.slot);
    polls?.delete(poll);
    if (polls?.size === 0) this.#slots.delete(poll.slot);
  }

  #start(): void {
    if (this.#endTicks) return;
    this.#lastSlot = Math.floor(this.#clock.monotonic() / limits.pollTickMs);
    const { scheduler = systemScheduler } = this.#deps;
    this.#endTicks = scheduler.every(limits.pollTickMs, () => this.#tick());
  }

  #tick(): void {
    const now = Math.floor(this.#clock.monotonic() / limits.pollTickMs);
    for (; this.#lastSlot < now; this.#lastSlot += 1) {
      for (const poll of [...(this.#slots.get(this.#lastSlot + 1) ?? [])]) poll.expire();
    }
    if (this.#places.held > 0) return;
    this.#endTicks?.();
    this.#endTicks = undefined;
  }
}

interface HeldPoll {
  token: string;
  device: CachedDevice;
  /** Owners at the start of the poll: a device may change its customer meanwhile. */
  owners: readonly PlaceOwner[];
  /** The tick at which the poll expires. */
  slot: number;
  atDeadline: Answer;
}

/** A held request. */
class Poll {
  readonly token: string;
  readonly device: CachedDevice;
  readonly owners: readonly PlaceOwner[];
  readonly slot: number;
  readonly #owner: LongPolls;
  readonly #exchange: Exchange;
  readonly #atDeadline: Answer;
  #onEnd: (() => void) | undefined = undefined;
  /** Called at the deadline. Returns what the answer waits for; undefined = nothing. */
  beforeExpiry: (() => Promise<void> | undefined) | undefined = undefined;
  #ended = false;

  constructor(owner: LongPolls, exchange: Exchange, { token, device, owners, slot, atDeadline }: HeldPoll) {
    this.#owner = owner;
    this.#exchange = exchange;
    this.token = token;
    this.device = device;
    this.owners = owners;
    this.slot = slot;
    this.#atDeadline = atDeadline;
    const abort = (): void => this.#end('gone');
    exchange.onAbort = abort;
  }

  /** Sets the function that is called once when the poll ends; called at once when the poll has ended. */
  set onEnd(callback: () => void) {
    if (this.#ended) callback();
    else this.#onEnd = callback;
  }

  /** Returns false when the client had disconnected or the poll had ended: then the answer was not sent. */
  answer(answer: Answer): boolean {
    if (this.#exchange.done) return false;
    this.#exchange.answer(answer);
    this.#end('answered');
    return true;
  }

  expire(): void {
    if (this.#exchange.done) return;
    const awaited = this.beforeExpiry?.();
    this.beforeExpiry = undefined;
    if (awaited !== undefined) {
      void awaited.then(() => this.expire());
      return;
    }
    this.#exchange.answer(this.#atDeadline);
    this.#end('expired');
  }

  /** Also closes the connection, so that the client polls another server. */
  expireAndClose(): void {
    if (!this.#exchange.done) this.#exchange.closeAfter = true;
    this.beforeExpiry = undefined;
    this.expire();
  }

  #end(outcome: 'answered' | 'expired' | 'gone'): void {
    this.#ended = true;
    this.#exchange.onAbort = undefined;
    this.#owner.ended(this, outcome);
    this.#onEnd?.();
    this.#onEnd = undefined;
  }
}
