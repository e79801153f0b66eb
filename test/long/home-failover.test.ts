/**
 * Two hosts over a real Redis, of which one adds up the counts of rate limits (the home) and carries out deletes (by a
 * lease). That host is killed: the other one takes over both, and the hosts count together again when it is back.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { queryClickhouse } from '../harness/clickhouse-queries.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';

/** Messages of a device in a second, over all hosts. */
const limit = 10;
const seconds = 8;
/** Each host gets more messages than it may accept alone. */
const sendersOfHost = 4;
const pauseMs = 60;

let stores: Stores;
let first: Engine;
let second: Engine;

beforeAll(async () => {
  stores = await startStores({ empty: true });
  const env = { ...hostSettings(stores), RATE_LIMITS_DEVICE_TELEMETRY_MESSAGES: `${limit}:1` };
  // The host that started first is the home.
  first = await startEngine({ workers: 1, env });
  second = await startEngine({ workers: 1, env });
}, 120_000);

afterAll(async () => {
  await Promise.all([first, second].map((host) => host?.destroyAtOnce()));
  await stores?.stopAll();
}, 60_000);

/** Sends messages of a new device to all these hosts at once, and returns how many were accepted. */
async function accepted(...hosts: Engine[]): Promise<number> {
  const device = await hosts[0]!.api.newDevice();
  for (const host of hosts) await eventually(() => knows(host, device), 10_000);
  let count = 0;
  const until = performance.now() + seconds * 1000;
  const send = async (host: Engine) => {
    while (performance.now() < until) {
      if ((await host.api.postTelemetry(device.token, '{"a":1}')) === 200) count += 1;
      await sleep(pauseMs);
    }
  };
  await Promise.all(hosts.flatMap((host) => Array.from({ length: sendersOfHost }, () => send(host))));
  return count;
}

async function knows(host: Engine, { token }: Device): Promise<boolean> {
  return [200, 429].includes(await host.api.postTelemetry(token, '{"a":1}'));
}

/** The limit in this time, and a full bucket at the start. */
const whole = limit * seconds + limit;

/** True when the hosts accept what the limit allows, and not what it allows to each of them. */
async function countTogether(): Promise<boolean> {
  const count = await accepted(first, second);
  return count > 0.6 * whole && count < 1.5 * whole;
}

async function pointsOf(key: string): Promise<number> {
  const query = `SELECT count() FROM millrace.telemetry FINAL WHERE key = '${key}' AND kind != 0`;
  const [row] = await queryClickhouse(stores.clickhouse.address(), query);
  return Number(row![0]);
}

/** A deleted device leaves ClickHouse, whichever host gets the request. */
async function deletes(key: string, by: Engine): Promise<void> {
  const device = await by.api.newDevice();
  expect(await by.api.postTelemetry(device.token, `{"${key}":1}`)).toBe(200);
  await eventually(async () => (await pointsOf(key)) === 1, 20_000);
  expect((await by.api.send('DELETE', `/api/device/${device.id}`)).status).toBe(200);
  // A host that reports no more holds deletes back for half a minute.
  await eventually(async () => (await pointsOf(key)) === 0, 90_000);
}

async function isAlone(host: Engine): Promise<boolean> {
  return (await host.metric('hosts{state="live"}')) === 1;
}

test('the hosts count together, and delete', async () => {
  await eventually(countTogether, 60_000);
  await deletes('before', second);
}, 180_000);

test.each([
  ['first', () => [first, second]],
  ['second', () => [second, first]],
] as const)(
  'the home is killed (%s): the other host has the limit and the deletes, and both count together with it again',
  async (name, hosts) => {
    const [home, other] = hosts() as [Engine, Engine];
    await home.killAll();
    // The other host follows the dead home for seconds, and then its own counts.
    expect(await accepted(other)).toBeLessThan(1.5 * whole);
    await eventually(() => isAlone(other), 30_000);
    const alone = await accepted(other);
    expect(alone).toBeGreaterThan(0.6 * whole);
    expect(alone).toBeLessThan(1.5 * whole);
    await deletes(`without_${name}`, other);
    await home.start();
    await eventually(countTogether, 60_000);
  },
  300_000,
);
