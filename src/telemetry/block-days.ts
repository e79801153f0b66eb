/**
 * Reads the days of blocks from their `ts` columns: a day is a partition of the series table, and partitions are the
 * main cost of an insert. Also finds which devices sent. Used for shipping. No row costs an allocation.
 */
import { hasHead, columnHeads as heads } from './block.ts';

const dayMs = 86_400_000;
/** Days outside these years share one partition. */
const firstMs = 1_577_836_800_000;
const endMs = 2_208_988_800_000;

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
 * Adds the day of every row with `from` ≤ ts < `to` to `days`, as the first millisecond of the day. Returns undefined
 * when the bytes are not a block.
 */
export function addDays(block: Uint8Array, days: Set<number>, from: number, to: number): BlockTimes | undefined {
  const place = placeOfTs(block);
  if (!place) return undefined;
  const { at, rows, hasSeq, hasExpires } = place;
  const view = new DataView(block.buffer, block.byteOffset + at, 8 * rows);
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
    if (ts < firstMs) [dayStart, dayEnd] = [Number.MIN_SAFE_INTEGER, firstMs];
    else if (ts >= endMs) [dayStart, dayEnd] = [endMs, Number.MAX_SAFE_INTEGER];
    days.add(dayStart);
  }
  return { rows, hasSeq, hasExpires, oldest, newest };
}

/** Returns the column `device` of a block, as UInt64; undefined when the bytes are not a block. */
export function deviceColumn(block: Uint8Array): DataView | undefined {
  const place = placeOfTs(block);
  return place && new DataView(block.buffer, block.byteOffset + place.deviceAt, 8 * place.rows);
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
    const place = placeOfTs(block);
    if (!place) return;
    const { at, deviceAt, rows } = place;
    const devices = new DataView(block.buffer, block.byteOffset + deviceAt, 8 * rows);
    const times = new DataView(block.buffer, block.byteOffset + at, 8 * rows);
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

/**
 * Finds the start of the columns `device` and `ts` of one block, whether `seq` follows and whether `expires` comes
 * before; undefined when the bytes are not such a block.
 */
function placeOfTs(
  block: Uint8Array,
): (Omit<BlockTimes, 'oldest' | 'newest'> & { at: number; deviceAt: number }) | undefined {
  const source = new Skipper(block);
  const columns = source.varint();
  const rows = source.varint();
  let hasExpires = false;
  let deviceAt = 0;
  for (let i = 0; i < columns && source.at < block.length; i += 1) {
    if (source.passes(heads.ts)) {
      const { at } = source;
      source.at += 8 * rows;
      if (source.at > block.length) return undefined;
      return { at, deviceAt, rows, hasSeq: source.passes(heads.seq), hasExpires };
    }
    if (source.passes(heads.device)) {
      deviceAt = source.at;
      source.at += 8 * rows;
    } else if (source.passes(heads.expires)) {
      hasExpires = true;
      source.at += 4 * rows;
    } else if (source.passes(heads.key)) source.skipKeys(rows);
    else if (!skipOther(source, rows)) return undefined;
  }
  return undefined;
}

/** Skips a column that `block.ts` writes after `ts`, if at all. Returns false for an unknown type. */
function skipOther(source: Skipper, rows: number): boolean {
  const column = `${source.text()} ${source.text()}`;
  if (/ U?Int64$| Float64$/.test(column)) source.at += 8 * rows;
  else if (/ UInt16$/.test(column)) source.at += 2 * rows;
  else if (/ UInt8$/.test(column)) source.at += rows;
  else return false;
  return true;
}

/** Reading past the end returns zeros: `placeOfTs` then finds no column. */
class Skipper {
  at = 0;
  readonly #bytes: Uint8Array;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  varint(): number {
    let value = 0;
    for (let factor = 1; factor <= 2 ** 35; factor *= 0x80) {
      const byte = this.#bytes[this.at++] ?? 0;
      value += (byte & 0x7f) * factor;
      if (byte < 0x80) break;
    }
    return value;
  }

  /** Returns true, and goes on, when these bytes come next. */
  passes(head: Uint8Array): boolean {
    if (!hasHead(this.#bytes, this.at, head)) return false;
    this.at += head.length;
    return true;
  }

  text(): string {
    const length = Math.min(this.varint(), 100);
    this.at += length;
    return Buffer.from(this.#bytes.subarray(this.at - length, this.at)).toString('latin1');
  }

  skipKeys(rows: number): void {
    this.at += 8;
    const width = (this.#bytes[this.at] ?? 0) & 0x3;
    this.at += 8;
    const keys = this.#small();
    for (let key = 0; key < keys && this.at < this.#bytes.length; key += 1) {
      const length = this.varint();
      this.at += length;
    }
    this.at += 8 + rows * 2 ** width;
  }

  #small(): number {
    let value = 0;
    for (let i = 3; i >= 0; i -= 1) value = value * 256 + (this.#bytes[this.at + i] ?? 0);
    this.at += 8;
    return value;
  }
}
