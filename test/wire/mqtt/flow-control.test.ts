/**
 * Messages to a client: never more unacknowledged ones than its Receive Maximum, no packet above its Maximum Packet
 * Size, no topic alias, and only packet ids that are free (docs/mqtt.md#limits). Messages from clients: one that reads
 * nothing does not affect the others.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { describe, expect, test } from 'vitest';
import { type Device, eventually } from '../../harness/api.ts';
import { DeviceUser } from '../../harness/device-user.ts';
import { publishBytes } from '../../harness/mqtt-bytes.ts';
import {
  connectMqtt,
  type Level,
  type Login,
  levelName,
  levels,
  MqttClient,
  withSocket,
} from '../../harness/mqtt-client.ts';
import { storedValues, telemetry, withDevice } from '../../harness/mqtt-device.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

const attributes = 'v1/devices/me/attributes';
const requests = 'v1/devices/me/rpc/request/';

/** Connects a device and subscribes to its shared attributes, which `user` sets. */
async function withFollower(
  login: Omit<Login, 'token'> & { level?: Level },
  use: (client: MqttClient, set: (body: object) => Promise<void>) => Promise<void>,
): Promise<void> {
  await withDevice(login, async (client, device: Device) => {
    expect(await client.subscribe(attributes)).toEqual([1]);
    const user = new DeviceUser(device);
    await use(client, (body) => user.set('SHARED_SCOPE', JSON.stringify(body)));
  });
}

test('MQTT 5: with Receive Maximum 2 the third push waits for an acknowledgement', () =>
  withDevice({ properties: { receiveMaximum: 2 } }, async (client, device) => {
    // Commands fill the window, because a command never waits for the acknowledgement of an earlier one. A change of
    // attributes that was read from the store is sent alone: the next change waits for its acknowledgement.
    expect(await client.subscribe({ [`${requests}+`]: 1, [attributes]: 1 })).toEqual([1, 1]);
    const commands: string[] = [];
    for (let n = 0; n < 3; n += 1) {
      commands.push(await sharedEngine().sendPersistent(device.id, { method: `m${n}`, timeout: 60_000 }));
    }
    const first = await client.expect('publish', { qos: 1 });
    const second = await client.expect('publish', { qos: 1 });
    expect(first.messageId).not.toBe(second.messageId);
    // The session has all three commands, and a change of attributes behind them.
    const isSent = async (rpcId: string) => (await sharedEngine().persistentState(rpcId)).status === 'SENT';
    for (const rpcId of commands) await eventually(() => isSent(rpcId), 20_000);
    const user = new DeviceUser(device);
    for (let n = 0; n < 3; n += 1) await user.set('SHARED_SCOPE', `{"n":${n}}`);
    await client.quiet();
    await client.write({ cmd: 'puback', messageId: first.messageId! });
    const third = await client.expect('publish', { qos: 1 });
    const topics = [first, second, third].map(({ topic }) => topic).sort();
    expect(topics).toEqual([1, 2, 3].map((id) => `${requests}${id}`));
    await client.quiet();
    await client.write({ cmd: 'puback', messageId: second.messageId! }, { cmd: 'puback', messageId: third.messageId! });
    // Changes that wait may be sent as one message, so the last value counts.
    let last = -1;
    while (last !== 2) last = (await client.message(attributes)).json.n;
    await client.quiet();
  }));

test('MQTT 5: what exceeds the largest packet of the client is not sent, what follows is', () =>
  withFollower({ properties: { maximumPacketSize: 500 } }, async (client, set) => {
    await set({ large: 'x'.repeat(1_000) });
    await set({ small: 1 });
    expect((await client.message(attributes)).json).toEqual({ small: 1 });
    await client.quiet();
  }));

for (const level of levels) {
  test(`${levelName[level]}: pushes have no retain flag, no DUP, a packet id of their own and no alias`, () =>
    withFollower({ level, ...(level === 5 && { properties: { topicAliasMaximum: 10 } }) }, async (client, set) => {
      const ids = new Set<number>();
      for (let n = 0; n < 3; n += 1) {
        await set({ n });
        const { packet } = await client.message(attributes);
        expect(packet).toMatchObject({ retain: false, dup: false, qos: 1, topic: attributes });
        expect(packet.messageId).toBeGreaterThan(0);
        expect(packet.properties?.topicAlias).toBeUndefined();
        ids.add(packet.messageId!);
      }
      await client.quiet();
    }));

  test(`${levelName[level]}: granted QoS 0 is sent without a packet id`, () =>
    withDevice({ level }, async (client, device) => {
      expect(await client.subscribe({ [attributes]: 0 })).toEqual([0]);
      await new DeviceUser(device).set('SHARED_SCOPE', '{"n":1}');
      expect((await client.message(attributes)).packet).toMatchObject({ qos: 0 });
    }));

  test(`${levelName[level]}: an end of our side after the last publish still gets its PUBACK`, () =>
    withDevice({ level }, async (client, device) => {
      await client.write(client.publishPacket(telemetry, '{"last":1}', { messageId: 3 }));
      client.stream.end();
      expect(await storedValues(device, 'last')).toEqual(['1']);
      await client.closed();
    }));
}

describe('a client that does not read', () => {
  // Refusals are the largest answers that a publish can get.
  const bad = (id: number) =>
    publishBytes({ topic: telemetry, payload: 'x', qos: 1, messageId: id, properties: Buffer.from([0]) });

  test('is paused or cut, and its neighbour does not notice', () =>
    withDevice({}, async (neighbour, device) => {
      const { token } = (await DeviceUser.create()).device;
      const deaf = await connectMqtt({ token });
      deaf.stream.pause();
      const flood = Buffer.concat(Array.from({ length: 60_000 }, (_, n) => bad((n % 65_535) + 1)));
      const sent = (async () => {
        for (let n = 0; n < 10 && !deaf.isClosed; n += 1) await deaf.send(flood);
      })();
      for (let n = 0; n < 20; n += 1) {
        await neighbour.publish(telemetry, `{"ts":${Date.now() - n},"values":{"beside":${n}}}`);
        await sleep(20);
      }
      expect(await storedValues(device, 'beside', 20)).toHaveLength(20);
      deaf.cut();
      await sent;
    }));
});

test('a socket that opens and sends nothing does not keep another from logging in', async () => {
  const silent = await Promise.all(Array.from({ length: 200 }, () => MqttClient.open()));
  try {
    await withDevice({}, async (client) => {
      expect((await client.publish(telemetry, '{"a":1}')).reasonCode).toBe(0);
    });
  } finally {
    for (const client of silent) client.cut();
  }
});

test('an end of our side before CONNECT ends the connection', () =>
  withSocket({}, async (client) => {
    client.stream.end();
    await client.closed();
    expect(client.received).toEqual([]);
  }));
