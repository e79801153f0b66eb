/**
 * Notes of shipping about frames that are not confirmed, in the file `ship-notes` of a journal: which ranges of late
 * frames are stored, which units took long, and the marks of inserts. With these notes a process that is killed often
 * continues where the process before it ended. The notes may lack something that is stored, and never name anything
 * that is not: a missing or damaged file costs repeated work. Only notes of the previous owner are used (`owner.ts`).
 * After an owner without notes, such as an earlier version, frames may have lower orders than those in the notes.
 */
import { randomUUID } from 'node:crypto';
import { crc32 } from 'node:zlib';
import { messageOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { type Disk, readWholeAround, replaceWhole } from './disk.ts';
import type { Owner } from './owner.ts';

export const shipNotesFile = 'ship-notes';

/** Times ≥ `from` and < `to`. */
export interface TimeRange {
  readonly from: number;
  readonly to: number;
}

/** Every row of the late lane with an order up to `orderMax` and a time in one of the ranges is stored. */
interface StoredUpTo {
  readonly orderMax: bigint;
  /** Ascending; no two of them touch. */
  ranges: TimeRange[];
}

/** What was being inserted for long: a unit of a lane, or late frames of many days beside their lane. */
type Work = 'live' | 'late' | 'wide';

/** Entries that are kept; without the oldest ones more is repeated. */
const entriesMax = 32;
/** Earlier processes whose inserts are searched. */
const marksMax = 8;

/** What shipping uses of the notes. */
export type Notes = Pick<
  ShipNotes,
  | 'mark'
  | 'earlierMarks'
  | 'begin'
  | 'forgetMarks'
  | 'rangesOf'
  | 'isEmpty'
  | 'stored'
  | 'unfinished'
  | 'takesLong'
  | 'ended'
>;

export class ShipNotes {
  readonly #path: string;
  readonly #disk: Disk;
  readonly #log: Log;
  /** The content of the file `epoch` of this owner. */
  readonly #owner: string | undefined;
  #stored: StoredUpTo[] = [];
  /** Sizes of work that did not end, in the unit of its kind. */
  readonly #unfinished = new Map<Work, number>();
  /** Begins the marks of all inserts of this opening. */
  readonly mark = `millrace-${randomUUID()}`;
  /** Marks of earlier openings whose inserts may still run, the oldest first. */
  #earlier: string[] = [];
  #saving: Promise<void> | undefined;
  #isDirty = false;

  private constructor(disk: Disk, dir: string, log: Log, owner: string | undefined) {
    this.#owner = owner;
    this.#disk = disk;
    this.#path = `${dir}/${shipNotesFile}`;
    this.#log = log;
  }

  static async open(disk: Disk, dir: string, log: Log, owner: Pick<Owner, 'text' | 'earlierText'>): Promise<ShipNotes> {
    const self = new ShipNotes(disk, dir, log, owner.text);
    try {
      // Written at once: a process that is killed during recovery must not lose the notes of the earlier ones.
      if (self.#read(await readWholeAround(disk, self.#path), owner.earlierText)) await self.#writeOnce();
    } catch (error) {
      log.warn('ship_notes_unread', { reason: messageOf(error) });
    }
    return self;
  }

  /**
   * Forgets ranges of orders that the journal does not contain: frames that were not synced are gone after a crash of
   * the host, and if its clock was set back, new frames get the orders that are noted.
   */
  async keepUpTo(orderMax: bigint): Promise<void> {
    const kept = this.#stored.filter((entry) => entry.orderMax <= orderMax);
    if (kept.length === this.#stored.length) return;
    this.#stored = kept;
    this.#save();
    await this.#saving;
  }

  /** Marks of earlier openings whose inserts may still run in the store. */
  get earlierMarks(): readonly string[] {
    return this.#earlier;
  }

  /** Called before the first insert of this opening. `clean`: no frame waited, so no earlier insert counts. */
  begin(clean: boolean): void {
    if (clean) this.#earlier = [];
    this.#save();
  }

  /** Called when no insert of these openings runs any more. */
  forgetMarks(marks: readonly string[]): void {
    const left = this.#earlier.filter((mark) => !marks.includes(mark));
    if (left.length === this.#earlier.length) return;
    this.#earlier = left;
    this.#save();
  }

  /** Returns the ranges of a late frame of this order that are stored. */
  rangesOf(order: bigint): TimeRange[] {
    let ranges: TimeRange[] = [];
    for (const entry of this.#stored) if (entry.orderMax >= order) ranges = united(ranges, entry.ranges);
    return ranges;
  }

  /** True when no range is noted. */
  get isEmpty(): boolean {
    return this.#stored.length === 0;
  }

  /** Called when every row of the late lane with an order up to `orderMax` and a time in the range is stored. */
  stored(orderMax: bigint, { from, to }: TimeRange, laneShipped: bigint): void {
    const range = { from, to };
    this.#stored = this.#stored.filter((entry) => entry.orderMax > laneShipped);
    const entry = this.#stored.find((other) => other.orderMax === orderMax);
    if (entry) entry.ranges = united(entry.ranges, [range]);
    else this.#stored.push({ orderMax, ranges: [range] });
    if (this.#stored.length > entriesMax) this.#stored.shift();
    this.#save();
  }

  /** Returns the size of the work that an earlier process did not finish; undefined when all work was finished. */
  unfinished(work: Work): number | undefined {
    return this.#unfinished.get(work);
  }

  /** Called when work takes long. */
  takesLong(work: Work, size: number): void {
    this.#unfinished.set(work, size);
    this.#save();
  }

  /** Called when work has ended. */
  ended(work: Work): void {
    if (!this.#unfinished.delete(work)) return;
    this.#save();
  }

  /** Resolves when everything is written, or cannot be. */
  async close(): Promise<void> {
    await this.#saving;
  }

  /** Writes the notes, one write at a time. */
  #save(): void {
    this.#isDirty = true;
    this.#saving ??= this.#write();
  }

  async #write(): Promise<void> {
    while (this.#isDirty) {
      this.#isDirty = false;
      await this.#writeOnce();
    }
    // Runs in the turn in which nothing was left to write, so a later call begins another write.
    this.#saving = undefined;
  }

  async #writeOnce(): Promise<void> {
    const stored = this.#stored.map(({ orderMax, ranges }) => ({ orderMax: orderMax.toString(), ranges }));
    const marks = [...this.#earlier, this.mark].slice(-marksMax);
    const text = JSON.stringify({ owner: this.#owner, stored, unfinished: [...this.#unfinished], marks });
    try {
      await replaceWhole(this.#disk, this.#path, [Buffer.from(`${crc32(text)}\n${text}`)]);
    } catch (error) {
      this.#log.warn('ship_notes_unwritten', { reason: messageOf(error) });
    }
  }

  /** Returns false when the file has no notes of the earlier owner. */
  #read(bytes: Buffer | undefined, earlier: string | undefined): boolean {
    const [sum, text] = (bytes?.toString() ?? '').split('\n', 2);
    if (text === undefined || Number(sum) !== crc32(text)) return false;
    const { owner, stored, unfinished, marks } = JSON.parse(text) as {
      owner?: string;
      marks: string[];
      stored: { orderMax: string; ranges: TimeRange[] }[];
      unfinished: [Work, number][];
    };
    if (owner === undefined || owner !== earlier) return false;
    for (const [work, size] of unfinished) this.#unfinished.set(work, size);
    this.#earlier = [...marks];
    this.#stored = stored.map(({ orderMax, ranges }) => ({ orderMax: BigInt(orderMax), ranges }));
    return true;
  }
}

/** Returns the union, ascending; ranges that touch become one. */
function united(some: readonly TimeRange[], more: readonly TimeRange[]): TimeRange[] {
  const all = [...some, ...more].sort((a, b) => a.from - b.from);
  const ranges: TimeRange[] = [];
  for (const { from, to } of all) {
    const last = ranges.at(-1);
    if (last && from <= last.to) ranges[ranges.length - 1] = { from: last.from, to: Math.max(last.to, to) };
    else ranges.push({ from, to });
  }
  return ranges;
}
