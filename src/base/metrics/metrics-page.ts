/**
 * The page of /metrics in the Prometheus format, made of the samples of all processes. Every name begins with
 * `millrace_`, except for `process_…` and `nodejs_…`, which Prometheus knows.
 */
import type { Sample } from './metrics.ts';

const prefix = 'millrace_';
const commonName = /^(millrace|process|nodejs)_/;

/** Names of counters that were gauges in the version before the prefix. */
const formerNames: Record<string, string> = {
  process_cpu_seconds_total: 'process_cpu_seconds',
  journal_write_errors_total: 'journal_write_errors',
};

/** Series of the same name and labels are added, or the largest is taken. `oldNames`: each series has both names. */
export function metricsPage(snapshots: Sample[][], oldNames: boolean): string {
  const byName = new Map<string, Sample[]>();
  for (const sample of mergeSamples(snapshots)) {
    const group = byName.get(sample.name);
    if (group) group.push(sample);
    else byName.set(sample.name, [sample]);
  }
  const lines: string[] = [];
  for (const [name, samples] of byName) {
    const isCommon = commonName.test(name);
    renderGroup(lines, isCommon ? name : prefix + name, samples);
    const former = formerNames[name] ?? (isCommon ? undefined : name);
    if (oldNames && former !== undefined) renderGroup(lines, former, samples);
  }
  return `${lines.join('\n')}\n`;
}

/** Adds series of the same name and labels, or takes the largest; leaves the snapshots as they are. */
export function mergeSamples(snapshots: Sample[][]): Iterable<Sample> {
  const byKey = new Map<string, Sample>();
  for (const sample of snapshots.flat()) {
    const known = byKey.get(sample.name + sample.labels);
    if (!known) {
      byKey.set(sample.name + sample.labels, { ...sample, ...(sample.buckets && { buckets: [...sample.buckets] }) });
      continue;
    }
    known.value = sample.merge === 'max' ? Math.max(known.value, sample.value) : known.value + sample.value;
    sample.buckets?.forEach((n, i) => {
      known.buckets![i]! += n;
    });
  }
  return byKey.values();
}

function renderGroup(lines: string[], name: string, samples: Sample[]): void {
  lines.push(`# HELP ${name} ${samples[0]!.help}`, `# TYPE ${name} ${samples[0]!.kind}`);
  for (const sample of samples) renderSample(lines, name, sample);
}

function renderSample(lines: string[], name: string, { labels, value, bounds, buckets }: Sample): void {
  if (!bounds || !buckets) {
    lines.push(`${name}${labels} ${numberText(value)}`);
    return;
  }
  let total = 0;
  const inner = labels ? `${labels.slice(1, -1)},` : '';
  for (let i = 0; i <= bounds.length; i += 1) {
    total += buckets[i]!;
    lines.push(`${name}_bucket{${inner}le="${i === bounds.length ? '+Inf' : bounds[i]}"} ${total}`);
  }
  lines.push(`${name}_sum${labels} ${numberText(value)}`, `${name}_count${labels} ${total}`);
}

function numberText(value: number): string {
  if (value === Number.POSITIVE_INFINITY) return '+Inf';
  return Number.isNaN(value) ? 'NaN' : String(value);
}
