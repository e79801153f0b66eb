/**
 * The level of acknowledgement changes in both directions while frames wait for ClickHouse, after a host was lost with
 * its disk: everything that was acknowledged at any level is stored once.
 */
import { rmSync } from 'node:fs';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { queryClickhouse } from '../harness/clickhouse-queries.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { NatsCluster } from '../harness/nats-cluster.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';
import { streamSettings } from '../harness/stream-engine.ts';

const waitMsMax = 60_000;
let stays: Engine;
let lost: Engine;
let stores: Stores;
let nodes: NatsCluster;
let device: Device;

beforeAll(async () => {
  stores = await startStores();
  nodes = await NatsCluster.start();
  const settings = { STREAM_REDELIVER_SECONDS: '4', SHUTDOWN_DRAIN_MS_MAX: '3000' };
  const env = { ...hostSettings(stores), ...streamSettings(nodes), ...settings };
  stays = await startEngine({ workers: 1, env });
  lost = await startEngine({ workers: 1, env });
  device = await stays.api.createDevice('levels');
});

afterAll(async () => {
  await Promise.all([stays?.destroyAtOnce(), lost?.destroyAtOnce()]);
  await Promise.all([nodes?.stop(), stores?.stopAll()]);
});

/** The values share no time, so none replaces another one. */
async function post(engine: Engine, level: number): Promise<number> {
  const ts = Date.now() - 60_000 + level;
  return engine.api.postTelemetry(device.token, JSON.stringify({ ts, values: { level } }));
}

async function accepted(engine: Engine, level: number): Promise<void> {
  await eventually(async () => (await post(engine, level)) === 200, waitMsMax);
}

async function changeTo(level: string): Promise<void> {
  await stays.stop();
  await stays.start({ INGEST_ACK: level }, 'workers');
}

async function expectStored(values: string): Promise<void> {
  const sql = `select int from telemetry final where key = 'level' and kind != 0 order by int`;
  const read = async () => (await queryClickhouse(stores.clickhouse.address(), sql)).map(([value]) => value).join();
  await eventually(async () => (await read()) === values, waitMsMax);
}

test('frames of each level wait through changes to the other levels, also those of a host that is lost', async () => {
  await stores.clickhouse.kill();
  await accepted(stays, 1);
  await accepted(lost, 2);
  await lost.killAll();
  rmSync(lost.dataDir, { recursive: true, force: true });
  // A host that died counts as live for ten seconds, and so does its level.
  await eventually(async () => (await stays.metric('hosts{state="live"}')) === 1, waitMsMax);
  await changeTo('journal');
  await accepted(stays, 3);
  await changeTo('stream');
  await accepted(stays, 4);
  await changeTo('store');
  expect(await post(stays, 5)).toBe(503);
  await stores.clickhouse.start();
  await accepted(stays, 6);
  // The refused message is in the journal.
  await expectStored('1,2,3,4,5,6');
  await changeTo('journal');
  await accepted(stays, 7);
  await expectStored('1,2,3,4,5,6,7');
  expect(await stays.metric('stream_losses_total')).toBe(0);
}, 240_000);
