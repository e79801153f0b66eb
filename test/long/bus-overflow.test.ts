/**
 * A worker that reads nothing for a while, and for which more messages of the bus come than its queue takes: the
 * messages are lost, the worker is notified when it reads again, and what the messages said becomes true nevertheless.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { connectMqtt, type MqttClient } from '../harness/mqtt-client.ts';
import { connectMqttOn } from '../harness/mqtt-workers.ts';
import type { RawConnection } from '../harness/raw.ts';
import { connectToEachWorker, restOn } from '../harness/workers.ts';

let engine: Engine;
let operators: RawConnection[];

beforeAll(async () => {
  engine = await startEngine({ workers: 2, env: { HTTP_TELL_WORKER: 'true' } });
  operators = await connectToEachWorker(engine.port);
});

afterAll(async () => {
  for (const connection of operators ?? []) connection.close();
  await engine?.destroy();
});

/** Sizes of values that fill the queue to the last bytes: more than the queue and the process channel hold. */
const sizes = [
  ...Array.from({ length: 180 }, () => 60_000),
  ...Array.from({ length: 65 }, () => 1_000),
  ...Array.from({ length: 10 }, () => 1),
];
/** One of their announcements may be small enough for the last bytes. */
const moving = 6;

test('sessions that open on another worker meanwhile end the older ones', async () => {
  const devices = await engine.api.createDevices(Array.from({ length: 1 + moving }, (_, n) => ({ name: `full ${n}` })));
  const [followed, ...moved] = devices as [Device, ...Device[]];
  const { mqttPort: port } = engine;
  const follower = await connectMqttOn(1, { port, token: followed.token });
  await follower.subscribe('v1/devices/me/attributes');
  const old: MqttClient[] = [];
  for (const { token } of moved) old.push(await connectMqttOn(1, { port, token }));
  const token = await engine.api.adminToken();
  const path = `/api/plugins/telemetry/DEVICE/${followed.id}/attributes/SHARED_SCOPE`;
  const worker = engine.pids().get('worker-1')!;
  process.kill(worker, 'SIGSTOP');
  try {
    for (const [n, size] of sizes.entries()) {
      const { status } = await restOn(operators[0]!, token, {
        path,
        body: JSON.stringify({ n, value: 'x'.repeat(size) }),
      });
      expect(status).toBe(200);
    }
    const young = await Promise.all(moved.map((device) => connectMqtt({ port, token: device.token })));
    expect(young.map((client) => client.worker)).toEqual(moved.map(() => 0));
    process.kill(worker, 'SIGCONT');
    await Promise.all(old.map((client) => client.closedFor(0x8e)));
    for (const client of young) {
      await client.quiet();
      client.cut();
    }
  } finally {
    process.kill(worker, 'SIGCONT');
  }
  expect(await engine.metric('bus_hub_dropped_total')).toBeGreaterThan(0);
  expect(await engine.metric('bus_gaps_total')).toBe(1);
  expect(engine.events('bus_messages_lost')).toHaveLength(1);
  // The attributes that were lost with the messages are read from the store.
  const wasLast = async () => (await follower.message(undefined, { waitMsMax: 20_000 })).json.n === sizes.length - 1;
  await eventually(wasLast, 30_000);
  follower.cut();
});
