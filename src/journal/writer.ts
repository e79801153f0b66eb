/**
 * The only writer of a journal's segments: one gathered, durable write for each append. A failed write is final for its
 * file, which ends at its last durable byte. The frames are then written once more into a new file. When that fails
 * too, the journal has failed and the process must end. An append is durable only after a successful sync.
 */
import type { Clock } from '../base/clock.ts';
import { assert, messageOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { Scheduler } from '../base/scheduler.ts';
import type { Backlog } from './backlog.ts';
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
import type { Segment } from './waiting-segment.ts';

export interface JournalFrame {
  lane: Lane;
  /** Increases from frame to frame of a lane over the life of the journal. */
  order: bigint;
  rows: number;
  /** The payload in pieces, which must not change until the append has settled. */
  parts: readonly Uint8Array[];
  /** A device of the rows; a stream chooses the subject of the frame by it. */
  device?: number;
}

/** `full`: no room; the caller refuses and may try again. `failed`: the process must end. */
export class JournalError extends Error {
  readonly kind: 'full' | 'failed';

  constructor(kind: 'full' | 'failed', message: string) {
    super(message);
    this.name = 'JournalError';
    this.kind = kind;
  }
}

interface WriterDeps {
  log: Log;
  clock: Clock;
  pool: SegmentPool;
  backlog: Backlog;
  owner: Owner;
  disk: Disk;
  scheduler: Pick<Scheduler, 'sleep'>;
  segmentBytes: number;
  orderMax: bigint;
}

/** The longest wait of a refusal for the erased heads: a failing disk may hang as well. */
const eraseMsMax = 2000;

const zeros = Buffer.alloc(8);

export class Writer {
  readonly #log: Log;
  readonly #clock: Clock;
  readonly #pool: SegmentPool;
  readonly #backlog: Backlog;
  readonly #owner: Owner;
  readonly #disk: Disk;
  readonly #scheduler: Pick<Scheduler, 'sleep'>;
  readonly #segmentBytes: number;
  #current: ReadySegment | undefined;
  /** Sealed segments that no durable link names yet: one, or more after files were abandoned. */
  #unlinked: Segment[] = [];
  #commit = 0;
  #inFlight: Promise<void> | undefined;
  /** Lowest order of the append in flight. */
  #orderInFlight: bigint | undefined;
  /** Buffers of one append, reused by the next. */
  #heads = Buffer.alloc(frameHeaderBytes * 16);
  readonly #records: FrameHead[] = [];
  readonly #parts: Uint8Array[] = [];
  /** Highest order that is durable, of this start or an earlier one. */
  orderMax: bigint;
  readonly #orderOfLane: [bigint, bigint];
  /** Offsets of the frames of a failed write: any of them may be on the disk. */
  #offsetsWritten: number[] = [];
  unsyncedBytes = 0;
  writeErrors = 0;
  failed = false;

  constructor(deps: WriterDeps) {
    this.#log = deps.log;
    this.#clock = deps.clock;
    this.#pool = deps.pool;
    this.#backlog = deps.backlog;
    this.#owner = deps.owner;
    this.#disk = deps.disk;
    this.#scheduler = deps.scheduler;
    this.#segmentBytes = deps.segmentBytes;
    this.orderMax = deps.orderMax;
    this.#orderOfLane = [deps.orderMax, deps.orderMax];
  }

  get orderInFlight(): bigint | undefined {
    return this.#orderInFlight;
  }

  /** Highest order that is durable or in flight. Decreases when an append fails. */
  get orderBegun(): bigint {
    return this.#orderInFlight === undefined ? this.orderMax : this.#records.at(-1)!.order;
  }

  /** Resolves when the frames are durable. One append runs at a time; the caller gathers the next one meanwhile. */
  append(frames: readonly JournalFrame[]): Promise<void> {
    assert(!this.#inFlight, 'one append at a time');
    assert(frames.length > 0, 'an append has frames');
    if (this.failed) return Promise.reject(new JournalError('failed', 'The journal has failed.'));
    const orders: [bigint, bigint] = [this.#orderOfLane[0], this.#orderOfLane[1]];
    const bytes = this.#record(frames);
    this.#owner.refresh();
    this.#orderInFlight = frames[0]!.order;
    this.unsyncedBytes = bytes;
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

  /** Fills in the heads of the frames, except for their offsets. Returns their bytes. */
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
        this.#log.error('journal_write_failed', { attempt, reason: messageOf(error) });
        await this.#abandon();
        // The caller may append the same frames again.
        [this.#orderOfLane[0], this.#orderOfLane[1]] = orders;
        if (isNoSpace(error)) throw new JournalError('full', `The journal has no room: ${messageOf(error)}.`);
        if (attempt < 2) continue;
        this.failed = true;
        throw new JournalError('failed', `The journal cannot be written: ${messageOf(error)}.`);
      }
    }
    // Checked after the write: either a new owner reads frames later than this moment, or this append is not
    // acknowledged.
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
    assert(at === end, 'the bytes written equal the bytes recorded');
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

  /**
   * Returns the current segment, or the next one when the frames do not fit. An append is never split over two
   * segments.
   */
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
    // All bytes are durable already: an error of the close does not matter.
    file.close().catch(() => {});
  }

  /** Ends the file at its last durable byte, so that no start finds bytes that the failed write left. */
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
    const late = this.#scheduler.sleep(eraseMsMax, timeout.signal).then(() => false);
    if (!(await Promise.race([erased, late]))) {
      this.#log.warn('journal_refused_not_erased', { path: segment.path, reason: 'the disk does not answer' });
    }
    timeout.abort();
  }
}
