/**
 * The thread of `decode-thread.ts`: decodes one body into chunks of at most `limits.frameRowsMax` rows. The main thread
 * adds device and order.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { assert, Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { type EncodedColumns, encodeColumns, type Spans, sliceColumns } from './block.ts';
import { type DecodeOptions, decodeTelemetry } from './decode.ts';
import { Rows } from './rows.ts';

export interface DecodeRequest {
  body: Uint8Array;
  now: number;
}

export interface DecodedChunk {
  columns: EncodedColumns;
  /** Runs of rows with one ts, without the device. */
  spans: Omit<Spans, 'device'>;
}

export type DecodeReply =
  | { chunks: DecodedChunk[] }
  | { fault: Pick<Fault, 'reason' | 'message' | 'retryAfterSeconds'> };

const noDevice = { number: 0 };

function decode({ body, now }: DecodeRequest, options: DecodeOptions): DecodeReply {
  // The rows are not reused, because the thread would keep the memory of a large message.
  const rows = new Rows();
  try {
    decodeTelemetry(body, noDevice, now, rows, options);
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
    const { reason, message, retryAfterSeconds } = error;
    return { fault: { reason, message, retryAfterSeconds } };
  }
  const chunks: DecodedChunk[] = [];
  for (let from = 0; from < rows.count; from += limits.frameRowsMax) {
    chunks.push(cut(rows, from, Math.min(from + limits.frameRowsMax, rows.count)));
  }
  return { chunks };
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
  return {
    columns: encodeColumns(sliceColumns(rows.columns(), from, to)),
    spans: {
      count,
      end: Uint32Array.from(ends),
      ts: spans.ts.slice(first, first + count),
      isServerTime,
      serverTimes: isServerTime.reduce((sum, is) => sum + is, 0),
    },
  };
}

function buffersOf({ columns, spans }: DecodedChunk): ArrayBuffer[] {
  const { kind, num, int, text } = columns;
  const { end, ts, isServerTime } = spans;
  // The key part may be in a shared pool, so it is copied.
  return [kind, num, int, text, end, ts, isServerTime].flatMap((array) => (array ? [array.buffer as ArrayBuffer] : []));
}

assert(parentPort, 'decode-worker.ts runs as a thread');
const port = parentPort;
port.on('message', (request: DecodeRequest) => {
  const reply = decode(request, workerData as DecodeOptions);
  port.postMessage(reply, 'chunks' in reply ? reply.chunks.flatMap(buffersOf) : []);
});
