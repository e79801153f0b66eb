/** The load that a host without traffic puts on PostgreSQL: one process of the host polls for all workers. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openPostgres, type Postgres } from '../../src/postgres/client.ts';
import { eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { silentLog as log } from '../harness/silent-log.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';

let stores: Stores;
let engine: Engine;
let postgres: Postgres;

beforeAll(async () => {
  stores = await startStores();
  engine = await startEngine({ workers: 8, env: hostSettings(stores) });
  postgres = openPostgres({ url: stores.postgres.url, poolMax: 1, log });
});

afterAll(async () => {
  await postgres?.close();
  await engine?.destroy();
  await stores?.stopAll();
});

async function transactions(): Promise<number> {
  const [row] = await postgres.query<{ count: number }>(
    `select (xact_commit + xact_rollback)::float8 as count from pg_stat_database where datname = current_database()`,
  );
  return row!.count;
}

/** Transactions a second over the next ten seconds. */
async function rate(): Promise<number> {
  const [before, began] = [await transactions(), performance.now()];
  await new Promise((resolve) => setTimeout(resolve, 10_000));
  return ((await transactions()) - before) / ((performance.now() - began) / 1000);
}

// The host itself needs 10 transactions a second, and each worker reports its activity once in four seconds.
test('an idle host with 8 workers sends at most 16 transactions a second', async () => {
  await eventually(async () => (await rate()) <= 16, 60_000);
});

test('a change that only the store has seen reaches all workers within seconds', async () => {
  const device = await engine.api.createDevice('idle');
  const post = () =>
    fetch(`${engine.api.http}/api/v1/${device.token}/telemetry`, {
      method: 'POST',
      headers: { connection: 'close' },
      body: '{"on":1}',
    });
  for (let n = 0; n < 64; n += 1) expect((await post()).status).toBe(200);
  // Another host would announce its change over the bus. This change is made without such a message.
  await postgres.query(`with revoked as (
      update device_credentials set credentials_id = 'other' where credentials_id = '${device.token}' returning device_id)
    insert into credential_changes (credentials_id, device_id, device_number, deleted, created_time)
    select '${device.token}', d.id, d.number, false, ${Date.now()} from device d join revoked on d.id = revoked.device_id`);
  await eventually(async () => {
    const statuses = await Promise.all(Array.from({ length: 64 }, async () => (await post()).status));
    return statuses.every((status) => status === 401);
  }, 5_000);
});
