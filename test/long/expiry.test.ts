/**
 * What a whole instance removes by its age. In the first day of an instance nothing expires, so this test lets the
 * clock have been trusted before.
 */

import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { dayMs } from '../../src/base/durations.ts';
import { openPostgres, type Postgres } from '../../src/postgres/client.ts';
import { eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { silentLog as log } from '../harness/silent-log.ts';

let engine: Engine;

/** Retention begins a minute after a start. */
const roundMsMax = 100_000;

beforeAll(async () => {
  const env = { TELEMETRY_TTL_DAYS: '30', TELEMETRY_TTL_OF_LATEST: 'true' };
  engine = await startEngine({ workers: 1, env });
});

afterAll(() => engine?.destroy());

async function inDatabase<Result>(work: (postgres: Postgres) => Promise<Result>): Promise<Result> {
  const { url } = JSON.parse(readFileSync(join(engine.dataDir, 'run', 'postgres.json'), 'utf8')) as { url: string };
  const postgres = openPostgres({ url, poolMax: 1, log });
  try {
    return await work(postgres);
  } finally {
    await postgres.close();
  }
}

test('days, latest values, points with a time to live, API keys and closed commands go when they have expired', async () => {
  const { api } = engine;
  const [device, kept] = [await api.createDevice('expiring'), await api.createDevice('kept')];
  const now = Date.now();
  const path = `/api/plugins/telemetry/DEVICE/${device.id}/timeseries/ANY`;
  const body = { ts: now - 4 * dayMs, values: { short: 1 } };
  expect((await api.send('POST', `${path}/1`, body)).status).toBe(200);
  expect(await api.postTelemetry(device.token, `{"ts":${now - 40 * dayMs},"values":{"old":1}}`)).toBe(200);
  for (const { token } of [device, kept]) {
    expect(await api.postTelemetry(token, `{"ts":${now - 4 * dayMs},"values":{"long":1}}`)).toBe(200);
  }
  await api.createKey();
  await api.sendPersistent(device.id, { method: 'open', params: {}, persistent: true, timeout: 10_000 });
  const keys = async (table: string) => {
    const rows = await engine.clickhouse(`SELECT DISTINCT key FROM millrace.${table} WHERE device != 0 ORDER BY key`);
    return rows.flat().join();
  };
  await eventually(async () => (await keys('latest')) === 'long,old,short', 20_000);
  await inDatabase(async (postgres) => {
    await postgres.query('update api_key set expiration_time = 1');
    await postgres.query('update rpc set open = false, created_time = 1');
    await postgres.query(`insert into retention (name, done_at) values ('clock', clock_timestamp())
      on conflict (name) do update set done_at = excluded.done_at`);
  });
  await engine.restart();
  const left = () =>
    inDatabase(async (postgres) => {
      const [row] = await postgres.query<object>(
        'select (select count(*) from api_key) as keys, (select count(*) from rpc) as rpcs',
      );
      return row;
    });
  await expect.poll(left, { timeout: 20_000 }).toEqual({ keys: 0, rpcs: 0 });
  await expect.poll(() => keys('telemetry'), { timeout: roundMsMax, interval: 500 }).toBe('long');
  await expect.poll(() => keys('latest'), { timeout: 20_000 }).toBe('long,short');
  expect(engine.events().filter(({ event }) => /failed|unwritten/.test(event))).toEqual([]);
});
