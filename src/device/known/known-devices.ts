/**
 * Answers for devices while PostgreSQL is unavailable: tokens, logins and names of gateways' devices, from the file
 * that the primary writes. The file is read at the first need: streamed once into an index of 12 bytes an entry; later
 * appends are read before each further answer. Answers from the file are compared with the store when the store is
 * back, because the file may lack the changes of the last second. A device that changed after the file was written is
 * not found: the bus may pass on changes of other hosts while this host alone has no store.
 */
import { timingSafeEqual } from 'node:crypto';
import type { Clock } from '../../base/clock.ts';
import { messageOf } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Log } from '../../base/log.ts';
import type { Metrics } from '../../base/metrics/metrics.ts';
import { type Disk, type DiskFile, realDisk } from '../../journal/disk.ts';
import type { DeviceRow } from '../model/cached-device.ts';
import { type ProfileTopics, topicsOf } from '../model/profile-topics.ts';
import type { CredentialChange } from '../sql/credential-log-store.ts';
import { ChangedDevices } from './changed-devices.ts';
import { DigestIndex } from './digest-index.ts';
import {
  blockHeadBytes,
  Digester,
  decodeBlockHead,
  decodeDevice,
  decodeHeader,
  decodeProfile,
  decodeRecordHead,
  digestOffset,
  endBytesMax,
  headerBytes,
  isDamagedEnd,
  isWholeBlock,
  type KnownDevice,
  nameDigestOffset,
  readAt,
  recordBytesMax,
} from './known-devices-file.ts';

interface KnownDevicesDeps {
  path: string;
  clock: Clock;
  log: Log;
  metrics: Metrics;
  disk?: Disk;
}

/** Credentials that were found, without the secret that a sign-in is compared with. */
export interface FoundLogin {
  device: KnownDevice;
  topics: ProfileTopics | undefined;
  isNamed(clientId: string | null, userName: string | null): boolean;
  isPassword(password: Buffer): boolean;
}

interface Loaded {
  file: DiskFile;
  key: Buffer;
  digester: Digester;
  /** Digest of credentials → offset of the newest record. */
  credentials: DigestIndex;
  names: DigestIndex;
  profiles: Map<string, { transportType: KnownDevice['transportType']; topics: ProfileTopics | undefined }>;
  /** The file has all changes that were committed before this time. */
  at: number;
  /** That of the last block. */
  base: number;
  bytes: number;
  /** Calls that are reading records. A dropped file is closed after the last of these calls. */
  readers: number;
  dropped: boolean;
}

export class KnownDevices {
  readonly #deps: KnownDevicesDeps;
  readonly #disk: Disk;
  readonly #answers;
  #loaded: Loaded | undefined;
  #loading: Promise<Loaded | undefined> | undefined;
  #checkedMs = Number.NEGATIVE_INFINITY;
  #isDamaged = false;
  /** True when the store has answered since the file was read: changes were possible. */
  #mayHaveChanged = true;
  #isStoreUnavailable = false;
  /** Device and its credentials, '' = its name → a change to check, because the store was not there to ask. */
  readonly #answered = new Map<string, CredentialChange>();
  #answeredTooMany = false;
  /** Devices whose changes this process received, until the file surely has the changes. */
  readonly #changed = new ChangedDevices();

  constructor(deps: KnownDevicesDeps) {
    this.#deps = deps;
    this.#disk = deps.disk ?? realDisk;
    const help = 'Devices found in the file of known devices while PostgreSQL did not answer.';
    this.#answers = deps.metrics.counter('known_devices_answers_total', help);
  }

  /** True when the store did not answer recently: the file answers, and the store is not asked. */
  get isStoreUnavailable(): boolean {
    return this.#isStoreUnavailable;
  }

  /** Called when a lookup failed because the store does not answer. */
  storeFailed(): void {
    this.#isStoreUnavailable = true;
  }

  /** Called when a device or its credentials changed. The file may lack the change. */
  changed(device: number): void {
    this.#changed.add(device, this.#deps.clock.now());
  }

  /**
   * Called when the store answers and this process knows all changes of credentials. Returns the devices that must be
   * checked, each by what it was asked for.
   */
  storeAnswers(): CredentialChange[] | 'all' {
    this.#isStoreUnavailable = false;
    this.#mayHaveChanged = true;
    // The primary has had time to write the older changes.
    this.#changed.forgetOld(this.#deps.clock.now());
    // Frees the index; another outage reads the file again.
    if (this.#loaded && !this.#loading && this.#deps.clock.monotonic() - this.#checkedMs > limits.knownKeptMs) {
      this.#drop().catch(() => {});
    }
    const answered = this.#answeredTooMany ? 'all' : [...this.#answered.values()];
    this.#answeredTooMany = false;
    this.#answered.clear();
    return answered;
  }

  /** Notes an answer that was read from the store before a change: the device is checked with those of the file. */
  doubt(credentialsId: string, row: DeviceRow): void {
    const asked = `${row.number} ${credentialsId}`;
    if (this.#answered.size >= limits.knownAnsweredMax && !this.#answered.has(asked)) {
      this.#answeredTooMany = true;
      return;
    }
    this.#answered.set(asked, { credentialsId, deviceId: row.id, deviceNumber: row.number, deleted: false });
  }

  async close(): Promise<void> {
    await this.#loading;
    await this.#drop();
  }

  /** Returns the devices of the access tokens that are known. Never rejects. */
  async tokens(tokens: string[]): Promise<Map<string, DeviceRow>> {
    const found = await this.#find(tokens);
    const rows = new Map<string, DeviceRow>();
    for (const [token, { device }] of found) {
      if (device.type !== 'ACCESS_TOKEN') continue;
      this.#note(token, device);
      rows.set(token, device.row);
    }
    return rows;
  }

  /** Returns the credentials of the ids that are known. Never rejects. */
  async logins(credentialsIds: string[]): Promise<Map<string, FoundLogin>> {
    const found = await this.#find(credentialsIds);
    for (const [id, { device }] of found) this.#note(id, device);
    return found;
  }

  /** Returns the devices of a tenant by name. Never rejects. */
  async names(tenantId: string, names: string[]): Promise<Map<string, DeviceRow>> {
    const rows = new Map<string, DeviceRow>();
    const loaded = await this.#current();
    if (!loaded) return rows;
    await reading(loaded, () =>
      names.map(async (name) => {
        const digest = loaded.digester.name(tenantId, name);
        const device = await this.#read(loaded, loaded.names, digest);
        if (!device?.nameDigest.equals(digest)) return;
        this.#note('', device);
        rows.set(name, device.row);
      }),
    );
    return rows;
  }

  async #find(credentialsIds: string[]): Promise<Map<string, FoundLogin>> {
    const found = new Map<string, FoundLogin>();
    const loaded = await this.#current();
    if (!loaded) return found;
    await reading(loaded, () =>
      credentialsIds.map(async (id) => {
        const digest = loaded.digester.credentials(id);
        const device = await this.#read(loaded, loaded.credentials, digest);
        if (device?.digest.equals(digest)) found.set(id, foundLogin(device, loaded));
      }),
    );
    return found;
  }

  /**
   * Returns undefined when the record cannot be read, is not the newest one of its credentials, or may lack a change.
   */
  async #read(loaded: Loaded, index: DigestIndex, digest: Buffer): Promise<KnownDevice | undefined> {
    for (;;) {
      const offset = index.get(digest, 0);
      if (offset === undefined) return undefined;
      const device = await this.#readAt(loaded, offset);
      // A newer record of the device may have been indexed during the read.
      if (device || index.get(digest, 0) === offset) return device;
    }
  }

  async #readAt(loaded: Loaded, offset: number): Promise<KnownDevice | undefined> {
    try {
      const buffer = Buffer.allocUnsafe(recordBytesMax);
      const bytes = buffer.subarray(0, await loaded.file.read(buffer, offset));
      const head = decodeRecordHead(bytes, 0);
      if (head?.kind !== 'device') return undefined;
      const device = decodeDevice(bytes.subarray(0, head.bytes));
      const isNewest = loaded.credentials.get(device.digest, 0) === offset;
      const mayLack = this.#changed.mayHaveChanged(device.row.number, this.#completeUntil(loaded));
      return isNewest && !mayLack ? device : undefined;
    } catch (error) {
      this.#deps.log.warn('known_devices_unread', { reason: messageOf(error) });
      return undefined;
    }
  }

  /** Returns the time before which the file has all changes; none when the clock was set back after the last block. */
  #completeUntil({ at }: Loaded): number {
    return at > this.#deps.clock.now() ? Number.NEGATIVE_INFINITY : at;
  }

  #note(credentialsId: string, { row }: KnownDevice): void {
    this.#answers.add(1);
    this.doubt(credentialsId, row);
  }

  /** Returns the index, at most a second old. Concurrent callers share one read. */
  #current(): Promise<Loaded | undefined> {
    const { clock } = this.#deps;
    if (this.#loading) return this.#loading;
    const ageMs = clock.monotonic() - this.#checkedMs;
    if (ageMs < (this.#mayHaveChanged ? 0 : limits.knownCheckMs)) return Promise.resolve(this.#loaded);
    this.#mayHaveChanged = false;
    this.#loading = this.#refresh()
      .catch((error: unknown) => {
        this.#deps.log.warn('known_devices_unread', { reason: messageOf(error) });
        // The part that was not read may revoke credentials.
        return this.#drop().catch(() => undefined);
      })
      .finally(() => {
        // A damaged file is not read again until the primary had time to write another one.
        this.#checkedMs = clock.monotonic() + (this.#isDamaged ? limits.knownKeptMs : 0);
        this.#isDamaged = false;
        this.#loading = undefined;
      });
    return this.#loading;
  }

  async #refresh(): Promise<Loaded | undefined> {
    const { path, clock, log } = this.#deps;
    const startMs = clock.monotonic();
    const former = this.#loaded;
    let file: DiskFile;
    try {
      file = await this.#disk.open(path, 'read');
    } catch (error) {
      // The primary removed a file that may lack changes.
      if (!former || (error as NodeJS.ErrnoException).code === 'ENOENT') throw error;
      // Too few descriptors, for example: the open file may have grown, and answers as before.
      log.warn('known_devices_unread', { reason: messageOf(error) });
      return (await this.#readFurther(former)) ? former : await this.#drop();
    }
    const header = decodeHeader(await readAt(file, 0, headerBytes).catch(() => Buffer.alloc(0)));
    if (header && former?.key.equals(header.key)) {
      await file.close();
      return (await this.#readFurther(former)) ? former : await this.#drop();
    }
    await this.#drop();
    if (!header) {
      await file.close();
      throw new Error('the header is damaged');
    }
    const { key } = header;
    // A device with a name of usual length takes slightly more, so the index has room before it must grow.
    const entries = Math.ceil((await file.size()) / 160);
    const loaded: Loaded = {
      ...{ file, key, digester: new Digester(key), profiles: new Map(), bytes: headerBytes },
      ...{ at: Number.NEGATIVE_INFINITY, base: 0, readers: 0, dropped: false },
      credentials: new DigestIndex(entries),
      names: new DigestIndex(entries),
    };
    this.#loaded = loaded;
    if (!(await this.#readFurther(loaded))) return await this.#drop();
    const ms = Math.round(clock.monotonic() - startMs);
    log.info('known_devices_read', { entries: loaded.credentials.size, bytes: loaded.bytes, ms });
    return loaded;
  }

  async #drop(): Promise<undefined> {
    const loaded = this.#loaded;
    this.#loaded = undefined;
    if (!loaded) return undefined;
    loaded.dropped = true;
    if (loaded.readers === 0) await loaded.file.close();
    return undefined;
  }

  /**
   * Reads whole blocks from the end of the last read. Returns false when bytes that were durable once are damaged: the
   * bytes after them may revoke credentials, so no part of the file is trusted.
   */
  async #readFurther(loaded: Loaded): Promise<boolean> {
    const { file } = loaded;
    const size = await file.size();
    // The primary cut off a block that was not durable.
    if (size < loaded.bytes) return false;
    while (loaded.bytes + blockHeadBytes <= size) {
      const chunk = await readAt(file, loaded.bytes, Math.min(limits.knownReadBytes, size - loaded.bytes));
      let at = 0;
      while (at + blockHeadBytes <= chunk.length) {
        const head = decodeBlockHead(chunk, at);
        const end = at + blockHeadBytes + head.bytes;
        if (end > chunk.length) break;
        if (!isWholeBlock(chunk.subarray(at, end)) || !index(loaded, chunk, at + blockHeadBytes, end)) break;
        Object.assign(loaded, { at: head.at, base: head.base });
        at = end;
      }
      loaded.bytes += at;
      if (at === 0) break;
    }
    const end = await readAt(file, loaded.bytes, Math.min(endBytesMax, size - loaded.bytes));
    if (!isDamagedEnd(end, loaded.base)) return true;
    this.#deps.log.error('known_devices_file_damaged', { offset: loaded.bytes, bytes: size });
    this.#isDamaged = true;
    return false;
  }
}

/** Keeps the file open while records are read. */
async function reading(loaded: Loaded, read: () => Promise<void>[]): Promise<void> {
  loaded.readers += 1;
  await Promise.all(read());
  loaded.readers -= 1;
  if (loaded.dropped && loaded.readers === 0) await loaded.file.close().catch(() => {});
}

/** Returns false when the records do not fill the block. */
function index(loaded: Loaded, chunk: Buffer, start: number, end: number): boolean {
  for (let at = start; at < end; ) {
    const head = decodeRecordHead(chunk, at);
    if (!head) return false;
    const offset = loaded.bytes + at;
    if (head.kind === 'profile') {
      const { id, transportType, transport } = decodeProfile(chunk, at);
      loaded.profiles.set(id, { transportType, topics: topicsOf(transport) });
    } else if (head.kind !== 'mark') {
      loaded.credentials.set(chunk, at + digestOffset, offset);
      if (head.kind === 'device') loaded.names.set(chunk, at + nameDigestOffset, offset);
    }
    at += head.bytes;
  }
  return true;
}

function foundLogin(device: KnownDevice, { digester, profiles }: Loaded): FoundLogin {
  const profile = profiles.get(device.row.profileId);
  return {
    device: profile ? { ...device, transportType: profile.transportType } : device,
    topics: profile?.topics,
    isNamed: (clientId, userName) =>
      (clientId !== null) === device.hasClientId &&
      (userName !== null) === device.hasUserName &&
      timingSafeEqual(device.namesDigest, digester.names(clientId ?? '', userName ?? '')),
    isPassword: (password) =>
      device.passwordDigest === undefined || timingSafeEqual(device.passwordDigest, digester.password(password)),
  };
}
