/**
 * Cuts rows into chunks: by a bucket of their devices, and by a size. The records of a device keep their order. A
 * record that is larger than a chunk is cut. `ingest.ack: stream` needs it; the journal takes all rows as one frame.
 */
import { type Columns, encodeColumns, endOfText, type Spans } from './block.ts';
import { Chunk } from './decoded-chunk.ts';
import type { Rows } from './rows.ts';

/** The bytes of a row without its text: index of the key, kind, num, int, device, ts, seq, version. */
const rowBytes = 4 + 1 + 8 + 8 + 8 + 8 + 4 + 8;
/** Bytes of a block that are not of rows, with room for the dictionary of keys. */
const blockBytes = 512;

/** The rows of one chunk, in order. */
interface Cut {
  rows: number[];
  ends: number[];
  devices: number[];
  times: number[];
  isServerTime: number[];
  bytes: number;
}

function newCut(): Cut {
  return { rows: [], ends: [], devices: [], times: [], isServerTime: [], bytes: blockBytes };
}

/** `bucketOf` returns a small whole number. */
export function cutRows(rows: Rows, bucketOf: (device: number) => number, bytesMax: number): Chunk[] {
  const columns = rows.columns();
  const spans = rows.spans();
  const texts = columns.text && textOffsets(columns.text, columns.count);
  const keyBytes = columns.keys.map((key) => key.length + 1);
  const done: Cut[] = [];
  const open = new Map<number, Cut>();
  let row = 0;
  for (let span = 0; span < spans.count; span += 1) {
    const device = spans.device[span]!;
    const bucket = bucketOf(device);
    let cut = open.get(bucket);
    if (!cut) open.set(bucket, (cut = newCut()));
    for (let isFirst = true; row < spans.end[span]!; row += 1) {
      const textBytes = texts ? texts[row + 1]! - texts[row]! : 0;
      // Each row counts with its key, which may be in the dictionary already: an upper limit.
      const bytes = rowBytes + textBytes + keyBytes[columns.keyIndexes[row]!]!;
      if (cut.rows.length > 0 && cut.bytes + bytes > bytesMax) {
        done.push(cut);
        open.set(bucket, (cut = newCut()));
        isFirst = true;
      }
      if (isFirst) {
        cut.devices.push(device);
        cut.times.push(spans.ts[span]!);
        cut.isServerTime.push(spans.isServerTime[span]!);
        cut.ends.push(0);
        isFirst = false;
      }
      cut.rows.push(row);
      cut.ends[cut.ends.length - 1] = cut.rows.length;
      cut.bytes += bytes;
    }
  }
  done.push(...open.values());
  return done.map((cut) => chunkOf(columns, cut, texts));
}

function chunkOf(columns: Columns, cut: Cut, texts: Uint32Array | undefined): Chunk {
  const spans: Spans = {
    count: cut.ends.length,
    end: Uint32Array.from(cut.ends),
    device: Float64Array.from(cut.devices),
    ts: Float64Array.from(cut.times),
    isServerTime: Uint8Array.from(cut.isServerTime),
    serverTimes: cut.isServerTime.reduce((sum, is) => sum + is, 0),
  };
  return new Chunk({ columns: encodeColumns(pick(columns, cut.rows, texts)), spans, converted: [] });
}

function pick(columns: Columns, rows: readonly number[], texts: Uint32Array | undefined): Columns {
  const keys: Uint8Array[] = [];
  const places = new Map<number, number>();
  const keyIndexes = new Uint32Array(rows.length);
  const kind = new Uint8Array(rows.length);
  for (const [i, row] of rows.entries()) {
    const index = columns.keyIndexes[row]!;
    let place = places.get(index);
    if (place === undefined) places.set(index, (place = keys.push(columns.keys[index]!) - 1));
    keyIndexes[i] = place;
    kind[i] = columns.kind[row]!;
  }
  return {
    count: rows.length,
    keys,
    keyIndexes,
    kind,
    num: pickEights(columns.num, rows),
    int: columns.int && pickEights(columns.int, rows),
    text: columns.text && pickTexts(columns.text, texts!, rows),
  };
}

function pickEights(bytes: Uint8Array, rows: readonly number[]): Uint8Array {
  // Bits are copied, not numbers: a copy as a double would change some of the values that are no numbers.
  const source = new BigUint64Array(bytes.buffer, bytes.byteOffset, bytes.length / 8);
  const picked = new BigUint64Array(rows.length);
  for (const [i, row] of rows.entries()) picked[i] = source[row]!;
  return new Uint8Array(picked.buffer);
}

function pickTexts(text: Uint8Array, offsets: Uint32Array, rows: readonly number[]): Uint8Array {
  const picked = new Uint8Array(rows.reduce((sum, row) => sum + offsets[row + 1]! - offsets[row]!, 0));
  let at = 0;
  for (const row of rows) {
    picked.set(text.subarray(offsets[row]!, offsets[row + 1]!), at);
    at += offsets[row + 1]! - offsets[row]!;
  }
  return picked;
}

/** Returns where the text of each row begins, with its length, and the end of the last. */
function textOffsets(text: Uint8Array, count: number): Uint32Array {
  const offsets = new Uint32Array(count + 1);
  let at = 0;
  for (let row = 0; row < count; row += 1) {
    offsets[row] = at;
    at = endOfText(text, at);
  }
  offsets[count] = at;
  return offsets;
}
