/**
 * Reads the days of blocks from their `ts` columns: a day is a partition of the series table, and partitions are the
 * main cost of an insert. Also finds which devices sent. Used for shipping. No row costs an allocation.
 */
import { dayMs } from '../base/durations.ts';
import { daysEndMs, firstDayMs } from '../clickhouse/day-partitions.ts';
import { startOfBlock } from './block-layout.ts';

/** Rows of one block and the range of their times. */
interface BlockTimes {
  readonly rows: number;
  /** True when the block has a `seq` column: some of its rows are points at server time. */
  readonly hasSeq: boolean;
  /** True when the block has an `expires` column: its points have a time to live. */
  readonly hasExpires: boolean;
  readonly oldest: number;
  readonly newest: number;
}

/**
 * Adds the day of every row with `from` ≤ ts < `to` to `days`, as the first millisecond of the day. All rows before the
 * days that are partitions count as one day, and all rows after them as another one. Returns undefined when the bytes
 * are not a block.
 */
export function addDays(block: Uint8Array, days: Set<number>, from: number, to: number): BlockTimes | undefined {
  const start = startOfBlock(block);
  if (!start) return undefined;
  const { rows } = start;
  const view = new DataView(block.buffer, block.byteOffset + start.ts, 8 * rows);
  let oldest = Number.POSITIVE_INFINITY;
  let newest = Number.NEGATIVE_INFINITY;
  let dayStart = Number.POSITIVE_INFINITY;
  let dayEnd = Number.NEGATIVE_INFINITY;
  for (let row = 0; row < rows; row += 1) {
    const ts = view.getUint32(8 * row, true) + view.getInt32(8 * row + 4, true) * 2 ** 32;
    if (ts < oldest) oldest = ts;
    if (ts > newest) newest = ts;
    if ((ts >= dayStart && ts < dayEnd) || ts < from || ts >= to) continue;
    dayStart = Math.floor(ts / dayMs) * dayMs;
    dayEnd = dayStart + dayMs;
    if (ts < firstDayMs) [dayStart, dayEnd] = [Number.MIN_SAFE_INTEGER, firstDayMs];
    else if (ts >= daysEndMs) [dayStart, dayEnd] = [daysEndMs, Number.MAX_SAFE_INTEGER];
    days.add(dayStart);
  }
  return { rows, hasSeq: start.seq > 0, hasExpires: start.expires > 0, oldest, newest };
}

/** Returns the column `device` of a block, as UInt64; undefined when the bytes are not a block. */
export function deviceColumn(block: Uint8Array): DataView | undefined {
  const start = startOfBlock(block);
  return start && new DataView(block.buffer, block.byteOffset + start.device, 8 * start.rows);
}

/** One of so many devices is sampled. A prime number, because a worker may serve every second or tenth device. */
const sampledOf = 61;
const sampledRecordsMin = 20;
const singleShare = 0.8;

/** Counts the records of a sample of devices, over some blocks. */
export class SampledRecords {
  readonly #devices = new Set<number>();
  #records = 0;

  /** Adds the records of a block; bytes that are not a block are ignored. */
  add(block: Uint8Array): void {
    const start = startOfBlock(block);
    if (!start) return;
    const { device: deviceAt, ts, rows } = start;
    const devices = new DataView(block.buffer, block.byteOffset + deviceAt, 8 * rows);
    const times = new DataView(block.buffer, block.byteOffset + ts, 8 * rows);
    let [lastDevice, lastTs] = [-1, -1];
    for (let row = 0; row < rows; row += 1) {
      const device = devices.getUint32(8 * row, true);
      if (device % sampledOf !== 0) continue;
      const ts = times.getUint32(8 * row, true);
      if (device === lastDevice && ts === lastTs) continue;
      [lastDevice, lastTs] = [device, ts];
      this.#records += 1;
      this.#devices.add(device);
    }
  }

  /** True when most devices sent one record: then most rows are the only ones of their series. */
  get areSingle(): boolean {
    return this.#records >= sampledRecordsMin && this.#devices.size >= this.#records * singleShare;
  }
}
