/**
 * Keeps large buffers for their next use. V8 counts the bytes of buffers as those of its heap, so new ones in each
 * second make V8 mark the whole heap again and again: half a second of CPU where a worker has 500 000 sessions. The
 * owner of a buffer gives it back when nothing else uses it. Buffers that are not taken for a while are freed.
 */

/** Sizes are rounded up to a multiple of these bytes, so that buffers of about one size serve each other's uses. */
const stepBytes = 1024 * 1024;
const keptMs = 10_000;

export class BufferPool {
  readonly #countMax: number;
  readonly #bytesMax: number;
  readonly #free: ArrayBuffer[] = [];
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
    const memory = buffer as ArrayBuffer;
    if (memory.byteLength > this.#bytesMax) return;
    // The latest sizes are the likeliest to come again.
    this.#free.unshift(memory);
    this.#free.length = Math.min(this.#free.length, this.#countMax);
    this.#timer ??= setTimeout(() => this.#clear(), keptMs).unref();
    this.#timer.refresh();
  }

  #allocate(bytes: number): ArrayBuffer {
    return Buffer.allocUnsafeSlow(Math.ceil(bytes / stepBytes) * stepBytes).buffer;
  }

  #clear(): void {
    this.#free.length = 0;
    this.#timer = undefined;
  }
}
