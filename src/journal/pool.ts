/**
 * Segment files, ready before they are needed. Files of confirmed segments are used again under a new name with a new
 * salt; otherwise zeros are written in small steps, in the background (a file that grows under the writer costs
 * 40 % of the commits: its metadata is journaled with each). The writer only ever takes the one that lies ready.
 */
import { randomBytes } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { newSegment, type Segment } from './backlog.ts';
import { type Disk, type DiskFile, errorCode, isNoSpace } from './disk.ts';
import { encodeSegmentHeader, saltSeed, segmentName } from './segment.ts';

export interface ReadySegment {
  segment: Segment;
  file: DiskFile;
}

export interface PoolDeps {
  disk: Disk;
  dir: string;
  log: Log;
  clock: Clock;
  epoch: number;
  segmentBytes: number;
  /** Free bytes that must be left after a new file was made. */
  freeBytesMin: number;
  sparesMax: number;
  durable: 'sync' | 'none';
}

const zeroStepBytes = 256 * 1024;
/** Rest after each step, as a multiple of its time. */
const zeroRest = 4;
const retryAfterFullMs = 500;

export class SegmentPool {
  readonly #deps: PoolDeps;
  readonly #spares: string[] = [];
  #spareNumber = 0;
  #seq = 0;
  #ahead: Promise<ReadySegment | undefined> | undefined;
  #fullUntilMs = Number.NEGATIVE_INFINITY;
  #closed = false;
  /** The writer waits for the next segment. */
  #awaited = false;

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

  /** The file of a confirmed segment. Errors cost a spare, nothing else. */
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
      log.warn('journal_recycle_failed', { path: segment.path, error: messageOf(error) });
    }
  }

  /** The next segment; durable in name and header. Throws what the disk says when none can be made. */
  async take(): Promise<ReadySegment> {
    this.#awaited = true;
    try {
      const ready = (await this.#ahead) ?? (await this.#prepare());
      this.prepareAhead();
      return ready;
    } finally {
      this.#awaited = false;
    }
  }

  /** Files that lie ready or are being made. */
  get files(): number {
    return this.#spares.length + (this.#ahead ? 1 : 0);
  }

  prepareAhead(): void {
    if (this.#closed) return;
    this.#ahead = this.#prepare().catch((error) => {
      // Not yet needed: `take` tries again and answers for it.
      this.#deps.log.warn('journal_prepare_failed', { error: messageOf(error) });
      return undefined;
    });
  }

  async close(): Promise<void> {
    this.#closed = true;
    const ready = await this.#ahead;
    this.#ahead = undefined;
    await ready?.file.close();
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
        // The old name must be gone for good before the old content is: a crash between would leave a segment whose
        // header belongs to another segment.
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
      const zeros = Buffer.alloc(Math.min(zeroStepBytes, segmentBytes));
      for (let at = 0; at < segmentBytes; at += zeros.length) {
        const started = performance.now();
        await file.write([zeros.subarray(0, segmentBytes - at)], at);
        const stepMs = performance.now() - started;
        // No append waits for this file yet: commits of this and every other process go first.
        if (!this.#awaited && !this.#closed && stepMs > 0.5) await sleep(zeroRest * stepMs);
      }
      // File size and extents too, so that later writes have no metadata to journal.
      await file.sync();
    } catch (error) {
      await file.close().catch(() => {});
      throw error;
    }
    return file;
  }
}

function noSpace(bytes: number): Error {
  return Object.assign(new Error(`ENOSPC: no room for a segment of ${bytes} bytes`), { code: 'ENOSPC' });
}
