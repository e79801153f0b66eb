import { expect, test } from 'vitest';
import { newTroubles } from '../../test/harness/troubles.ts';
import { limits } from '../base/limits.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { excerptOf } from './excerpt.ts';
import { mergeOutcomes } from './outcome.ts';
import { RecordTable } from './record-table.ts';
import type { Troubles } from './troubles.ts';

let now = 1_000_000_000_000;
const clock = { now: () => now, monotonic: () => now };
const place = { door: 'http' as const, address: () => '192.0.2.1' };
const wrong = { reason: 'wrong_shape', message: 'The body must be an object.' };
const device = (number: number, tenantId = 'a') => ({ number, tenantId });

function troublesOf(): { troubles: Troubles; unrecorded: () => number } {
  const metrics = new Metrics();
  const troubles = newTroubles(clock, metrics);
  const unrecorded = () => metrics.snapshot().find(({ name }) => name === 'diagnostics_unrecorded_total')!.value;
  return { troubles, unrecorded };
}

test('equal refusals are one entry with a count, the last message and both times', () => {
  const { troubles } = troublesOf();
  const first = now;
  troubles.refused(device(1), wrong, place, Buffer.from('[1]'));
  now += 5;
  troubles.refused(device(1), { reason: 'bad_ts', message: 'No time.' }, place);
  now += 5;
  troubles.refused(device(1), wrong, place, Buffer.from('[2]'));
  const { count, outcomes } = troubles.refusalsOf(1);
  expect(count).toBe(3);
  expect(outcomes.map(({ reason, count, since, ts, excerpt }) => [reason, count, since, ts, excerpt])).toEqual([
    ['bad_ts', 1, first + 5, first + 5, ''],
    ['wrong_shape', 2, first, first + 10, '[2]'],
  ]);
});

test('a device keeps the newest different refusals, and few of one second', () => {
  const { troubles } = troublesOf();
  for (let i = 0; i < 100; i += 1) {
    troubles.refused(device(1), { reason: 'bad_ts', message: `at byte ${i}` }, place);
  }
  expect(troubles.refusalsOf(1)).toMatchObject({ count: 100, outcomes: { length: limits.diagnosedPerSecondMax } });
  for (let i = 0; i < 20; i += 1) {
    now += 1_000;
    troubles.refused(device(1), { reason: 'bad_ts', message: `at byte ${i} ${'x'.repeat(1_000)}` }, place);
  }
  const { outcomes } = troubles.refusalsOf(1);
  expect(outcomes).toHaveLength(limits.diagnosedOutcomesMax);
  expect(outcomes.at(-1)!.message).toMatch(/^at byte 19 /);
  expect(outcomes.at(-1)!.message).toHaveLength(limits.diagnosedMessageCharsMax);
});

test('a flood of devices is counted; another tenant still gets records in the same second', () => {
  now += 1_000;
  const { troubles, unrecorded } = troublesOf();
  for (let i = 0; i < 1_000; i += 1) troubles.refused(device(i), wrong, place);
  troubles.refused(device(5_000, 'b'), wrong, place);
  expect(troubles.refusedOf('a', 'newest')).toHaveLength(limits.diagnosedNewPerTenantMax);
  expect(troubles.refusedOf('b', 'newest')).toHaveLength(1);
  expect(unrecorded()).toBe(1_000 - limits.diagnosedNewPerTenantMax);
});

test('connections: ordinary ends are noted of a device with trouble only', () => {
  const { troubles } = troublesOf();
  const bye = { reason: 'client_disconnect', message: 'The client sent DISCONNECT.' };
  troubles.connected(device(1), place);
  troubles.disconnected(device(1), bye, place);
  expect(troubles.connectionsOf(1)).toEqual([]);
  troubles.disconnected(device(1), { reason: 'packet_too_large', message: 'Too large.' }, place);
  now += 1;
  troubles.connected(device(1), place);
  now += 1;
  troubles.disconnected(device(1), bye, place);
  const words = mergeOutcomes([troubles.connectionsOf(1)]).map(({ event, reason }) => `${event} ${reason}`);
  expect(words).toEqual(['disconnected client_disconnect', 'connected ', 'disconnected packet_too_large']);
  troubles.forget(1);
  expect(troubles.connectionsOf(1)).toEqual([]);
});

test('the list of a tenant: the newest first, or the most', () => {
  const { troubles } = troublesOf();
  for (const number of [1, 1, 1, 2, 2, 3]) {
    now += 1;
    troubles.refused(device(number), wrong, place);
  }
  expect(troubles.refusedOf('a', 'newest').map(({ number }) => number)).toEqual([3, 2, 1]);
  expect(troubles.refusedOf('a', 'most').map(({ number, count }) => [number, count])).toEqual([
    [1, 3],
    [2, 2],
    [3, 1],
  ]);
  expect(troubles.refusedOf('b', 'most')).toEqual([]);
});

test('a full table: the tenant above its share loses its own oldest record', () => {
  const table = new RecordTable<{ number: number; tenantId: string }>(10);
  for (let i = 0; i < 100; i += 1) table.add(device(i, 'flood'));
  for (let i = 100; i < 104; i += 1) table.add(device(i, 'small'));
  for (let i = 200; i < 300; i += 1) table.add(device(i, 'flood'));
  expect(table.size).toBe(10);
  expect(table.ofTenant('small').map(({ number }) => number)).toEqual([100, 101, 102, 103]);
  expect(table.ofTenant('flood').map(({ number }) => number)).toEqual([294, 295, 296, 297, 298, 299]);
  table.add(table.get(294)!);
  expect(table.ofTenant('flood').at(-1)!.number).toBe(294);
  for (const { number } of table.ofTenant('small')) table.delete(number);
  expect([table.size, table.ofTenant('small')]).toEqual([6, []]);
});

test.each([
  ['{"temperature": 21.5}', '{"temperature": 21.5}'],
  ['{"secretKey":"pear","durationMs":5}', '{"secretKey":***,"durationMs":5}'],
  ["{'wifi-password': 'a\\'b', n: 1}", "{'wifi-password': ***, n: 1}"],
  ['{apiKey: abc, n: 1}', '{apiKey: ***, n: 1}'],
  ['{"credentialsValue":{"a":"b"},"n":1}', '{"credentialsValue":***'],
  ['{"token":"never ends', '{"token":***'],
  ['{"a":"x\n\u202e\u0000"}', '{"a":"x\\u000a\\u202e\\u0000"}'],
])('an excerpt of %j', (body, excerpt) => {
  expect(excerptOf(Buffer.from(body))).toBe(excerpt);
});

test('an excerpt is short, whatever the bytes are, and no secret that begins in it is shown in part', () => {
  expect(excerptOf(Buffer.from([0xff, 0x41]))).toBe('\\ufffdA');
  expect(excerptOf(undefined)).toBe('');
  expect(excerptOf(Buffer.alloc(100_000, 'a'))).toBe(`${'a'.repeat(limits.diagnosedBytesMax)}…`);
  const long = `{"pad":"${'p'.repeat(limits.diagnosedBytesMax - 20)}","token":"${'s'.repeat(2_000)}"}`;
  expect(excerptOf(Buffer.from(long))).not.toContain('s'.repeat(2));
});
