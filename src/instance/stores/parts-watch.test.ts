import { expect, test } from 'vitest';
import { limits } from '../../base/limits.ts';
import { systemScheduler } from '../../base/scheduler.ts';
import type { ClickHouse } from '../../clickhouse/client.ts';
import { PartsWatch } from './parts-watch.ts';

test('the number of parts is read again and again, and forgotten when ClickHouse does not answer for long', async () => {
  let tick = () => {};
  let now = 0;
  let hosts = 1;
  const waits: number[] = [];
  let answer: () => Promise<object[]> = async () => [{ partsOfPartitionMax: 700 }];
  const watch = new PartsWatch({
    clickhouse: { rows: () => answer() } as unknown as ClickHouse,
    isClickHouseUp: () => true,
    hosts: () => hosts,
    clock: { monotonic: () => now },
    scheduler: {
      ...systemScheduler,
      after: (ms, run) => {
        waits.push(ms);
        tick = run;
        return () => {};
      },
    },
  });
  const turn = async () => {
    tick();
    await new Promise((resolve) => setImmediate(resolve));
  };
  watch.start();
  expect(watch.partsOfPartition).toBe(0);
  await turn();
  expect(watch.partsOfPartition).toBe(700);
  answer = async () => [{ partsOfPartitionMax: 30 }];
  await turn();
  expect(watch.partsOfPartition).toBe(30);
  answer = () => Promise.reject(new Error('no answer'));
  await turn();
  expect(watch.partsOfPartition).toBe(30);
  now += limits.partsKnownMs + 1;
  expect(watch.partsOfPartition).toBe(0);
  answer = async () => [{ partsOfPartitionMax: 900 }];
  for (hosts of [8, 30, 300]) await turn();
  expect(watch.partsOfPartition).toBe(900);
  expect(waits).toEqual([5_000, 5_000, 5_000, 5_000, 8_000, 30_000, 30_000]);
  expect(limits.partsKnownMs).toBeGreaterThan(2 * limits.partsPollMsMax);
  watch.stop();
  await turn();
  expect(waits).toHaveLength(7);
});
