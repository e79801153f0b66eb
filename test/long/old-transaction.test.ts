/** A transaction of PostgreSQL that runs for long: each change beside it is read from the log once all the same. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openPostgres, type Postgres } from '../../src/postgres/client.ts';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { silentLog as log } from '../harness/silent-log.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';

/** More than a process remembers of the changes that it has passed on. */
const changes = 60_000;

let stores: Stores;
let engine: Engine;
let postgres: Postgres;
let device: Device;

beforeAll(async () => {
  stores = await startStores();
  engine = await startEngine({ workers: 2, env: hostSettings(stores) });
  postgres = openPostgres({ url: stores.postgres.url, poolMax: 2, log });
  device = await engine.api.newDevice();
});

afterAll(async () => {
  await postgres?.close();
  await engine?.destroy();
  await stores?.stopAll();
});

const written = () => engine.metric('known_devices_written_total');

function post(token: string): Promise<number> {
  return engine.api.postTelemetry(token, '{"a":1}');
}

test('changes beside an old transaction are followed once, and its own changes when it ends', async () => {
  const columns = 'credentials_id, device_id, device_number, created_time';
  const changed = `insert into credential_changes (${columns})
    select k.credentials_id, d.id, d.number, ${Date.now()} from device_credentials k join device d on d.id = k.device_id`;
  const renew = `update device_credentials set credentials_id = $2 where credentials_id = $1`;
  let end = () => {};
  let isOpen = () => {};
  const opened = new Promise<void>((resolve) => {
    isOpen = resolve;
  });
  const old = postgres.transaction(async (queries) => {
    await queries.query(renew, [device.token, 'late-token']);
    await queries.query(`${changed} where k.credentials_id = $1`, ['late-token']);
    await queries.query(
      `insert into credential_changes (${columns}) values ($1, gen_random_uuid(), 0, ${Date.now()})`,
      [device.token],
    );
    isOpen();
    await new Promise<void>((resolve) => {
      end = resolve;
    });
  });
  await opened;
  try {
    const before = (await written())!;
    // Each change is one of another device: the file gets a record for each of them.
    await postgres.query(
      `insert into credential_changes (${columns})
       select 'gone ' || n, gen_random_uuid(), 0, ${Date.now()} from generate_series(1, ${changes}) as n`,
    );
    await eventually(async () => (await written())! >= before + changes, 60_000);
    const after = (await written())!;
    // The log is read once a second.
    await new Promise((resolve) => setTimeout(resolve, 4_500));
    expect((await written())! - after).toBe(0);
    // The bus does not carry changes that are made here: the log does, beside the old transaction.
    const other = await engine.api.newDevice();
    expect(await post(other.token)).toBe(200);
    await postgres.query(`${changed} where k.credentials_id = $1`, [other.token]);
    await eventually(async () => (await written())! - after >= 1);
    expect(await post('late-token')).toBe(401);
    expect(await post(device.token)).toBe(200);
  } finally {
    end();
    await old;
  }
  await eventually(async () => (await post('late-token')) === 200 && (await post(device.token)) === 401);
});
