/**
 * One thread that decodes large bodies, so that no body blocks the event loop. Further bodies wait, up to a cap, above
 * which a body is refused. Tenants take turns, and so do the devices of a tenant. The next body is one of a tenant
 * whose last rows the journal has taken. The thread starts with the first body. When the thread dies (megabytes of
 * nested JSON exceed its memory limit) or is late, only its body is refused, and the next body gets a new thread. Used
 * by `DecodeThread` and by the thread of gateways.
 */
import { Worker } from 'node:worker_threads';
import { type Fault, tooLarge, unavailable } from '../base/errors.ts';
import { FairQueue, type ItemOwner } from '../base/fair-queue.ts';
import { limits } from '../base/limits.ts';
import { systemScheduler } from '../base/scheduler.ts';
import type { TelemetrySource } from './record.ts';

/** Bytes of one turn of a tenant or device: a large body uses several turns. */
const turnBytes = 256 * 1024;

/** The sender of a body. */
export interface BodySource extends TelemetrySource {
  readonly tenantId: string;
}

interface BodyRequest {
  body: Uint8Array;
}

interface BodyThreadOptions {
  entry: URL;
  /** Passed to the thread as its `workerData`. */
  options: unknown;
  waitingMax: number;
  heapMegabytesMax: number;
  /** True: the caller still needs the body, so the thread gets a copy. */
  keepsBody: boolean;
  room?: RoomAhead | undefined;
}

/** Resolves when the journal has taken the large messages of the tenant that wait now; undefined: there is room. */
export type RoomAhead = (tenantId: string) => Promise<void> | undefined;

/** `room` absent: no body waits for room. `entry` and `heapMegabytesMax` have defaults. */
export interface ThreadOptions {
  room?: RoomAhead;
  entry?: URL;
  heapMegabytesMax?: number;
}

interface Task<Request, Reply> {
  tenantId: string;
  request: Request;
  resolve: (reply: Reply) => void;
  reject: (fault: Fault) => void;
}

export class BodyThread<Request extends BodyRequest, Reply> {
  readonly #options: BodyThreadOptions;
  readonly #queue: FairQueue<Task<Request, Reply>>;
  #worker: Worker | undefined;
  #current: Task<Request, Reply> | undefined;
  #stopDeadline = () => {};
  /** The tenants that wait for room, or had to wait and have room now. */
  readonly #rooms = new Map<string, 'waiting' | 'ready'>();
  #closed = false;

  constructor(options: BodyThreadOptions) {
    this.#options = options;
    this.#queue = new FairQueue(options.waitingMax, turnBytes);
  }

  /** Bodies that wait or are worked on. */
  get length(): number {
    return this.#queue.length + (this.#current ? 1 : 0);
  }

  /** Returns the fault that `run` would throw now for a body of `device`; undefined: the body has a place. */
  refusal(device: BodySource): Fault | undefined {
    if (this.#closed) return shuttingDown;
    return this.#queue.hasPlace(waiterOf(device)) ? undefined : queueFull;
  }

  /** Returns the reply of the thread. Rejects with a Fault. */
  run(request: Request, device: BodySource): Promise<Reply> {
    return new Promise((resolve, reject) => {
      if (this.#closed) {
        reject(shuttingDown);
        return;
      }
      const task = { tenantId: device.tenantId, request, resolve, reject };
      this.#queue.push(waiterOf(device), task, request.body.byteLength)?.reject(queueFull);
      this.#next();
    });
  }

  /** Ends the thread and refuses waiting bodies. */
  async close(): Promise<void> {
    this.#closed = true;
    for (let task = this.#queue.shift(); task; task = this.#queue.shift()) task.reject(shuttingDown);
    const worker = this.#worker;
    this.#finish()?.reject(shuttingDown);
    this.#worker = undefined;
    await worker?.terminate();
  }

  #next(): void {
    if (this.#current) return;
    const { room } = this.#options;
    const task = this.#queue.shift(room && ((tenant) => this.#hasRoom(tenant, room)));
    if (!task) {
      if (this.#queue.length === 0) this.#rooms.clear();
      return;
    }
    this.#rooms.delete(task.tenantId);
    this.#current = task;
    this.#worker ??= this.#start();
    const { body } = task.request;
    // A view would be copied with its whole buffer.
    const whole = body.byteLength === body.buffer.byteLength && body.buffer instanceof ArrayBuffer;
    const own = whole && !this.#options.keepsBody ? body : new Uint8Array(body);
    this.#worker.postMessage({ ...task.request, body: own } satisfies Request, [own.buffer as ArrayBuffer]);
    this.#stopDeadline = systemScheduler.after(limits.decodeTimeoutMs, () => this.#late());
  }

  #hasRoom(tenant: string, room: RoomAhead): boolean {
    const known = this.#rooms.get(tenant);
    if (known !== undefined) return known === 'ready';
    const later = room(tenant);
    if (!later) return true;
    this.#rooms.set(tenant, 'waiting');
    void later.then(() => {
      if (this.#rooms.has(tenant)) this.#rooms.set(tenant, 'ready');
      this.#next();
    });
    return false;
  }

  #start(): Worker {
    const { entry, options, heapMegabytesMax } = this.#options;
    const worker = new Worker(entry, {
      workerData: options,
      resourceLimits: { maxOldGenerationSizeMb: heapMegabytesMax },
    });
    // The thread does not keep the process alive; an open request does.
    worker.unref();
    worker.on('message', (reply: Reply) => {
      if (worker !== this.#worker) return;
      this.#finish()?.resolve(reply);
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

  #finish(): Task<Request, Reply> | undefined {
    this.#stopDeadline();
    const task = this.#current;
    this.#current = undefined;
    return task;
  }
}

function waiterOf(device: BodySource): ItemOwner {
  return { tenant: device.tenantId, caller: String(device.number) };
}

const shuttingDown = unavailable('shutting_down', 'Millrace is shutting down.');
const queueFull = unavailable('decode_queue_full', 'Too many large messages are waiting. Send it again later.');
