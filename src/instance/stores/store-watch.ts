/**
 * Watches the stores for the primary: pings each one twice a second, and brings its schema up to date at its first
 * answer, even if that is late. An unavailable store is a state with a reason and never ends the service. Before
 * `enterService` a wrong setting (a refused password, an unknown database, a newer schema) makes `begun` throw.
 * Afterwards the wrong setting is an ordinary reason, because known devices are served.
 */
import { causeMessageOf, messageOf, type StartError } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import { systemScheduler } from '../../base/scheduler.ts';
import type { PartState } from '../health/state.ts';

export interface WatchedStore {
  /** A further shard is `clickhouse-1` and so on. */
  name: 'clickhouse' | 'postgres' | 'redis' | `clickhouse-${number}`;
  /** The title in messages, as `PostgreSQL at db:5432`. */
  title: string;
  /** Rejects with the reason when the store does not answer. */
  ping(): Promise<void>;
  /** Brings the schema up to date; may be called again after a failure. */
  prepare(): Promise<void>;
  /** The error that says that a setting is wrong, in one line; undefined when a later try may succeed. */
  configurationError(error: unknown): StartError | undefined;
  /** True for a failure of `prepare` that is not of the store, and that another part reports. */
  isReported?(error: unknown): boolean;
  /** A sentence to add to the reason of an absence. */
  note?(): string | undefined;
}

interface StoreWatchDeps {
  stores: WatchedStore[];
  log: Log;
  onChange: () => void;
}

interface Watched {
  store: WatchedStore;
  state: PartState;
  reason: string | undefined;
  prepared: boolean;
  /** The number of failed tries to prepare in a row. */
  failures: number;
  /** The monotonic time of the next try. */
  notBeforeMs: number;
  awaySinceMs: number;
}

export class StoreWatch {
  readonly #deps: StoreWatchDeps;
  readonly #watched: Watched[];
  readonly #loops: Promise<void>[] = [];
  #refusal: StartError | undefined;
  #serving = false;
  readonly #waiting = new Set<() => void>();
  readonly #ending = new AbortController();

  constructor(deps: StoreWatchDeps) {
    this.#deps = deps;
    this.#watched = deps.stores.map((store) => ({
      store,
      state: 'starting',
      reason: undefined,
      prepared: false,
      failures: 0,
      notBeforeMs: 0,
      awaySinceMs: performance.now(),
    }));
  }

  /**
   * Resolves when every store is prepared or certainly unavailable, at the latest after `msMax`; with `needed`, not
   * before that store is prepared. Rejects when a setting is wrong.
   */
  async begin(msMax: number, needed?: WatchedStore['name'], onMissing?: (reason: string) => void): Promise<void> {
    const deadline = performance.now() + msMax;
    for (const watched of this.#watched) this.#loops.push(this.#watch(watched));
    let saidMissing = false;
    for (;;) {
      if (this.#refusal) throw this.#refusal;
      const missing = this.#watched.find(({ store, prepared }) => store.name === needed && !prepared);
      const isLate = performance.now() >= deadline;
      if (!missing && (isLate || this.#watched.every(({ state }) => state !== 'starting'))) return;
      if (missing?.reason !== undefined && !saidMissing) {
        saidMissing = true;
        onMissing?.(missing.reason);
      }
      await this.#changed(missing ? limits.storeCheckMs : deadline - performance.now());
    }
  }

  /** From this call on no store ends the service. */
  enterService(): void {
    this.#serving = true;
  }

  /** A running migration continues in the database: the next start finds its result. */
  async stop(): Promise<void> {
    this.#ending.abort();
    await Promise.race([Promise.all(this.#loops), systemScheduler.sleep(stopMsMax)]);
  }

  get parts(): Record<string, PartState> {
    return Object.fromEntries(this.#watched.map(({ store, state }) => [store.name, state]));
  }

  /** 1 = the store answers and is prepared, 0 = not. */
  up(name: WatchedStore['name']): number {
    return this.#watched.some(({ store, state }) => store.name === name && state === 'up') ? 1 : 0;
  }

  get reasons(): string[] {
    return this.#watched.flatMap(({ store, reason }) => (reason === undefined ? [] : withNote(store, reason)));
  }

  isPrepared(name: WatchedStore['name']): boolean {
    return this.#watched.some(({ store, prepared }) => store.name === name && prepared);
  }

  async #watch(watched: Watched): Promise<void> {
    const { signal } = this.#ending;
    while (!signal.aborted) {
      await this.#check(watched);
      await systemScheduler.sleep(limits.storeCheckMs, signal);
    }
  }

  async #check(watched: Watched): Promise<void> {
    const { store } = watched;
    try {
      await store.ping();
    } catch (error) {
      this.#fail(watched, `${store.title} does not answer`, error);
      return;
    }
    if (watched.prepared) {
      this.#set(watched, 'up', undefined);
      return;
    }
    if (performance.now() < watched.notBeforeMs) return;
    try {
      await store.prepare();
    } catch (error) {
      watched.failures += 1;
      const pauseMs = Math.min(limits.storeCheckMs * 2 ** (watched.failures - 1), limits.storePrepareMsMax);
      watched.notBeforeMs = performance.now() + pauseMs;
      if (store.isReported?.(error) === true) this.#setReported(watched, error);
      else this.#fail(watched, `${store.title} cannot be used yet`, error);
      return;
    }
    watched.prepared = true;
    this.#set(watched, 'up', undefined);
  }

  /** The store answers, and is not in use yet. */
  #setReported(watched: Watched, error: unknown): void {
    if (this.#ending.signal.aborted) return;
    this.#refuse(watched, error);
    if (watched.state === 'away')
      this.#deps.log.info('store_back', { store: watched.store.name, awayMs: awayMsOf(watched) });
    watched.state = 'starting';
    watched.reason = undefined;
    this.#deps.onChange();
  }

  /** Ends a start when the error says that a setting is wrong. Returns what the error says then. */
  #refuse(watched: Watched, error: unknown): StartError | undefined {
    const refusal = watched.store.configurationError(error);
    if (refusal && !this.#serving) {
      this.#refusal = refusal;
      this.#signal();
    }
    return refusal;
  }

  #fail(watched: Watched, what: string, error: unknown): void {
    if (this.#ending.signal.aborted) return;
    const refusal = this.#refuse(watched, error);
    const cause = refusal ? messageOf(refusal) : causeMessageOf(error);
    this.#set(watched, 'away', cause.startsWith(watched.store.title) ? cause : `${what}: ${cause}`);
  }

  /** Logs one line for each change, however often the store is pinged. */
  #set(watched: Watched, state: PartState, reason: string | undefined): void {
    const { log, onChange } = this.#deps;
    const { store, state: former, reason: formerReason } = watched;
    if (state === former && reason === formerReason) return;
    watched.state = state;
    watched.reason = reason;
    if (state === 'up') {
      if (formerReason !== undefined) log.info('store_back', { store: store.name, awayMs: awayMsOf(watched) });
    } else {
      if (former === 'up') watched.awaySinceMs = performance.now();
      // One warning for each absence; its reason may change meanwhile, as from a broken connection to a refused one.
      log[former === 'away' ? 'info' : 'warn']('store_away', { store: store.name, reason: withNote(store, reason) });
    }
    onChange();
    this.#signal();
  }

  /** Resolves at the next change of any store, at the latest after `msMax`. */
  #changed(msMax: number): Promise<void> {
    return new Promise((resolve) => {
      const end = () => {
        stopTimer();
        this.#waiting.delete(end);
        resolve();
      };
      const stopTimer = systemScheduler.after(Math.max(0, msMax), end);
      this.#waiting.add(end);
    });
  }

  #signal(): void {
    for (const end of [...this.#waiting]) end();
  }
}

function awayMsOf({ awaySinceMs }: Watched): number {
  return Math.round(performance.now() - awaySinceMs);
}

function withNote(store: WatchedStore, reason = ''): string {
  const note = store.note?.();
  return note === undefined ? reason : `${reason}. ${note}`;
}

const stopMsMax = 2_000;
