/**
 * Cuts rows into chunks: by a bucket of their devices, and by a size. The records of a device keep their order. A
 * record that is larger than a chunk is cut. `ingest.ack: stream` needs it; the journal takes all rows as one frame.
 */
import { encodeColumns, type Spans } from './block.ts';
import { Chunk } from './decoded-chunk.ts';
import { RowPicker } from './pick-rows.ts';
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
  const picker = new RowPicker(columns);
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
      // Each row counts with its key, which may be in the dictionary already: an upper limit.
      const bytes = rowBytes + picker.textBytes(row) + keyBytes[columns.keyIndexes[row]!]!;
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
  return done.map((cut) => chunkOf(picker, cut));
}

function chunkOf(picker: RowPicker, cut: Cut): Chunk {
  const spans: Spans = {
    count: cut.ends.length,
    end: Uint32Array.from(cut.ends),
    device: Float64Array.from(cut.devices),
    ts: Float64Array.from(cut.times),
    isServerTime: Uint8Array.from(cut.isServerTime),
    serverTimes: cut.isServerTime.reduce((sum, is) => sum + is, 0),
  };
  const columns = encodeColumns(picker.pick(Uint32Array.from(cut.rows)));
  return new Chunk({ columns, spans, converted: [] });
}
