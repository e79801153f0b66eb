/**
 * Two engines as two hosts: own ports and data directories, shared PostgreSQL, ClickHouse and Redis. A change on one
 * host is seen on the other. Without Redis commands are refused and ingest continues; when Redis runs again, everything
 * works again.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngines } from '../harness/engine.ts';
import { leastMs, triesMax } from '../harness/least-time.ts';
import { connectMqtt, type MqttClient } from '../harness/mqtt-client.ts';
import { postForReceipt, readReceipt } from '../harness/receipts.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';

let stores: Stores;
let here: Engine;
let there: Engine;

beforeAll(async () => {
  stores = await startStores({ empty: true });
  const env = {
    ...hostSettings(stores),
    DEFAULT_INACTIVITY_TIMEOUT: '1',
    DEFAULT_STATE_CHECK_INTERVAL: '1',
  };
  // Starts both hosts at once, so that both migrate a new database.
  [here, there] = await startEngines([
    { workers: 2, env },
    { workers: 2, env },
  ]);
});

afterAll(async () => {
  await Promise.all([here?.destroy(), there?.destroy()]);
  await stores?.stopAll();
});

/** On a connection of its own, so that any worker of the host may get it. */
function ask(engine: Engine, device: Device, method: string, path: string, body?: string): Promise<Response> {
  return fetch(`${engine.api.http}/api/v1/${device.token}/${path}`, {
    method,
    headers: { connection: 'close' },
    ...(body !== undefined && { body }),
    signal: AbortSignal.timeout(30_000),
  });
}

async function post(engine: Engine, device: Device, key = 'a', n = 1): Promise<number> {
  const response = await ask(engine, device, 'POST', 'telemetry', `{"${key}":${n}}`);
  await response.arrayBuffer();
  return response.status;
}

/** Statuses of enough connections that each worker of the host has very likely answered. */
async function statuses(engine: Engine, device: Device): Promise<Set<number>> {
  return new Set(await Promise.all(Array.from({ length: 16 }, () => post(engine, device))));
}

async function revoke(engine: Engine, device: Device): Promise<void> {
  const path = `/api/device/${device.id}/credentials`;
  const credentials = (await (await engine.api.send('GET', path)).json()) as object;
  const changed = { ...credentials, credentialsId: `${device.token}-new` };
  expect((await engine.api.send('POST', '/api/device/credentials', changed)).status).toBe(200);
}

/** Milliseconds until no worker of the host takes the token any more. */
async function msUntilDead(engine: Engine, device: Device): Promise<number> {
  const startedAt = performance.now();
  await eventually(async () => !(await statuses(engine, device)).has(200), 10_000, 5);
  return performance.now() - startedAt;
}

function share(engine: Engine, device: Device, attributes: object): Promise<Response> {
  return engine.api.send('POST', `/api/plugins/telemetry/DEVICE/${device.id}/attributes/SHARED_SCOPE`, attributes);
}

function command(engine: Engine, device: Device, body: object): Promise<Response> {
  return engine.api.send('POST', `/api/plugins/rpc/twoway/${device.id}`, body);
}

/** A poll of attributes on one host is answered by a write on the other. */
async function updateCrosses(from: Engine, to: Engine, device: Device, value: number): Promise<void> {
  const poll = ask(to, device, 'GET', 'attributes/updates?timeout=15000');
  await sleep(300);
  expect((await share(from, device, { level: value })).status).toBe(200);
  const answer = await poll;
  expect(`${answer.status} ${await answer.text()}`).toBe(`200 {"level":${value}}`);
}

/** A command given on one host is taken by a poll on the other, and the reply comes back. */
async function commandCrosses(from: Engine, to: Engine, device: Device): Promise<void> {
  const poll = ask(to, device, 'GET', 'rpc?timeout=15000');
  await sleep(300);
  const call = command(from, device, { method: 'turn', params: { by: 42.0 }, timeout: 10_000 });
  const request = (await (await poll).json()) as { id: number; method: string };
  expect(request.method).toBe('turn');
  expect((await ask(to, device, 'POST', `rpc/${request.id}`, '{"turned":true}')).status).toBe(200);
  const answer = await call;
  expect(`${answer.status} ${await answer.text()}`).toBe('200 {"turned":true}');
}

test('a device created on one host works on the other, also when its token was asked for before', async () => {
  const device = await here.api.newDevice();
  expect(await statuses(there, device)).toEqual(new Set([200]));
  const early = { id: '', token: `chosen-${Date.now()}` };
  expect(await statuses(there, early)).toEqual(new Set([401]));
  await here.api.createDevice('chosen token', early.token);
  await eventually(async () => !(await statuses(there, early)).has(401), 1_000);
});

test('what one host acknowledged the other one reads', async () => {
  const device = await here.api.newDevice();
  expect(await post(there, device, 'written_there', 7)).toBe(200);
  await eventually(async () => {
    const { written_there: points = [] } = await here.api.readLatest(device.id, ['written_there']);
    return points[0]?.value === 7;
  });
});

test('a receipt of one host is read on the other: first as journaled, or as stored already, then as stored', async () => {
  const device = await here.api.newDevice();
  const receipt = (await postForReceipt(device.token, '{"ts":1700000000000,"values":{"a":1}}', there.api))!;
  const seen = new Set<string>();
  await eventually(async () => {
    seen.add((await readReceipt(receipt, here.api)).state);
    return seen.has('stored');
  }, 40_000);
  expect([...seen].filter((state) => state !== 'journaled')).toEqual(['stored']);
});

test('a token revoked on one host is refused on the other within a second', async () => {
  const revokedMs = async () => {
    const device = await here.api.newDevice();
    expect(await statuses(there, device)).toEqual(new Set([200]));
    await revoke(here, device);
    const ms = await msUntilDead(there, device);
    expect(await post(there, { ...device, token: `${device.token}-new` })).toBe(200);
    return ms;
  };
  expect(await leastMs(1_000, revokedMs)).toBeLessThan(1_000);
});

test('a device deleted on one host is gone on the other within a second', async () => {
  const deletedMs = async () => {
    const device = await here.api.newDevice();
    expect(await statuses(there, device)).toEqual(new Set([200]));
    expect((await here.api.send('DELETE', `/api/device/${device.id}`)).status).toBe(200);
    return await msUntilDead(there, device);
  };
  expect(await leastMs(1_000, deletedMs)).toBeLessThan(1_000);
});

test('a long poll on one host ends when its token is revoked on the other', async () => {
  const device = await here.api.newDevice();
  const poll = ask(there, device, 'GET', 'attributes/updates?timeout=20000');
  await sleep(300);
  const startedAt = performance.now();
  await revoke(here, device);
  expect((await poll).status).toBe(408);
  expect(performance.now() - startedAt).toBeLessThan(10_000);
});

test('attribute updates cross from one host to the other, both ways', async () => {
  const device = await here.api.newDevice();
  // The first poll of a device only starts its cursor.
  await (await ask(there, device, 'GET', 'attributes/updates?timeout=1')).arrayBuffer();
  await updateCrosses(here, there, device, 1);
  await updateCrosses(there, here, device, 2);
});

test('commands cross from one host to the other, both ways', async () => {
  const device = await here.api.newDevice();
  await commandCrosses(here, there, device);
  await commandCrosses(there, here, device);
});

test('a device that connects on one host over MQTT ends its connection on the other', async () => {
  const { token } = await here.api.newDevice();
  let old = await connectMqtt({ port: here.mqttPort, token });
  for (const engine of [there, here, there]) {
    const young = await connectMqtt({ port: engine.mqttPort, token });
    await old.closedFor(0x8e, 2_000);
    await young.quiet();
    old = young;
  }
  old.cut();
});

test('an MQTT connection ends within a second when its token is revoked on the other host', async () => {
  const device = await here.api.newDevice();
  const client = await connectMqtt({ port: there.mqttPort, token: device.token });
  await revoke(here, device);
  await client.closedFor(0x98, 1_000);
});

test('a device that is alive on one host is never called inactive by the other', async () => {
  const device = await here.api.newDevice();
  const isActive = async () => {
    const response = await here.api.send('GET', `/api/device/info/${device.id}`);
    return ((await response.json()) as { active: boolean }).active;
  };
  expect(await post(there, device)).toBe(200);
  await eventually(isActive);
  for (const until = Date.now() + 8_000; Date.now() < until; await sleep(250)) {
    expect(await post(there, device)).toBe(200);
    expect(await isActive()).toBe(true);
  }
  await eventually(async () => !(await isActive()), 20_000);
});

test('without Redis ingest continues, revoked tokens end within two seconds, commands are refused; with it everything works again', async () => {
  const [steady, commanded] = [await here.api.newDevice(), await here.api.newDevice()];
  const revoked: Device[] = [];
  while (revoked.length < triesMax) revoked.push(await here.api.newDevice());
  for (const engine of [here, there]) {
    for (const device of [steady, commanded, ...revoked])
      expect(await statuses(engine, device)).toEqual(new Set([200]));
  }
  let refused = 0;
  let accepted = 0;
  let sending = true;
  const ingest = (async () => {
    for (let n = 0; sending; n += 1) {
      if ((await post(n % 2 ? here : there, steady, 'steady', n)) === 200) accepted += 1;
      else refused += 1;
      await sleep(2);
    }
  })();
  try {
    await sleep(300);
    await stores.redis.kill();
    await sleep(300);
    const revokedMs = async () => {
      const device = revoked.pop()!;
      await revoke(here, device);
      return await msUntilDead(there, device);
    };
    expect(await leastMs(2_000, revokedMs)).toBeLessThan(2_000);
    const startedAt = performance.now();
    const call = await command(here, commanded, { method: 'turn', params: {}, timeout: 20_000 });
    expect(call.status).toBe(503);
    expect(((await call.json()) as { message: string }).message).not.toBe('');
    expect(performance.now() - startedAt).toBeLessThan(15_000);
    const poll = await ask(there, commanded, 'GET', 'rpc?timeout=1000');
    expect(poll.status).toBe(408);
    // Held while Redis comes back.
    const held = ask(there, commanded, 'GET', 'rpc?timeout=20000');
    await stores.redis.start();
    await sleep(2_500);
    const answered = command(here, commanded, { method: 'turn', params: {}, timeout: 10_000 });
    const request = (await (await held).json()) as { id: number };
    await ask(there, commanded, 'POST', `rpc/${request.id}`, '1');
    expect(await (await answered).text()).toBe('1');
    await updateCrosses(here, there, commanded, 3);
  } finally {
    sending = false;
    await ingest;
  }
  expect(refused).toBe(0);
  expect(accepted).toBeGreaterThan(50);
  const revokedMs = async () => {
    const again = await here.api.newDevice();
    expect(await statuses(there, again)).toEqual(new Set([200]));
    await revoke(here, again);
    return await msUntilDead(there, again);
  };
  expect(await leastMs(1_000, revokedMs)).toBeLessThan(1_000);
});

test('a device that connects on both hosts while Redis is unavailable keeps the newer connection afterwards', async () => {
  const { token } = await here.api.newDevice();
  await stores.redis.kill();
  const opened: MqttClient[] = [];
  try {
    for (const engine of [here, there]) {
      opened.push(await connectMqtt({ port: engine.mqttPort, token }));
      await sleep(100);
    }
    for (const client of opened) await client.quiet();
  } finally {
    await stores.redis.start();
  }
  const [old, young] = opened as [MqttClient, MqttClient];
  await old.closedFor(0x8e);
  await young.nothingFor(200);
  await young.quiet();
  young.cut();
});

test('the diagnostics of a device are those of all workers of both hosts', async () => {
  const device = await here.api.newDevice();
  for (const engine of [here, there]) {
    expect((await ask(engine, device, 'POST', 'telemetry', '[7]')).status).toBe(400);
    expect((await ask(engine, device, 'POST', 'attributes', '7')).status).toBe(400);
  }
  for (const engine of [here, there]) {
    const found = (await (await engine.api.send('GET', `/api/device/${device.id}/diagnostics`)).json()) as {
      workers: object;
      refusalCount: number;
      refusals: { excerpt: string; count: number }[];
    };
    expect(found).toMatchObject({ workers: { asked: 4, answered: 4 }, refusalCount: 4 });
    expect(new Set(found.refusals.map(({ excerpt }) => excerpt))).toEqual(new Set(['[7]', '7']));
    const list = await (await engine.api.send('GET', '/api/refusals?pageSize=100&page=0')).json();
    expect((list as { data: object[] }).data).toContainEqual(
      expect.objectContaining({ deviceId: { entityType: 'DEVICE', id: device.id }, count: 4 }),
    );
  }
});

test('points without ts that go to both hosts by turns are all stored', async () => {
  const device = await here.api.newDevice();
  const messages = 300;
  let next = 0;
  await Promise.all(
    Array.from({ length: 8 }, async (_, sender) => {
      for (let n = next++; n < messages; n = next++) {
        expect(await post((sender + n) % 2 ? here : there, device, 'both', n)).toBe(200);
      }
    }),
  );
  await eventually(async () => {
    const series = await here.api.readSeries(device.id, ['both'], {
      startTs: Date.now() - 600_000,
      endTs: Date.now() + 60_000,
      limit: messages + 1,
    });
    const values = new Set(series['both']?.map(({ value }) => value));
    return values.size === messages && series['both']?.length === messages ? true : undefined;
  }, 20_000);
});
