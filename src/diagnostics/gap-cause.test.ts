/** A cause is named only when a record proves it. */
import { expect, test } from 'vitest';
import { causeOf, type Evidence } from './gap-cause.ts';
import type { Outcome } from './outcome.ts';

const none: Evidence = {
  refusals: [],
  connections: [],
  active: true,
  lastActivityTime: 900_000,
  lastConnectTime: null,
  lastDisconnectTime: null,
};
const gap = { startTs: 100_000, endTs: 200_000 };
const outcome = (more: Partial<Outcome>): Outcome => ({
  ...{ event: 'refused', door: 'http', reason: 'rate_limit', message: 'Too many.', address: '', excerpt: '' },
  ...{ since: 150_000, ts: 150_000, count: 1 },
  ...more,
});
const cause = (more: Partial<Evidence>) => causeOf(gap, 10_000, { ...none, ...more }).cause;

test('a gap without a proof is unknown', () => {
  expect(cause({})).toBe('unknown');
  expect(cause({ active: false })).toBe('unknown');
  expect(cause({ lastDisconnectTime: 50_000, lastConnectTime: 99_999 })).toBe('unknown');
  expect(cause({ lastDisconnectTime: 200_001 })).toBe('unknown');
  expect(cause({ refusals: [outcome({ since: 10, ts: 94_000 }), outcome({ since: 206_000, ts: 300_000 })] })).toBe(
    'unknown',
  );
  // Two refusals long before and after the gap, which do not prove a refusal inside it.
  expect(cause({ refusals: [outcome({ since: 10, ts: 900_000, count: 2 })] })).toBe('unknown');
  expect(cause({ connections: [outcome({ event: 'connected' })] })).toBe('unknown');
});

test('refused, before offline: the device was there', () => {
  const refusals = [outcome({})];
  expect(causeOf(gap, 10_000, { ...none, refusals, lastDisconnectTime: 120_000 })).toEqual({
    ...{ cause: 'refused', reason: 'rate_limit', message: 'Too many.' },
  });
  expect(cause({ refusals: [outcome({ since: 10, ts: 900_000, count: 5000 })] })).toBe('refused');
  expect(cause({ refusals: [outcome({ since: 96_000, ts: 900_000, count: 2 })] })).toBe('refused');
});

test('offline: disconnected, inactive since before, or turned away', () => {
  expect(cause({ lastDisconnectTime: 150_000 })).toBe('offline');
  expect(cause({ lastDisconnectTime: 150_000, lastConnectTime: 100_000 })).toBe('offline');
  expect(cause({ lastDisconnectTime: 50_000, lastConnectTime: 110_000 })).toBe('offline');
  expect(cause({ active: false, lastActivityTime: 90_000 })).toBe('offline');
  const connections = [outcome({ event: 'connect_refused', reason: 'wrong_password' })];
  expect(causeOf(gap, 10_000, { ...none, connections })).toMatchObject({ cause: 'offline', reason: 'wrong_password' });
});
