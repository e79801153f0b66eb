/** The thread of `decode-thread.ts`: decodes one body into chunks. The main thread adds device and order. */
import { parentPort, workerData } from 'node:worker_threads';
import { assert, Fault } from '../base/errors.ts';
import { decodeTelemetry } from './decode.ts';
import type { DecodeOptions } from './decode-options.ts';
import { buffersOf, chunksOf, type DecodedChunk } from './decoded-chunk.ts';
import { type PlainDecodeFault, plainFault } from './plain-fault.ts';
import { Rows } from './rows.ts';

export interface DecodeRequest {
  body: Uint8Array;
  now: number;
}

export type DecodeReply = { chunks: DecodedChunk[] } | { fault: PlainDecodeFault };

const noDevice = { number: 0 };

function decode({ body, now }: DecodeRequest, options: DecodeOptions): DecodeReply {
  // The rows are not reused, because the thread would keep the memory of a large message.
  const rows = new Rows();
  try {
    decodeTelemetry(body, noDevice, now, rows, options);
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
    return { fault: plainFault(error) };
  }
  return { chunks: chunksOf(rows, options.chunkBytesMax) };
}

assert(parentPort, 'decode-worker.ts runs as a thread');
const port = parentPort;
port.on('message', (request: DecodeRequest) => {
  const reply = decode(request, workerData as DecodeOptions);
  port.postMessage(reply, 'chunks' in reply ? reply.chunks.flatMap(buffersOf) : []);
});
