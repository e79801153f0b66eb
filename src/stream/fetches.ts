/**
 * How many frames one request asks for, so that they take about `fetchBytes` of memory: servers send all of them at
 * once.
 */
const fetchBytes = 4 * 1024 * 1024;
const framesMax = 250;
const framesFirst = 8;

export class FetchSize {
  #frames = framesFirst;

  get frames(): number {
    return this.#frames;
  }

  /** Called with the bytes of the largest frame of the last request. */
  fit(largest: number): void {
    const fitting = Math.max(1, Math.floor(fetchBytes / Math.max(1, largest)));
    this.#frames = Math.min(fitting, 2 * this.#frames, framesMax);
  }
}
