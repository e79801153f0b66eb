/**
 * The two kinds of commits, each one write and one sync of the journal: the small messages that gathered during the
 * last sync, and one large message. Made by `accept.ts`.
 */
import { limits } from '../base/limits.ts';
import { type JournalFrame, type Lane, late, live } from '../journal/journal.ts';
import type { TimeRange } from '../journal/ship-notes.ts';
import type { FrameStamp, Spans } from '../telemetry/block.ts';
import type { Chunk } from '../telemetry/decoded-chunk.ts';
import { Rows } from '../telemetry/rows.ts';
import type { Sender } from './backlog-shares.ts';
import { Askers } from './receipts.ts';
import type { Devices, Waiter } from './store-acks.ts';

/** One write and one sync: its frames, and the waiters for them. */
export interface Commit {
  readonly waiters: Waiter[];
  /** The waiters that asked for a receipt. */
  readonly askers: Askers;
  readonly messages: number;
  readonly points: number;
  readonly bytes: number;
  /** Arrival of the first message, monotonic. */
  readonly since: number;
  /** `framesOf`: cuts gathered rows; large messages are cut when they are decoded. */
  frames(stamp: NewStamp, framesOf?: FramesOf): JournalFrame[];
  /** Returns the waiters whose rows are in frames of this lane; in both lanes when the lane of a waiter is unknown. */
  waitersOf(lane: Lane | 'both'): readonly Waiter[];
  /** Returns the devices of the rows of a waiter; undefined when they were not noted. */
  devicesOf(waiter: Waiter): Devices | undefined;
}

/** Called once for each frame, in the order of the frames. */
export type NewStamp = (firstPlace: number) => FrameStamp;

/** Cuts the rows of one lane into several frames. */
export type FramesOf = (rows: Rows, lane: Lane, stamp: NewStamp) => JournalFrame[];

/** Small messages that share a commit. Two objects exist: one gathers while the other is written. */
export class Gathering implements Commit {
  readonly live = new Rows();
  readonly late = new Rows();
  readonly waiters: Waiter[] = [];
  readonly askers = new Askers();
  /** The members of `waiters` whose rows are in the late lane; kept for `ingest.ack: store` only. */
  readonly lateWaiters = new Set<Waiter>();
  /** The devices of the rows of each waiter; noted for `ingest.ack: store` with several shards only. */
  readonly devices = new Map<Waiter, Devices>();
  /** True when a message of the late lane has a record of the live lane's times, too. */
  isMixed = false;
  /** The points of such records, of the first `lateNamed` records of the late lane. */
  readonly lateNames = new Set<string>();
  lateNamed = 0;
  messages = 0;
  points = 0;
  since = 0;

  get bytes(): number {
    return this.live.bytes + this.late.bytes;
  }

  get full(): boolean {
    return (
      this.bytes >= limits.frameBytesMax ||
      this.live.count + this.late.count >= limits.frameRowsMax ||
      this.messages >= limits.frameWaitersMax
    );
  }

  frames(stamp: NewStamp, framesOf?: FramesOf): JournalFrame[] {
    if (framesOf !== undefined) return [...framesOf(this.live, live, stamp), ...framesOf(this.late, late, stamp)];
    const frames: JournalFrame[] = [];
    if (this.live.count > 0) frames.push(frameOf(this.live, live, stamp(0)));
    if (this.late.count > 0) frames.push(frameOf(this.late, late, stamp(0)));
    return frames;
  }

  waitersOf(lane: Lane | 'both'): readonly Waiter[] {
    if (lane === 'both') return [];
    if (lane === late) return [...this.lateWaiters];
    return this.lateWaiters.size === 0 ? this.waiters.slice() : this.waiters.filter((w) => !this.lateWaiters.has(w));
  }

  devicesOf(waiter: Waiter): Devices | undefined {
    return this.devices.get(waiter);
  }

  reset(): void {
    this.live.reset();
    this.late.reset();
    this.waiters.length = 0;
    this.askers.reset();
    this.lateWaiters.clear();
    this.devices.clear();
    if (this.isMixed) this.lateNames.clear();
    this.isMixed = false;
    this.lateNamed = 0;
    this.messages = 0;
    this.points = 0;
  }
}

function frameOf(rows: Rows, lane: Lane, stamp: FrameStamp): JournalFrame {
  return { lane, order: stamp.order, rows: rows.count, parts: rows.encode(stamp) };
}

/** One message that was decoded in a thread; each chunk becomes a frame. */
export class LargeMessage implements Commit {
  readonly waiters: Waiter[];
  readonly askers = new Askers();
  readonly messages = 1;
  readonly points: number;
  readonly bytes: number;
  readonly since: number;
  readonly tenantId: string;
  readonly caller: string;
  /** Called when the rows have their order numbers. */
  readonly onTaken: () => void;
  readonly #chunks: Chunk[];
  readonly #near: TimeRange;

  constructor(
    chunks: Chunk[],
    { tenantId, number }: Sender,
    onTaken: () => void,
    waiters: Waiter[],
    since: number,
    near: TimeRange,
  ) {
    this.tenantId = tenantId;
    this.caller = String(number);
    this.onTaken = onTaken;
    this.#chunks = chunks;
    this.#near = near;
    this.waiters = waiters;
    this.since = since;
    this.points = chunks.reduce((sum, chunk) => sum + chunk.count, 0);
    this.bytes = chunks.reduce((sum, chunk) => sum + chunk.bytes, 0);
  }

  frames(newStamp: NewStamp): JournalFrame[] {
    let firstPlace = 0;
    return this.#chunks.map((chunk) => {
      const stamp = newStamp(firstPlace);
      firstPlace += chunk.records;
      return {
        lane: laneOf(chunk, this.#near),
        order: stamp.order,
        rows: chunk.count,
        parts: chunk.encode(stamp),
        device: chunk.spans().device[0]!,
      };
    });
  }

  waitersOf(lane: Lane | 'both'): readonly Waiter[] {
    return lane === 'both' ? this.waiters : [];
  }

  devicesOf(): Devices {
    return this.#chunks.flatMap((chunk) => devicesFrom(chunk.spans(), 0));
  }

  ask(waiter: Waiter, sender: Sender): void {
    const records = this.#chunks.map((chunk) => ({ spans: chunk.spans(), from: 0, to: chunk.records }));
    this.askers.add(waiter, sender, undefined, records);
  }
}

/** Returns the devices of the records from `first` on. The records of a device mostly follow each other. */
export function devicesFrom({ count, device }: Readonly<Spans>, first: number): number[] {
  const devices: number[] = [];
  for (let i = first; i < count; i += 1) if (devices.at(-1) !== device[i]) devices.push(device[i]!);
  return devices;
}

/** `near`: the times of the live lane. */
export function laneOf({ oldestTs, newestTs }: Chunk, near: TimeRange): Lane {
  return oldestTs >= near.from && newestTs < near.to ? live : late;
}
