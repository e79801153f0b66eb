/**
 * Writes lines to stdout or stderr, and never ends or stops the process for them. While the descriptor takes nothing (a
 * full disk, a reader that pauses), lines wait in memory up to a cap, later ones are lost, and a line with the event
 * `log_lines_lost` says how many. After the reader of a pipe has left, lines are dropped.
 */
import { constants, fstatSync, openSync, writeSync } from 'node:fs';

/** Opens the output of this process, which is 1 or 2. It tries once more to write what waits when the process ends. */
export function openOutput(fd: number): LineOutput {
  const output = new LineOutput(descriptorOf(fd));
  process.once('exit', () => output.flush());
  return output;
}

/**
 * Returns a descriptor whose writes do not wait for the reader of a pipe. The mode of `fd` itself is shared with child
 * processes, and each start of one sets it back.
 */
function descriptorOf(fd: number): number {
  try {
    if (!fstatSync(fd).isFIFO()) return fd;
    return openSync(`/proc/self/fd/${fd}`, constants.O_WRONLY | constants.O_NONBLOCK);
  } catch {
    return fd;
  }
}

const waitingBytesMax = 1024 * 1024;
const retryMs = 100;

export class LineOutput {
  readonly #fd: number;
  readonly #writeSync: (fd: number, bytes: Uint8Array) => number;
  /** What the descriptor has not taken, oldest first. The first one may be the rest of a line. */
  #waiting: Uint8Array[] = [];
  #waitingBytes = 0;
  #lost = 0;
  #hasReader = true;

  /** `write`: writes some of the bytes and returns their number, or throws. */
  constructor(fd: number, write: (fd: number, bytes: Uint8Array) => number = writeSync) {
    this.#fd = fd;
    this.#writeSync = write;
  }

  write(line: string): void {
    if (!this.#hasReader) return;
    const bytes = Buffer.from(line);
    const waits = this.#waiting.length > 0;
    if (this.#waitingBytes + bytes.length > waitingBytesMax) {
      this.#lost += 1;
      return;
    }
    this.#waiting.push(bytes);
    this.#waitingBytes += bytes.length;
    if (!waits && !this.flush()) this.#retryLater();
  }

  /** Writes what waits, as far as the descriptor takes it. Returns whether nothing waits any more. */
  flush(): boolean {
    for (let bytes = this.#next(); bytes !== undefined; bytes = this.#next()) {
      const written = this.#tryWrite(bytes);
      this.#waitingBytes -= written;
      if (written === bytes.length) this.#waiting.shift();
      else {
        this.#waiting[0] = bytes.subarray(written);
        if (written === 0) return false;
      }
    }
    return true;
  }

  /** Returns the oldest bytes that wait. After the last of them comes the line about lost lines. */
  #next(): Uint8Array | undefined {
    if (this.#waiting.length === 0 && this.#lost > 0) {
      const lost = { level: 'warn', time: new Date().toISOString(), pid: process.pid, event: 'log_lines_lost' };
      this.#waiting.push(Buffer.from(`${JSON.stringify({ ...lost, lines: this.#lost })}\n`));
      this.#waitingBytes += this.#waiting[0]?.length ?? 0;
      this.#lost = 0;
    }
    return this.#waiting[0];
  }

  #tryWrite(bytes: Uint8Array): number {
    try {
      return this.#writeSync(this.#fd, bytes);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EPIPE') return 0;
      this.#hasReader = false;
      return bytes.length;
    }
  }

  #retryLater(): void {
    const retry = () => {
      if (!this.flush()) this.#retryLater();
    };
    setTimeout(retry, retryMs).unref();
  }
}
