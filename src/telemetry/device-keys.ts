/**
 * Limits the distinct telemetry keys of a device, so that no device makes series without end. A worker remembers the
 * hashes of the keys that a device sent to it, and reads the keys that ClickHouse has before it refuses a new key, at
 * most every two seconds. The worker also reads them each time a device has sent a tenth of the limit as new keys. So a
 * device that sends to several workers may exceed the limit by a tenth, or by the keys of one message, for each of
 * them. Keys that a device has above a lowered limit stay. Deleting series makes room for new keys.
 */
import type { LimitedProfile } from '../auth/rate-limits.ts';
import type { Clock } from '../base/clock.ts';
import { Fault, unavailable } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import { hashOf, type Key } from './keys.ts';
import type { Rows } from './rows.ts';

interface DeviceKeysDeps {
  /** The limit of tenants whose profile sets none; 0 = no limit. */
  keysMax: number;
  /** Returns the keys that ClickHouse has of a device, at most so many. Rejects with a Fault. */
  readKeys: (device: number, keysMax: number) => Promise<string[]>;
  clock: Clock;
}

interface LimitedDevice {
  readonly number: number;
  readonly tenantId: string;
}

interface KeyLimit {
  keysMax: number;
  /** The setting, or the member of the profile. */
  source: string;
}

class Known {
  /** Keys of the rows of an accepted message: most messages of a device have the same keys in the same order. */
  usual: Key[] = [];
  /** Hashes of the keys that the device has, as far as this worker knows. */
  keys = new Set<number>();
  /** Keys that were new since the read before the last one began: ClickHouse may not have them yet. */
  recent: number[] = [];
  /** Keys that were new since the last read began. */
  fresh: number[] = [];
  /** Monotonic milliseconds at which the last read began. */
  readAt = Number.NEGATIVE_INFINITY;
  /** True: the keys of ClickHouse are among `keys`. */
  isRead = false;
  isReading = false;
}

export class DeviceKeys {
  /** False while no tenant has a limit: a message then costs this one comparison. */
  isLimiting: boolean;
  readonly #deps: DeviceKeysDeps;
  readonly #ofSetting: KeyLimit;
  #ofTenants: ReadonlyMap<string, KeyLimit> = new Map();
  readonly #devices = new FifoMap<number, Known>(limits.countedKeyDevicesMax);
  /** Keys of all devices. */
  #count = 0;
  #reads = 0;

  constructor(deps: DeviceKeysDeps) {
    this.#deps = deps;
    this.#ofSetting = { keysMax: deps.keysMax, source: 'LIMITS_KEYS_PER_DEVICE' };
    this.isLimiting = deps.keysMax > 0;
  }

  /** Limits the devices of tenants of these profiles by the profiles, and all others by the setting. */
  useProfiles(profiles: readonly LimitedProfile[]): void {
    const ofTenants = new Map<string, KeyLimit>();
    for (const { name, limits: given, tenantIds } of profiles) {
      if (given.keysPerDeviceMax === 0) continue;
      const source = `maxTelemetryKeysPerDevice of tenant profile "${name}"`;
      for (const tenantId of tenantIds) ofTenants.set(tenantId, { keysMax: given.keysPerDeviceMax, source });
    }
    this.#ofTenants = ofTenants;
    this.isLimiting = this.#ofSetting.keysMax > 0 || ofTenants.size > 0;
  }

  /**
   * Called for the decoded rows of a message from `first` on, all of one device. Throws 403 when the device would have
   * too many keys, and 503 while its keys are unknown.
   */
  admit(device: LimitedDevice, rows: Rows, first: number): void {
    if (!this.isLimiting) return;
    const { keysMax, source } = this.#limitOf(device);
    if (keysMax === 0) return;
    const known = this.#known(device.number);
    if (isUsual(known.usual, rows, first)) return;
    const hashes = new Set<number>();
    for (let row = first; row < rows.count; row += 1) {
      const { hash } = rows.keyAt(row);
      if (!known.keys.has(hash)) hashes.add(hash);
    }
    if (hashes.size > 0) this.#add(device.number, known, hashes, keysMax, source);
    known.usual = [];
    const end = Math.min(rows.count, first + limits.countedKeysUsualMax);
    for (let row = first; row < end; row += 1) known.usual.push(rows.keyAt(row));
  }

  /** Does the same for the keys of a message that was decoded in a thread. */
  admitKeys(device: LimitedDevice, keys: readonly Uint8Array[]): void {
    if (!this.isLimiting) return;
    const { keysMax, source } = this.#limitOf(device);
    if (keysMax > 0) this.#add(device.number, this.#known(device.number), new Set(keys.map(hashOf)), keysMax, source);
  }

  #limitOf({ tenantId }: LimitedDevice): KeyLimit {
    return this.#ofTenants.get(tenantId) ?? this.#ofSetting;
  }

  #known(device: number): Known {
    const known = this.#devices.get(device);
    if (known) return known;
    const made = new Known();
    const evicted = this.#devices.set(device, made);
    if (evicted) this.#count -= evicted.keys.size;
    return made;
  }

  #add(device: number, known: Known, hashes: ReadonlySet<number>, keysMax: number, source: string): void {
    const added = [...hashes].filter((hash) => !known.keys.has(hash));
    if (added.length === 0) return;
    if (known.keys.size + added.length > keysMax) {
      this.#read(device, known);
      throw known.isRead && !known.isReading ? tooManyKeys(keysMax, source) : unread();
    }
    for (const hash of added) {
      known.keys.add(hash);
      known.fresh.push(hash);
    }
    this.#count += added.length;
    if (known.fresh.length >= keysMax * limits.countedKeyReadPart) this.#read(device, known);
    this.#evict();
  }

  /** Evicts the oldest devices while all devices have too many keys. */
  #evict(): void {
    while (this.#count > limits.countedKeysMax && this.#devices.size > 1) {
      this.#count -= this.#devices.takeOldest().keys.size;
    }
  }

  /** Reads the keys of ClickHouse, unless that was done lately or many devices are being read. */
  #read(device: number, known: Known): void {
    const now = this.#deps.clock.monotonic();
    const isLate = now - known.readAt >= limits.countedKeyReadMs;
    if (known.isReading || !isLate || this.#reads >= limits.countedKeyReadsMax) return;
    known.isReading = true;
    known.readAt = now;
    known.recent = known.fresh;
    known.fresh = [];
    this.#reads += 1;
    void this.#readKeys(device, known).finally(() => {
      known.isReading = false;
      this.#reads -= 1;
    });
  }

  async #readKeys(device: number, known: Known): Promise<void> {
    let stored: string[];
    try {
      stored = await this.#deps.readKeys(device, limits.countedKeysReadMax);
    } catch (error) {
      if (!(error instanceof Fault)) throw error;
      known.fresh = [...known.recent, ...known.fresh];
      return;
    }
    const before = known.keys.size;
    known.keys = new Set([...stored.map((key) => hashOf(Buffer.from(key))), ...known.recent, ...known.fresh]);
    known.isRead = true;
    if (this.#devices.get(device) === known) this.#count += known.keys.size - before;
  }
}

/** True when the rows have these keys in this order, once or again and again. */
function isUsual(usual: readonly Key[], rows: Rows, first: number): boolean {
  let next = 0;
  for (let row = first; row < rows.count; row += 1) {
    if (rows.keyAt(row) !== usual[next]) return false;
    next = next + 1 === usual.length ? 0 : next + 1;
  }
  return true;
}

function tooManyKeys(keysMax: number, source: string): Fault {
  const fault = new Fault('device_keys', `Telemetry keys limit reached: a device may have ${keysMax} (${source}).`);
  fault.members = { entityType: 'TELEMETRY_KEY', limit: keysMax };
  return fault;
}

function unread(): Fault {
  return unavailable('device_keys_unread', 'The telemetry keys of this device are being counted; send again.');
}
