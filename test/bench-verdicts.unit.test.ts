/** A benchmark that ends with 1 says which promise was broken, and by which figure. */
import { expect, test, vi } from 'vitest';
import { growthOf } from '../bench/cpu.ts';
import { sumsText } from '../bench/crash/judge.ts';
import { billionTargets } from '../bench/scenarios/billion.ts';
import { fleetTargets } from '../bench/scenarios/fleet.ts';
import { faultOf } from '../bench/scenarios/hostile.ts';
import { Targets } from '../bench/targets.ts';

test('a resource that fails has a reason, also when nothing was refused', () => {
  const f = (p99Ms: number, outcomes: Record<string, number>, statuses: Record<number, number>) =>
    faultOf('answers', { attacked: { p99Ms, outcomes }, statuses }, 50);
  expect(f(49, { right: 10 }, { 200: 3 })).toBe('');
  expect(f(186, { right: 10 }, { 200: 3 })).toBe('p99 186 ms, at most 50');
  expect(f(186, { right: 10, '503 busy': 2 }, { 200: 3 })).toBe('2 × 503 busy; p99 186 ms, at most 50');
  const unproved = 'the attacker got no answer, which proves nothing: give more seconds';
  expect(f(49, { right: 10 }, {})).toBe(unproved);
  expect(f(49, { right: 10 }, { 0: 7 })).toBe(unproved);
  expect(faultOf('unread', { attacked: { p99Ms: 49, outcomes: { right: 10 } }, statuses: {} }, 50)).toBe('');
});

test('each figure of a billion points that misses its target is named', () => {
  const read = (p99Ms: number) => ({ answered: { p99Ms } });
  const reads = [read(30), read(500), read(10)];
  const held = { sizes: [{ name: 'telemetry', bytes: 250, rows: 100 }], ratio: 0.95, restart: { readySeconds: 5 } };
  expect(billionTargets({ ...held, reads, readsAfter: reads }).missed).toEqual([]);
  const slow = [read(31), read(1), read(14)];
  expect(
    billionTargets({ ...held, ratio: 0.66, restart: { readySeconds: 6 }, reads, readsAfter: slow }).missed,
  ).toEqual([
    'last tenth / first tenth: 0.66, target 0.95',
    'a day after a restart, p99: 31 ms, target 30',
    'latest values after a restart, p99: 14 ms, target 10',
    'ready after a restart: 6 s, target 5',
  ]);
});

test('each figure of a fleet that misses its target is named; memory is judged from a million devices on', () => {
  const ratios = { afterStart: 0.8, http: 0.75, mqtt: 0.9 };
  const of = (devices: number, readySeconds: number, bytesPerDevice: number, postgresShare: number) => {
    const large = { devices, first: { readySeconds } };
    return { large, bytesPerDevice, postgresShare, ratios } as Parameters<typeof fleetTargets>[0][number];
  };
  expect(fleetTargets([of(100_000, 3, 243, 0.05), of(1_000_000, 2, 200, 0.01)]).missed).toEqual([]);
  const slow = { ...of(1_000_000, 3.5, 201, 0.075), ratios: { ...ratios, mqtt: 0.59 } };
  expect(fleetTargets([slow]).missed).toEqual([
    "1 000 000 devices: MQTT rate, of the small fleet's 0.59, target 0.75",
    '1 000 000 devices: ready after 3.50 s, target 3',
    '1 000 000 devices: memory of a device 201 bytes, target 200',
    '1 000 000 devices: PostgreSQL uses 7.50 % of a core, target 5',
  ]);
});

test('a crash run says what happened to records in words', () => {
  const sums = { lost: 0, altered: 0, twice: 3, resurrected: 0, refusedButStored: 0, unknown: 0, disordered: 0 };
  const none = { quarantined: 0, stuck: 0, ended: 0 };
  expect(sumsText({ ...sums, ...none })).toBe('3 stored twice');
  expect(sumsText({ ...sums, ...none, twice: 0 })).toBe('');
});

test('a figure that is not a number misses its target', () => {
  const targets = new Targets();
  targets.atMost('ack: p99', Number.NaN, 25, ' ms');
  targets.atMost('ack: p50', 25, 25, ' ms');
  targets.atLeast('rate', 0.94, 0.95, '');
  targets.atMost('ack: p95', 2458, 1394.6, ' ms');
  targets.none('polls that were refused:', 0);
  targets.none('commands that failed:', 3);
  const slow = 'ack: p95 2 458 ms, target 1 395';
  const missed = ['ack: p99 - ms, target 25', 'rate 0.94, target 0.95', slow, 'commands that failed: 3, target 0'];
  expect(targets.missed).toEqual(missed);
  expect(printedBy(targets)).toEqual(missed.map((line) => `target missed: ${line}`));
});

test('memory that did not grow holds no target', () => {
  const targets = new Targets();
  targets.atMost('a held poll:', growthOf(-200_000), 4_096, ' bytes');
  targets.atMost('a held poll:', growthOf(4_000), 4_096, ' bytes');
  expect(targets.missed).toEqual(['a held poll: - bytes, target 4 096']);
});

test('targets that are all held are said to be held, and a run without targets says nothing of them', () => {
  const targets = new Targets();
  expect(printedBy(targets)).toEqual([]);
  targets.atMost('ack: p50', 25, 25, ' ms');
  expect(printedBy(targets)).toEqual(['the target is held']);
  targets.none('refused:', 0);
  expect(printedBy(targets)).toEqual(['all 2 targets held']);
});

function printedBy(targets: Targets): string[] {
  const written = vi.spyOn(process.stdout, 'write').mockReturnValue(true);
  try {
    targets.tell();
    return written.mock.calls.map(([line]) => String(line).trimEnd());
  } finally {
    written.mockRestore();
  }
}
