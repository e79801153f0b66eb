/**
 * The rows of one message that were decoded in a thread, cut into chunks of at most `limits.frameRowsMax` rows. The
 * thread makes the columns and passes their memory; the main thread adds devices and order.
 */
import { limits } from '../base/limits.ts';
import {
  type EncodedColumns,
  encodeColumns,
  encodedKeys,
  type FrameStamp,
  newStamps,
  type Spans,
  stampedParts,
} from './block.ts';
import { sliceColumns } from './pick-rows.ts';
import type { Converted, Rows } from './rows.ts';

/** A chunk as it passes from thread to thread. */
export interface DecodedChunk {
  columns: EncodedColumns;
  /** Runs of rows with one device and ts; the main thread replaces the devices. */
  spans: Spans;
  /** Records of the chunk whose `ts` was converted. */
  converted: readonly Converted[];
}

/** Rows of one message that form one frame; encoded once, like `Rows`. */
export class Chunk {
  readonly count: number;
  /** The approximate size of the encoded block. */
  readonly bytes: number;
  #columns: EncodedColumns;
  readonly #spans: Spans;
  readonly converted: readonly Converted[];

  constructor({ columns, spans, converted }: DecodedChunk) {
    const { count, keyPart, kind, num, int, text } = columns;
    this.count = count;
    const valueBytes = kind.length + num.length + (int?.length ?? 0) + (text?.length ?? 0);
    this.bytes = 160 + keyPart.length + valueBytes + (spans.serverTimes > 0 ? 28 : 24) * count;
    this.#columns = columns;
    this.#spans = spans;
    this.converted = converted;
  }

  spans(): Readonly<Spans> {
    return this.#spans;
  }

  get oldestTs(): number {
    return this.#spans.ts.reduce((oldest, ts) => Math.min(oldest, ts), Number.POSITIVE_INFINITY);
  }

  get newestTs(): number {
    return this.#spans.ts.reduce((newest, ts) => Math.max(newest, ts), Number.NEGATIVE_INFINITY);
  }

  /** Records in the chunk; a record that is cut by the end of a chunk counts in both. */
  get records(): number {
    return this.#spans.count;
  }

  /** Returns the distinct keys. */
  keys(): Uint8Array[] {
    return encodedKeys(this.#columns);
  }

  /** Gives all points the same end of their time to live. */
  expireAt(seconds: number): void {
    const expires = new Uint8Array(new Uint32Array(this.count).fill(seconds).buffer);
    this.#columns = { ...this.#columns, expires };
  }

  encode(stamp: FrameStamp): Uint8Array[] {
    return stampedParts(this.#columns, this.#spans, stamp, newStamps(this.count));
  }
}

/** `bytesMax`: the approximate size of a chunk of more than one row; 0 = no limit. */
export function chunksOf(rows: Rows, bytesMax = 0): DecodedChunk[] {
  // Rows of nearly the same size make chunks that fit at the first try.
  const parts = bytesMax === 0 ? 1 : Math.ceil(rows.bytes / bytesMax);
  const step = Math.min(limits.frameRowsMax, Math.ceil(rows.count / parts));
  const chunks: DecodedChunk[] = [];
  for (let from = 0; from < rows.count; from += step) {
    chunks.push(...cutBySize(rows, from, Math.min(from + step, rows.count), bytesMax));
  }
  return chunks;
}

/** Halves a chunk until each part fits. */
function cutBySize(rows: Rows, from: number, to: number, bytesMax: number): DecodedChunk[] {
  const chunk = cut(rows, from, to);
  if (bytesMax === 0 || to - from === 1 || new Chunk(chunk).bytes <= bytesMax) return [chunk];
  const middle = (from + to) >> 1;
  return [...cutBySize(rows, from, middle, bytesMax), ...cutBySize(rows, middle, to, bytesMax)];
}

function cut(rows: Rows, from: number, to: number): DecodedChunk {
  const spans = rows.spans();
  const ends: number[] = [];
  let first = -1;
  let start = 0;
  for (let i = 0; i < spans.count; i += 1) {
    const end = spans.end[i]!;
    if (end > from && start < to) {
      if (first < 0) first = i;
      ends.push(Math.min(end, to) - from);
    }
    start = end;
  }
  const count = ends.length;
  const isServerTime = spans.isServerTime.slice(first, first + count);
  const converted = rows.converted
    .filter(({ span }) => span >= first && span < first + count)
    .map((each) => ({ ...each, span: each.span - first }));
  return {
    converted,
    columns: encodeColumns(sliceColumns(rows.columns(), from, to)),
    spans: {
      count,
      end: Uint32Array.from(ends),
      device: spans.device.slice(first, first + count),
      ts: spans.ts.slice(first, first + count),
      isServerTime,
      serverTimes: isServerTime.reduce((sum, is) => sum + is, 0),
    },
  };
}

/** Returns the memory that passes to the other thread. */
export function buffersOf({ columns, spans }: DecodedChunk): ArrayBuffer[] {
  const { kind, num, int, text } = columns;
  const { end, device, ts, isServerTime } = spans;
  // The key part may be in a shared pool, so it is copied.
  const arrays = [kind, num, int, text, end, device, ts, isServerTime];
  return arrays.flatMap((array) => (array ? [array.buffer as ArrayBuffer] : []));
}
