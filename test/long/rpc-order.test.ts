/**
 * Persistent commands that wait for devices, created by turns on two hosts: a device that connects to either host gets
 * its commands in the order of their creation, each once.
 */
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

test('devices that connect all at once get what waits for them in the order of creation', async () => {
  const turn = crypto.randomUUID();
  const names = Array.from({ length: deviceCount }, (_, n) => ({ name: `waiting ${n} ${turn}` }));
  const devices = await hosts[0]!.api.createDevices(names);
  const sent = await Promise.all(devices.map((device, place) => sendByTurns(device, place)));
  const clients: MqttClient[] = [];
  try {
    const received = await Promise.all(
      devices.map(async ({ token }, place) => {
        const client = await connectMqtt({ port: hosts[(place >> 1) % 2]!.mqttPort, token });
        clients.push(client);
        return await receiveAll(client);
      }),
    );
    expect(received.map((each) => each.join(' '))).toEqual(devices.map(() => inOrder.join(' ')));
    for (const ids of sent) {
      for (const id of ids) {
        await eventually(async () => (await hosts[1]!.api.persistentState(id)).status === 'SUCCESSFUL', 10_000);
      }
    }
  } finally {
    for (const client of clients) client.cut();
  }
});
