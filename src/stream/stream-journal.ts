/**
 * The stream behind the seam of the journal (`journal/seam.ts`), beside the journal of this worker: shipping takes the
 * frames of both. The journal holds what an earlier level of `ingest.ack` or a fallback has left, and the rows that
 * ClickHouse refused.
 */
import { type Journal, type JournalFrame, type Lane, lanes, type ShipUnit } from '../journal/journal.ts';
import type { GivesUnits, TakesFrames } from '../journal/seam.ts';
import type { Notes } from '../journal/ship-notes.ts';
import type { DeletesAgain } from './deletes-again.ts';
import type { LaneReader } from './lane-reader.ts';
import type { StreamWriter } from './stream-writer.ts';

type Limits = Parameters<Journal['next']>[1];

export class StreamJournal implements TakesFrames, GivesUnits {
  readonly #journal: Journal;
  readonly #writer: StreamWriter;
  readonly #readers: readonly [LaneReader, LaneReader];
  readonly #deletesAgain: Pick<DeletesAgain, 'stored'>;
  readonly notes: Notes;
  #isLeft = false;

  constructor(
    journal: Journal,
    writer: StreamWriter,
    readers: readonly [LaneReader, LaneReader],
    deletesAgain: Pick<DeletesAgain, 'stored'>,
  ) {
    this.#journal = journal;
    this.#writer = writer;
    this.#readers = readers;
    this.#deletesAgain = deletesAgain;
    this.notes = withoutRanges(journal.notes);
  }

  /** Called at a stop: what is in the stream is left to other processes, so a drain waits for the journal alone. */
  leaveStream(): void {
    this.#isLeft = true;
  }

  append(frames: readonly JournalFrame[]): Promise<void> {
    return this.#writer.append(frames);
  }

  /** The disk of this host counts only while it may take frames. */
  get backlogDiskBytes(): number {
    return this.#writer.isFallback ? this.#journal.backlogDiskBytes : 0;
  }

  freeBytes(): number {
    return this.#writer.isFallback ? this.#journal.freeBytes() : Number.POSITIVE_INFINITY;
  }

  async next(lane: Lane, limits: Limits): Promise<ShipUnit | undefined> {
    const unit = this.#journal.rowsUntaken(lane) > 0 ? await this.#journal.next(lane, limits) : undefined;
    return unit ?? this.#readers[lane].next(limits.rowsMax, limits.bytesMax);
  }

  async confirm(unit: ShipUnit): Promise<void> {
    const reader = this.#readers[unit.lane];
    if (!reader.gave(unit)) {
      await this.#journal.confirm(unit);
      return;
    }
    const repeated = this.#deletesAgain.stored(unit, reader.acceptedMs(unit));
    if (repeated !== undefined) await repeated;
    reader.confirm(unit);
  }

  rowsWaiting(lane: Lane): number {
    const { rowsUntaken, rowsOpen } = this.#readers[lane];
    if (this.#isLeft) return this.#journal.rowsWaiting(lane);
    return this.#journal.rowsWaiting(lane) + rowsUntaken + rowsOpen;
  }

  rowsUntaken(lane: Lane): number {
    return this.#journal.rowsUntaken(lane) + this.#readers[lane].rowsUntaken;
  }

  bytesWaiting(lane: Lane): number {
    return this.#journal.bytesWaiting(lane) + this.#readers[lane].bytes;
  }

  oldestWaitingAt(lane: Lane): number | undefined {
    return least(this.#journal.oldestWaitingAt(lane), this.#readers[lane].oldestAt);
  }

  oldestUntakenAt(lane: Lane): number | undefined {
    return least(this.#journal.oldestUntakenAt(lane), this.#readers[lane].oldestUntakenAt);
  }

  oldestUnshippedMs(nowMs: number): number {
    const oldest = lanes.map((lane) => this.oldestWaitingAt(lane) ?? nowMs);
    return nowMs - Math.min(nowMs, ...oldest);
  }

  get backlogBytes(): number {
    return this.bytesWaiting(0) + this.bytesWaiting(1);
  }

  /** The highest order that this process has seen. */
  get orderMax(): bigint {
    let max = this.#journal.orderMax;
    for (const order of [this.#writer.orderBegun, ...this.#readers.map(({ orderMax }) => orderMax)]) {
      if (order > max) max = order;
    }
    return max;
  }

  get orderRecovered(): bigint | undefined {
    return this.#journal.orderRecovered;
  }

  laneShipped(lane: Lane): bigint {
    const { orderOpenMin, orderUntakenMin } = this.#readers[lane];
    const local = this.#journal.rowsWaiting(lane) > 0 ? this.#journal.laneShipped(lane) + 1n : undefined;
    return (least(local, least(orderOpenMin, orderUntakenMin)) ?? this.orderMax + 1n) - 1n;
  }

  laneTaken(lane: Lane): bigint {
    const local = this.#journal.rowsUntaken(lane) > 0 ? this.#journal.laneTaken(lane) + 1n : undefined;
    return (least(local, this.#readers[lane].orderUntakenMin) ?? this.orderMax + 1n) - 1n;
  }

  get suspects(): Journal['suspects'] {
    return this.#journal.suspects;
  }

  get shardBacklog(): Journal['shardBacklog'] {
    return this.#journal.shardBacklog;
  }

  get quarantine(): Journal['quarantine'] {
    return this.#journal.quarantine;
  }
}

/**
 * Hides the notes of stored ranges. A note covers all orders up to one, which is right for the frames of one journal,
 * because they come in order, and wrong for the frames of a stream.
 */
function withoutRanges(notes: Notes): Notes {
  return {
    mark: notes.mark,
    earlierMarks: notes.earlierMarks,
    isEmpty: true,
    begin: (clean) => notes.begin(clean),
    forgetMarks: (marks) => notes.forgetMarks(marks),
    rangesOf: () => [],
    stored: () => {},
    unfinished: (work) => notes.unfinished(work),
    takesLong: (work, size) => notes.takesLong(work, size),
    ended: (work) => notes.ended(work),
  };
}

function least<T extends number | bigint>(a: T | undefined, b: T | undefined): T | undefined {
  if (a === undefined) return b;
  return b === undefined || a < b ? a : b;
}
