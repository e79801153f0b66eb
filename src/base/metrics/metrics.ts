/**
 * Counters, gauges and histograms of this process: plain numbers that the hot path increments without an allocation
 * (prom-client looks up a label object for each increment). `snapshot` is sent to the primary; `metrics-page.ts` merges
 * the snapshots of all processes into the page. A name here has no prefix: the page puts `millrace_` before it.
 */

type Kind = 'counter' | 'gauge' | 'histogram';
type Merge = 'sum' | 'max';

export interface Sample {
  name: string;
  help: string;
  kind: Kind;
  merge: Merge;
  labels: string;
  value: number;
  bounds?: readonly number[];
  buckets?: number[];
}

export class Counter {
  value = 0;

  add(n: number): void {
    this.value += n;
  }
}

class Gauge {
  value = 0;

  set(n: number): void {
    this.value = n;
  }
}

/** Cumulative buckets with fixed upper bounds. */
export class Histogram {
  readonly bounds: readonly number[];
  readonly buckets: Float64Array;
  sum = 0;

  constructor(bounds: readonly number[]) {
    this.bounds = bounds;
    this.buckets = new Float64Array(bounds.length + 1);
  }

  observe(value: number): void {
    this.observeMany(value, 1);
  }

  observeMany(value: number, times: number): void {
    let i = 0;
    while (i < this.bounds.length && value > this.bounds[i]!) i += 1;
    this.buckets[i]! += times;
    this.sum += value * times;
  }
}

/** Bounds from 100 µs to 60 s fit acknowledgements, inserts and visibility. */
const secondsBounds = [
  0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60,
];

/** Fewer bounds, for histograms with a label and for slow things: each bound is a line of every scrape. */
export const coarseBounds = [0.001, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60];

interface Entry {
  name: string;
  help: string;
  kind: Kind;
  merge: Merge;
  labels: string;
  metric: Counter | Gauge | Histogram;
  read?: () => number | undefined;
}

export class Metrics {
  readonly #entries = new Map<string, Entry>();

  counter(name: string, help: string, labels: Record<string, string> = {}): Counter {
    return this.#entry(name, help, 'counter', 'sum', labels, () => new Counter()) as Counter;
  }

  /** Adds a counter whose value is read at each snapshot. */
  counted(name: string, help: string, read: () => number, labels: Record<string, string> = {}): void {
    this.#entry(name, help, 'counter', 'sum', labels, () => new Counter());
    this.#entries.get(name + renderLabels(labels))!.read = read;
  }

  gauge(name: string, help: string, labels: Record<string, string> = {}, merge: Merge = 'sum'): Gauge {
    return this.#entry(name, help, 'gauge', merge, labels, () => new Gauge()) as Gauge;
  }

  /** Adds a gauge that is computed at each snapshot. Undefined: the value is not known, and the series is left out. */
  observed(
    name: string,
    help: string,
    read: () => number | undefined,
    merge: Merge = 'sum',
    labels: Record<string, string> = {},
  ): void {
    this.#entry(name, help, 'gauge', merge, labels, () => new Gauge());
    this.#entries.get(name + renderLabels(labels))!.read = read;
  }

  histogram(name: string, help: string, labels: Record<string, string> = {}, bounds = secondsBounds): Histogram {
    return this.#entry(name, help, 'histogram', 'sum', labels, () => new Histogram(bounds)) as Histogram;
  }

  /** Returns the value of a counter or gauge; 0 when it does not exist yet. */
  valueOf(name: string, labels: Record<string, string> = {}): number {
    const metric = this.#entries.get(name + renderLabels(labels))?.metric;
    return metric === undefined || metric instanceof Histogram ? 0 : metric.value;
  }

  snapshot(): Sample[] {
    return [...this.#entries.values()].flatMap(({ metric, read, name, help, kind, merge, labels }) => {
      if (metric instanceof Histogram) {
        const { sum: value, bounds, buckets } = metric;
        return { name, help, kind, merge, labels, value, bounds, buckets: [...buckets] };
      }
      const value = read ? read() : metric.value;
      return value === undefined ? [] : { name, help, kind, merge, labels, value };
    });
  }

  #entry(
    name: string,
    help: string,
    kind: Kind,
    merge: Merge,
    labels: Record<string, string>,
    create: () => Entry['metric'],
  ): Entry['metric'] {
    const rendered = renderLabels(labels);
    let entry = this.#entries.get(name + rendered);
    if (!entry) {
      entry = { name, help, kind, merge, labels: rendered, metric: create() };
      this.#entries.set(name + rendered, entry);
    }
    return entry.metric;
  }
}

/** Returns labels as the page shows them: empty, or in braces. */
function renderLabels(labels: Record<string, string>): string {
  const parts = Object.entries(labels).map(([key, value]) => `${key}="${value.replace(/["\\\n]/g, '_')}"`);
  return parts.length > 0 ? `{${parts.join(',')}}` : '';
}
