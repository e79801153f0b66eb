/**
 * Counters, gauges and histograms of this process: plain numbers that the hot path increments without an allocation
 * (prom-client looks up a label object for each increment). `snapshot` is sent to the primary; `renderMetrics` merges
 * the snapshots of all processes into the Prometheus format.
 */
import { monitorEventLoopDelay } from 'node:perf_hooks';

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
export const secondsBounds = [
  0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60,
];

interface Entry {
  name: string;
  help: string;
  kind: Kind;
  merge: Merge;
  labels: string;
  metric: Counter | Gauge | Histogram;
  read?: () => number;
}

export class Metrics {
  readonly #entries = new Map<string, Entry>();

  counter(name: string, help: string, labels: Record<string, string> = {}): Counter {
    return this.#entry(name, help, 'counter', 'sum', labels, () => new Counter()) as Counter;
  }

  gauge(name: string, help: string, labels: Record<string, string> = {}, merge: Merge = 'sum'): Gauge {
    return this.#entry(name, help, 'gauge', merge, labels, () => new Gauge()) as Gauge;
  }

  /** Adds a gauge that is computed at each snapshot. */
  observed(name: string, help: string, read: () => number, merge: Merge = 'sum', labels: Record<string, string> = {}) {
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
    return [...this.#entries.values()].map(({ metric, read, name, help, kind, merge, labels }) => {
      if (metric instanceof Histogram) {
        const { sum: value, bounds, buckets } = metric;
        return { name, help, kind, merge, labels, value, bounds, buckets: [...buckets] };
      }
      return { name, help, kind, merge, labels, value: read ? read() : metric.value };
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

/** Registers the metrics that every process has. */
export function processMetrics(metrics: Metrics, role: string): void {
  const labels = { process: role };
  const delay = monitorEventLoopDelay({ resolution: 10 });
  delay.enable();
  metrics.observed('process_resident_memory_bytes', 'Resident memory.', () => process.memoryUsage.rss(), 'sum', labels);
  metrics.observed('nodejs_heap_size_used_bytes', 'Heap in use.', () => process.memoryUsage().heapUsed, 'sum', labels);
  metrics.observed(
    'process_cpu_seconds',
    'CPU time.',
    () => process.cpuUsage().user / 1e6 + process.cpuUsage().system / 1e6,
    'sum',
    labels,
  );
  metrics.observed(
    'nodejs_eventloop_lag_p99_seconds',
    'Event loop delay, 99th percentile since the last scrape.',
    () => {
      const p99 = Math.max(0, delay.percentile(99) / 1e9 - 0.01);
      delay.reset();
      return Number.isFinite(p99) ? p99 : 0;
    },
    'max',
    labels,
  );
}

/**
 * Returns the Prometheus page of several processes: series of the same name and labels are added (or the largest is
 * taken).
 */
export function renderMetrics(snapshots: Sample[][]): string {
  const merged = new Map<string, Sample>();
  for (const sample of snapshots.flat()) {
    const known = merged.get(sample.name + sample.labels);
    if (!known) {
      merged.set(sample.name + sample.labels, { ...sample, ...(sample.buckets && { buckets: [...sample.buckets] }) });
      continue;
    }
    known.value = sample.merge === 'max' ? Math.max(known.value, sample.value) : known.value + sample.value;
    sample.buckets?.forEach((n, i) => {
      known.buckets![i]! += n;
    });
  }
  const lines: string[] = [];
  const byName = new Map<string, Sample[]>();
  for (const sample of merged.values()) {
    const group = byName.get(sample.name);
    if (group) group.push(sample);
    else byName.set(sample.name, [sample]);
  }
  for (const [name, samples] of byName) {
    lines.push(`# HELP ${name} ${samples[0]!.help}`, `# TYPE ${name} ${samples[0]!.kind}`);
    for (const sample of samples) renderSample(lines, sample);
  }
  return `${lines.join('\n')}\n`;
}

function renderSample(lines: string[], { name, labels, value, bounds, buckets }: Sample): void {
  if (!bounds || !buckets) {
    lines.push(`${name}${labels} ${value}`);
    return;
  }
  let total = 0;
  const inner = labels ? `${labels.slice(1, -1)},` : '';
  for (let i = 0; i <= bounds.length; i += 1) {
    total += buckets[i]!;
    lines.push(`${name}_bucket{${inner}le="${i === bounds.length ? '+Inf' : bounds[i]}"} ${total}`);
  }
  lines.push(`${name}_sum${labels} ${value}`, `${name}_count${labels} ${total}`);
}

function renderLabels(labels: Record<string, string>): string {
  const parts = Object.entries(labels).map(([key, value]) => `${key}="${value.replace(/["\\\n]/g, '_')}"`);
  return parts.length > 0 ? `{${parts.join(',')}}` : '';
}
