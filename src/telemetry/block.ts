/**
 * The block of rows that is journaled, shipped and kept in quarantine: one ClickHouse `Native` block.
 *
 *   columns varint · rows varint · for each column: name, type (both varint length + bytes), data
 *   device UInt64 · key LowCardinality(String) · ts Int64 · seq UInt32 · kind UInt8 · num Float64 · int Int64 ·
 *   text String · version UInt64
 *
 * A block whose points have a time to live begins with the column `expires UInt32`, in seconds since 1970.
 *
 * Numbers are little-endian and fixed in width; a text is varint length + bytes. `seq`, `int` and `text` are left out
 * when no row needs them: ClickHouse fills in 0 and ''. LowCardinality data is four parts:
 *   u64 1 (version of the serialisation) · u64 flags = 0x200 (the block brings its own keys) + width of an index as
 *   power of two · u64 keys, each varint length + bytes · u64 rows, an index for each
 *
 * `version` = order - ts * 2^20 + 2^63: of two rows with the same device, key and ts the one with the larger order
 * wins. It fits 64 bits while ts is within 2^43 ms (278 years) of the order's own milliseconds; `tsDistanceMsMax`
 * keeps well inside.
 *
 * `seq` = 0 when the message brought its `ts`: then device, key and ts name the point. A row at server time is a point
 * of its own, because `seq` (with `version`, which differs for each frame) is part of its key. `seq` = (lag + 1) * 2^24
 * + place. `lag`: steps of 4 µs from the beginning of the millisecond `ts` to the moment that the frame was encoded, at
 * most 250. `place`: rises with the records of one frame that share a `ts`.
 *
 * Why the order by `seq` is the order of sending, for all workers of a host: a frame is encoded after its messages
 * arrived and before they are acknowledged. So when a sender waits for the acknowledgement, the next message either
 * arrives in a later millisecond or its frame is encoded later, and no lag of the earlier one has reached the maximum.
 */
import { endianness } from 'node:os';
import { dayMs } from '../base/durations.ts';
import { assert } from '../base/errors.ts';

assert(endianness() === 'LE', 'typed arrays are the wire format only on a little-endian machine');

/** 270 years: a `ts` farther from now cannot be stored. */
export const tsDistanceMsMax = 270 * 365.25 * dayMs;

/**
 * The columns of rows except device, time, seq and version. Fixed-width columns are bytes. A column that no row needs
 * is undefined.
 */
export interface Columns {
  count: number;
  keys: Uint8Array[];
  keyIndexes: Uint32Array;
  kind: Uint8Array;
  num: Uint8Array;
  int: Uint8Array | undefined;
  text: Uint8Array | undefined;
}

/** Columns with encoded keys: a whole block except device, ts, seq and version. */
export interface EncodedColumns {
  count: number;
  keyPart: Uint8Array;
  kind: Uint8Array;
  num: Uint8Array;
  int: Uint8Array | undefined;
  text: Uint8Array | undefined;
  /** Absent: the points have no time to live. */
  expires?: Uint8Array | undefined;
}

/** Runs of rows that share device and ts; a run ends before row `end`. */
export interface Spans {
  count: number;
  end: Uint32Array;
  device: Float64Array;
  ts: Float64Array;
  /** 1: the message had no `ts`. */
  isServerTime: Uint8Array;
  /** Runs at server time. */
  serverTimes: number;
}

/** The values that a frame gets when it is encoded. */
export interface FrameStamp {
  /** Unique among the frames of all workers and hosts. */
  order: bigint;
  /** Microseconds since 1970, by a clock that all workers of the host share. */
  micros: number;
  /** The first place of a record; further frames of the same message continue the count. */
  firstPlace: number;
}

/** The four columns made from spans and stamp; two halves for each row, except `seq`, which is one number. */
export interface Stamps {
  device: Int32Array;
  ts: Int32Array;
  version: Int32Array;
  seq: Uint32Array;
}

export function newStamps(rows: number): Stamps {
  return {
    device: new Int32Array(2 * rows),
    ts: new Int32Array(2 * rows),
    version: new Int32Array(2 * rows),
    seq: new Uint32Array(rows),
  };
}

/** Returns the `version` of a row. */
export function versionOf(order: bigint, ts: number): bigint {
  return order - (BigInt(ts) << 20n) + (1n << 63n);
}

/** Returns the order number that a `version` encodes. */
export function orderOfVersion(version: bigint, ts: bigint): bigint {
  return version + (ts << 20n) - (1n << 63n);
}

const placeMax = 2 ** 24 - 1;
const microsPerLag = 4;
const lagMax = 250;

/**
 * Writes device, ts and version of every row. All arithmetic is exact in doubles, without a BigInt for a row or a span.
 */
function writeStamps(spans: Spans, order: bigint, stamps: Stamps): void {
  const { device, ts, version } = stamps;
  const orderMs = Number(order >> 20n);
  const orderRest = Number(order & 0xfffffn);
  let row = 0;
  for (let i = 0; i < spans.count; i += 1) {
    const deviceLow = spans.device[i]! | 0;
    const deviceHigh = Math.floor(spans.device[i]! / 2 ** 32) | 0;
    const tsLow = spans.ts[i]! | 0;
    const tsHigh = Math.floor(spans.ts[i]! / 2 ** 32) | 0;
    const lag = orderMs - spans.ts[i]! + 2 ** 43;
    assert(lag >= 0 && lag < 2 ** 44, 'the distance of a ts from its order fits 44 bits');
    const versionHigh = Math.floor(lag / 4096);
    const versionLow = ((lag - versionHigh * 4096) * 2 ** 20 + orderRest) | 0;
    for (const end = 2 * spans.end[i]!; row < end; row += 2) {
      device[row] = deviceLow;
      device[row + 1] = deviceHigh;
      ts[row] = tsLow;
      ts[row + 1] = tsHigh;
      version[row] = versionLow;
      version[row + 1] = versionHigh;
    }
  }
}

/**
 * Writes `seq` of every row. Places start again with each later millisecond, which keeps them small. After a clock that
 * went back inside the frame, places continue with the number of the span, which no earlier place has reached.
 */
function writeSeq(spans: Spans, { micros, firstPlace }: FrameStamp, seq: Uint32Array): void {
  let row = 0;
  let place = firstPlace;
  let previous = Number.NaN;
  let highest = Number.NEGATIVE_INFINITY;
  for (let i = 0; i < spans.count; i += 1) {
    let value = 0;
    if (spans.isServerTime[i] === 1) {
      const ts = spans.ts[i]!;
      if (ts === previous) place += 1;
      else if (ts > highest) {
        place = firstPlace;
        highest = ts;
      } else place = firstPlace + i;
      previous = ts;
      assert(place <= placeMax, 'the places of a message have 24 bits');
      const lag = Math.floor((micros - ts * 1000) / microsPerLag);
      value = (Math.max(0, Math.min(lag, lagMax)) + 1) * (placeMax + 1) + place;
    }
    for (const end = spans.end[i]!; row < end; row += 1) seq[row] = value;
  }
}

export function encodeColumns(columns: Columns): EncodedColumns {
  const { count, kind, num, int, text } = columns;
  return { count, keyPart: encodeKeys(columns), kind, num, int, text };
}

/** Returns the parts of one block, in order; most are views of the arguments. */
export function blockParts(
  columns: EncodedColumns,
  device: Uint8Array,
  ts: Uint8Array,
  seq: Uint8Array | undefined,
  version: Uint8Array,
): Uint8Array[] {
  const { count, keyPart, kind, num, int, text, expires } = columns;
  const absent = (seq ? 0 : 1) + (int ? 0 : 1) + (text ? 0 : 1) + (expires ? 0 : 1);
  const parts = [blockHeader(count, 10 - absent)];
  if (expires) parts.push(columnHeads.expires, expires);
  parts.push(columnHeads.device, device, keyPart, columnHeads.ts, ts);
  if (seq) parts.push(columnHeads.seq, seq);
  parts.push(columnHeads.kind, kind, columnHeads.num, num);
  if (int) parts.push(columnHeads.int, int);
  if (text) parts.push(columnHeads.text, text);
  parts.push(columnHeads.version, version);
  return parts;
}

/** Returns the block of stamped columns. */
export function stampedParts(columns: EncodedColumns, spans: Spans, stamp: FrameStamp, stamps: Stamps): Uint8Array[] {
  writeStamps(spans, stamp.order, stamps);
  const { device, ts, version, seq } = stamps;
  const { count } = columns;
  let seqBytes: Uint8Array | undefined;
  if (spans.serverTimes > 0) {
    writeSeq(spans, stamp, seq);
    seqBytes = new Uint8Array(seq.buffer, seq.byteOffset, 4 * count);
  }
  return blockParts(columns, byteView(device, count), byteView(ts, count), seqBytes, byteView(version, count));
}

export function byteView(array: Int32Array | Float64Array, rows: number): Uint8Array {
  return new Uint8Array(array.buffer, array.byteOffset, 8 * rows);
}

/** Writes a varint and returns the offset after it. */
export function writeVarint(target: Uint8Array, at: number, value: number): number {
  while (value >= 0x80) {
    target[at++] = value | 0x80;
    value >>>= 7;
  }
  target[at++] = value;
  return at;
}

export const varintBytesMax = 5;

/** Returns the offset after the text that begins with its length at `at`. */
export function endOfText(text: Uint8Array, at: number): number {
  let next = at;
  let length = 0;
  let shift = 0;
  let byte: number;
  do {
    byte = text[next++]!;
    length |= (byte & 0x7f) << shift;
    shift += 7;
  } while (byte >= 0x80);
  return next + length;
}

/** Returns the offset of the first byte of the text that begins with its length at `at`. */
export function startOfText(text: Uint8Array, at: number): number {
  let start = at + 1;
  while (text[start - 1]! >= 0x80) start += 1;
  return start;
}

function blockHeader(rows: number, columns: number): Uint8Array {
  const header = new Uint8Array(1 + varintBytesMax);
  header[0] = columns;
  return header.subarray(0, writeVarint(header, 1, rows));
}

function encodeKeys({ count, keys, keyIndexes }: Columns): Uint8Array {
  const width = keys.length <= 0x100 ? 0 : keys.length <= 0x10000 ? 1 : 2;
  let size = columnHeads.key.length + 32 + (count << width);
  for (const key of keys) size += varintBytesMax + key.length;
  const part = Buffer.allocUnsafe(size);
  part.set(columnHeads.key);
  let at = columnHeads.key.length;
  at = writeSmall(part, at, 1);
  at = writeSmall(part, at, 0x200 + width);
  at = writeSmall(part, at, keys.length);
  for (const key of keys) {
    at = writeVarint(part, at, key.length);
    part.set(key, at);
    at += key.length;
  }
  at = writeSmall(part, at, count);
  if (width === 0) for (let row = 0; row < count; row += 1) part[at + row] = keyIndexes[row]!;
  else if (width === 1) for (let row = 0; row < count; row += 1) part.writeUInt16LE(keyIndexes[row]!, at + 2 * row);
  else for (let row = 0; row < count; row += 1) part.writeUInt32LE(keyIndexes[row]!, at + 4 * row);
  return part.subarray(0, at + (count << width));
}

/** Returns the keys of `encodeKeys`, as views. */
export function encodedKeys({ keyPart }: EncodedColumns): Uint8Array[] {
  const view = new DataView(keyPart.buffer, keyPart.byteOffset);
  const countAt = columnHeads.key.length + 16;
  const count = view.getUint32(countAt, true);
  const keys: Uint8Array[] = [];
  let at = countAt + 8;
  for (let i = 0; i < count; i += 1) {
    const end = endOfText(keyPart, at);
    keys.push(keyPart.subarray(startOfText(keyPart, at), end));
    at = end;
  }
  return keys;
}

/** Writes a u64 that fits 32 bits. */
export function writeSmall(target: Buffer, at: number, value: number): number {
  target.writeUInt32LE(value, at);
  target.writeUInt32LE(0, at + 4);
  return at + 8;
}

/** True when the bytes of `head` are at this offset. */
export function hasHead(bytes: Uint8Array, at: number, head: Uint8Array): boolean {
  for (let i = 0; i < head.length; i += 1) if (bytes[at + i] !== head[i]) return false;
  return true;
}

function head(name: string, type: string): Uint8Array {
  return Buffer.concat([Buffer.from([name.length]), Buffer.from(name), Buffer.from([type.length]), Buffer.from(type)]);
}

export const columnHeads = {
  device: head('device', 'UInt64'),
  key: head('key', 'LowCardinality(String)'),
  ts: head('ts', 'Int64'),
  seq: head('seq', 'UInt32'),
  kind: head('kind', 'UInt8'),
  num: head('num', 'Float64'),
  int: head('int', 'Int64'),
  text: head('text', 'String'),
  version: head('version', 'UInt64'),
  expires: head('expires', 'UInt32'),
};
