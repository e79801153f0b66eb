/**
 * Requests for frames of one consumer, one after the other. A request asks for as many frames as take about
 * `fetchBytes` of memory, by the largest frame of the last request: servers send all of them at once.
 */
import type { Consumer, ConsumerMessages, JsMsg } from '@nats-io/jetstream';

const fetchBytes = 4 * 1024 * 1024;
const framesMax = 250;
const framesFirst = 8;
/** 1 s is the least that the client takes. */
const fetchMsMax = 1_000;
/** A stop leaves a request that servers have not ended after this time. */
const lastFetchMsMax = 3_000;

export class Fetches {
  #frames = framesFirst;
  #fetching: ConsumerMessages | undefined;

  /** Passes each message of a request to `take`, which returns the bytes of its frame. Returns their number. */
  async fetch(consumer: Consumer, take: (message: JsMsg) => Promise<number>): Promise<number> {
    this.#fetching = await consumer.fetch({ max_messages: this.#frames, expires: fetchMsMax, bind: true });
    let largest = 0;
    let count = 0;
    try {
      for await (const message of this.#fetching) {
        largest = Math.max(largest, await take(message));
        count += 1;
      }
      return count;
    } finally {
      this.#fetching = undefined;
      this.#fit(largest);
    }
  }

  /**
   * Called at a stop: resolves when `ended` does. Waits for the end of the request that runs: if the stop left it
   * earlier, frames that servers have already sent would reach no other process before the time of a redelivery.
   */
  async end(ended: Promise<void>): Promise<void> {
    const leaving = setTimeout(() => this.#fetching?.stop(), lastFetchMsMax);
    await ended;
    clearTimeout(leaving);
  }

  #fit(largest: number): void {
    const fitting = Math.max(1, Math.floor(fetchBytes / Math.max(1, largest)));
    this.#frames = Math.min(fitting, 2 * this.#frames, framesMax);
  }
}
