import { expect, test } from 'vitest';
import { limits } from '../../base/limits.ts';
import { systemScheduler } from '../../base/scheduler.ts';
import type { ClickHouse } from '../../clickhouse/client.ts';
import { PartsWatch } from './parts-watch.ts';

test('the number of parts is read again and again, and forgotten when ClickHouse does not answer for long', async () => {
  let tick = () => {};
  let now = 0;
  let answer: () => Promise<object[]> = async () => [{ partsOfPartitionMax: 700 }];
  const watch = new PartsWatch({
    clickhouse: { rows: () => answer() } as unknown as ClickHouse,
    isClickHouseUp: () => true,
    clock: { monotonic: () => now },
    scheduler: {
      ...systemScheduler,
      every: (_, run) => {
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
});
