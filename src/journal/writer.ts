/**
 * The only writer of a journal's segments: one gathered, durable write for each append. What a failed write means is
 * decided here: it is final for that file, which ends at its last durable byte; the frames go once more into a new
 * file; when that fails too the journal has failed and the process must end. An append is durable only after a sync
 * that succeeded.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Clock } from '../base/clock.ts';
import { assert, messageOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Backlog, Segment } from './backlog.ts';
import { type Disk, isNoSpace } from './disk.ts';
import { eraseHeads } from './erase-heads.ts';
import type { Owner } from './owner.ts';
import type { ReadySegment, SegmentPool } from './pool.ts';
import {
  crcOfParts,
  encodeFrameHead,
  encodeLink,
  type FrameHead,
  frameFlags,
  frameHeaderBytes,
  type Lane,
  linkBytes,
  linksMax,
  paddedBytes,
} from './segment.ts';

export interface JournalFrame {
  lane: Lane;
  /** Rises from frame to frame of a lane, and never falls in the journal. */
  order: bigint;
  rows: number;
  /** The payload, in pieces. Not to be changed until the append is settled. */
  parts: readonly Uint8Array[];
}

/** `full`: no room; the caller refuses and may come back. `failed`: the process must end. */
export class JournalError extends Error {
  readonly kind: 'full' | 'failed';

  constructor(kind: 'full' | 'failed', message: string) {
    super(message);
    this.name = 'JournalError';
    this.kind = kind;
  }
}

export interface WriterDeps {
  log: Log;
  clock: Clock;
  pool: SegmentPool;
  backlog: Backlog;
  owner: Owner;
  disk: Disk;
  segmentBytes: number;
  orderMax: bigint;
}

/** A disk that fails may hang as well; the refusal must not wait for it. */
const eraseMsMax = 2000;

const zeros = Buffer.alloc(8);

export class Writer {
  readonly #log: Log;
  readonly #clock: Clock;
  readonly #pool: SegmentPool;
  readonly #backlog: Backlog;
  readonly #owner: Owner;
  readonly #disk: Disk;
  readonly #segmentBytes: number;
  #current: ReadySegment | undefined;
  /** Sealed segments that no durable link names yet: one, unless files were abandoned. */
  #unlinked: Segment[] = [];
  #commit = 0;
  #inFlight: Promise<void> | undefined;
  /** Lowest order of the append in flight. */
  #orderInFlight: bigint | undefined;
  /** Arenas of one append, used again by the next. */
  #heads = Buffer.alloc(frameHeaderBytes * 16);
  readonly #records: FrameHead[] = [];
  readonly #parts: Uint8Array[] = [];
  /** Highest order that is durable, of this start or an earlier one. */
  orderMax: bigint;
  readonly #orderOfLane: [bigint, bigint];
  /** Places of the frames of a write that failed: some or all of them may be on the disk. */
  #offsetsWritten: number[] = [];
  unsyncedBytes = 0;
  unsyncedSinceMs = 0;
  writeErrors = 0;
  failed = false;

  constructor(deps: WriterDeps) {
    this.#log = deps.log;
    this.#clock = deps.clock;
    this.#pool = deps.pool;
    this.#backlog = deps.backlog;
    this.#owner = deps.owner;
    this.#disk = deps.disk;
    this.#segmentBytes = deps.segmentBytes;
    this.orderMax = deps.orderMax;
    this.#orderOfLane = [deps.orderMax, deps.orderMax];
  }

  get orderInFlight(): bigint | undefined {
    return this.#orderInFlight;
  }

  /** Highest order that is durable or may become so: that of the append in flight. Falls back when an append fails. */
  get orderBegun(): bigint {
    return this.#orderInFlight === undefined ? this.orderMax : this.#records.at(-1)!.order;
  }

  /** Durable when it resolves. One at a time: what comes meanwhile is the caller's next append. */
  append(frames: readonly JournalFrame[]): Promise<void> {
    assert(!this.#inFlight, 'one append at a time');
    assert(frames.length > 0, 'an append has frames');
    if (this.failed) return Promise.reject(new JournalError('failed', 'The journal has failed.'));
    const orders: [bigint, bigint] = [this.#orderOfLane[0], this.#orderOfLane[1]];
    const bytes = this.#record(frames);
    this.#owner.refresh();
    this.#orderInFlight = frames[0]!.order;
    this.unsyncedBytes = bytes;
    this.unsyncedSinceMs = this.#clock.monotonic();
    this.#inFlight = this.#appendTwice(frames, bytes, orders).finally(() => {
      this.#inFlight = undefined;
      this.#orderInFlight = undefined;
      this.unsyncedBytes = 0;
    });
    return this.#inFlight;
  }

  async close(): Promise<void> {
    await this.#inFlight?.catch(() => {});
    const file = this.#current?.file;
    if (this.#current) this.#current.segment.sealed = true;
    this.#current = undefined;
    await file?.close();
    await this.#pool.close();
  }

  /** The heads of the frames, but for their place. Answers the bytes they take. */
  #record(frames: readonly JournalFrame[]): number {
    const writtenMs = this.#clock.now();
    let bytes = 0;
    let order = this.orderMax;
    this.#records.length = frames.length;
    for (let i = 0; i < frames.length; i += 1) {
      const frame = frames[i]!;
      assert(frame.order >= order && frame.order > this.#orderOfLane[frame.lane], 'order numbers rise');
      order = this.#orderOfLane[frame.lane] = frame.order;
      let length = 0;
      for (const part of frame.parts) length += part.length;
      this.#records[i] = {
        length,
        payloadCrc: crcOfParts(frame.parts),
        order,
        writtenMs,
        rows: frame.rows,
        commit: 0,
        lane: frame.lane,
        flags: i === frames.length - 1 ? frameFlags.lastOfCommit : 0,
      };
      bytes += paddedBytes(length);
    }
    return bytes;
  }

  async #appendTwice(frames: readonly JournalFrame[], bytes: number, orders: [bigint, bigint]): Promise<void> {
    for (let attempt = 1; ; attempt += 1) {
      try {
        await this.#appendOnce(frames, bytes);
        break;
      } catch (error) {
        this.writeErrors += 1;
        this.#log.error('journal_write_failed', { attempt, error: messageOf(error) });
        await this.#abandon();
        // The caller may bring the same frames again.
        [this.#orderOfLane[0], this.#orderOfLane[1]] = orders;
        if (isNoSpace(error)) throw new JournalError('full', `The journal has no room: ${messageOf(error)}.`);
        if (attempt < 2) continue;
        this.failed = true;
        throw new JournalError('failed', `The journal cannot be written: ${messageOf(error)}.`);
      }
    }
    // After the write: a new owner reads frames later than this moment, or this append is not acknowledged.
    if (!this.#owner.valid && !(await this.#owner.holds())) {
      this.failed = true;
      throw new JournalError('failed', `The journal is lost: ${this.#owner.lostReason}.`);
    }
  }

  async #appendOnce(frames: readonly JournalFrame[], bytes: number): Promise<void> {
    const { segment, file } = await this.#segmentFor(bytes);
    const links = segment.end === segment.start ? this.#unlinked.slice(-linksMax) : [];
    const end = this.#gather(frames, segment, links);
    const parts = this.#parts;
    try {
      await file.write(parts, segment.end);
    } catch (error) {
      this.#offsetsWritten = this.#frameOffsets(segment.end + links.length * paddedBytes(linkBytes));
      throw error;
    }
    parts.length = 0;
    let at = segment.end + links.length * paddedBytes(linkBytes);
    for (const record of this.#records) {
      this.#backlog.appended(segment, record, at);
      at += paddedBytes(record.length);
    }
    assert(at === end, 'what was written is what was recorded');
    segment.end = end;
    if (links.length > 0) this.#unlinked = [];
    this.#commit += 1;
    this.orderMax = this.#records.at(-1)!.order;
  }

  #frameOffsets(first: number): number[] {
    let at = first;
    return this.#records.map(({ length }) => {
      const offset = at;
      at += paddedBytes(length);
      return offset;
    });
  }

  /** Fills `#parts` with heads, payloads and padding; returns the offset after them. */
  #gather(frames: readonly JournalFrame[], segment: Segment, links: readonly Segment[]): number {
    this.#parts.length = 0;
    const headBytes = frameHeaderBytes * (links.length + frames.length);
    if (this.#heads.length < headBytes) this.#heads = Buffer.alloc(headBytes * 2);
    let offset = segment.end;
    let headAt = 0;
    for (const link of links) {
      offset = this.#gatherLink(link, segment, offset, headAt);
      headAt += frameHeaderBytes;
    }
    for (let i = 0; i < frames.length; i += 1) {
      const record = this.#records[i]!;
      record.commit = this.#commit;
      offset = this.#gatherFrame(record, frames[i]!.parts, segment, offset, headAt);
      headAt += frameHeaderBytes;
    }
    return offset;
  }

  #gatherLink(linked: Segment, segment: Segment, offset: number, headAt: number): number {
    const { epoch, seq, end, total } = linked;
    const payload = encodeLink({ epoch, seq, end, shares: total });
    const record: FrameHead = {
      length: payload.length,
      payloadCrc: crcOfParts([payload]),
      order: 0n,
      writtenMs: this.#clock.now(),
      rows: 0,
      commit: this.#commit,
      lane: 0,
      flags: frameFlags.link,
    };
    return this.#gatherFrame(record, [payload], segment, offset, headAt);
  }

  #gatherFrame(record: FrameHead, payload: readonly Uint8Array[], segment: Segment, offset: number, headAt: number) {
    encodeFrameHead(this.#heads, headAt, record, segment.seed, offset);
    this.#parts.push(this.#heads.subarray(headAt, headAt + frameHeaderBytes));
    for (const part of payload) if (part.length > 0) this.#parts.push(part);
    const padding = -record.length & 7;
    if (padding > 0) this.#parts.push(zeros.subarray(0, padding));
    return offset + paddedBytes(record.length);
  }

  /** The current segment, or the next one when the frames do not fit. An append is never split over two. */
  async #segmentFor(bytes: number): Promise<ReadySegment> {
    const current = this.#current;
    if (current) {
      const { start, end } = current.segment;
      if (end === start || end + bytes <= this.#segmentBytes) return current;
      this.#current = undefined;
      this.#seal(current);
    }
    this.#current = await this.#pool.take();
    this.#commit = 0;
    this.#backlog.add(this.#current.segment);
    return this.#current;
  }

  #seal({ segment, file }: ReadySegment): void {
    segment.sealed = true;
    this.#unlinked.push(segment);
    // All of it is durable already: nothing that close could report matters.
    file.close().catch(() => {});
  }

  /** Ends the file at its last durable byte. No start may find what the failed write left after that byte. */
  async #abandon(): Promise<void> {
    const current = this.#current;
    if (!current) return;
    this.#current = undefined;
    const { segment } = current;
    segment.spoiled = true;
    this.#seal(current);
    const offsets = this.#offsetsWritten;
    this.#offsetsWritten = [];
    if (offsets.length === 0) return;
    const timeout = new AbortController();
    const erased = eraseHeads(this.#disk, segment.path, offsets).then(
      () => true,
      (error) => {
        this.#log.warn('journal_refused_not_erased', { path: segment.path, reason: messageOf(error) });
        return true;
      },
    );
    const late = sleep(eraseMsMax, false, { signal: timeout.signal }).catch(() => false);
    if (!(await Promise.race([erased, late]))) {
      this.#log.warn('journal_refused_not_erased', { path: segment.path, reason: 'the disk does not answer' });
    }
    timeout.abort();
  }
}
