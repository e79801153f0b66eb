/**
 * A delete whose host is killed when it has inserted the points of a record that a delete of another host has divided
 * meanwhile. The points of the other delete are back then, and the repetition of the first delete removes them.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { recordKind } from '../../src/clickhouse/latest-rows.ts';
import { openPostgres, type Postgres } from '../../src/postgres/client.ts';
import { type Device, eventually } from '../harness/api.ts';
import { askClickhouse, queryClickhouse } from '../harness/clickhouse-queries.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { Link } from '../harness/link.ts';
import { silentLog } from '../harness/silent-log.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';

/** The insert of points of a record, in the first line of its request. Reads have this format, too. */
const insertOfPoints = 'FORMAT+JSONEachRow';
const firstTs = Date.now() - 60_000;

let stores: Stores;
let link: Link;
let cutOff: Engine;
let other: Engine;
let postgres: Postgres;

beforeAll(async () => {
  stores = await startStores();
  link = await Link.to(Number(new URL(stores.clickhouse.url).port));
  const env = hostSettings(stores);
  postgres = openPostgres({ url: stores.postgres.url, poolMax: 1, log: silentLog });
  // The instance that made the stores has ended: a delete would wait for its journal.
  await postgres.query('delete from journals', []);
  other = await startEngine({ workers: 1, env });
  cutOff = await startEngine({ workers: 1, env: { ...env, CLICKHOUSE_URL: `http://127.0.0.1:${link.port}` } });
}, 300_000);

afterAll(async () => {
  await postgres?.close();
  await Promise.all([cutOff, other].map((engine) => engine?.destroy()));
  link?.close();
  await stores?.stopAll();
});

const rows = (sql: string) => queryClickhouse(stores.clickhouse.address(), sql);

/** Stores two messages of the device, and makes a record of the latest values `a` and `b`. Returns its number. */
async function storeRecord({ token }: Device, name: string): Promise<string> {
  const messages = [{ [`b${name}`]: 1 }, { [`a${name}`]: 2, [`b${name}`]: 2 }];
  const body = JSON.stringify(messages.map((values, n) => ({ ts: firstTs + n, values })));
  expect(await other.api.postTelemetry(token, body)).toBe(200);
  const device = await eventually(async () => {
    const found = await rows(`SELECT device FROM latest FINAL WHERE key IN ('a${name}', 'b${name}')`);
    return found.length === 2 ? found[0]![0]! : undefined;
  }, 15_000);
  const key = `concat('\\xFFa${name}', '\\xFFb${name}')`;
  const text = `arrayStringConcat(groupArray(concat(char(kind), reinterpretAsFixedString(int))))`;
  const { clickhouse } = stores;
  await askClickhouse(
    clickhouse.address(),
    `INSERT INTO latest (device, key, ts, seq, kind, num, int, text, version)
      SELECT ${device}, ${key}, any(at), 0, ${recordKind}, 0, 0, ${text}, any(order) FROM (
        SELECT kind, int, ts AS at, version AS order FROM latest FINAL WHERE device = ${device} ORDER BY key)`,
  );
  await askClickhouse(clickhouse.address(), `DELETE FROM latest WHERE device = ${device} AND kind != ${recordKind}`);
  return device;
}

test.each([
  ['deletes', '', {}],
  ['rewrites', '&rewriteLatestIfDeleted=true', { ts: firstTs, value: 1 }],
])('the values of another delete that %s do not come back', { timeout: 180_000 }, async (name, rewrite, left) => {
  const device = await other.api.createDevice(`with a record that one ${name}`);
  const number = await storeRecord(device, name);
  const before = await other.api.readLatest(device.id);
  expect(Object.keys(before).sort()).toEqual([`a${name}`, `b${name}`]);
  const remove = async (engine: Engine, key: string, more: string) => {
    const range = `startTs=${firstTs + 1}&endTs=${firstTs + 2}`;
    const path = `/api/plugins/telemetry/DEVICE/${device.id}/timeseries/delete?keys=${key}&${range}${more}`;
    return await engine.api.send('DELETE', path, undefined, await engine.api.adminToken());
  };
  const insert = link.hold(insertOfPoints);
  const lost = remove(cutOff, `a${name}`, '').catch(() => {});
  await insert.held;
  expect((await remove(other, `b${name}`, rewrite)).status).toBe(200);
  // No answer reaches the host that will be killed.
  link.cut();
  insert.release();
  // The insert brings back what the other host has deleted.
  const back = async () => {
    const found = await rows(`SELECT key FROM latest FINAL WHERE device = ${number} AND int = 2 ORDER BY key`);
    return found.length === 2 ? found.flat() : undefined;
  };
  expect(await eventually(back, 10_000)).toEqual([`a${name}`, `b${name}`]);
  await cutOff.killAll();
  await lost;
  link.join();
  await eventually(async () => {
    const [row] = await postgres.query<{ count: string }>('select count(*) from tombstones where applied_at is null');
    return Number(row!.count) === 0 ? true : undefined;
  }, 90_000);
  // The next case needs the host also when this one fails.
  await cutOff.start();
  expect(await other.api.readLatest(device.id)).toEqual('ts' in left ? { [`b${name}`]: [left] } : {});
});
