/**
 * Notifies this process of credentials that changed on any host: at once over the bus, and at the latest a second later
 * from the log in PostgreSQL, because the bus may lose a message. Reads follow transactions: rows whose transaction was
 * not settled at the last read are read again, so a row that becomes visible late is not missed. Each change is handed
 * over once: what was looked up after the first time already includes the change.
 */
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Bus } from '../bus/bus.ts';
import { isListOf, isObject, isText, isWhole, readMessage } from '../bus/messages.ts';
import type { Queries } from '../postgres/client.ts';
import {
  type CredentialChange,
  type LoggedChange,
  pruneCredentialChanges,
  readCredentialChanges,
  settledTransaction,
} from './store.ts';

/** A change, or 'all' when so much time passed that the log may have lost rows. */
export type ChangeHandler = (change: CredentialChange | 'all') => void;

const channel = 'credentials';

function isChanges(value: unknown): value is LoggedChange[] {
  return isListOf(value, isChange);
}

function isChange(value: unknown): value is LoggedChange {
  if (!isObject(value)) return false;
  const { id, credentialsId, deviceId, deviceNumber, deleted } = value;
  return [id, deviceNumber].every(isWhole) && [credentialsId, deviceId].every(isText) && typeof deleted === 'boolean';
}

export interface CredentialChangesDeps {
  postgres: Queries;
  /** Called when the store answers and this process knows every change: gives the devices to be checked there. */
  onAnswered?: () => CredentialChange[] | 'all';
  bus: Bus;
  clock: Clock;
  log: Log;
}

export class CredentialChanges {
  readonly #deps: CredentialChangesDeps;
  readonly #handlers: ChangeHandler[] = [];
  /** The last ones: place in the log → device, as another installation on the same Redis has a log of its own. */
  readonly #told = new FifoMap<number, string>(limits.credentialChangesToldMax);
  #unsubscribe: (() => void) | undefined;
  #timer: NodeJS.Timeout | undefined;
  #polling: Promise<void> | undefined;
  /** Undefined until Postgres has answered once. */
  #settled: bigint | undefined;
  #lastPollMs = 0;
  #currentAt = Number.NEGATIVE_INFINITY;
  #prunedMs = 0;
  #stopped = false;

  constructor(deps: CredentialChangesDeps) {
    this.#deps = deps;
  }

  onChange(handler: ChangeHandler): void {
    this.#handlers.push(handler);
  }

  /** Called before the first look-up of a token: later changes are noticed. PostgreSQL may be unavailable. */
  async start(): Promise<void> {
    this.#unsubscribe = await this.#deps.bus.subscribe(channel, (payload) => this.#receive(payload));
    await this.#poll();
    this.#schedule();
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    clearTimeout(this.#timer);
    this.#unsubscribe?.();
    await this.#polling;
  }

  /** Every change that was committed before this moment of the monotonic clock has been passed on. */
  get currentAt(): number {
    return this.#currentAt;
  }

  /**
   * Called after the commit. This process acts before the caller answers, other processes as soon as the bus delivers.
   */
  publish(changes: LoggedChange[]): void {
    for (const change of changes) this.#tellOnce(change);
    for (let i = 0; i < changes.length; i += limits.changesPerMessageMax) {
      this.#deps.bus.publish(channel, JSON.stringify(changes.slice(i, i + limits.changesPerMessageMax)));
    }
  }

  #receive(payload: Buffer): void {
    // A change in an unreadable message comes from the log in PostgreSQL within a second.
    for (const change of readMessage(payload, isChanges)) this.#tellOnce(change);
  }

  /** A log that went back in time uses its ids again. */
  #tellAll(): void {
    this.#told.clear();
    this.#tell('all');
  }

  #tellOnce(change: LoggedChange): void {
    if (this.#told.get(change.id) === change.deviceId) return;
    this.#told.set(change.id, change.deviceId);
    this.#tell(change);
  }

  #tell(change: CredentialChange | 'all'): void {
    for (const handler of this.#handlers) handler(change);
  }

  #schedule(): void {
    if (this.#stopped) return;
    this.#timer = setTimeout(() => {
      this.#polling = this.#poll().finally(() => this.#schedule());
    }, limits.credentialPollMs);
  }

  async #poll(): Promise<void> {
    const { postgres, clock, log } = this.#deps;
    const began = clock.monotonic();
    try {
      const settled = await settledTransaction(postgres);
      const isLate = clock.monotonic() - this.#lastPollMs > limits.credentialChangesKeptMs / 2;
      // A store that went back in time was restored, or another server took over.
      if (this.#settled === undefined || settled < this.#settled || isLate) this.#tellAll();
      else await this.#read(this.#settled);
      this.#settled = settled;
      this.#lastPollMs = clock.monotonic();
      this.#tellDoubted();
      this.#currentAt = began;
      await this.#prune();
    } catch (error) {
      // Known devices go on as they are; the next poll continues from here.
      log.warn('credential_changes_unread', { reason: messageOf(error) });
    }
  }

  /** Answers that came from the file may be older than a change that this process has received. */
  #tellDoubted(): void {
    const doubted = this.#deps.onAnswered?.() ?? [];
    if (doubted === 'all') this.#tellAll();
    else for (const change of doubted) this.#tell(change);
  }

  async #read(settled: bigint): Promise<void> {
    for (let id = 0; ; ) {
      const rows = await readCredentialChanges(this.#deps.postgres, settled, id, limits.credentialChangesRowsMax);
      for (const row of rows) this.#tellOnce(row);
      if (rows.length < limits.credentialChangesRowsMax) return;
      id = rows.at(-1)!.id;
    }
  }

  async #prune(): Promise<void> {
    const { postgres, clock } = this.#deps;
    if (clock.monotonic() - this.#prunedMs < limits.credentialChangesKeptMs / 10) return;
    this.#prunedMs = clock.monotonic();
    await pruneCredentialChanges(postgres, clock.now() - limits.credentialChangesKeptMs);
  }
}
