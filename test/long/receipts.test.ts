/**
 * Receipts on two hosts that share their stores: each host answers for receipts of the other, also while the other does
 * not run and after it has started again. A host answers `unknown` for a state that it cannot know, and never `missing`
 * (docs/rest.md#receipts).
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openPostgres } from '../../src/postgres/client.ts';
import { type Device, eventually } from '../harness/api.ts';
import { queryClickhouse } from '../harness/clickhouse-queries.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { postForReceipt, proveSuspects, readReceipt } from '../harness/receipts.ts';
import { silentLog } from '../harness/silent-log.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';

let stores: Stores;
let here: Engine;
let there: Engine;
let device: Device;
/** Receipts of a row that ClickHouse refuses and of a row that waits for ClickHouse, both from the host `there`. */
let refused: string;
let waiting: string;

beforeAll(async () => {
  stores = await startStores();
  const env = hostSettings(stores);
  here = await startEngine({ workers: 2, env });
  there = await startEngine({ workers: 1, env });
  device = await here.api.newDevice();
});

afterAll(async () => {
  await Promise.all([here?.destroy(), there?.destroy()]);
  await stores?.stopAll();
});

const alter = (change: string) => queryClickhouse(stores.clickhouse.address(), `ALTER TABLE telemetry ${change}`);
/** Inserts need this amount of free space; reads need none. */
const needRoom = (bytes: number) => alter(`MODIFY SETTING min_free_disk_bytes_to_perform_insert = ${bytes}`);

/** Returns the state of the message, of its journal and of its points, as one host answers. */
async function said(receipt: string, engine = here): Promise<string> {
  const { state, journal, namedPoints } = await readReceipt(receipt, engine.api);
  const points = namedPoints.map((point: Record<string, string>) => `${point['key']} ${point['state']}`);
  return `${state}, journal ${journal}: ${points.join()}`;
}

/** Waits for this answer; no answer before it may call a point missing. */
async function says(receipt: string, expected: string, engine = here): Promise<void> {
  const seen: string[] = [];
  await eventually(async () => {
    seen.push(await said(receipt, engine));
    if (seen.at(-1) !== expected) throw new Error(seen.at(-1));
    return true;
  }, 60_000);
  expect(seen.filter((each) => each.includes('missing'))).toEqual([]);
}

test('a host answers for another one: refused rows, and rows that wait in the journal', async () => {
  await alter(`ADD CONSTRAINT refused CHECK key != 'bad'`);
  const values = { ts: 1_700_000_000_000, values: { good: 1, bad: 2 } };
  refused = (await postForReceipt(device.token, JSON.stringify(values), there.api))!;
  await says(refused, 'suspect, journal waiting: good stored,bad suspect');
  await needRoom(1e15);
  waiting = (await postForReceipt(device.token, '{"ts":1700000000000,"values":{"late":3}}', there.api))!;
  await says(waiting, 'journaled, journal waiting: late journaled');
  await says(waiting, 'journaled, journal waiting: late journaled', there);
});

test('while the host is killed, what its journal has is journaled', async () => {
  await there.killAll();
  expect(await said(refused)).toBe('journaled, journal waiting: good stored,bad journaled');
  expect(await said(waiting)).toBe('journaled, journal waiting: late journaled');
  expect(await proveSuspects(there)).toBe(1);
  expect(await said(refused)).toBe('journaled, journal waiting: good stored,bad journaled');
});

test('after its return a row is in quarantine; while the host is unavailable again, this is unknown', async () => {
  await there.start();
  for (const engine of [here, there]) {
    await says(refused, 'quarantined, journal stored: good stored,bad quarantined', engine);
    await says(waiting, 'journaled, journal waiting: late journaled', engine);
  }
  await there.killAll();
  await says(refused, 'unknown, journal stored: good stored,bad unknown');
  expect(await said(waiting)).toBe('journaled, journal waiting: late journaled');
});

test('a host that was unavailable for so long that its journals are forgotten: unknown, and true again when it is back', async () => {
  const postgres = openPostgres({ url: stores.postgres.url, poolMax: 1, log: silentLog });
  const { writer } = await readReceipt(waiting, here.api);
  // Does what `forgetOldJournals` does after TELEMETRY_TOMBSTONES_KEPT_DAYS.
  await postgres.query('delete from journals where writer = $1', [writer]);
  await postgres.close();
  expect(await said(waiting)).toBe('unknown, journal unknown: late unknown');
  await there.start();
  for (const engine of [here, there]) {
    await says(refused, 'quarantined, journal stored: good stored,bad quarantined', engine);
    await says(waiting, 'journaled, journal waiting: late journaled', engine);
  }
  await needRoom(0);
  for (const engine of [here, there]) await says(waiting, 'stored, journal stored: late stored', engine);
});
