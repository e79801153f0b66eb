/** The page of /metrics: prefix, former names, merge of processes, numbers. */
import { expect, test } from 'vitest';
import { Metrics } from './metrics.ts';
import { metricsPage } from './metrics-page.ts';

function processWith(messages: number, seconds: number): Metrics {
  const metrics = new Metrics();
  metrics.counter('messages_total', 'Messages.').add(messages);
  metrics.counted('process_cpu_seconds_total', 'CPU.', () => seconds, { process: 'w' });
  metrics.observed('oldest_seconds', 'Oldest.', () => seconds, 'max');
  return metrics;
}

test('processes are added or the largest counts, and each name has the prefix but for common ones', () => {
  const page = metricsPage([processWith(1, 5).snapshot(), processWith(2, 3).snapshot()], false);
  expect(page).toBe(
    [
      '# HELP millrace_messages_total Messages.',
      '# TYPE millrace_messages_total counter',
      'millrace_messages_total 3',
      '# HELP process_cpu_seconds_total CPU.',
      '# TYPE process_cpu_seconds_total counter',
      'process_cpu_seconds_total{process="w"} 8',
      '# HELP millrace_oldest_seconds Oldest.',
      '# TYPE millrace_oldest_seconds gauge',
      'millrace_oldest_seconds 5',
      '',
    ].join('\n'),
  );
});

test('with old names every series is there twice, a renamed counter under its former name', () => {
  const lines = metricsPage([processWith(1, 5).snapshot()], true).split('\n');
  const series = lines.filter((line) => line !== '' && !line.startsWith('#'));
  expect(series).toEqual([
    'millrace_messages_total 1',
    'messages_total 1',
    'process_cpu_seconds_total{process="w"} 5',
    'process_cpu_seconds{process="w"} 5',
    'millrace_oldest_seconds 5',
    'oldest_seconds 5',
  ]);
});

test('buckets are cumulative, and what has no end is +Inf', () => {
  const metrics = new Metrics();
  const histogram = metrics.histogram('seconds', 'Time.', { group: 'a' }, [0.5, 1]);
  for (const value of [0.1, 0.7, 0.8, 5]) histogram.observe(value);
  metrics.observed('left_seconds', 'Left.', () => Number.POSITIVE_INFINITY);
  const series = metricsPage([metrics.snapshot()], false)
    .split('\n')
    .filter((line) => line !== '' && !line.startsWith('#'));
  expect(series).toEqual([
    'millrace_seconds_bucket{group="a",le="0.5"} 1',
    'millrace_seconds_bucket{group="a",le="1"} 3',
    'millrace_seconds_bucket{group="a",le="+Inf"} 4',
    'millrace_seconds_sum{group="a"} 6.6',
    'millrace_seconds_count{group="a"} 4',
    'millrace_left_seconds +Inf',
  ]);
});
