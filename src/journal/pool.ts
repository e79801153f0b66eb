/**
 * Prepares segment files before they are needed. Files of confirmed segments are recycled under a new name with a new
 * salt. Otherwise zeros are written in small steps in the background: a file that grows under the writer costs 40 % of
 * the commits, because the file system journals its metadata with each. The writer only takes a file that is ready.
 */
import { randomBytes } from 'node:crypto';
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Scheduler } from '../base/scheduler.ts';
import { type Disk, type DiskFile, errorCode, isNoSpace } from './disk.ts';
import { encodeSegmentHeader, saltSeed, segmentName } from './segment.ts';
import { newSegment, type Segment } from './waiting-segment.ts';

export interface ReadySegment {
  segment: Segment;
  file: DiskFile;
}

interface PoolDeps {
  disk: Disk;
  dir: string;
  log: Log;
  clock: Clock;
  epoch: number;
  segmentBytes: number;
  /** Free bytes that must remain after a new file was made. */
  freeBytesMin: number;
  sparesMax: number;
  durable: 'sync' | 'none';
  /** Makes the pauses between the steps of a new file. */
  scheduler: Pick<Scheduler, 'sleep'>;
}

const zeroStepBytes = 256 * 1024;
/**
 * A step is larger while the next segment is behind the writer. Each step takes a turn of the event loop, and the turns
 * of a worker under load are long: 64 MiB in small steps took 2 s, of which the writer waited for one.
 */
const zeroStepBytesMax = 2 * 1024 * 1024;
/** Pause after each step, as a multiple of its duration. */
const zeroRest = 4;
/**
 * A pause is made only while the next segment is well ahead: it has at least this many times as many ready bytes as the
 * writer has used of the current segment. Otherwise a writer that fills its segment would wait for the rest of the next
 * one.
 */
const zeroLead = 2;
const retryAfterFullMs = 500;
/** Without a free file handle an append waits this long: another part of the process may close one. */
const noHandleMsMax = 10_000;
const noHandleRetryMs = 50;

export class SegmentPool {
  readonly #deps: PoolDeps;
  readonly #spares: string[] = [];
  #spareNumber = 0;
  #seq = 0;
  #ahead: Promise<ReadySegment | undefined> | undefined;
  #fullUntilMs = Number.NEGATIVE_INFINITY;
  #closed = false;
  /** Ends the pause that is made now. */
  #pausing: AbortController | undefined;
  /** True while the writer waits for the next segment. */
  #awaited = false;
  /** The segment that the writer fills. */
  #current: Segment | undefined;

  constructor(deps: PoolDeps) {
    this.#deps = deps;
  }

  /** Takes over a spare file of an earlier start. */
  async adoptSpare(path: string): Promise<void> {
    const number = /\/spare-(\d+)$/.exec(path);
    if (number) this.#spareNumber = Math.max(this.#spareNumber, Number(number[1]));
    if (this.#spares.length < this.#deps.sparesMax) this.#spares.push(path);
    else await this.#deps.disk.remove(path);
  }

  /** Recycles the file of a confirmed segment. An error costs only a spare file. */
  async recycle(segment: Segment): Promise<void> {
    const { disk, dir, log, sparesMax } = this.#deps;
    try {
      if (segment.spoiled || this.#spares.length >= sparesMax) {
        await disk.remove(segment.path);
        return;
      }
      const path = `${dir}/spare-${(this.#spareNumber += 1)}`;
      await disk.rename(segment.path, path);
      this.#spares.push(path);
    } catch (error) {
      log.warn('journal_recycle_failed', { path: segment.path, reason: messageOf(error) });
    }
  }

  /** Returns the next segment, whose name and header are durable. Throws the error of the disk. */
  async take(): Promise<ReadySegment> {
    this.#awaited = true;
    this.#pausing?.abort();
    try {
      const ready = (await this.#ahead) ?? (await this.#prepareNow());
      this.#current = ready.segment;
      this.prepareAhead();
      return ready;
    } finally {
      this.#awaited = false;
    }
  }

  /** Files that are ready or being made. */
  get files(): number {
    return this.#spares.length + (this.#ahead ? 1 : 0);
  }

  prepareAhead(): void {
    if (this.#closed) return;
    this.#ahead = this.#prepare().catch((error) => {
      // The file is not needed yet: `take` tries again and throws.
      this.#deps.log.warn('journal_prepare_failed', { reason: messageOf(error) });
      return undefined;
    });
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#pausing?.abort();
    const ready = await this.#ahead;
    this.#ahead = undefined;
    await ready?.file.close();
  }

  async #prepareNow(): Promise<ReadySegment> {
    const { clock } = this.#deps;
    const deadline = clock.monotonic() + noHandleMsMax;
    for (;;) {
      try {
        return await this.#prepare();
      } catch (error) {
        const code = errorCode(error);
        if ((code !== 'EMFILE' && code !== 'ENFILE') || clock.monotonic() >= deadline) throw error;
        await this.#deps.scheduler.sleep(noHandleRetryMs);
      }
    }
  }

  async #prepare(): Promise<ReadySegment> {
    const { disk, dir, clock, epoch, durable } = this.#deps;
    const seq = (this.#seq += 1);
    const name = segmentName(epoch, seq);
    const temporary = `${dir}/${name}.tmp`;
    const path = `${dir}/${name}`;
    let file: DiskFile | undefined;
    let named = temporary;
    try {
      file = (await this.#fromSpare(temporary)) ?? (await this.#fromZeros(temporary));
      const salt = randomBytes(16);
      await file.write([encodeSegmentHeader({ epoch, seq, salt, createdMs: clock.now(), name: dir })], 0);
      await disk.rename(temporary, path);
      named = path;
      await disk.syncDirectory(dir);
      if (durable === 'none') {
        await file.close();
        file = await disk.open(path, 'write');
      }
      return { segment: newSegment(epoch, seq, path, saltSeed(salt)), file };
    } catch (error) {
      if (isNoSpace(error)) this.#fullUntilMs = clock.monotonic() + retryAfterFullMs;
      await file?.close().catch(() => {});
      await disk.remove(named).catch(() => {});
      throw error;
    }
  }

  async #fromSpare(temporary: string): Promise<DiskFile | undefined> {
    const { disk, segmentBytes } = this.#deps;
    for (let path = this.#spares.shift(); path !== undefined; path = this.#spares.shift()) {
      try {
        // The old name must be removed durably before the old content: a crash in between would leave a segment with
        // the header of another segment.
        await disk.rename(path, temporary);
        await disk.syncDirectory(this.#deps.dir);
        const file = await disk.open(temporary, 'log');
        if ((await file.size()) >= segmentBytes) return file;
        await file.close();
        await disk.remove(temporary);
      } catch (error) {
        if (errorCode(error) !== 'ENOENT') throw error;
      }
    }
    return undefined;
  }

  async #fromZeros(temporary: string): Promise<DiskFile> {
    const { disk, dir, clock, segmentBytes, freeBytesMin } = this.#deps;
    if (clock.monotonic() < this.#fullUntilMs) throw noSpace(segmentBytes);
    if ((await disk.freeBytes(dir)) < segmentBytes + freeBytesMin) throw noSpace(segmentBytes);
    const file = await disk.open(temporary, 'log');
    try {
      const zeros = Buffer.alloc(Math.min(zeroStepBytesMax, segmentBytes));
      for (let at = 0; at < segmentBytes; ) {
        const wantedBytes = Math.max(zeroStepBytes, Math.min(this.#behindBytes(at), zeroStepBytesMax));
        const stepBytes = Math.min(wantedBytes, segmentBytes - at);
        const started = clock.monotonic();
        await file.write([zeros.subarray(0, stepBytes)], at);
        at += stepBytes;
        const stepMs = clock.monotonic() - started;
        // No append will wait for this file: commits of all processes go first.
        if (stepMs > 0.5 && this.#behindBytes(at) <= 0) await this.#pause(zeroRest * stepMs);
      }
      // Syncs size and extents of the file too, so that later writes have no metadata to journal.
      await file.sync();
    } catch (error) {
      await file.close().catch(() => {});
      throw error;
    }
    return file;
  }

  /** A disk that is slow once makes a long pause: a writer that comes meanwhile ends the pause. */
  async #pause(milliseconds: number): Promise<void> {
    this.#pausing = new AbortController();
    try {
      await this.#deps.scheduler.sleep(milliseconds, this.#pausing.signal);
    } finally {
      this.#pausing = undefined;
    }
  }

  /** Bytes that the next segment lacks for its lead over the writer; not positive: it has the lead. */
  #behindBytes(readyBytes: number): number {
    if (this.#awaited || this.#closed) return Number.POSITIVE_INFINITY;
    if (this.#current === undefined) return 0;
    return zeroLead * (this.#current.end - this.#current.start) - readyBytes;
  }
}

function noSpace(bytes: number): Error {
  return Object.assign(new Error(`ENOSPC: no room for a segment of ${bytes} bytes`), { code: 'ENOSPC' });
}
