/**
 * The thread of `decode-thread.ts`: one body in, its rows out in chunks of at most `limits.frameRowsMax`. It knows
 * neither device nor order nor server time; the loop stamps those.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { assert, Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { type EncodedColumns, encodeColumns, sliceColumns } from './block.ts';
import { type DecodeOptions, decodeTelemetry } from './decode.ts';
import { Rows } from './rows.ts';

export interface DecodeRequest {
  body: Uint8Array;
  now: number;
}

export interface DecodedChunk {
  columns: EncodedColumns;
  /** Runs of rows with one ts: where each ends, and the ts; NaN = server time. */
  spanEnd: Uint32Array;
  spanTs: Float64Array;
  /** The first run belongs to the record that ended the chunk before. */
  continues: boolean;
}

export type DecodeReply =
  | { chunks: DecodedChunk[] }
  | { fault: Pick<Fault, 'status' | 'errorCode' | 'reason' | 'message' | 'retryAfterSeconds'> };

const serverTime = { number: 0, nextTs: () => Number.NaN };

function decode({ body, now }: DecodeRequest, options: DecodeOptions): DecodeReply {
  // Not kept: a large message would leave its memory behind in the thread.
  const rows = new Rows();
  try {
    decodeTelemetry(body, serverTime, now, rows, options);
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
    const { status, errorCode, reason, message, retryAfterSeconds } = error;
    return { fault: { status, errorCode, reason, message, retryAfterSeconds } };
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
  const times: number[] = [];
  let start = 0;
  let continues = false;
  for (let i = 0; i < spans.count; i += 1) {
    const end = spans.end[i]!;
    if (end > from && start < to) {
      ends.push(Math.min(end, to) - from);
      times.push(spans.ts[i]!);
      if (start < from) continues = true;
    }
    start = end;
  }
  const columns = encodeColumns(sliceColumns(rows.columns(), from, to));
  return { columns, spanEnd: Uint32Array.from(ends), spanTs: Float64Array.from(times), continues };
}

function buffersOf({ columns, spanEnd, spanTs }: DecodedChunk): ArrayBuffer[] {
  const { kind, num, int, text } = columns;
  // The key part may lie in a pool that others use: it is copied.
  return [kind, num, int, text, spanEnd, spanTs].flatMap((array) => (array ? [array.buffer as ArrayBuffer] : []));
}

assert(parentPort, 'decode-worker.ts runs as a thread');
const port = parentPort;
port.on('message', (request: DecodeRequest) => {
  const reply = decode(request, workerData as DecodeOptions);
  port.postMessage(reply, 'chunks' in reply ? reply.chunks.flatMap(buffersOf) : []);
});
