/**
 * Persistent commands of two hosts whose leases run out: each command reaches its device once, although a former owner
 * does not know yet that another one has claimed the command, and although PostgreSQL is unavailable when the device
 * receives the command.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { limits } from '../../src/base/limits.ts';
import { openPostgres, type Postgres } from '../../src/postgres/client.ts';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngines } from '../harness/engine.ts';
import { connectMqtt, type MqttClient } from '../harness/mqtt-client.ts';
import { silentLog as log } from '../harness/silent-log.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';

const commands = [0, 1, 2, 3, 4, 5, 6, 7];

let stores: Stores;
let hosts: Engine[];
let postgres: Postgres;

beforeAll(async () => {
  stores = await startStores();
  const env = hostSettings(stores);
  hosts = await startEngines([
    { workers: 2, env },
    { workers: 2, env },
  ]);
  postgres = openPostgres({ url: stores.postgres.url, poolMax: 1, log });
});

afterAll(async () => {
  await postgres?.close();
  await Promise.all((hosts ?? []).map((host) => host.destroy()));
  await stores?.stopAll();
});

/** Stores commands for the device, by turns at each host; returns their ids. */
async function store(device: Device): Promise<string[]> {
  const ids: string[] = [];
  for (const n of commands) {
    const body = { method: 'once', params: n, expirationTime: Date.now() + 600_000 };
    ids.push(await hosts[n % 2]!.api.sendPersistent(device.id, body, 'oneway'));
  }
  return ids;
}

async function listen(device: Device): Promise<MqttClient> {
  const client = await connectMqtt({ port: hosts[1]!.mqttPort, token: device.token });
  expect(await client.subscribe('v1/devices/me/rpc/request/+')).toEqual([1]);
  return client;
}

/** Returns the parameters in rising order: the order of arrival is not exact while a worker is slow (docs/rest.md). */
async function receiveAll(client: MqttClient): Promise<number[]> {
  const got: number[] = [];
  while (got.length < commands.length) got.push((await client.message(undefined, { waitMsMax: 20_000 })).json.params);
  return got.sort((a, b) => a - b);
}

async function areDelivered(ids: string[]): Promise<void> {
  await eventually(async () => {
    const states = await Promise.all(ids.map((id) => hosts[0]!.api.persistentState(id)));
    return states.every(({ status }) => status === 'DELIVERED');
  }, 20_000);
}

test('a worker does not deliver commands that another worker has claimed meanwhile', async () => {
  const device = await hosts[0]!.api.createDevice('claimed by others');
  const ids = await store(device);
  const claim = `update rpc set owner = gen_random_uuid(), leased_until = now() + interval '3 s' where id = any($1)`;
  await postgres.query(claim, [ids]);
  const client = await listen(device);
  await client.nothingFor(1_000);
  expect(await receiveAll(client)).toEqual(commands);
  await areDelivered(ids);
  await client.quiet();
  client.cut();
}, 60_000);

test.each([
  ['shorter', limits.rpcLeaseMs / 5],
  ['longer', limits.rpcLeaseMs + 2_000],
])(
  'commands that are delivered in an outage %s than a lease are not delivered again',
  async (word, outageMs) => {
    const device = await hosts[0]!.api.createDevice(`outage ${word}`);
    (await connectMqtt({ port: hosts[1]!.mqttPort, token: device.token })).cut();
    const client = await connectMqtt({ port: hosts[1]!.mqttPort, token: device.token });
    const ids = await store(device);
    await stores.postgres.kill();
    const got: number[] = [];
    try {
      expect(await client.subscribe('v1/devices/me/rpc/request/+')).toEqual([1]);
      got.push(...(await receiveAll(client)));
      await sleep(outageMs);
    } finally {
      await stores.postgres.start();
    }
    expect(got).toEqual(commands);
    await areDelivered(ids);
    await client.quiet();
    client.cut();
  },
  90_000,
);

test('a command that its device confirms while its owner stops is not delivered again', async () => {
  const device = await hosts[0]!.api.createDevice('slow link');
  const client = await listen(device);
  const body = { method: 'once', params: 1, expirationTime: Date.now() + 600_000 };
  const id = await hosts[0]!.api.sendPersistent(device.id, body, 'oneway');
  const { packet } = await client.message(undefined, { ack: false });
  const stopping = hosts[0]!.stop();
  await sleep(500);
  await client.write({ cmd: 'puback', messageId: packet.messageId! });
  await stopping;
  await eventually(async () => (await hosts[1]!.api.persistentState(id)).status === 'DELIVERED');
  await client.nothingFor(1_500);
  client.cut();
  await hosts[0]!.start();
}, 60_000);
