/**
 * Finds the device of an access token for every request. A device that sent lately is found at once in
 * `RecentDevices`; any other known device is made from its record in `DeviceTable`, in about two microseconds. Misses
 * of the same tick, and those during a query, share one SQL query. Unknown tokens are remembered for a few seconds.
 * Entries do not expire: `CredentialChanges` removes changed ones. `FleetLoad` adds all devices after a start. While
 * PostgreSQL is unavailable, known devices stay valid and others are searched in the file of known devices. A device
 * that is not found then gets 503, never 401, because it may exist.
 */
import { Batches } from '../base/batches.ts';
import type { Clock } from '../base/clock.ts';
import { assert, Fault, unavailable } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { systemScheduler } from '../base/scheduler.ts';
import type { LocalDevices } from './local-devices.ts';
import { CachedDevice, type DeviceRow } from './model/cached-device.ts';
import { RecentDevices } from './recent-devices.ts';
import { DeviceTable, type Digest, type EncodedDevice } from './table/device-table.ts';
import { TokenDigest } from './table/token-digest.ts';

/** Returns the devices of the tokens that exist. */
type LookUpTokens = (tokens: string[]) => Promise<Map<string, DeviceRow>>;

/** Answers while the store is unavailable: `KnownDevices`. */
interface TokensWithoutStore {
  readonly isStoreUnavailable: boolean;
  storeFailed(): void;
  /** Never rejects. */
  tokens(tokens: string[]): Promise<Map<string, DeviceRow>>;
  /** Called for an answer that the store must confirm when it is back. */
  doubt(credentialsId: string, row: DeviceRow): void;
}

/** Computes the digest of a token under the key of a file. */
type DigestOfFile = (token: string) => Digest;

interface TokenCacheLimits {
  tokenCacheMax: number;
  recentDevicesMax: number;
  unknownTokenCacheMax: number;
  unknownTokenMs: number;
  tokenLookupQueueMax: number;
  tokenLookupBatchMax: number;
  tokenLookupTimeoutMs: number;
  tokenCharsMax: number;
}

/**
 * Where a device would take the place of one that sent lately, only one in this many devices that are made from their
 * records does so. So devices that send often stay, and a large fleet in random order makes no garbage in the old
 * generation.
 */
const keptOfMade = 8;

/** Parts of the table, of 4 096, that one step of `unload` covers. */
const unloadedParts = 4;

class Pending {
  readonly token: string;
  readonly promise: Promise<CachedDevice | null>;
  resolve!: (device: CachedDevice | null) => void;
  reject!: (fault: Fault) => void;
  /** True when the token changed while the query ran: the answer may be outdated and is not cached. */
  changed = false;
  /** The outdated answer: the store is asked once more, so that a new device is remembered. Null: no device. */
  outdated: DeviceRow | null | undefined;

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
  readonly #withoutStore: TokensWithoutStore | undefined;
  /** The devices that sent lately. */
  readonly #recent: RecentDevices;
  /** The number of devices that were made from their records. */
  #made = 0;
  /** All devices by the digest of this process. A device of the file has the file's digest until its first request. */
  #table: DeviceTable;
  readonly #digest: TokenDigest;
  #digestOfFile: DigestOfFile | undefined;
  /** False while the devices of the file may lack changes: then none of them is found. */
  #isLoaded = false;
  /** Unknown token → monotonic time until which it is not looked up. */
  readonly #unknown: FifoMap<string, number>;
  readonly #pending = new Map<string, Pending>();
  #queue: Pending[] = [];
  readonly #batches = new Batches(
    () => this.#queue.length > 0,
    () => this.#runBatch(),
  );

  constructor(
    lookUp: LookUpTokens,
    limits: TokenCacheLimits,
    here: LocalDevices,
    clock: Clock,
    withoutStore?: TokensWithoutStore,
  ) {
    this.#lookUp = lookUp;
    this.#withoutStore = withoutStore;
    this.#limits = limits;
    this.#recent = new RecentDevices(limits.recentDevicesMax);
    this.#table = new DeviceTable(limits.tokenCacheMax);
    this.#digest = new TokenDigest(limits.tokenCharsMax);
    this.#unknown = new FifoMap(limits.unknownTokenCacheMax);
    this.#here = here;
    this.#clock = clock;
  }

  /** The number of devices that are known. */
  get size(): number {
    return this.#table.size;
  }

  /** Bytes of the table of known devices. */
  get byteSize(): number {
    return this.#table.byteSize;
  }

  get waiting(): number {
    return this.#pending.size;
  }

  /** Returns a device that this worker has served since its load. */
  get(token: string): CachedDevice | undefined {
    const recent = this.#recent.get(token);
    if (recent !== undefined) return recent;
    const table = this.#table;
    if (table.size === 0 || !this.#digest.of(token)) return undefined;
    const place = table.find(this.#digest);
    return place === 0 ? undefined : this.#make(token, place);
  }

  /** False when `first` finds nothing. */
  get hasUnserved(): boolean {
    return this.#isLoaded && this.#table.loaded > 0;
  }

  /**
   * Returns a loaded device that `get` has not found, at its first request: from now on `get` finds the device. The
   * caller has checked the address of the sender, and notes it.
   */
  first(token: string): CachedDevice | undefined {
    const table = this.#table;
    if (!this.hasUnserved || !this.#digest.of(token)) return undefined;
    const place = table.find(this.#digestOfFile!(token));
    return place === 0 ? undefined : this.#make(token, table.adopt(place, this.#digest));
  }

  /** Null: no device has this token. Throws a 503 fault when the store cannot be read. */
  lookup(token: string): Promise<CachedDevice | null> {
    const device = this.get(token) ?? this.first(token);
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
    const device = this.#recent.take(token);
    if (device) this.#here.release(device);
    if (this.#table.size === 0) return;
    if (this.#digest.of(token)) this.#table.remove(this.#digest);
    this.forgetLoaded(token);
  }

  /** Called when any device may have changed. Ends a load. */
  clear(): void {
    for (const device of this.#recent.takeAll()) this.#here.release(device);
    this.#table = new DeviceTable(this.#limits.tokenCacheMax);
    this.#digestOfFile = undefined;
    this.#isLoaded = false;
    this.#unknown.clear();
    for (const pending of this.#pending.values()) pending.changed = true;
  }

  /** Begins a load of devices from a file with digests of its own. No device of an earlier load is left. */
  beginLoad(digestOfFile: DigestOfFile): void {
    assert(this.#table.loaded === 0, 'one load at a time');
    this.#digestOfFile = digestOfFile;
    this.#isLoaded = false;
  }

  /** Adds a device of the file, or replaces the one with this digest. Requests find the device after `endLoad`. */
  load(digest: Digest, device: EncodedDevice): void {
    this.#table.load(digest, device);
  }

  /** Removes a device of the file by the file's digest. */
  forget(digest: Digest): void {
    this.#table.remove(digest);
  }

  /** Removes the device that the file has for this token. */
  forgetLoaded(token: string): void {
    if (this.#digestOfFile !== undefined && this.#table.loaded > 0) this.#table.remove(this.#digestOfFile(token));
  }

  /** Called when the devices of the file have all changes that were committed before this call began. */
  endLoad(): void {
    this.#isLoaded = true;
  }

  /** Removes the devices of a load that failed, in steps. Returns the next step, or undefined after the last one. */
  unload(step: number): number | undefined {
    this.#isLoaded = false;
    return this.#table.unload(step, unloadedParts);
  }

  /** Makes the device from its record. */
  #make(token: string, place: number): CachedDevice {
    const row = this.#table.row(place);
    this.#made += 1;
    if (this.#recent.isSetFull && this.#made % keptOfMade !== 0) return new CachedDevice(row);
    const device = this.#here.adopt(row);
    this.#keep(token, device);
    return device;
  }

  #keep(token: string, device: CachedDevice): void {
    const evicted = this.#recent.set(token, device);
    if (evicted) this.#here.release(evicted);
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
    if (this.#withoutStore?.isStoreUnavailable) return await this.#settleWithoutStore(batch, lookUpFailed);
    try {
      const rows = await this.#lookUpInTime(batch.map((pending) => pending.token));
      for (const pending of batch) this.#answer(pending, rows.get(pending.token));
    } catch (error) {
      this.#withoutStore?.storeFailed();
      await this.#settleWithoutStore(batch, error instanceof Fault && error.status === 503 ? error : lookUpFailed);
    }
  }

  #answer(pending: Pending, row: DeviceRow | undefined): void {
    if (!pending.changed || pending.outdated !== undefined) {
      this.#settle(pending, row);
      return;
    }
    pending.outdated = row ?? null;
    pending.changed = false;
    this.#queue.push(pending);
  }

  async #settleWithoutStore(batch: Pending[], fault: Fault): Promise<void> {
    const rows = await this.#withoutStore?.tokens(batch.map((pending) => pending.token));
    for (const pending of batch) {
      const { token, outdated } = pending;
      const row = rows?.get(token) ?? outdated;
      // The change has been passed on, and would not be passed on again.
      if (row && row === outdated) this.#withoutStore?.doubt(token, row);
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
      const stopTimer = systemScheduler.after(tokenLookupTimeoutMs, expire);
      this.#lookUp(tokens).then(resolve, reject).finally(stopTimer);
    });
  }

  #settle(pending: Pending, row: DeviceRow | undefined): void {
    this.#pending.delete(pending.token);
    const device = row ? this.#here.adopt(row) : null;
    if (pending.changed) {
      // The waiters adopt the device first, in microtasks of this turn.
      if (device) systemScheduler.soon(() => this.#here.release(device));
    } else if (row && device) {
      if (this.#digest.of(pending.token)) this.#table.set(this.#digest, row);
      this.#keep(pending.token, device);
    } else {
      this.#unknown.set(pending.token, this.#clock.monotonic() + this.#limits.unknownTokenMs);
    }
    pending.resolve(device);
  }
}

const lookUpFailed = unavailable('token_lookup', 'Devices cannot be looked up at the moment; try again.');
