/**
 * Keeps large buffers for their next use. V8 counts the bytes of a buffer as those of its heap, so 50 MB of new ones
 * make V8 mark the whole heap: more than a second of CPU where a worker has 500 000 sessions. V8 does not count shared
 * memory, so the buffers are made of shared memory, which no other JavaScript thread uses. V8 also frees shared memory
 * late, so a process has little of it: further buffers, and buffers that are too large to be kept, are ordinary ones.
 * The owner of a buffer gives it back when nothing else uses it. Buffers that are not taken for a while are dropped.
 */

/** Sizes are rounded up to a multiple of these bytes, so that buffers of about one size serve each other's uses. */
const stepBytes = 1024 * 1024;
const keptMs = 10_000;
/** Shared memory of all pools: what the pools of a lane keep, and smaller sizes that a growing load took before. */
const sharedBytesMax = 128 * 1024 * 1024;
/** Bytes of shared memory that V8 has not collected. */
let sharedBytes = 0;
const shared = new FinalizationRegistry<number>((bytes) => {
  sharedBytes -= bytes;
});

export class BufferPool {
  readonly #countMax: number;
  readonly #bytesMax: number;
  readonly #free: ArrayBufferLike[] = [];
  #timer: NodeJS.Timeout | undefined;

  /** Keeps at most `countMax` buffers of at most `bytesMax` bytes each. */
  constructor({ countMax, bytesMax }: { countMax: number; bytesMax: number }) {
    this.#countMax = countMax;
    this.#bytesMax = bytesMax;
  }

  /** Bytes that are kept for a next use. */
  get freeBytes(): number {
    return this.#free.reduce((sum, { byteLength }) => sum + byteLength, 0);
  }

  /** Returns a buffer with any contents. A buffer that is not given back is garbage like any other. */
  take(bytes: number): Buffer {
    const at = this.#free.findIndex(({ byteLength }) => byteLength >= bytes);
    const memory = at < 0 ? this.#allocate(bytes) : this.#free.splice(at, 1)[0]!;
    return Buffer.from(memory, 0, bytes);
  }

  /** Takes a buffer of `take` back, or a view of its memory. */
  give({ buffer }: Buffer): void {
    if (buffer.byteLength > this.#bytesMax) return;
    // The latest sizes are the likeliest to come again.
    this.#free.unshift(buffer);
    this.#free.length = Math.min(this.#free.length, this.#countMax);
    this.#timer ??= setTimeout(() => this.#clear(), keptMs).unref();
    this.#timer.refresh();
  }

  #allocate(bytes: number): ArrayBufferLike {
    const size = Math.ceil(bytes / stepBytes) * stepBytes;
    const isShared = size <= this.#bytesMax && sharedBytes + size <= sharedBytesMax;
    if (!isShared) return Buffer.allocUnsafeSlow(size).buffer;
    const memory = new SharedArrayBuffer(size);
    sharedBytes += size;
    shared.register(memory, size);
    return memory;
  }

  #clear(): void {
    this.#free.length = 0;
    this.#timer = undefined;
  }
}
