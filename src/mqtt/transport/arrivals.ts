/**
 * Sockets that were accepted and are not read yet. libuv accepts one connection in each turn of the event loop. A turn
 * that also signs clients in is long, and in a storm the kernel's queue would be full: the kernel then drops attempts,
 * which clients repeat after seconds. So while each turn brings a connection, no socket is read, up to a cap of
 * sockets; then some of them are read in each turn.
 */
import { limits } from '../../base/limits.ts';

export class Arrivals {
  /** Each begins to read a socket, in order of arrival. */
  #waiting: (() => void)[] = [];
  /** The first of `#waiting` that has not begun. */
  #next = 0;
  #hasAccepted = false;
  #isScheduled = false;

  /** Sockets that are not read yet. */
  get size(): number {
    return this.#waiting.length - this.#next;
  }

  /** Calls `read` in one of the next turns. */
  add(read: () => void): void {
    this.#waiting.push(read);
    this.#hasAccepted = true;
    this.#schedule();
  }

  #schedule(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    setImmediate(() => this.#turn());
  }

  #turn(): void {
    this.#isScheduled = false;
    const isWaiting = this.#hasAccepted && this.size < limits.mqttArrivalsMax;
    this.#hasAccepted = false;
    if (!isWaiting) this.#readSome();
    if (this.size > 0) this.#schedule();
  }

  #readSome(): void {
    const end = Math.min(this.#waiting.length, this.#next + limits.mqttArrivalsPerTurn);
    while (this.#next < end) {
      const read = this.#waiting[this.#next++]!;
      read();
    }
    if (this.#next * 2 < this.#waiting.length) return;
    this.#waiting = this.#waiting.slice(this.#next);
    this.#next = 0;
  }
}
