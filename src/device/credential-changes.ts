/**
 * Notifies this process of credentials that changed on any host: at once over the bus, and at most a second later from
 * the log in PostgreSQL, because the bus may lose a message. Reads follow transactions: a read takes the rows of all
 * transactions that the last read did not see, so a row that becomes visible late is not missed. Each change is passed
 * on once: lookups after that already include the change.
 */
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import { isObject } from '../base/schema.ts';
import type { Bus } from '../bus/bus.ts';
import { isListOf, isText, isWhole, readMessage } from '../bus/messages.ts';
import type { Queries } from '../postgres/client.ts';
import { isAway } from '../postgres/postgres-error.ts';
import { type OnPoll, SharedPoll } from '../postgres/shared-poll.ts';
import {
  type CredentialChange,
  changesSince,
  isOtherHistory,
  type LoggedChange,
  type LogPlace,
  pruneCredentialChanges,
  readSettled,
  type Settled,
} from './sql/credential-log-store.ts';

/** A change, or 'all' when so much time passed that the log may have lost rows. */
type ChangeHandler = (change: CredentialChange | 'all') => void;

/** A change that the log has. */
type LoggedHandler = (change: LoggedChange) => void;

const channel = 'credentials';

function isChanges(value: unknown): value is LoggedChange[] {
  return isListOf(value, isChange);
}

function isChange(value: unknown): value is LoggedChange {
  if (!isObject(value)) return false;
  const { id, credentialsId, deviceId, deviceNumber, deleted, keepsAccess = true } = value;
  const isNamed = [id, deviceNumber].every(isWhole) && [credentialsId, deviceId].every(isText);
  return isNamed && typeof deleted === 'boolean' && keepsAccess === true;
}

interface CredentialChangesDeps {
  postgres: Queries;
  /** Called when the store answers and this process knows every change. Returns the devices that must be checked. */
  onAnswered?: () => CredentialChange[] | 'all';
  bus: Bus;
  clock: Clock;
  scheduler?: Scheduler;
  log: Log;
  onPoll?: OnPoll;
}

export class CredentialChanges {
  readonly #deps: CredentialChangesDeps;
  readonly #handlers: ChangeHandler[] = [];
  readonly #loggedHandlers: LoggedHandler[] = [];
  /**
   * Changes that were passed on: place in the log → device. The device is needed because a log that went back in time
   * uses its places again, for other devices.
   */
  readonly #passedOn = new FifoMap<number, string>(limits.credentialChangesPassedOnMax);
  #unsubscribe: (() => void) | undefined;
  readonly #poll: SharedPoll;
  /** Undefined until PostgreSQL has answered once. */
  #settled: Settled | undefined;
  #lastPollMs = 0;
  #currentAt = Number.NEGATIVE_INFINITY;
  #prunedMs = 0;
  #pruning: Promise<void> | undefined;
  readonly #stopped = new AbortController();
  /** Devices that must be checked, and were not passed on yet. */
  #unchecked: CredentialChange[] = [];

  constructor(deps: CredentialChangesDeps) {
    this.#deps = deps;
    this.#poll = new SharedPoll(
      {
        kind: 'credentials',
        clock: deps.clock,
        scheduler: deps.scheduler,
        read: () => this.#readNew(),
        onNothing: (at) => this.#noteCurrent(at),
      },
      deps.onPoll,
    );
  }

  onChange(handler: ChangeHandler): void {
    this.#handlers.push(handler);
  }

  /** `handler` receives a change before those of `onChange`, which are also called for devices that must be checked. */
  onLogged(handler: LoggedHandler): void {
    this.#loggedHandlers.push(handler);
  }

  /** Called before the first lookup of a token: later changes are noticed. PostgreSQL may be unavailable. */
  async start(): Promise<void> {
    this.#unsubscribe = await this.#deps.bus.subscribe(channel, (payload) => this.#receive(payload));
    await this.#poll.start();
  }

  async stop(): Promise<void> {
    this.#unsubscribe?.();
    this.#stopped.abort();
    this.#unchecked = [];
    await this.#poll.stop();
    await this.#pruning;
  }

  /** Every change that was committed before this time of the monotonic clock has been passed on. */
  get currentAt(): number {
    return this.#currentAt;
  }

  /**
   * Called after the commit. This process acts before the caller answers, other processes as soon as the bus delivers.
   */
  publish(changes: LoggedChange[]): void {
    for (const change of changes) this.#passOnOnce(change);
    for (let i = 0; i < changes.length; i += limits.changesPerMessageMax) {
      this.#deps.bus.publish(channel, JSON.stringify(changes.slice(i, i + limits.changesPerMessageMax)));
    }
  }

  #receive(payload: Buffer): void {
    // A change in an unreadable message comes from the log in PostgreSQL within a second.
    for (const change of readMessage(payload, isChanges)) this.#passOnOnce(change);
  }

  /** Passes on 'all', because a log that went back in time uses its ids again. */
  #passOnAll(): void {
    this.#passedOn.clear();
    this.#passOn('all');
  }

  #passOnOnce(change: LoggedChange): void {
    if (this.#passedOn.get(change.id) === change.deviceId) return;
    this.#passedOn.set(change.id, change.deviceId);
    for (const handler of this.#loggedHandlers) handler(change);
    this.#passOn(change);
  }

  #passOn(change: CredentialChange | 'all'): void {
    for (const handler of this.#handlers) handler(change);
  }

  /** Returns false when the store did not answer: cached devices stay valid, and the next read continues from here. */
  async #readNew(): Promise<boolean> {
    const { postgres, clock, log } = this.#deps;
    const began = clock.monotonic();
    try {
      const settled = await readSettled(postgres);
      const isLate = clock.monotonic() - this.#lastPollMs > limits.credentialChangesKeptMs / 2;
      const last = this.#settled;
      if (last === undefined || isOtherHistory(settled, last) || isLate) this.#passOnAll();
      else await this.#read(last);
      this.#settled = settled;
      this.#noteCurrent(began);
      this.#prune();
      return true;
    } catch (error) {
      if (!isAway(error)) log.warn('credential_changes_unread', { reason: messageOf(error) });
      return false;
    }
  }

  /** Called when every change that was committed before `at` was passed on. */
  #noteCurrent(at: number): void {
    this.#lastPollMs = Math.max(this.#lastPollMs, at);
    this.#currentAt = Math.max(this.#currentAt, at);
    this.#passOnUnchecked();
  }

  /** Passes on devices that were answered from the file, which may lack a change that this process has received. */
  #passOnUnchecked(): void {
    const doubted = this.#deps.onAnswered?.() ?? [];
    if (doubted === 'all') {
      this.#unchecked = [];
      this.#passOnAll();
      return;
    }
    const isIdle = this.#unchecked.length === 0;
    this.#unchecked.push(...doubted);
    if (isIdle) this.#passOnSomeUnchecked();
  }

  /** Passes on some now and the rest in later turns of the loop: after an outage there may be tens of thousands. */
  #passOnSomeUnchecked(): void {
    for (const change of this.#unchecked.splice(0, limits.credentialChangesRowsMax)) this.#passOn(change);
    const { scheduler = systemScheduler } = this.#deps;
    if (this.#unchecked.length > 0) scheduler.soon(() => this.#passOnSomeUnchecked());
  }

  async #read(place: LogPlace): Promise<void> {
    for await (const { changes } of changesSince(this.#deps.postgres, place, limits.credentialChangesRowsMax)) {
      for (const change of changes) this.#passOnOnce(change);
    }
  }

  /** Runs beside the reads: the delete of a long log takes longer than a change may wait. */
  #prune(): void {
    const { postgres, clock, log } = this.#deps;
    const { credentialChangesKeptMs: keptMs, credentialChangesPrunedMax: rowsMax } = limits;
    if (this.#pruning !== undefined || clock.monotonic() - this.#prunedMs < keptMs / 10) return;
    this.#prunedMs = clock.monotonic();
    this.#pruning = pruneCredentialChanges(postgres, clock.now(), keptMs, rowsMax, this.#stopped.signal)
      .catch((error: unknown) => {
        if (!isAway(error)) log.warn('credential_changes_unpruned', { reason: messageOf(error) });
      })
      .finally(() => {
        this.#pruning = undefined;
      });
  }
}
