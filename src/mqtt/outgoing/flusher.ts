/** Collects connections with packets to write, and flushes each one once, at the end of this turn of the event loop. */
import { beginEvent, endEvent } from '../../base/running-work.ts';
import { packets } from '../sign-in/blocked.ts';

export interface Flushable {
  isQueued: boolean;
  /** Describes the client for the log of a process that dies of a bug. */
  describe(): string;
  flush(): void;
}

export class Flusher {
  #queued: Flushable[] = [];
  #spare: Flushable[] = [];

  add(connection: Flushable): void {
    if (connection.isQueued) return;
    connection.isQueued = true;
    if (this.#queued.push(connection) === 1) process.nextTick(this.#flush);
  }

  readonly #flush = (): void => {
    const queued = this.#queued;
    this.#queued = this.#spare;
    for (const connection of queued) {
      connection.isQueued = false;
      beginEvent(packets, connection);
      connection.flush();
    }
    endEvent();
    queued.length = 0;
    this.#spare = queued;
  };
}
