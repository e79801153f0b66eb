/**
 * Decodes large bodies in one thread, so that they do not block the event loop. At most `limits.decodeQueueMax` bodies
 * wait; a further one is refused. Tenants take turns, and so do the devices of a tenant. The thread starts with the
 * first body. When the thread dies (endlessly nested JSON exceeds its memory limit) or is late, only its body is
 * refused, and the next body gets a new thread.
 */
import { Worker } from 'node:worker_threads';
import { Fault, tooLarge, unavailable } from '../base/errors.ts';
import { FairQueue } from '../base/fair-queue.ts';
import { limits } from '../base/limits.ts';
import { type EncodedColumns, type FrameStamp, newStamps, type Spans, stampedParts } from './block.ts';
import type { DecodeOptions, TelemetrySource } from './decode.ts';
import type { DecodedChunk, DecodeReply, DecodeRequest } from './decode-worker.ts';
import { serverTimeRefusal } from './rows.ts';

/** Rows of one message that form one frame; encoded once, like `Rows`. */
export class Chunk {
  readonly count: number;
  /** The approximate size of the encoded block. */
  readonly bytes: number;
  readonly #columns: EncodedColumns;
  readonly #spans: Spans;

  constructor(columns: EncodedColumns, spans: Spans) {
    const { count, keyPart, kind, num, int, text } = columns;
    this.count = count;
    const valueBytes = kind.length + num.length + (int?.length ?? 0) + (text?.length ?? 0);
    this.bytes = 160 + keyPart.length + valueBytes + (spans.serverTimes > 0 ? 28 : 24) * count;
    this.#columns = columns;
    this.#spans = spans;
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

  encode(stamp: FrameStamp): Uint8Array[] {
    return stampedParts(this.#columns, this.#spans, stamp, newStamps(this.count));
  }
}

/** Bytes of one turn of a tenant or device: a large body uses several turns. */
const decodeTurnBytes = 256 * 1024;

/** The sender of a body. */
export interface BodySource extends TelemetrySource {
  readonly tenantId: string;
}

interface Task {
  request: DecodeRequest;
  device: TelemetrySource;
  resolve: (chunks: Chunk[]) => void;
  reject: (fault: Fault) => void;
}

export class DecodeThread {
  readonly #options: DecodeOptions;
  readonly #entry: URL;
  readonly #heapMegabytesMax: number;
  readonly #queue = new FairQueue<Task>(limits.decodeQueueMax, decodeTurnBytes);
  #worker: Worker | undefined;
  #current: Task | undefined;
  #deadline: NodeJS.Timeout | undefined;
  #closed = false;

  constructor(
    options: DecodeOptions,
    entry = new URL('./decode-worker.js', import.meta.url),
    heapMegabytesMax: number = limits.decodeHeapMegabytesMax,
  ) {
    this.#options = options;
    this.#entry = entry;
    this.#heapMegabytesMax = heapMegabytesMax;
  }

  /** Bodies that wait or are being decoded. */
  get length(): number {
    return this.#queue.length + (this.#current ? 1 : 0);
  }

  /**
   * Returns the rows of a message in chunks of at most `limits.frameRowsMax`; none for a message without points. The
   * body is transferred: it is empty afterwards. Rejects with a Fault.
   */
  decode(body: Uint8Array, device: BodySource, now: number): Promise<Chunk[]> {
    return new Promise((resolve, reject) => {
      const task = { request: { body, now }, device, resolve, reject };
      if (this.#closed) {
        reject(unavailable('shutting_down', 'Millrace is shutting down.'));
        return;
      }
      const waiter = { tenant: device.tenantId, caller: String(device.number) };
      this.#queue.push(waiter, task, body.byteLength)?.reject(queueFull);
      if (!this.#current) this.#next();
    });
  }

  /** Ends the thread and refuses waiting bodies. */
  async close(): Promise<void> {
    this.#closed = true;
    const refusal = unavailable('shutting_down', 'Millrace is shutting down.');
    for (let task = this.#queue.shift(); task; task = this.#queue.shift()) task.reject(refusal);
    const worker = this.#worker;
    this.#finish()?.reject(refusal);
    this.#worker = undefined;
    await worker?.terminate();
  }

  #next(): void {
    const task = this.#queue.shift();
    if (!task) return;
    this.#current = task;
    this.#worker ??= this.#start();
    const { body, now } = task.request;
    // A view would be copied with its whole buffer.
    const whole = body.byteLength === body.buffer.byteLength && body.buffer instanceof ArrayBuffer;
    const own = whole ? body : new Uint8Array(body);
    this.#worker.postMessage({ body: own, now } satisfies DecodeRequest, [own.buffer as ArrayBuffer]);
    this.#deadline = setTimeout(() => this.#late(), limits.decodeTimeoutMs);
  }

  #start(): Worker {
    const worker = new Worker(this.#entry, {
      workerData: this.#options,
      resourceLimits: { maxOldGenerationSizeMb: this.#heapMegabytesMax },
    });
    // The thread does not keep the process alive; an open request does.
    worker.unref();
    worker.on('message', (reply: DecodeReply) => {
      if (worker !== this.#worker) return;
      const task = this.#finish();
      if (task) answer(task, reply);
      this.#next();
    });
    // The event is followed by 'exit'. Out of memory is the only error that a body can cause; any other error is a bug.
    let fault = unavailable('decode_thread_failed', 'The message could not be decoded. Send it again.');
    worker.on('error', (error: Error & { code?: string }) => {
      if (error.code !== 'ERR_WORKER_OUT_OF_MEMORY') throw error;
      fault = tooLarge('message_too_complex', 'The message needs too much memory to be decoded. Send it in parts.');
    });
    worker.on('exit', () => {
      if (worker === this.#worker) this.#replace(fault);
    });
    return worker;
  }

  #late(): void {
    const seconds = limits.decodeTimeoutMs / 1000;
    void this.#worker?.terminate();
    this.#replace(unavailable('decode_timeout', `The message took longer than ${seconds} s to be decoded.`));
  }

  /** The thread has ended: refuses its body and starts a new thread. */
  #replace(fault: Fault): void {
    this.#worker = undefined;
    this.#finish()?.reject(fault);
    this.#next();
  }

  #finish(): Task | undefined {
    clearTimeout(this.#deadline);
    const task = this.#current;
    this.#current = undefined;
    return task;
  }
}

const queueFull = unavailable('decode_queue_full', 'Too many large messages are waiting. Send it again later.');

function answer({ device, resolve, reject }: Task, reply: DecodeReply): void {
  if ('chunks' in reply) {
    // The thread does not know whether server times are refused.
    const needsTime = reply.chunks.some(({ spans }) => spans.serverTimes > 0);
    const refusal = needsTime ? serverTimeRefusal() : undefined;
    if (refusal !== undefined) reject(refusal);
    else resolve(reply.chunks.map((chunk) => chunkOf(chunk, device)));
  } else {
    const { reason, message, retryAfterSeconds } = reply.fault;
    reject(new Fault(reason, message, retryAfterSeconds));
  }
}

function chunkOf({ columns, spans }: DecodedChunk, device: TelemetrySource): Chunk {
  return new Chunk(columns, { ...spans, device: new Float64Array(spans.count).fill(device.number) });
}
