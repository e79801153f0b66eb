/** The `mqtt` package of npm as a device, in all three versions over TCP, TLS, WebSocket and secure WebSocket. */
import { connectAsync, type IClientOptions, type MqttClient as LibraryClient } from 'mqtt';
import { afterEach, describe, expect, inject, test } from 'vitest';
import type { Device } from '../../harness/api.ts';
import { DeviceUser } from '../../harness/device-user.ts';
import { type Level, levelName, levels } from '../../harness/mqtt-client.ts';
import { storedValues, telemetry } from '../../harness/mqtt-device.ts';
import { ok } from '../../harness/people.ts';
import { mqttPort, newDevice, sharedEngine } from '../../harness/shared-engine.ts';

const transports = {
  TCP: () => `mqtt://127.0.0.1:${mqttPort()}`,
  TLS: () => `mqtts://127.0.0.1:${inject('engine').mqttsPort}`,
  WebSocket: () => `ws://127.0.0.1:${sharedEngine().address.port}/mqtt`,
  'secure WebSocket': () => `wss://127.0.0.1:${inject('engine').httpsPort}/mqtt`,
} as const;

const clients: LibraryClient[] = [];
afterEach(async () => {
  await Promise.all(clients.splice(0).map((client) => client.endAsync(true)));
});

async function connect(url: string, level: Level, device: Device, more: IClientOptions = {}): Promise<LibraryClient> {
  const client = await connectAsync(
    url,
    {
      protocolId: level === 3 ? 'MQIsdp' : 'MQTT',
      protocolVersion: level,
      clientId: level === 5 ? '' : `library-${device.id.slice(0, 8)}`,
      username: device.token,
      ca: [inject('engine').certificate],
      reconnectPeriod: 0,
      connectTimeout: 10_000,
      ...more,
    },
    false,
  );
  clients.push(client);
  return client;
}

/** Resolves to the next message on a topic. */
function message(client: LibraryClient, topic: RegExp): Promise<{ topic: string; text: string }> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`nothing on ${topic}`)), 10_000);
    client.on('message', (name, payload) => {
      if (!topic.test(name)) return;
      clearTimeout(timer);
      resolve({ topic: name, text: payload.toString() });
    });
  });
}

for (const [transport, url] of Object.entries(transports)) {
  for (const level of levels) {
    describe(`${levelName[level]} over ${transport}`, () => {
      test('telemetry of each QoS is stored', async () => {
        const device = await newDevice();
        const client = await connect(url(), level, device);
        for (const qos of [0, 1, 2] as const) await client.publishAsync(telemetry, `{"q${qos}":${qos}}`, { qos });
        for (const qos of [0, 1, 2]) expect(await storedValues(device, `q${qos}`)).toEqual([String(qos)]);
      });

      test('shared attributes and commands arrive, and the reply goes back', async () => {
        const user = await DeviceUser.create();
        const client = await connect(url(), level, user.device);
        await client.subscribeAsync(['v1/devices/me/attributes', 'v1/devices/me/rpc/request/+'], { qos: 1 });

        const push = message(client, /^v1\/devices\/me\/attributes$/);
        await user.set('SHARED_SCOPE', '{"valve":"open"}');
        expect((await push).text).toBe('{"valve":"open"}');

        const request = message(client, /^v1\/devices\/me\/rpc\/request\/\d+$/);
        const answer = ok('POST', `/api/rpc/twoway/${user.device.id}`, { method: 'setGpio', params: { pin: 7 } });
        const { topic, text } = await request;
        expect(JSON.parse(text)).toEqual({ method: 'setGpio', params: { pin: 7 } });
        await client.publishAsync(topic.replace('request', 'response'), '{"done":true}', { qos: 1 });
        expect(await answer).toEqual({ done: true });
      });
    });
  }
}

test('a client that was taken over receives the reason, and the newer one stays', async () => {
  const device = await newDevice();
  const older = await connect(transports.TCP(), 5, device);
  const code = new Promise<number | undefined>((resolve) =>
    older.on('disconnect', (packet) => resolve(packet.reasonCode)),
  );
  const newer = await connect(transports.WebSocket(), 5, device);
  expect(await code).toBe(0x8e);
  await newer.publishAsync(telemetry, '{"newer":1}', { qos: 1 });
  expect(await storedValues(device, 'newer')).toEqual(['1']);
});

test('a thousand publishes in flight from one client are all acknowledged and stored', async () => {
  const device = await newDevice();
  const client = await connect(transports.TCP(), 5, device);
  const now = Date.now();
  await Promise.all(
    Array.from({ length: 1_000 }, (_, n) =>
      client.publishAsync(telemetry, `{"ts":${now - n},"values":{"many":${n}}}`, { qos: 1 }),
    ),
  );
  expect(await storedValues(device, 'many', 1_000)).toHaveLength(1_000);
});
