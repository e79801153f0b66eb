/** MQTT connections are spread over the workers of a host, and there is always a worker that accepts. */
import { once } from 'node:events';
import { connect as openSocket, type Socket } from 'node:net';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Engine, startEngine } from '../harness/engine.ts';
import { MqttClient } from '../harness/mqtt-client.ts';

let engine: Engine;
let tokens: string[];
const clients: MqttClient[] = [];

beforeAll(async () => {
  engine = await startEngine({ workers: 2, env: { HTTP_TELL_WORKER: 'true' } });
  const names = Array.from({ length: 200 }, (_, n) => ({ name: `gateway ${n}` }));
  tokens = (await engine.api.createDevices(names)).map(({ token }) => token);
});

afterAll(async () => {
  for (const client of clients) client.cut();
  await engine?.destroy();
});

/** Opens a connection of another device. `client.worker` has accepted it. */
async function connect(): Promise<MqttClient> {
  const client = await MqttClient.open({ port: engine.mqttPort });
  await client.connect({ token: tokens[clients.push(client)]! });
  return client;
}

function signal(worker: number, name: NodeJS.Signals): void {
  process.kill(engine.pids().get(`worker-${worker}`)!, name);
}

test('a worker with clearly more connections leaves the next ones to the others', async () => {
  signal(1, 'SIGSTOP');
  for (let n = 0; n < 60; n += 1) expect((await connect()).worker).toBe(0);
  signal(1, 'SIGCONT');
  // A worker reports its connections every 250 ms.
  let others = 0;
  await expect
    .poll(async () => {
      const client = await connect();
      client.cut();
      others = client.worker === 1 ? others + 1 : 0;
      return others;
    })
    .toBe(8);
  for (let n = 0; n < 20; n += 1) expect((await connect()).worker).toBe(1);
});

test('when the worker that accepts is frozen or killed, the one that left connections to it accepts', async () => {
  signal(1, 'SIGSTOP');
  // The connection waits until the silence of the frozen worker is noticed.
  expect((await connect()).worker).toBe(0);
  signal(1, 'SIGKILL');
  expect((await connect()).worker).toBe(0);
});

test('no connection is refused while the workers leave connections to each other in turn', async () => {
  const bursts: Socket[] = [];
  const failures: string[] = [];
  const open = async () => {
    const socket = openSocket(engine.mqttPort, '127.0.0.1').on('error', (error) => failures.push(error.message));
    await Promise.race([once(socket, 'connect'), once(socket, 'close')]);
    return socket;
  };
  // Each burst is clearly more than both workers have, and mostly goes to the one that does not leave it.
  try {
    for (let round = 0; round < 6; round += 1) {
      const burst = Array.from({ length: 30 * (round + 1) }, open);
      const until = performance.now() + 1_000;
      while (performance.now() < until) (await open()).destroy();
      bursts.push(...(await Promise.all(burst)));
    }
  } finally {
    for (const socket of bursts) socket.destroy();
  }
  expect(failures).toEqual([]);
}, 60_000);
