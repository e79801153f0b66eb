/** Connections that have something to write: each is flushed once at the end of the turn of the loop. */
export interface Flushable {
  isQueued: boolean;
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
      connection.flush();
    }
    queued.length = 0;
    this.#spare = queued;
  };
}
