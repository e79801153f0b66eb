/**
 * Persistent commands, created by turns on two hosts: a device gets its commands in the order of their creation, each
 * once, on either host, when it connects after them, before them or meanwhile.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngines } from '../harness/engine.ts';
import { connectMqtt, type MqttClient } from '../harness/mqtt-client.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';

const deviceCount = 30;
const commandsOfDevice = 8;
const inOrder = Array.from({ length: commandsOfDevice }, (_, n) => n);

let stores: Stores;
let hosts: Engine[];

beforeAll(async () => {
  stores = await startStores();
  const env = hostSettings(stores);
  hosts = await startEngines([
    { workers: 2, env },
    { workers: 2, env },
  ]);
});

afterAll(async () => {
  await Promise.all((hosts ?? []).map((host) => host.destroy()));
  await stores?.stopAll();
});

/** Each answer comes before the next command is sent, so the order of creation is known. */
async function sendByTurns({ id }: Device, place: number): Promise<string[]> {
  const ids: string[] = [];
  for (const n of inOrder) {
    const body = { method: 'step', params: n, expirationTime: Date.now() + 300_000 };
    ids.push(await hosts[(place + n) % 2]!.api.sendPersistent(id, body));
  }
  return ids;
}

async function receiveAll(client: MqttClient): Promise<number[]> {
  await client.subscribe('v1/devices/me/rpc/request/+');
  const received: number[] = [];
  while (received.length < commandsOfDevice) {
    const message = await client.message(undefined, { waitMsMax: 20_000 });
    received.push(message.json.params);
    await client.publish(message.topic.replace('request', 'response'), '{}');
  }
  await client.quiet();
  return received;
}

/** Calls `act` with devices of this try, and a function that connects a device and returns what it receives. */
async function withDevices(
  act: (devices: readonly Device[], receive: (device: Device, place: number) => Promise<number[]>) => Promise<void>,
): Promise<void> {
  const turn = crypto.randomUUID();
  const names = Array.from({ length: deviceCount }, (_, n) => ({ name: `ordered ${n} ${turn}` }));
  const devices = await hosts[0]!.api.createDevices(names);
  const clients: MqttClient[] = [];
  try {
    await act(devices, async ({ token }, place) => {
      const client = await connectMqtt({ port: hosts[(place >> 1) % 2]!.mqttPort, token });
      clients.push(client);
      return await receiveAll(client);
    });
  } finally {
    for (const client of clients) client.cut();
  }
}

function expectInOrder(received: number[][]): void {
  expect(received.map((each) => each.join(' '))).toEqual(received.map(() => inOrder.join(' ')));
}

test('devices that connect all at once get what waits for them in the order of creation', async () => {
  await withDevices(async (devices, receive) => {
    const sent = await Promise.all(devices.map((device, place) => sendByTurns(device, place)));
    expectInOrder(await Promise.all(devices.map(receive)));
    for (const ids of sent) {
      for (const id of ids) {
        await eventually(async () => (await hosts[1]!.api.persistentState(id)).status === 'SUCCESSFUL', 10_000);
      }
    }
  });
});

test('devices that are connected, or connect meanwhile, get their commands in the order of creation', async () => {
  await withDevices(async (devices, receive) => {
    const received = devices.map(async (device, place) => {
      const commands = sendByTurns(device, place);
      await sleep(10 * place);
      const got = await receive(device, place);
      await commands;
      return got;
    });
    expectInOrder(await Promise.all(received));
  });
  await withDevices(async (devices, receive) => {
    const received = devices.map(receive);
    await sleep(1_000);
    for (const [place, device] of devices.entries()) await sendByTurns(device, place);
    expectInOrder(await Promise.all(received));
  });
});
