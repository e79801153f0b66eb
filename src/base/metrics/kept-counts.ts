/**
 * The counters and histograms of one child of the primary over all its processes. The page adds the workers, so without
 * these counts a worker that dies or does not answer would lower the sum, and Prometheus takes a counter that falls for
 * one that began again: the next rate has everything that was ever counted.
 */

import type { Sample } from './metrics.ts';
import { mergeSamples } from './metrics-page.ts';

/** Series of ended processes. A series beyond this number, such as of one more tenant, begins again at 0. */
const seriesMax = 5_000;

export class KeptCounts {
  /** The counts of ended processes. */
  #ofEnded: Sample[] = [];
  /** The counts of the running process in its last answer. */
  #last: Sample[] = [];

  /** Returns the samples of the running process, and the counts of earlier ones. */
  with(samples: Sample[]): Sample[] {
    this.#last = samples.filter(({ kind }) => kind !== 'gauge');
    return [...samples, ...this.#ofEnded];
  }

  /** What a child has counted, as far as it is known; for one that does not answer. */
  get known(): Sample[] {
    return [...this.#last, ...this.#ofEnded];
  }

  /** Keeps what the process had counted when it last answered. */
  ended(): void {
    this.#ofEnded = [...mergeSamples([this.#ofEnded, this.#last])].slice(0, seriesMax);
    this.#last = [];
  }
}
