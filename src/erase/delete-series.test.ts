/** How many statements deletes of series run at once, over a PostgreSQL that answers when the test says so. */
import { expect, test } from 'vitest';
import { systemClock as clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { ClickHouse } from '../clickhouse/client.ts';
import type { Queries } from '../postgres/client.ts';
import { seriesDeleter } from './delete-series.ts';

test('one statement records the deletes that wait for it, and tenants take turns in it', async () => {
  const inserts: { devices: number[]; fail(error: Error): void }[] = [];
  const postgres = {
    query: (text: string, values: unknown[]) => {
      if (!text.includes('insert into tombstones')) return Promise.resolve([]);
      const devices = (JSON.parse(values[0] as string) as { device: number }[]).map(({ device }) => device);
      return new Promise((_, reject) => inserts.push({ devices, fail: reject }));
    },
  } as unknown as Queries;
  const remove = seriesDeleter({
    ...{ postgres, clickhouse: {} as ClickHouse, cluster: '', clock, log: {} as Log },
    journals: () => Promise.resolve({ reports: [], isWhole: true }),
  });
  const order = (device: number) => ({ device, keys: ['k'], startTs: 0, endTs: 1, latest: 'keep' as const });
  const refusals: unknown[] = [];
  const start = (device: number, tenant: string) =>
    remove(order(device), tenant).catch((error) => refusals.push(error));

  void start(0, 'a');
  await expect.poll(() => inserts.map(({ devices }) => devices)).toEqual([[0]]);
  const many = 2 * limits.seriesDeletesPerStatementMax;
  for (let device = 1; device <= many; device += 1) void start(device, 'a');
  void start(-1, 'b');
  await new Promise((resolve) => setImmediate(resolve));
  expect(inserts).toHaveLength(1);

  inserts[0]!.fail(new Error('lost'));
  await expect.poll(() => inserts.length).toBe(2);
  expect(refusals).toHaveLength(1);
  expect(inserts[1]!.devices).toHaveLength(limits.seriesDeletesPerStatementMax);
  expect(inserts[1]!.devices.slice(0, 3)).toContain(-1);
});
