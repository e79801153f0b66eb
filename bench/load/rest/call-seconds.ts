/** The answers of calls by second, in the form of a load: pages draw them, and scenarios print them beside loads. */
import type { Counts } from '../counts.ts';
import { Histogram, summaryOf } from '../histogram.ts';
import type { LoadResult } from '../processes.ts';
import type { Second } from '../timeline.ts';
import { right } from './calls.ts';

interface Gathering {
  histogram: Histogram;
  refused: Counts;
}

export class CallSeconds {
  readonly #startedAtMs = Date.now();
  readonly #startedAt = performance.now();
  readonly #seconds: Gathering[] = [];
  readonly #refused: Counts = {};

  /** An answer arrives at this moment; its latency counts only if the answer is right. */
  add(outcome: string, microseconds: number): void {
    const n = Math.floor((performance.now() - this.#startedAt) / 1000);
    while (this.#seconds.length <= n) this.#seconds.push({ histogram: new Histogram(), refused: {} });
    const second = this.#seconds[n]!;
    if (outcome === right) {
      second.histogram.record(microseconds);
    } else {
      second.refused[outcome] = (second.refused[outcome] ?? 0) + 1;
      this.#refused[outcome] = (this.#refused[outcome] ?? 0) + 1;
    }
  }

  result(): LoadResult {
    const whole = new Histogram();
    for (const { histogram } of this.#seconds) whole.add(histogram);
    const elapsedSeconds = (performance.now() - this.#startedAt) / 1000;
    const counts = { accepted: whole.total, broken: 0, unsure: 0, unanswered: 0, unsent: 0, refused: this.#refused };
    return {
      ...counts,
      requestsPerSecond: whole.total / elapsedSeconds,
      latency: summaryOf(whole),
      bars: whole.bars(),
      seconds: this.#seconds.map(secondOf),
      leadSeconds: 0,
      measuredSeconds: elapsedSeconds,
      sentLateP99Ms: Number.NaN,
      generatorCpuShare: Number.NaN,
      machineIdleShare: Number.NaN,
      invalid: '',
      startedAtMs: this.#startedAtMs,
      between: () => Number.NaN,
      connections: Number.NaN,
      pauses: [],
      earlyEnd: undefined,
    };
  }
}

function secondOf({ histogram, refused }: Gathering, n: number): Second {
  const [p50Ms, p99Ms] = [histogram.percentileMs(50), histogram.percentileMs(99)];
  const shown = {
    rate: histogram.total,
    refused,
    broken: 0,
    waiting: 0,
    silentSeconds: 0,
    p50Ms,
    p99Ms,
    maxMs: histogram.max / 1000,
  };
  return { second: n + 1, ...shown, cpu: {}, memoryMiB: {}, gauges: {} };
}
