/**
 * Loads the devices of the file of known devices into the token cache of a worker, so that no device costs a query of
 * its own. A load runs after the start of the worker, and after the cache was cleared. The worker serves requests
 * meanwhile: a step is short, and half of the time is left to requests. The file may lack changes of its last seconds.
 * So its devices are found only after the log of changes was read from the file's cursor, and the changed devices were
 * removed. A change that this worker receives removes a device at any time. While PostgreSQL is unavailable, a load
 * waits.
 */
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { systemScheduler } from '../base/scheduler.ts';
import { type Disk, type DiskFile, realDisk } from '../journal/disk.ts';
import type { Queries } from '../postgres/client.ts';
import {
  type BlockHead,
  blockHeadBytes,
  credentialsKind,
  Digester,
  decodeBlockHead,
  decodeHeader,
  decodeMark,
  decodeRecordHead,
  describeDevice,
  digestOffset,
  type FileHeader,
  headerBytes,
  isOfOtherHistory,
  isToken,
  isWholeBlock,
} from './known/known-devices-file.ts';
import { changesSince, placeAt } from './sql/credential-log-store.ts';
import { readSettledOfFile } from './sql/known-file-store.ts';
import { CredentialsDigest } from './table/credentials-digest.ts';
import { type Digest, emptyDevice } from './table/device-table.ts';
import type { TokenCache } from './token-cache.ts';

interface FleetLoadDeps {
  path: string;
  /** Identifies the database, as the header of the file does. */
  source: Buffer;
  tokens: Pick<TokenCache, 'beginLoad' | 'load' | 'forget' | 'forgetLoaded' | 'endLoad' | 'unload' | 'size'>;
  postgres: Queries;
  clock: Clock;
  log: Log;
  disk?: Disk;
}

/** The cache forgot everything during a load, or the worker stops. */
class Superseded extends Error {}

export class FleetLoad {
  readonly #deps: FleetLoadDeps;
  readonly #disk: Disk;
  readonly #device = emptyDevice();
  /** Increases when the cache forgets everything. */
  #generation = 0;
  #running: Promise<void> | undefined;
  /** The key of a file that cannot be used: the primary makes another one. */
  #unusable: Buffer | undefined;
  #failure: string | undefined;
  /** The last mark that the load has read; 0 = none. */
  #mark = 0;
  #endPause = () => {};
  #stepStartMs = 0;
  #stopped = false;

  constructor(deps: FleetLoadDeps) {
    this.#deps = deps;
    this.#disk = deps.disk ?? realDisk;
  }

  /** Called when the cache forgot everything. */
  restart(): void {
    this.#generation += 1;
    this.#endPause();
    this.#running ??= this.#run();
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#endPause();
    await this.#running;
  }

  /** Resolves when no load runs. */
  async idle(): Promise<void> {
    await this.#running;
  }

  async #run(): Promise<void> {
    while (!this.#stopped) {
      const generation = this.#generation;
      let isDone = false;
      try {
        isDone = await this.#load(() => {
          if (this.#stopped || generation !== this.#generation) throw new Superseded();
        });
      } catch (error) {
        if (!(error instanceof Superseded)) this.#report(error);
      }
      if (generation !== this.#generation) continue;
      if (isDone) break;
      await this.#pause(limits.credentialPollMs);
    }
    this.#running = undefined;
  }

  #report(error: unknown): void {
    const reason = messageOf(error);
    if (this.#failure !== reason) this.#deps.log.warn('devices_unloaded', { reason });
    this.#failure = reason;
  }

  /** Returns false when there is no file that can be used. `check` throws when the load has no purpose any more. */
  async #load(check: () => void): Promise<boolean> {
    const { path, source, tokens, clock, log } = this.#deps;
    const startMs = clock.monotonic();
    const file = await this.#open(path);
    check();
    if (!file) return false;
    try {
      const bytes = Buffer.alloc(headerBytes);
      const header = decodeHeader(bytes.subarray(0, await file.read(bytes, 0)));
      check();
      if (!header?.source.equals(source) || this.#unusable?.equals(header.key)) return false;
      const digest = new CredentialsDigest(header.key, credentialsKind);
      tokens.beginLoad((token) => digest.of(token));
      const isLoaded = await this.#fill(file, header, check);
      if (isLoaded) log.info('devices_loaded', { devices: tokens.size, ms: Math.round(clock.monotonic() - startMs) });
      else this.#unusable = header.key;
      return isLoaded;
    } finally {
      // The devices are loaded, or are not, whatever the end of a file that was only read answers.
      await file.close().catch(() => {});
    }
  }

  /** Returns false when the changes after the file was written cannot be known. */
  async #fill(file: DiskFile, header: FileHeader, check: () => void): Promise<boolean> {
    const { tokens, clock } = this.#deps;
    this.#mark = 0;
    this.#stepStartMs = clock.monotonic();
    try {
      const last = await this.#read(file, check);
      const isCurrent = await this.#catchUp(last, header, check);
      check();
      if (isCurrent) {
        tokens.endLoad();
        this.#failure = undefined;
        return true;
      }
    } catch (error) {
      if (!(error instanceof Superseded)) await this.#unload(check);
      throw error;
    }
    await this.#unload(check);
    return false;
  }

  async #open(path: string): Promise<DiskFile | undefined> {
    try {
      return await this.#disk.open(path, 'read');
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined;
      throw error;
    }
  }

  /** Reads the whole blocks of the file and returns the last one. Changes after a damaged block are in the log, too. */
  async #read(file: DiskFile, check: () => void): Promise<BlockHead | undefined> {
    const size = await file.size();
    const buffer = Buffer.allocUnsafeSlow(limits.knownReadBytes);
    let last: BlockHead | undefined;
    for (let offset = headerBytes; offset + blockHeadBytes <= size; ) {
      const bytes = buffer.subarray(0, await file.read(buffer, offset));
      let at = 0;
      while (at + blockHeadBytes <= bytes.length) {
        const head = decodeBlockHead(bytes, at);
        const end = at + blockHeadBytes + head.bytes;
        if (end > bytes.length || !isWholeBlock(bytes.subarray(at, end))) break;
        for (let next = at + blockHeadBytes; next < end; ) {
          await this.#rest();
          check();
          next = this.#index(bytes, next, end);
        }
        last = head;
        at = end;
      }
      if (at === 0) break;
      offset += at;
    }
    return last;
  }

  /** Takes over some records. Returns the place of the next one. */
  #index(bytes: Buffer, start: number, end: number): number {
    const { tokens } = this.#deps;
    let at = start;
    for (let n = 0; n < limits.loadRecordsAtOnce && at < end; n += 1) {
      const head = decodeRecordHead(bytes, at);
      if (!head) return end;
      if (isToken(bytes, at)) {
        describeDevice(bytes, at, this.#device);
        tokens.load(digestAt(bytes, at + digestOffset), this.#device);
      } else if (head.kind === 'mark') {
        this.#mark = decodeMark(bytes, at);
      } else if (head.kind !== 'profile') {
        tokens.forget(digestAt(bytes, at + digestOffset));
      }
      at += head.bytes;
    }
    return at;
  }

  /**
   * Removes the devices that changed after the file was written. Waits while PostgreSQL does not answer. Returns false
   * when the log does not reach back to the end of the file, or belongs to another server, or when the database lacks
   * changes that the file has.
   */
  async #catchUp(last: BlockHead | undefined, { key, timeline }: FileHeader, check: () => void): Promise<boolean> {
    const { postgres, clock } = this.#deps;
    if (last === undefined || last.base === 0) return false;
    const written = { cursor: last.cursor, timeline, mark: this.#mark };
    const name = new Digester(key).file;
    for (;;) {
      const ageMs = clock.now() - last.at;
      if (Math.abs(ageMs) > limits.credentialChangesKeptMs / 2) return false;
      try {
        if (isOfOtherHistory(await readSettledOfFile(postgres, name), written)) return false;
        await this.#removeChanged(last.cursor, check);
        return true;
      } catch (error) {
        check();
        this.#report(error);
      }
      await this.#pause(limits.credentialPollMs);
      check();
    }
  }

  async #removeChanged(cursor: bigint, check: () => void): Promise<void> {
    const { postgres, tokens } = this.#deps;
    for await (const { changes } of changesSince(postgres, placeAt(cursor), limits.knownPageRows)) {
      await this.#rest();
      check();
      for (const { credentialsId } of changes) tokens.forgetLoaded(credentialsId);
    }
  }

  async #unload(check: () => void): Promise<void> {
    const { tokens } = this.#deps;
    for (let step: number | undefined = 0; step !== undefined; step = tokens.unload(step)) {
      await this.#rest();
      check();
    }
  }

  /** Leaves the loop to other work when a step was long enough, for as long as the step. */
  async #rest(): Promise<void> {
    const { clock } = this.#deps;
    const stepMs = clock.monotonic() - this.#stepStartMs;
    if (stepMs < limits.loadStepMs) return;
    await this.#pause(Math.min(stepMs, limits.loadRestMsMax));
    this.#stepStartMs = clock.monotonic();
  }

  #pause(ms: number): Promise<void> {
    if (this.#stopped) return Promise.resolve();
    const ending = new AbortController();
    const endPause = () => ending.abort();
    this.#endPause = endPause;
    return systemScheduler.sleep(ms, ending.signal);
  }
}

function digestAt(bytes: Buffer, at: number): Digest {
  return {
    d0: bytes.readUInt32LE(at),
    d1: bytes.readUInt32LE(at + 4),
    d2: bytes.readUInt32LE(at + 8),
    d3: bytes.readUInt32LE(at + 12),
  };
}
