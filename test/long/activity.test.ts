/** The activity of a device, and its end: in the lists of devices and in its server attributes. */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { connectMqtt, type MqttClient } from '../harness/mqtt-client.ts';
import { connectMqttOn } from '../harness/mqtt-workers.ts';
import { clockErrorMs } from '../harness/stored.ts';

let engine: Engine;

beforeAll(async () => {
  engine = await startEngine({
    workers: 2,
    env: { DEFAULT_INACTIVITY_TIMEOUT: '1', DEFAULT_STATE_CHECK_INTERVAL: '1', HTTP_TELL_WORKER: 'true' },
  });
});

afterAll(() => engine?.destroy());

async function isActive(device: Device): Promise<boolean> {
  const response = await engine.api.send('GET', `/api/device/info/${device.id}`);
  return ((await response.json()) as { active: boolean }).active;
}

async function serverAttributes(device: Device): Promise<Record<string, unknown>> {
  const path = `/api/plugins/telemetry/DEVICE/${device.id}/values/attributes/SERVER_SCOPE`;
  const rows = (await (await engine.api.send('GET', path)).json()) as { key: string; value: unknown }[];
  return Object.fromEntries(rows.map(({ key, value }) => [key, value]));
}

async function names(query: string): Promise<string[]> {
  const response = await engine.api.send('GET', `/api/tenant/deviceInfos?pageSize=100&page=0&${query}`);
  const { data } = (await response.json()) as { data: { name: string }[] };
  return data.map(({ name }) => name);
}

function request(device: Device, method: string, path: string, body?: string): Promise<Response> {
  return fetch(`${engine.api.http}/api/v1/${device.token}/${path}`, {
    method,
    headers: { connection: 'close' },
    ...(body !== undefined && { body }),
    signal: AbortSignal.timeout(10_000),
  });
}

// Nearly all tests wait, each for a separate device.
describe.concurrent('activity', () => {
  test('a device that never sent anything is not active', async () => {
    const device = await engine.api.createDevice('silent');
    expect(await isActive(device)).toBe(false);
    expect(await names('active=false')).toContain('silent');
    expect(await names('active=true')).not.toContain('silent');
  });

  test('a device that sent is active, then silent for its time and no longer active', async () => {
    const device = await engine.api.createDevice('sent once');
    const sentTs = Date.now();
    await request(device, 'POST', 'telemetry', '{"a":1}');
    const answeredTs = Date.now();
    await eventually(() => isActive(device));
    expect(await names('active=true')).toContain('sent once');
    const alive = await serverAttributes(device);
    expect(alive['active']).toBe(true);
    expect(alive['lastActivityTime']).toBeGreaterThanOrEqual(sentTs - clockErrorMs);
    expect(alive['lastActivityTime']).toBeLessThanOrEqual(answeredTs + clockErrorMs);
    expect(alive).not.toHaveProperty('lastConnectTime');
    await eventually(async () => !(await isActive(device)), 30_000);
    const ended = await serverAttributes(device);
    expect(ended['active']).toBe(false);
    expect(ended['lastActivityTime']).toBe(alive['lastActivityTime']);
    expect(ended['inactivityAlarmTime']).toBeGreaterThan(alive['lastActivityTime'] as number);
    expect(await names('active=false')).toContain('sent once');
  });

  test('a device that keeps sending is never called inactive, on any worker', async () => {
    const device = await engine.api.createDevice('steady');
    await request(device, 'POST', 'telemetry', '{"a":1}');
    await eventually(() => isActive(device));
    const until = Date.now() + 10_000;
    while (Date.now() < until) {
      await request(device, 'POST', 'telemetry', '{"a":1}');
      expect(await isActive(device)).toBe(true);
      await sleep(300);
    }
    expect(await serverAttributes(device)).not.toHaveProperty('inactivityAlarmTime');
  });

  test('the server attribute inactivityTimeout of a device overrides the setting', async () => {
    const device = await engine.api.createDevice('patient');
    const path = `/api/plugins/telemetry/DEVICE/${device.id}/attributes/SERVER_SCOPE`;
    expect((await engine.api.send('POST', path, { inactivityTimeout: 600_000 })).status).toBe(200);
    await request(device, 'POST', 'telemetry', '{"a":1}');
    await eventually(() => isActive(device));
    await sleep(9_000);
    expect(await isActive(device)).toBe(true);
  });

  test('each operation is a sign of life, a download without a package too', async () => {
    const operations: [method: string, path: string, body?: string][] = [
      ['POST', 'attributes', '{"a":1}'],
      ['GET', 'attributes'],
      ['GET', 'attributes/updates?timeout=1'],
      ['GET', 'rpc?timeout=1'],
      ['POST', 'rpc/1', '{}'],
      ['POST', 'claim', '{}'],
      ['GET', 'firmware?title=a&version=1'],
      ['GET', 'software?title=a&version=1'],
    ];
    const signs = operations.map(async ([method, path, body], n) => {
      const device = await engine.api.createDevice(`operation-${n}`);
      await (await request(device, method, path, body)).arrayBuffer();
      await eventually(async () => (await serverAttributes(device))['lastActivityTime'], 8_000).catch(() => {
        throw new Error(`${method} ${path} was no sign of life`);
      });
    });
    await Promise.all(signs);
  });

  test('a message of a gateway that is refused is no sign of life', async () => {
    const gateway = await engine.api.createGateway('hub');
    const later = await engine.api.createDevice('later');
    const opened: MqttClient[] = [];
    const open = (client: MqttClient) => {
      opened.push(client);
      return client;
    };
    try {
      const client = open(await connectMqtt({ port: engine.mqttPort, token: gateway.token }));
      await eventually(async () => (await serverAttributes(gateway))['active'] === false, 30_000);
      const large = `{"a":[{"a":1}],${' '.repeat(300_000)}`;
      for (const [topic, body] of [
        ['v1/gateway/telemetry', '{"a":[{"a":1}],}x'],
        ['v1/gateway/telemetry', `${large}}x`],
        // Above the size of a packet of this topic.
        ['v1/gateway/claim', `${large}"b":{}}`],
      ] as const) {
        expect((await client.publish(topic, body)).reasonCode, topic).toBeGreaterThanOrEqual(0x80);
      }
      // The worker writes devices that wake up in the order in which they sent.
      open(await connectMqttOn(client.worker!, { port: engine.mqttPort, token: later.token }));
      await eventually(() => isActive(later));
      expect(await isActive(gateway)).toBe(false);
      expect((await client.publish('v1/gateway/telemetry', { a: [{ a: 1 }] })).reasonCode).toBe(0);
      await eventually(() => isActive(gateway));
    } finally {
      for (const client of opened) client.cut();
    }
  });

  test('a refused message is no sign of life', async () => {
    const [http, mqtt, gateway, child] = await Promise.all(
      ['http', 'mqtt', 'gateway', 'child'].map((name) =>
        engine.api.createDevice(`refused-${name}`, '', { additionalInfo: { gateway: name === 'gateway' } }),
      ),
    );
    const refused = [http!, mqtt!, gateway!, child!];
    const [bad, childName] = ['{"a":', 'refused-child'];
    const ofDevice = await connectMqtt({ port: engine.mqttPort, token: mqtt!.token });
    const ofGateway = await connectMqtt({ port: engine.mqttPort, token: gateway!.token });
    await ofGateway.publish('v1/gateway/connect', { device: childName });
    await eventually(() => isActive(child!));
    await eventually(async () => !(await Promise.all(refused.map(isActive))).includes(true), 30_000);

    for (const path of ['telemetry', 'attributes', 'claim', 'rpc']) {
      expect([path, (await request(http!, 'POST', path, bad)).status]).toEqual([path, 400]);
    }
    const topics = ['telemetry', 'attributes', 'attributes/request/1', 'rpc/request/1', 'claim'];
    for (const topic of topics) {
      const { reasonCode } = await ofDevice.publish(`v1/devices/me/${topic}`, bad);
      expect([topic, reasonCode]).toEqual([topic, 0x99]);
    }
    const ofChild = ['telemetry', 'attributes', 'attributes/request', 'rpc', 'claim', 'connect', 'disconnect'];
    for (const topic of ofChild) {
      const { reasonCode } = await ofGateway.publish(`v1/gateway/${topic}`, `{"${childName}":[{"a":1}],`);
      expect([topic, reasonCode]).toEqual([topic, 0x99]);
    }
    // A message that each worker received later is written first or at the same time.
    for (const worker of [0, 1]) {
      const device = await engine.api.createDevice(`accepted-${worker}`);
      const client = await connectMqttOn(worker, { port: engine.mqttPort, token: device.token });
      await eventually(() => isActive(device));
      client.cut();
    }
    expect(await Promise.all(refused.map(isActive))).toEqual([false, false, false, false]);
    // A request of a gateway for a child is a sign of life of both.
    const wanted = { id: 1, device: childName, client: true, key: 'a' };
    await ofGateway.publish('v1/gateway/attributes/request', wanted);
    await eventually(async () => (await isActive(child!)) && (await isActive(gateway!)));
    for (const client of [ofDevice, ofGateway]) client.cut();
  });
});

test('a stop writes what was marked', async () => {
  const device = await engine.api.createDevice('last words');
  const sentTs = Date.now();
  await request(device, 'POST', 'telemetry', '{"a":1}');
  await engine.restart();
  expect((await serverAttributes(device))['lastActivityTime']).toBeGreaterThanOrEqual(sentTs);
});

test.each([
  ['all workers', () => Promise.all(['worker-0', 'worker-1'].map((role) => engine.kill(role)))],
  [
    'the whole instance',
    async () => {
      await engine.killAll();
      await engine.start();
    },
  ],
])('after kill -9 of %s no device becomes inactive within its time', async (who, kill) => {
  const timeoutMs = 3_000;
  const device = await engine.api.createDevice(`survives ${who}`);
  const path = `/api/plugins/telemetry/DEVICE/${device.id}/attributes/SERVER_SCOPE`;
  expect((await engine.api.send('POST', path, { inactivityTimeout: timeoutMs })).status).toBe(200);
  await request(device, 'POST', 'telemetry', '{"a":1}');
  await eventually(() => isActive(device));
  await sleep(timeoutMs - 1_000);
  // The last sign of life is received, and not yet written.
  await request(device, 'POST', 'telemetry', '{"a":1}');
  const lastMs = Date.now();
  await kill();
  await eventually(async () => (await serverAttributes(device).catch(() => undefined))?.['active'] === false, 60_000);
  expect((await serverAttributes(device))['inactivityAlarmTime']).toBeGreaterThanOrEqual(lastMs + timeoutMs);
});
