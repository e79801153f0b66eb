/**
 * PostgreSQL becomes unavailable: connected clients stay, known logins are accepted, and no device is called unknown.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { codeOf, connectMqtt, MqttClient } from '../harness/mqtt-client.ts';
import { connectMqttOn } from '../harness/mqtt-workers.ts';
import { type Stores, startStores, storeSettings } from '../harness/stores.ts';

let stores: Stores;
let engine: Engine;

beforeAll(async () => {
  stores = await startStores();
  engine = await startEngine({ workers: 2, env: { ...storeSettings(stores), HTTP_TELL_WORKER: 'true' } });
});

afterAll(async () => {
  await engine?.destroy();
  await stores?.stopAll();
});

async function codeFor(token: string, level: 4 | 5 = 5): Promise<number> {
  const client = await MqttClient.open({ port: engine.mqttPort, level });
  try {
    return codeOf(await client.connect({ token }));
  } finally {
    client.cut();
  }
}

test('without the database known devices connect and send, others are refused for now', async () => {
  const port = engine.mqttPort;
  const [steady, known, revoked] = await Promise.all(
    ['steady', 'known', 'revoked'].map((name) => engine.api.createDevice(name)),
  );
  for (const worker of [0, 1]) (await connectMqttOn(worker, { port, token: known!.token })).cut();
  const held = await connectMqtt({ port, token: steady!.token });
  const doomed = await connectMqtt({ port, token: revoked!.token });
  const began = engine.events().length;
  await stores.postgres.kill();
  try {
    expect((await held.publish('v1/devices/me/telemetry', '{"a":1}')).reasonCode).toBe(0);
    for (const worker of [0, 1]) {
      const again = await connectMqttOn(worker, { port, token: known!.token });
      expect((await again.publish('v1/devices/me/telemetry', '{"a":2}')).reasonCode).toBe(0);
      again.cut();
    }
    expect(await codeFor('nobody')).toBe(0x88);
    expect(await codeFor('nobody', 4)).toBe(3);
    // The primary looks at the store twice a second, and may not notice a shorter outage.
    await eventually(
      () =>
        engine
          .events()
          .slice(began)
          .some(({ event }) => event === 'store_away'),
      20_000,
    );
  } finally {
    await stores.postgres.start();
  }
  // Each worker notices on its own that PostgreSQL answers again.
  await eventually(async () => (await codeFor('nobody')) === 0x86, 20_000);
  await eventually(async () => (await codeFor('nobody', 4)) === 5, 20_000);
  expect(held.isClosed).toBe(false);
  await held.quiet();
  // Three processes and a dozen of their parts could not reach PostgreSQL: one line reports that, and one line reports
  // the end.
  await eventually(() => engine.events('store_back').length > 0, 20_000);
  const states = engine.events().slice(began);
  expect(states.filter(({ level }) => level === 'warn' || level === 'error')).toMatchObject([
    { event: 'store_away', store: 'postgres', reason: expect.stringContaining('does not answer') },
  ]);
  expect(states.filter(({ event }) => event === 'store_back')).toMatchObject([{ awayMs: expect.any(Number) }]);
  const path = `/api/device/${revoked!.id}/credentials`;
  const credentials = (await (await engine.api.send('GET', path)).json()) as object;
  await engine.api.send('POST', '/api/device/credentials', { ...credentials, credentialsId: 'changed' });
  await doomed.closedFor(0x98);
  held.cut();
});
