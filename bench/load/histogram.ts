/**
 * Latencies in microseconds, log-linear as HdrHistogram: 64 steps per doubling, so a percentile is off by less than
 * 1.6 %. Counting is one shift and one addition; histograms of several processes add up.
 */
const stepsPerDoubling = 64;
const stepBits = 6;
const doublingsMax = 32;
const stepsPerBar = 8;

/** Latencies up to `untilMs`, above the previous bar. */
export interface LatencyBar {
  untilMs: number;
  count: number;
}

export class Histogram {
  readonly counts: Float64Array;
  total = 0;
  max = 0;

  constructor(counts?: ArrayLike<number>) {
    this.counts = counts ? Float64Array.from(counts) : new Float64Array(stepsPerDoubling * doublingsMax);
    for (const count of this.counts) this.total += count;
  }

  record(microseconds: number): void {
    const value = microseconds < 0 ? 0 : Math.min(Math.round(microseconds), 0x7fffffff);
    this.counts[indexOf(value)]! += 1;
    this.total += 1;
    if (value > this.max) this.max = value;
  }

  /** `index`: a place in `counts` of another histogram. */
  addAt(index: number, count: number): void {
    this.counts[index]! += count;
    this.total += count;
  }

  add(other: Histogram): void {
    for (let i = 0; i < this.counts.length; i += 1) this.counts[i]! += other.counts[i]!;
    this.total += other.total;
    this.max = Math.max(this.max, other.max);
  }

  /** Eight bars per doubling, from the first to the last that holds any. */
  bars(): LatencyBar[] {
    const bars: LatencyBar[] = [];
    for (let i = 0; i < this.counts.length; i += stepsPerBar) {
      const count = this.counts.slice(i, i + stepsPerBar).reduce((sum, each) => sum + each, 0);
      if (count > 0 || bars.length > 0) bars.push({ untilMs: highestOf(i + stepsPerBar - 1) / 1000, count });
    }
    return bars.slice(0, bars.findLastIndex(({ count }) => count > 0) + 1);
  }

  /** The latency below which `percent` of all lie, in milliseconds; NaN when nothing was recorded. */
  percentileMs(percent: number): number {
    if (this.total === 0) return Number.NaN;
    const rank = Math.max(1, Math.ceil((percent / 100) * this.total));
    let seen = 0;
    for (let i = 0; i < this.counts.length; i += 1) {
      seen += this.counts[i]!;
      // Where the greatest value is known, a percentile is not above it.
      if (seen >= rank) return (this.max > 0 ? Math.min(highestOf(i), this.max) : highestOf(i)) / 1000;
    }
    return this.max / 1000;
  }
}

function indexOf(value: number): number {
  const doubling = Math.max(0, 32 - Math.clz32(value) - stepBits - 1);
  return doubling * stepsPerDoubling + (value >>> doubling);
}

function highestOf(index: number): number {
  if (index < 2 * stepsPerDoubling) return index;
  const doubling = Math.floor(index / stepsPerDoubling) - 1;
  const step = index - doubling * stepsPerDoubling;
  return (step + 1) * 2 ** doubling - 1;
}

export interface LatencySummary {
  p50Ms: number;
  p90Ms: number;
  p99Ms: number;
  p999Ms: number;
  maxMs: number;
}

export function summaryOf(histogram: Histogram): LatencySummary {
  return {
    p50Ms: histogram.percentileMs(50),
    p90Ms: histogram.percentileMs(90),
    p99Ms: histogram.percentileMs(99),
    p999Ms: histogram.percentileMs(99.9),
    maxMs: histogram.total === 0 ? Number.NaN : histogram.max / 1000,
  };
}
