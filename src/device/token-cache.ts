/**
 * Finds the device of an access token for every request. A hit is one synchronous Map read. Misses of the same tick,
 * and those during a query, share one SQL query. Unknown tokens are remembered for a few seconds. Entries do not
 * expire: `CredentialChanges` removes changed ones. While PostgreSQL is unavailable, cached devices stay valid and
 * others are searched in the file of known devices. A device that is not found then gets 503, never 401, because it may
 * exist.
 */
import { Batches } from '../base/batches.ts';
import type { Clock } from '../base/clock.ts';
import { Fault, unavailable } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import type { CachedDevice, DeviceRow } from './cached-device.ts';
import type { LocalDevices } from './local-devices.ts';

/** Returns the devices of the tokens that exist. */
export type LookUpTokens = (tokens: string[]) => Promise<Map<string, DeviceRow>>;

/** Answers while the store is unavailable: `KnownDevices`. */
export interface TokensAlone {
  readonly isAlone: boolean;
  storeFailed(): void;
  /** Never rejects. */
  tokens(tokens: string[]): Promise<Map<string, DeviceRow>>;
}

export interface TokenCacheLimits {
  tokenCacheMax: number;
  unknownTokenCacheMax: number;
  unknownTokenMs: number;
  tokenLookupQueueMax: number;
  tokenLookupBatchMax: number;
  tokenLookupTimeoutMs: number;
  tokenCharsMax: number;
}

class Pending {
  readonly token: string;
  readonly promise: Promise<CachedDevice | null>;
  resolve!: (device: CachedDevice | null) => void;
  reject!: (fault: Fault) => void;
  /**
   * True when the token changed while the query ran: the waiters get the answer, which may be outdated, but it is not
   * cached.
   */
  changed = false;

  constructor(token: string) {
    this.token = token;
    this.promise = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
    // A failure reaches the waiters. Without waiters an unhandled rejection would end the process.
    this.promise.catch(() => {});
  }
}

export class TokenCache {
  readonly #lookUp: LookUpTokens;
  readonly #limits: TokenCacheLimits;
  readonly #here: LocalDevices;
  readonly #clock: Clock;
  readonly #alone: TokensAlone | undefined;
  readonly #devices: FifoMap<string, CachedDevice>;
  /** Unknown token → monotonic time until which it is not looked up. */
  readonly #unknown: FifoMap<string, number>;
  readonly #pending = new Map<string, Pending>();
  #queue: Pending[] = [];
  readonly #batches = new Batches(
    () => this.#queue.length > 0,
    () => this.#runBatch(),
  );

  constructor(lookUp: LookUpTokens, limits: TokenCacheLimits, here: LocalDevices, clock: Clock, alone?: TokensAlone) {
    this.#lookUp = lookUp;
    this.#alone = alone;
    this.#limits = limits;
    this.#devices = new FifoMap(limits.tokenCacheMax);
    this.#unknown = new FifoMap(limits.unknownTokenCacheMax);
    this.#here = here;
    this.#clock = clock;
  }

  get size(): number {
    return this.#devices.size;
  }

  get waiting(): number {
    return this.#pending.size;
  }

  get(token: string): CachedDevice | undefined {
    return this.#devices.get(token);
  }

  /** Null: no device has this token. Throws a 503 fault when the store cannot be read. */
  lookup(token: string): Promise<CachedDevice | null> {
    const device = this.#devices.get(token);
    if (device) return Promise.resolve(device);
    if (!this.#mayExist(token)) return Promise.resolve(null);
    const known = this.#pending.get(token);
    if (known) return known.promise;
    if (this.#pending.size >= this.#limits.tokenLookupQueueMax) {
      return Promise.reject(unavailable('token_lookup_queue', 'Too many unknown devices at once; try again.'));
    }
    const pending = new Pending(token);
    this.#pending.set(token, pending);
    this.#queue.push(pending);
    this.#batches.wake();
    return pending.promise;
  }

  /** Called when the credentials `token` or their device were created, changed or deleted. */
  invalidate(token: string): void {
    this.#unknown.delete(token);
    const pending = this.#pending.get(token);
    if (pending) pending.changed = true;
    const device = this.#devices.get(token);
    if (!device) return;
    this.#devices.delete(token);
    this.#here.release(device);
  }

  /** Called when any device may have changed. */
  clear(): void {
    for (const device of this.#devices.values()) this.#here.release(device);
    this.#devices.clear();
    this.#unknown.clear();
    for (const pending of this.#pending.values()) pending.changed = true;
  }

  #mayExist(token: string): boolean {
    // PostgreSQL takes no NUL in a string: one such token would fail the lookup of the whole batch.
    if (token === '' || token.length > this.#limits.tokenCharsMax || token.includes('\0')) return false;
    const until = this.#unknown.get(token);
    if (until === undefined) return true;
    if (until > this.#clock.monotonic()) return false;
    this.#unknown.delete(token);
    return true;
  }

  async #runBatch(): Promise<void> {
    const batch = this.#queue.splice(0, this.#limits.tokenLookupBatchMax);
    // A server that never answers would delay each batch until its timeout.
    if (this.#alone?.isAlone) return await this.#settleAlone(batch, lookUpFailed);
    try {
      const rows = await this.#lookUpInTime(batch.map((pending) => pending.token));
      for (const pending of batch) this.#settle(pending, rows.get(pending.token));
    } catch (error) {
      this.#alone?.storeFailed();
      await this.#settleAlone(batch, error instanceof Fault && error.status === 503 ? error : lookUpFailed);
    }
  }

  async #settleAlone(batch: Pending[], fault: Fault): Promise<void> {
    const rows = await this.#alone?.tokens(batch.map((pending) => pending.token));
    for (const pending of batch) {
      const row = rows?.get(pending.token);
      if (row) {
        this.#settle(pending, row);
      } else {
        this.#pending.delete(pending.token);
        pending.reject(fault);
      }
    }
  }

  #lookUpInTime(tokens: string[]): Promise<Map<string, DeviceRow>> {
    const { tokenLookupTimeoutMs } = this.#limits;
    return new Promise((resolve, reject) => {
      const expire = () => reject(unavailable('token_lookup_timeout', 'The lookup of the device took too long.'));
      const timer = setTimeout(expire, tokenLookupTimeoutMs);
      this.#lookUp(tokens)
        .then(resolve, reject)
        .finally(() => clearTimeout(timer));
    });
  }

  #settle(pending: Pending, row: DeviceRow | undefined): void {
    this.#pending.delete(pending.token);
    const device = row ? this.#here.adopt(row) : null;
    if (pending.changed) {
      // The waiters adopt the device first, in microtasks of this turn.
      if (device) setImmediate(() => this.#here.release(device));
    } else if (device) {
      const evicted = this.#devices.set(pending.token, device);
      if (evicted) this.#here.release(evicted);
    } else {
      this.#unknown.set(pending.token, this.#clock.monotonic() + this.#limits.unknownTokenMs);
    }
    pending.resolve(device);
  }
}

const lookUpFailed = unavailable('token_lookup', 'Devices cannot be looked up at the moment; try again.');
