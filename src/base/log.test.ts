/** The number of lines for a repeated event, and the form of lines on a terminal. */
import { expect, test } from 'vitest';
import { RepeatLimitedLog, terminalLine } from './log.ts';

function logAt() {
  const lines: Record<string, unknown>[] = [];
  const write = (line: object) => void lines.push(line as Record<string, unknown>);
  const logger = { debug: write, info: write, warn: write, error: write, isLevelEnabled: () => true };
  let now = 0;
  const log = new RepeatLimitedLog(logger as never, () => now);
  /** Logs ten times a second for `seconds` seconds. */
  const during = (seconds: number, say: () => void) => {
    for (const end = now + seconds * 1000; now < end; now += 100) say();
  };
  return { log, lines, during, pass: (seconds: number) => (now += seconds * 1000) };
}

const loops = ['storage_insert', 'host_poll_failed', 'tenant_limits_unread'];
test.each(loops)('%s: the same outage for ten minutes gives some ten lines, and the rest is counted', (event) => {
  const { log, lines, during } = logAt();
  let n = 0;
  during(600, () => log.warn(event, { reason: `no answer in ${(n += 1)} ms` }));
  expect(lines.length).toBeGreaterThan(8);
  expect(lines.length).toBeLessThan(20);
  const suppressed = lines.reduce((sum, line) => sum + ((line['suppressed'] as number | undefined) ?? 0), 0);
  expect(lines.length + suppressed).toBeGreaterThan(5_000);
});

test('another reason is written within a second, and so is the next outage', () => {
  const { log, lines, during, pass } = logAt();
  during(300, () => log.warn('storage_insert', { reason: 'no answer' }));
  const before = lines.length;
  during(2, () => log.warn('storage_insert', { reason: 'refused' }));
  expect(lines.slice(before).map(({ reason }) => reason)).toContain('refused');
  pass(300);
  const quiet = lines.length;
  during(2, () => log.warn('storage_insert', { reason: 'refused' }));
  expect(lines.length).toBeGreaterThan(quiet + 1);
});

test('other events are written once a second', () => {
  const { log, lines, during } = logAt();
  during(60, () => log.warn('rows_suspect', { reason: 'refused' }));
  expect(lines.length).toBe(60);
});

test.each([
  ['worker_frozen', 'worker', [0, 1]],
  ['worker_runs_again', 'worker', [0, 1]],
  ['shard_behind', 'shard', [1, 2]],
  ['shard_caught_up', 'shard', [1, 2]],
  ['orphan_journal_not_shipped', 'journal', ['worker-2', 'worker-3']],
  ['part_attached', 'part', ['20261121_1_1_0', '20261121_2_2_0']],
  ['part_unreadable', 'path', ['detached/unreadable_1_1_1_0', 'detached/unreadable_1_2_2_0']],
  ['part_rolled_back', 'path', ['detached/rolled-back_1_1_1_0', 'detached/rolled-back_1_2_2_0']],
  ['mutation_unreadable', 'path', ['unreadable_mutation_2.txt', 'unreadable_mutation_3.txt']],
])('%s: what happens to two at one moment is two lines', (event, subject, both) => {
  const { log, lines } = logAt();
  for (const one of both) log.warn(event, { [subject]: one });
  expect(lines.map((line) => line[subject])).toEqual(both);
});

test('a name with commands for a terminal is one line without them', () => {
  const client = 'pump\n\u001b[2J\u009b2J\u202e1';
  const base = { level: 'warn', time: '2026-11-21T12:00:00.000Z', process: 'worker-0', pid: 1 };
  expect(terminalLine(JSON.stringify({ ...base, event: 'mqtt_closed', client }))).toBe(
    '12:00:00.000 warn  worker-0 mqtt_closed client="pump\\n\\u001b[2J\\u009b2J\\u202e1"\n',
  );
});
