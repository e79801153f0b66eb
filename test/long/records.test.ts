/**
 * Latest values that are records, over kills of workers of two hosts, of the servers of two shards, and over moves
 * between the shards.
 */
import { spawn } from 'node:child_process';
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../harness/api.ts';
import { queryClickhouse } from '../harness/clickhouse-queries.ts';
import { type Engine, engineMain, startEngines } from '../harness/engine.ts';
import { devicesInRecords, expectHistory, RecordFleet, whileSending } from '../harness/record-fleet.ts';
import { hostSettings, type Stores, startShard, startStores } from '../harness/stores.ts';

/** Enough for records on each of two shards. */
const childrenOfGateway = 3_000;
const pauseMs = 300;
const killPauseMs = 1_500;
/** A host whose workers all end five times before they have worked for two seconds ends. */
const workedMsMin = 2_100;

let stores: Stores;
let other: Awaited<ReturnType<typeof startShard>>;
let hosts: Engine[];
let fleets: RecordFleet[];

beforeAll(async () => {
  stores = await startStores();
  other = await startShard(stores);
  const env = { ...hostSettings(stores), CLICKHOUSE_SHARDS: other.url };
  hosts = await startEngines([
    { workers: 2, env },
    { workers: 2, env },
  ]);
  fleets = [
    await RecordFleet.make(() => hosts, 'at its time', { count: childrenOfGateway }),
    await RecordFleet.make(() => hosts, 'at server time', { count: childrenOfGateway }),
  ];
}, 300_000);

afterAll(async () => {
  await Promise.all((hosts ?? []).map((host) => host.destroy()));
  await other?.stop();
  await stores?.stopAll();
});

/** Sends, and kills workers of both hosts in turn, until `during` has ended. Returns the number of kills. */
async function underKills(during: () => Promise<unknown>): Promise<number> {
  let isOver = false;
  let kills = 0;
  const killing = (async () => {
    while (!isOver) {
      const host = hosts[kills % hosts.length]!;
      await host.ready('workers');
      await sleep(workedMsMin + randomInt(killPauseMs));
      await host.kill(`worker-${Math.floor(kills / hosts.length) % 2}`);
      kills += 1;
    }
  })();
  await whileSending(fleets, pauseMs, async () => {
    const ended = during().finally(() => {
      isOver = true;
    });
    await Promise.all([ended, killing]);
  });
  return kills;
}

const addresses = () => [stores.clickhouse.address(), other.address()];

async function expectAll(): Promise<void> {
  for (const fleet of fleets) await fleet.expectNewest(['all']);
  for (const fleet of fleets) await expectHistory(fleet, addresses());
}

/** Returns, for each shard, the devices whose newest values are in a record. */
async function countsInRecords(): Promise<number[]> {
  return await Promise.all(addresses().map((address) => devicesInRecords(address)));
}

/** Runs `npm run shards` with these words. */
async function moveShards(...words: string[]): Promise<void> {
  const command = join(dirname(engineMain), 'shards.js');
  // The stores were made by an instance that has ended, whose journal reports no more.
  const child = spawn(process.execPath, [command, ...words, '--without-silent'], { env: hosts[0]!.environment });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (output += chunk));
  const [code] = (await once(child, 'close')) as [number];
  expect([code, output]).toEqual([0, expect.stringContaining('the buckets have moved')]);
}

test('each newest value is read after kills of the workers of both hosts', async () => {
  expect(await underKills(() => sleep(20_000))).toBeGreaterThan(3);
  await expectAll();
  for (const count of await countsInRecords()) expect(count).toBeGreaterThan(childrenOfGateway / 4);
});

test('each newest value is read after the servers of both shards were killed', async () => {
  await whileSending(fleets, pauseMs, async () => {
    for (let kill = 0; kill < 4; kill += 1) {
      const server = kill % 2 === 0 ? other : stores.clickhouse;
      await sleep(2_000 * Math.random());
      await server.kill();
      // After some seconds the rows of the shard wait beside the lane.
      await sleep(kill < 2 ? 6_000 : 500);
      await server.start();
    }
  });
  await expectAll();
});

test('each newest value is read after all devices have left a shard, while workers were killed', async () => {
  expect(await underKills(() => moveShards('empty', '1'))).toBeGreaterThan(0);
  await expectAll();
  const [count] = await countsInRecords();
  expect(count).toBeGreaterThan(childrenOfGateway / 2);
  await eventually(async () => {
    const [rows] = await queryClickhouse(other.address(), 'SELECT count() FROM latest');
    return rows![0] === '0';
  }, 30_000);
});

test('each newest value is read after half of the devices have moved back, while workers were killed', async () => {
  expect(await underKills(() => moveShards('balance'))).toBeGreaterThan(0);
  await expectAll();
  for (const count of await countsInRecords()) expect(count).toBeGreaterThan(childrenOfGateway / 4);
});
