/** Files of firmware and software in chunks over MQTT (docs/mqtt.md#firmware-and-software). */
import { randomBytes, randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { type Device, eventually } from '../../harness/api.ts';
import { connectBytes, publishBytes } from '../../harness/mqtt-bytes.ts';
import { hex, levels, type MqttClient, withMqtt } from '../../harness/mqtt-client.ts';
import { withDevice } from '../../harness/mqtt-device.ts';
import { newPackage, type PackageJson, saveDevice, seriesOf } from '../../harness/ota.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';
import { frame, RawWebSocket } from '../../harness/web-socket.ts';

async function deviceWith(bytes: Buffer): Promise<Device> {
  const device = await newDevice();
  await saveDevice(device.id, { firmwareId: (await newPackage({}, { bytes })).id });
  return device;
}

/** Returns the bytes that answer a request; `type` fw or sw. */
async function chunk(client: MqttClient, rid: number, n: number, size: string, type = 'fw'): Promise<Buffer> {
  const [ack, answer] = await Promise.all([
    client.publish(`v2/${type}/request/${rid}/chunk/${n}`, size),
    client.message(`v2/${type}/response/${rid}/chunk/${n}`),
  ]);
  expect(hex(ack.reasonCode)).toBe('0x00');
  return answer.bytes;
}

/** Returns the code of the PUBACK, and the word on the error topic. */
async function refused(client: MqttClient, topic: string, size: string, type = 'fw'): Promise<string> {
  const [ack, word] = await Promise.all([client.publish(topic, size), client.message(`v2/${type}/error`)]);
  expect(ack.properties?.reasonString).toBeTruthy();
  return `${hex(ack.reasonCode)} ${word.text}`;
}

test.each(levels)(
  'chunks of the given size, the last one short, and an empty one behind the end: level %s',
  async (level) => {
    const device = await deviceWith(Buffer.from('0123456789'));
    await withMqtt({ ...device, level }, async (client) => {
      expect(String(await chunk(client, 1, 0, '4'))).toBe('0123');
      expect(String(await chunk(client, 1, 1, '4'))).toBe('4567');
      expect(String(await chunk(client, 1, 2, '4'))).toBe('89');
      expect(String(await chunk(client, 1, 3, '4'))).toBe('');
      expect(String(await chunk(client, 1, 2_147_483_647, '4'))).toBe('');
    });
  },
);

test('without a size it is the one used last with this id, at first the whole file', async () => {
  const device = await deviceWith(Buffer.from('0123456789'));
  await withMqtt(device, async (client) => {
    expect(String(await chunk(client, 1, 0, ''))).toBe('0123456789');
    expect(String(await chunk(client, 1, 1, ''))).toBe('');
    expect(String(await chunk(client, 1, 0, '4'))).toBe('0123');
    expect(String(await chunk(client, 1, 1, ''))).toBe('4567');
    expect(String(await chunk(client, 2, 0, ''))).toBe('0123456789');
  });
});

test('chunks of any size make the file again, whether a subscription was granted or not', async () => {
  const bytes = randomBytes(200_001);
  const device = await deviceWith(bytes);
  await withMqtt(device, async (client) => {
    expect(await client.subscribe('v2/fw/response/+')).toEqual([1]);
    for (const [rid, size] of [1_000, 4_096, 50_000, 65_536].entries()) {
      const parts: Buffer[] = [];
      for (let n = 0; n * size < bytes.length; n += 1) parts.push(await chunk(client, rid, n, String(size)));
      expect(Buffer.concat(parts).equals(bytes)).toBe(true);
    }
    expect((await chunk(client, 9, 0, '')).equals(bytes)).toBe(true);
  });
});

test('many requests in one segment are all answered', async () => {
  const bytes = randomBytes(100_000);
  const device = await deviceWith(bytes);
  await withMqtt(device, async (client) => {
    await client.write(
      ...Array.from({ length: 100 }, (_, n) => client.publishPacket(`v2/fw/request/1/chunk/${n}`, '1000', { qos: 0 })),
    );
    const parts: Buffer[] = [];
    for (let n = 0; n < 100; n += 1) parts.push((await client.message(`v2/fw/response/1/chunk/${n}`)).bytes);
    expect(Buffer.concat(parts).equals(bytes)).toBe(true);
  });
});

test('nothing assigned is NOT_FOUND on the error topic, and the connection stays', () =>
  withDevice({}, async (client, device) => {
    expect(await refused(client, 'v2/fw/request/1/chunk/0', '4')).toBe('0x83 NOT_FOUND');
    expect(await refused(client, 'v2/sw/request/1/chunk/0', '4', 'sw')).toBe('0x83 NOT_FOUND');
    // As soon as the device has a package, its chunks are served under the same request id.
    await saveDevice(device.id, { firmwareId: (await newPackage({}, { bytes: Buffer.from('abc') })).id });
    expect(String(await chunk(client, 1, 0, '2'))).toBe('ab');
  }));

test('MQTT 3 receives NOT_FOUND and stays', () =>
  withDevice({ level: 4 }, async (client) => {
    await client.publish('v2/fw/request/1/chunk/0', '4');
    expect((await client.message('v2/fw/error')).text).toBe('NOT_FOUND');
    await client.quiet();
  }));

test('a package at a URL is FAILURE', () =>
  withDevice({}, async (client, device) => {
    const body = { type: 'FIRMWARE', title: randomUUID(), version: '1', usesUrl: true, url: 'https://files.example/x' };
    const { id } = (await (await sharedEngine().send('POST', '/api/otaPackage', body)).json()) as PackageJson;
    await saveDevice(device.id, { firmwareId: id });
    expect(await refused(client, 'v2/fw/request/1/chunk/0', '4')).toBe('0x83 FAILURE');
  }));

test('a size above the largest packet is PAYLOAD_TOO_LARGE', async () => {
  const device = await deviceWith(randomBytes(1_000));
  await withMqtt(device, async (client) => {
    expect(await refused(client, 'v2/fw/request/1/chunk/0', '70000')).toBe('0x99 PAYLOAD_TOO_LARGE');
    expect(await refused(client, 'v2/fw/request/1/chunk/0', '9'.repeat(1_000))).toBe('0x99 PAYLOAD_TOO_LARGE');
    await client.quiet();
  });
});

test('without a size a large file is one message, however slowly the client reads', async () => {
  const bytes = randomBytes(15_000_001);
  const device = await deviceWith(bytes);
  for (const level of [4, 5] as const) {
    // The Keep Alive of a second does not end the connection while the server sends.
    await withMqtt({ ...device, level, keepAlive: 1 }, async (client) => {
      const asked = client.publish('v2/fw/request/1/chunk/0', '');
      await asked;
      client.stream.pause();
      await new Promise((resolve) => setTimeout(resolve, 3_000));
      client.stream.resume();
      const { bytes: received } = await client.message('v2/fw/response/1/chunk/0', { waitMsMax: 50_000 });
      expect(received.equals(bytes)).toBe(true);
      expect(await chunk(client, 2, 1, '1000')).toEqual(bytes.subarray(1_000, 2_000));
    });
  }
});

test('over WebSocket too', async () => {
  const bytes = randomBytes(5_000_000);
  const device = await deviceWith(bytes);
  const socket = await RawWebSocket.open(sharedEngine().address.port);
  try {
    socket.send(frame(connectBytes({ username: device.token, clientId: 'raw' })));
    await socket.read(4);
    socket.send(frame(publishBytes({ topic: 'v2/fw/request/1/chunk/0', payload: '' })));
    const topic = 'v2/fw/response/1/chunk/0';
    const head = 1 + 4 + 2 + topic.length + 2;
    const packet = await socket.read(head + bytes.length);
    expect(packet.subarray(head).equals(bytes)).toBe(true);
  } finally {
    socket.close();
  }
});

test('a file that the client cannot take in one message fails the update, and an administrator sees why', async () => {
  const device = await deviceWith(randomBytes(600_000));
  const states = async () => (await seriesOf(device.id, ['fw_state']))['fw_state'] ?? [];
  await eventually(async () => (await states()).includes('INITIATED'));
  await withMqtt({ ...device, properties: { maximumPacketSize: 500_000 } }, async (client) => {
    await client.publish('v1/devices/me/telemetry', '{"fw_state":"DOWNLOADING"}');
    expect(await refused(client, 'v2/fw/request/1/chunk/0', '')).toBe('0x99 PAYLOAD_TOO_LARGE');
    await client.quiet();
  });
  await eventually(async () => {
    const { fw_error: errors = [] } = await seriesOf(device.id, ['fw_error']);
    return (await states()).at(-1) === 'FAILED' && String(errors.at(-1)).includes('must ask for chunks');
  });
});

test('a chunk above the Maximum Packet Size of the client is PAYLOAD_TOO_LARGE', async () => {
  const device = await deviceWith(randomBytes(1_000));
  await withMqtt({ ...device, properties: { maximumPacketSize: 500 } }, async (client) => {
    expect(await refused(client, 'v2/fw/request/1/chunk/0', '500')).toBe('0x99 PAYLOAD_TOO_LARGE');
    expect(await chunk(client, 1, 0, '400')).toHaveLength(400);
  });
});

test.each([
  ['a size that is no number', 'v2/fw/request/1/chunk/0', 'x'],
  ['a size below zero', 'v2/fw/request/1/chunk/0', '-4'],
])('%s is FAILURE and 0x99', (_, topic, size) =>
  withDevice({}, async (client) => {
    expect(await refused(client, topic, size)).toBe('0x99 FAILURE');
    await client.quiet();
  }),
);

test.each(['v2/fw/request/1', 'v2/fw/request/x/chunk/0', 'v2/fw/request/1/chunk/x', 'v2/fw/request/1/chunk/-1'])(
  'a topic that is no request is refused: %s',
  (topic) =>
    withDevice({}, async (client) => {
      expect(hex((await client.publish(topic, '4')).reasonCode)).toBe('0x90');
      await client.quiet();
    }),
);

test('firmware and software under the same id are two downloads', async () => {
  const device = await deviceWith(Buffer.from('firm'));
  const software = await newPackage({ type: 'SOFTWARE' }, { bytes: Buffer.from('soft') });
  await saveDevice(device.id, { softwareId: software.id });
  await withMqtt(device, async (client) => {
    expect(String(await chunk(client, 1, 0, '2'))).toBe('fi');
    expect(String(await chunk(client, 1, 0, '', 'sw'))).toBe('soft');
    expect(String(await chunk(client, 1, 1, ''))).toBe('rm');
  });
});

test('a download continues with the package it began with, a new one gets the new package', async () => {
  const device = await deviceWith(Buffer.from('oldold'));
  await withMqtt(device, async (client) => {
    expect(String(await chunk(client, 1, 0, '3'))).toBe('old');
    await saveDevice(device.id, { firmwareId: (await newPackage({}, { bytes: Buffer.from('newnew') })).id });
    expect(String(await chunk(client, 1, 1, '3'))).toBe('old');
    expect(String(await chunk(client, 2, 1, '3'))).toBe('new');
  });
});

test('the package of the profile is served to a device without its own', async () => {
  const name = `profile-${randomUUID()}`;
  const api = sharedEngine();
  const { id: profileId } = (await (
    await api.send('POST', '/api/deviceProfile', { name, type: 'DEFAULT', transportType: 'DEFAULT', profileData: {} })
  ).json()) as { id: { id: string } };
  const device = await newDevice();
  await saveDevice(device.id, { deviceProfileId: profileId });
  const firmware = await newPackage({ deviceProfileId: profileId }, { bytes: Buffer.from('profile') });
  const profile = (await (await api.send('GET', `/api/deviceProfile/${profileId.id}`)).json()) as object;
  expect((await api.send('POST', '/api/deviceProfile', { ...profile, firmwareId: firmware.id })).status).toBe(200);
  await withMqtt(device, async (client) => {
    await eventually(async () => String(await chunk(client, 1, 0, '7')) === 'profile');
  });
});

test('a client of many downloads keeps those it used last', async () => {
  const device = await deviceWith(Buffer.from('0123456789'));
  await withMqtt(device, async (client) => {
    for (let rid = 0; rid < 17; rid += 1) await chunk(client, rid, 0, '4');
    expect(String(await chunk(client, 16, 1, ''))).toBe('4567');
    expect(String(await chunk(client, 0, 0, ''))).toBe('0123456789');
  });
});
