/** The share of PostgreSQL that devices may use for packages. */
import { expect, test } from 'vitest';
import { limits } from '../base/limits.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import type { Postgres } from '../postgres/client.ts';
import { Downloads } from './downloads.ts';

test('a device that floods takes few statements at once, and a device of another tenant finds one', async () => {
  let running = 0;
  const postgres = {
    query: () => {
      running += 1;
      return new Promise(() => {});
    },
  } as unknown as Postgres;
  const downloads = new Downloads({ postgres, clock: { now: () => 0, monotonic: () => 0 }, metrics: new Metrics() });
  const settled = () => new Promise((resolve) => setImmediate(resolve));
  const flooding = { id: 'a', number: 1, tenantId: 't' };
  for (let n = 0; n < 200; n += 1) {
    void downloads.assigned(flooding, 'FIRMWARE');
    void downloads.find(flooding, 'SOFTWARE', 'title', `${n}`);
  }
  await settled();
  const taken = running;
  expect(taken).toBeLessThan(limits.otaLookUpsAtOnceMax);
  void downloads.assigned({ id: 'b', number: 2, tenantId: 'u' }, 'FIRMWARE');
  await settled();
  expect(running).toBe(taken + 1);
});

test('an assignment that changes while it is read is not remembered', async () => {
  const stored = { title: 'pumpfw', version: '2', dataSize: 1 };
  let answer = (_rows: object[]) => {};
  const postgres = {
    query: () =>
      new Promise((resolve) => {
        answer = resolve;
      }),
  } as unknown as Postgres;
  const downloads = new Downloads({ postgres, clock: { now: () => 0, monotonic: () => 0 }, metrics: new Metrics() });
  const device = { id: 'a', number: 1, tenantId: 't' };
  const isRemembered = () => downloads.remembered(device, 'FIRMWARE', 'pumpfw', '2') !== undefined;
  for (const change of [() => downloads.forget(1), () => downloads.forgetAll()]) {
    const finding = downloads.find(device, 'FIRMWARE', 'pumpfw', '2');
    await new Promise((resolve) => setImmediate(resolve));
    change();
    answer([stored]);
    expect(await finding).toEqual(stored);
    expect(isRemembered()).toBe(false);
  }
  const finding = downloads.find(device, 'FIRMWARE', 'pumpfw', '2');
  await new Promise((resolve) => setImmediate(resolve));
  downloads.forget(2);
  answer([stored]);
  await finding;
  expect(isRemembered()).toBe(true);
});
