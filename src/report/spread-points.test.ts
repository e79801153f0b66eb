/** The cap of what a report gathers from the shards, on a real engine that is all of its shards. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startTestClickHouse, type TestClickHouse } from '../../test/harness/clickhouse-server.ts';
import { bucketCount } from '../clickhouse/shards.ts';
import type { Plan } from './plan.ts';
import { dropTables, gatherPoints } from './spread-points.ts';
import { spreadTables } from './spread-statements.ts';

let embedded: TestClickHouse;

beforeAll(async () => {
  embedded = await startTestClickHouse();
}, 60_000);

afterAll(() => embedded?.stop());

const points = 200_000;
const pointBytes = points * 8;

async function gather(name: string, bytesMax: number) {
  const tables = spreadTables(name);
  const spread = {
    tables,
    devices: `SELECT number AS device, '' AS profile FROM numbers(100)`,
    points: `SELECT number AS point FROM numbers(${points})`,
  };
  const servers = [embedded.clickhouse];
  try {
    await gatherPoints({ parameters: {}, spread } as unknown as Plan, {
      servers,
      shardOf: new Uint8Array(bucketCount),
      step: (_, run) => run({ timeoutMs: 30_000, settings: { readonly: '2' } }),
      bytesMax,
    });
    const [row] = await embedded.clickhouse.rows<{ count: string }>(`SELECT count() AS count FROM ${tables.points}`);
    return Number(row!.count);
  } finally {
    await dropTables(tables, servers, 30_000);
  }
}

test('a report gathers no more than its cap, and the refusal says what to change', async () => {
  expect(await gather('report-enough', 2 * pointBytes)).toBe(points);
  await expect(gather('report-much', pointBytes / 2)).rejects.toMatchObject({
    status: 400,
    reason: 'report_too_large',
    message: expect.stringMatching(/gathers more than 782 KiB .* from the shards: choose a shorter range/),
  });
  const left = await embedded.clickhouse.rows(`SELECT name FROM system.tables WHERE name LIKE 'report_%'`);
  expect(left).toEqual([]);
  expect(await gather('report-again', 2 * pointBytes)).toBe(points);
});
