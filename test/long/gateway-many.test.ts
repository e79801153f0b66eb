/**
 * One gateway with thousands of children on an engine of two workers: they connect together, commands and updates find
 * each of them, and a reconnect restores everything. And two gateways on two workers that make the same kind of child.
 */
import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openPostgres, type Postgres } from '../../src/postgres/client.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { connectMqtt, type MqttClient } from '../harness/mqtt-client.ts';
import { connectMqttOn } from '../harness/mqtt-workers.ts';
import { silentLog as log } from '../harness/silent-log.ts';
import { call } from '../harness/tenants.ts';

const connect = 'v1/gateway/connect';
const rpc = 'v1/gateway/rpc';
const attributes = 'v1/gateway/attributes';
const telemetry = 'v1/gateway/telemetry';
const children = 4_000;

let engine: Engine;
let postgres: Postgres;

beforeAll(async () => {
  engine = await startEngine({ workers: 2, env: { HTTP_TELL_WORKER: 'true' } });
  const { url } = JSON.parse(readFileSync(join(engine.dataDir, 'run', 'postgres.json'), 'utf8')) as { url: string };
  postgres = openPostgres({ url, poolMax: 1, log });
});

afterAll(async () => {
  await postgres?.close();
  await engine?.destroy();
});

/** The transactions of the engine until now; those of the last second may be missing. */
async function transactions(): Promise<number> {
  const [row] = await postgres.query<{ count: number }>(
    `select (xact_commit + xact_rollback)::float8 as count from pg_stat_database where datname = current_database()`,
  );
  return row!.count;
}

const ok = (method: string, path: string, body?: unknown) => call(engine.api, method, path, body);

/** Connects `names` at once, a window at a time. Returns the transactions of PostgreSQL meanwhile. */
async function connectAll(client: MqttClient, names: string[], type: string): Promise<number> {
  const before = await transactions();
  const window = 500;
  for (let at = 0; at < names.length; at += window) {
    const packets = names
      .slice(at, at + window)
      .map((device) => client.publishPacket(connect, JSON.stringify({ device, type })));
    await client.write(...packets);
    for (const { messageId } of packets) {
      const ack = await client.pick('puback', { messageId: messageId! });
      expect(ack.reasonCode).toBe(0);
    }
  }
  return (await transactions()) - before;
}

const idOf = async (name: string): Promise<string> =>
  (await ok('GET', `/api/tenant/devices?deviceName=${encodeURIComponent(name)}`)).id.id;

/** Sends a command to the child and answers it over the gateway. */
async function command(client: MqttClient, name: string, id: string): Promise<void> {
  const answer = ok('POST', `/api/rpc/twoway/${id}`, { method: 'ping', params: name });
  const { json } = await client.message(rpc);
  expect(json).toMatchObject({ device: name, data: { method: 'ping', params: name } });
  await client.publishQos0(rpc, { device: name, id: json.data.id, data: { pong: name } });
  expect(await answer).toEqual({ pong: name });
}

test('four thousand children connect with few transactions, are reached one by one, and come back with the gateway', async () => {
  const type = `admission ${randomUUID()}`;
  const gateway = await engine.api.createGateway(`hub of ${type}`);
  const names = Array.from({ length: children }, (_, n) => `${type} ${n}`);
  const some = Array.from({ length: 20 }, (_, n) => names[(n * 4999 + 17) % children]!);

  const first = await connectMqtt({ port: engine.mqttPort, token: gateway.token });
  await first.subscribe({ [rpc]: 1, [attributes]: 1 });
  const ofMaking = await connectAll(first, names, type);
  const page = await ok('GET', `/api/tenant/devices?pageSize=1&page=0&type=${encodeURIComponent(type)}`);
  expect(page.totalElements).toBe(children);
  const ids = new Map<string, string>();
  for (const name of some) ids.set(name, await idOf(name));
  for (const name of some) await command(first, name, ids.get(name)!);
  for (const name of some.slice(0, 3)) {
    await ok('POST', `/api/plugins/telemetry/DEVICE/${ids.get(name)}/SHARED_SCOPE`, { limit: 1 });
    expect((await first.message(attributes)).json).toEqual({ device: name, data: { limit: 1 } });
  }
  first.cut();

  // While the gateway is disconnected, an update waits for it.
  const [waiting] = some;
  await ok('POST', `/api/plugins/telemetry/DEVICE/${ids.get(waiting!)}/SHARED_SCOPE`, { limit: 2 });
  const second = await connectMqtt({ port: engine.mqttPort, token: gateway.token });
  await second.subscribe({ [rpc]: 1, [attributes]: 1 });
  const ofRestoring = await connectAll(second, names, type);
  expect((await second.message(attributes)).json).toEqual({ device: waiting, data: { limit: 2 } });
  for (const name of some.slice(0, 5)) await command(second, name, ids.get(name)!);
  second.cut();

  process.stdout.write(`transactions of ${children} children: made ${ofMaking}, restored ${ofRestoring}\n`);
  expect(ofMaking).toBeLessThan(children / 4);
  expect(ofRestoring).toBeLessThan(children / 4);
});

test('a thousand children of one new type over two gateways on two workers make one profile', async () => {
  const clients = await Promise.all(
    [0, 1].map(async (worker) => {
      const { token } = await engine.api.createGateway(`hub on ${worker}`);
      return await connectMqttOn(worker, { port: engine.mqttPort, token });
    }),
  );
  const type = 'new type';
  await Promise.all(
    clients.map((client, n) =>
      connectAll(
        client,
        // Half of the children are the same for both gateways.
        Array.from({ length: 500 }, (_, c) => (c % 2 === 0 ? `both-${c}` : `of-${n}-${c}`)),
        type,
      ),
    ),
  );
  const profiles = await ok('GET', '/api/deviceProfiles?pageSize=100&page=0');
  expect((profiles.data as { name: string }[]).filter(({ name }) => name === type)).toHaveLength(1);
  const page = await ok('GET', `/api/tenant/devices?pageSize=1&page=0&type=${encodeURIComponent(type)}`);
  expect(page.totalElements).toBe(750);
  for (const client of clients) client.cut();
});

test('what a gateway made is related to it, before the acknowledgement and once', async () => {
  const gateway = await engine.api.createGateway('hub with relations');
  const client = await connectMqtt({ port: engine.mqttPort, token: gateway.token });
  const relations = () => ok('GET', `/api/relations?fromId=${gateway.id}&fromType=DEVICE`);
  for (let round = 0; round < 2; round += 1) {
    await client.publish(connect, { device: 'related' });
    const id = await idOf('related');
    expect(await relations()).toEqual([
      {
        from: { entityType: 'DEVICE', id: gateway.id },
        to: { entityType: 'DEVICE', id },
        type: 'Created',
        typeGroup: 'COMMON',
        version: expect.any(Number),
        additionalInfo: null,
      },
    ]);
    await client.publish('v1/gateway/disconnect', { device: 'related' });
  }
  const child = await ok('GET', `/api/device/${await idOf('related')}`);
  expect(child.additionalInfo).toEqual({ lastConnectedGateway: gateway.id });
  expect(await ok('GET', `/api/relations?toId=${child.id.id}&toType=DEVICE&relationType=Created`)).toHaveLength(1);
  expect(await ok('GET', `/api/relations?toId=${child.id.id}&toType=DEVICE&relationType=Contains`)).toEqual([]);
  await ok('DELETE', `/api/device/${child.id.id}`);
  expect(await relations()).toEqual([]);
  client.cut();
});

test('a gateway with 1000 children and 10 MB messages stays connected, beside ten normal gateways', async () => {
  const run = randomUUID();
  const normal = await Promise.all(
    Array.from({ length: 10 }, async (_, n) => {
      const { token } = await engine.api.createGateway(`normal hub ${n} of ${run}`);
      const client = await connectMqtt({ port: engine.mqttPort, token });
      await client.publish(telemetry, { [`normal ${n} of ${run}`]: [{ warm: 1 }] });
      return client;
    }),
  );
  const acknowledged = normal.map(() => 0);
  let isOver = false;
  const sending = normal.map(async (client, n) => {
    for (let round = 0; !isOver && !client.isClosed; round += 1) {
      const ack = await client.publish(telemetry, {
        [`normal ${n} of ${run}`]: [{ ts: round + 1, values: { round } }],
      });
      expect(ack.reasonCode).toBe(0);
      acknowledged[n]! += 1;
    }
  });
  for (const level of [4, 5] as const) {
    const names = Array.from({ length: 1000 }, (_, n) => `large ${level} ${n} of ${run}`);
    const { token } = await engine.api.createGateway(`large hub ${level} of ${run}`);
    const client = await connectMqtt({ port: engine.mqttPort, token, level });
    await client.subscribe('v1/gateway/errors');
    // Sends 10 MB with all children three times, which is too much; then sends each third of the children alone, which
    // fits.
    const records = Array.from({ length: 250 }, (_, n) => ({ ts: n + 1, values: { n, text: 'x'.repeat(8) } }));
    const whole = JSON.stringify(Object.fromEntries(names.map((name) => [name, records])));
    expect(whole.length).toBeGreaterThan(10_000_000);
    for (let round = 0; round < 3; round += 1) {
      const ack = await client.publish(telemetry, whole);
      if (level === 5)
        expect([ack.reasonCode, ack.properties?.reasonString]).toEqual([
          0x97,
          expect.stringContaining('3 or more parts'),
        ]);
      else expect((await client.message('v1/gateway/errors')).json).toMatchObject({ reason: 'message_too_large' });
    }
    for (let at = 0; at < names.length; at += 300) {
      const part = Object.fromEntries(names.slice(at, at + 300).map((name) => [name, records]));
      const ack = await client.publish(telemetry, part);
      if (level === 5) expect(ack.reasonCode, ack.properties?.reasonString).toBe(0);
    }
    await client.quiet();
    client.cut();
    for (const name of [names[0]!, names.at(-1)!]) {
      const path = `/api/plugins/telemetry/DEVICE/${await idOf(name)}/values/timeseries`;
      const query = 'keys=n&startTs=0&endTs=1000&limit=1000';
      await expect.poll(async () => (await ok('GET', `${path}?${query}`)).n?.length).toBe(250);
    }
  }
  isOver = true;
  await Promise.all(sending);
  // 6 whole messages and 8 parts. A worker that they block acknowledges one or two messages beside each.
  const large = 14;
  process.stdout.write(`messages of normal gateways beside ${large} large ones: ${acknowledged.join(', ')}\n`);
  expect(Math.min(...acknowledged)).toBeGreaterThan(5 * large);
  for (const client of normal) client.cut();
}, 180_000);
