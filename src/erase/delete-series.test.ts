/** How many statements deletes of series run at once, over a PostgreSQL that answers no insert of a tombstone. */
import { expect, test } from 'vitest';
import { systemClock as clock } from '../base/clock.ts';
import type { Log } from '../base/log.ts';
import type { ClickHouse } from '../clickhouse/client.ts';
import type { Queries } from '../postgres/client.ts';
import { seriesDeleter } from './delete-series.ts';

test('the deletes of a tenant leave a connection of PostgreSQL to other statements, and a place to other tenants', async () => {
  const inserted: number[] = [];
  const postgres = {
    query: (text: string, values: unknown[]) => {
      if (!text.includes('insert into tombstones')) return Promise.resolve([]);
      inserted.push(values[0] as number);
      return new Promise(() => {});
    },
  } as unknown as Queries;
  const remove = seriesDeleter({
    ...{ postgres, clickhouse: {} as ClickHouse, cluster: '', clock, log: {} as Log, statementsAtOnceMax: 4 },
    journals: () => Promise.resolve({ reports: [], isWhole: true }),
  });
  const order = (device: number) => ({ device, keys: ['k'], startTs: 0, endTs: 1, latest: 'keep' as const });
  for (let device = 0; device < 20; device += 1) void remove(order(device), 'a');
  await expect.poll(() => inserted).toEqual([0, 1, 2]);
  void remove(order(1_000), 'b');
  await expect.poll(() => inserted).toEqual([0, 1, 2, 1_000]);
});
