/** Workers with a limit of MQTT connections: a full worker leaves new connections to workers with room. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { connectMqtt, type MqttClient } from '../harness/mqtt-client.ts';

const workers = 3;
const connectionsMax = 20;

let engine: Engine;

beforeAll(async () => {
  const max = String(connectionsMax);
  engine = await startEngine({
    workers,
    env: { MQTT_CONNECTIONS_MAX: max, MQTT_CONNECTIONS_PER_ADDRESS_MAX: max },
  });
});

afterAll(() => engine.destroy());

/** Opens a session of a new device, because a second session of a device ends the first. */
async function connect(): Promise<MqttClient> {
  const { token } = await engine.api.createDevice(randomUUID());
  return await connectMqtt({ port: engine.mqttPort, token });
}

const inOneBurst = (count: number, one: () => Promise<MqttClient>) =>
  Promise.all(Array.from({ length: count }, () => one()));

async function open(): Promise<number> {
  const [, count] = /^(?:millrace_)?mqtt_connections (\d+)$/m.exec(await engine.api.metrics()) ?? [];
  return Number(count);
}

test('a burst finds every place of every worker, and a place that was left is taken again', async () => {
  const all = workers * connectionsMax;
  const clients = await inOneBurst(all, connect);
  expect(await open()).toBe(all);
  await expect(connect()).rejects.toThrow();
  const reason = expect.stringMatching(/MQTT_CONNECTIONS_MAX/);
  await eventually(() => engine.events('mqtt_not_accepting').length >= workers);
  expect(engine.events('mqtt_not_accepting')[0]).toMatchObject({ level: 'warn', reason });
  for (let round = 0; round < 3; round += 1) {
    for (const client of clients.splice(0, 25)) client.cut();
    await eventually(async () => (await open()) === all - 25);
    // A worker looks for room every tenth of a second. Until then the kernel may refuse.
    clients.push(...(await inOneBurst(25, () => eventually(connect))));
    expect(await open()).toBe(all);
  }
  for (const client of clients) client.cut();
  await eventually(() => engine.events('mqtt_accepting').some(({ fullMs }) => Number(fullMs) > 0));
});
