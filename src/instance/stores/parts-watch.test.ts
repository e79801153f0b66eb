import { expect, test } from 'vitest';
import { silentLog } from '../../../test/harness/silent-log.ts';
import { limits } from '../../base/limits.ts';
import { systemScheduler } from '../../base/scheduler.ts';
import type { ClickHouse } from '../../clickhouse/client.ts';
import { ClickHouseError } from '../../clickhouse/errors/clickhouse-error.ts';
import { PartsWatch } from './parts-watch.ts';

/** A watch that reads when the test says so, what the test answers. */
function watched() {
  let tick = () => {};
  const at = { now: 0, hosts: 1, waits: [] as number[], warned: [] as object[] };
  let answer: () => Promise<object[]> = async () => [];
  const watch = new PartsWatch({
    clickhouse: { rows: () => answer() } as unknown as ClickHouse,
    isClickHouseUp: () => true,
    hosts: () => at.hosts,
    log: { ...silentLog, warn: (event, fields) => at.warned.push({ event, ...fields }) },
    clock: { monotonic: () => at.now },
    scheduler: {
      ...systemScheduler,
      after: (ms, run) => {
        at.waits.push(ms);
        tick = run;
        return () => {};
      },
    },
  });
  const turn = async () => {
    tick();
    await new Promise((resolve) => setImmediate(resolve));
  };
  const reads = async (result: number | Error) => {
    answer = async () => {
      if (result instanceof Error) throw result;
      return [{ partsOfPartitionMax: result }];
    };
    await turn();
  };
  watch.start();
  return { watch, at, turn, reads };
}

test('the number of parts is read again and again, and forgotten when ClickHouse does not answer for long', async () => {
  const { watch, at, turn, reads } = watched();
  expect(watch.partsOfPartition).toBe(0);
  await reads(700);
  expect(watch.partsOfPartition).toBe(700);
  await reads(30);
  expect(watch.partsOfPartition).toBe(30);
  await reads(new ClickHouseError(0, 'transient', 'no answer'));
  expect(watch.partsOfPartition).toBe(30);
  at.now += limits.partsKnownMs + 1;
  expect(watch.partsOfPartition).toBe(0);
  for (at.hosts of [8, 30, 300]) await reads(900);
  expect(watch.partsOfPartition).toBe(900);
  expect(at.waits).toEqual([5_000, 5_000, 5_000, 5_000, 8_000, 30_000, 30_000]);
  expect(limits.partsKnownMs).toBeGreaterThan(2 * limits.partsPollMsMax);
  watch.stop();
  await turn();
  expect(at.waits).toHaveLength(7);
});

test('a ClickHouse that refuses the query is logged once, one that does not answer is not', async () => {
  const { watch, at, reads } = watched();
  const refused = new ClickHouseError(497, 'transient', 'Not enough privileges.');
  await reads(new ClickHouseError(0, 'transient', 'no answer'));
  expect(at.warned).toEqual([]);
  for (let n = 0; n < 3; n += 1) await reads(refused);
  const line = { event: 'parts_unread', reason: 'Not enough privileges.' };
  expect(at.warned).toEqual([line]);
  await reads(12);
  await reads(refused);
  expect(at.warned).toEqual([line, line]);
  watch.stop();
});
