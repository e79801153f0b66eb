/**
 * Shared attributes pushed to a device over MQTT, and that no update is lost (docs/mqtt.md#telemetry-and-attributes).
 */
import { expect, test } from 'vitest';
import type { Device } from '../../harness/api.ts';
import { DeviceUser } from '../../harness/device-user.ts';
import { connectMqtt, levels, type MqttClient, withMqtt } from '../../harness/mqtt-client.ts';
import { withDevice } from '../../harness/mqtt-device.ts';
import { connectMqttOn } from '../../harness/mqtt-workers.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';
import { restOn, withWorkers } from '../../harness/workers.ts';

const attributes = 'v1/devices/me/attributes';

/** Subscribes, and resolves when later changes are certain to arrive. */
async function subscribed(client: MqttClient, device: Device, filter: string = attributes, qos: 0 | 1 = 1) {
  expect(await client.subscribe({ [filter]: qos })).toEqual([qos]);
  return new DeviceUser(device);
}

test.each(levels)('a shared attribute that a user sets is pushed, and so is its deletion: level %s', (level) =>
  withDevice({ level }, async (client, device) => {
    const user = await subscribed(client, device);
    await user.set('SHARED_SCOPE', '{"big":9223372036854775807,"f":42.0,"k":5}');
    const push = await client.message(attributes);
    expect([push.text, push.packet.qos]).toEqual(['{"big":9223372036854775807,"f":42.0,"k":5}', 1]);
    await user.delete('SHARED_SCOPE', 'k,unknown');
    expect((await client.message(attributes)).text).toBe('{"deleted":["k"]}');
  }),
);

test('the same value written again is pushed again; client and server attributes are not pushed', () =>
  withDevice({}, async (client, device) => {
    const user = await subscribed(client, device);
    await user.set('SHARED_SCOPE', '{"k":5}');
    expect((await client.message(attributes)).text).toBe('{"k":5}');
    await user.set('SERVER_SCOPE', '{"k":1}');
    await client.publish(attributes, '{"k":2}');
    await user.set('SHARED_SCOPE', '{"k":5}');
    expect((await client.message(attributes)).text).toBe('{"k":5}');
    await client.nothingFor(200);
  }));

test('without a subscription nothing is pushed, nor after it has ended', () =>
  withDevice({}, async (client, device) => {
    const user = new DeviceUser(device);
    await user.set('SHARED_SCOPE', '{"k":1}');
    await client.nothingFor(200);
    await subscribed(client, device);
    await user.set('SHARED_SCOPE', '{"k":2}');
    expect((await client.message(attributes)).text).toBe('{"k":2}');
    expect(await client.unsubscribe(attributes)).toEqual([0]);
    await user.set('SHARED_SCOPE', '{"k":3}');
    await client.nothingFor(200);
  }));

test('of several topic families only the one subscribed last gets updates', () =>
  withDevice({}, async (client, device) => {
    const user = await subscribed(client, device);
    await subscribed(client, device, 'v2/a');
    await user.set('SHARED_SCOPE', '{"k":1}');
    expect((await client.message()).topic).toBe('v2/a');
    await subscribed(client, device, 'v2/a/j', 0);
    await user.set('SHARED_SCOPE', '{"k":2}');
    expect((await client.message()).packet).toMatchObject({ topic: 'v2/a/j', qos: 0 });
    await client.nothingFor(100);
  }));

test.each([
  ['v1/devices/me/#', attributes],
  ['#', attributes],
  ['v2/+', 'v2/a'],
])('a filter that covers the topic is enough: %s', (filter, topic) =>
  withDevice({}, async (client, device) => {
    const user = await subscribed(client, device, filter);
    await user.set('SHARED_SCOPE', '{"k":1}');
    expect((await client.message(topic)).text).toBe('{"k":1}');
  }),
);

test('a user on any worker reaches a device on any worker', async () => {
  const token = await sharedEngine().adminToken();
  const device = await newDevice();
  await withWorkers(sharedEngine().address.port, async (operators) => {
    for (const worker of [0, 1]) {
      const client = await connectMqttOn(worker, { token: device.token });
      await subscribed(client, device);
      for (const [n, operator] of operators.entries()) {
        const path = `/api/plugins/telemetry/${device.id}/SHARED_SCOPE`;
        expect((await restOn(operator, token, { path, body: `{"from":${n}}` })).status).toBe(200);
        expect((await client.message(attributes)).text).toBe(`{"from":${n}}`);
      }
      await client.disconnect();
    }
  });
});

test.each([0, 1] as const)(
  'what changed while the device was disconnected comes when it subscribes again: QoS %s',
  async (qos) => {
    const device = await newDevice();
    const user = new DeviceUser(device);
    await user.set('SHARED_SCOPE', '{"before":1}');
    await withMqtt(device, async (client) => {
      await subscribed(client, device, attributes, qos);
      await client.nothingFor(200);
    });
    await user.set('SHARED_SCOPE', '{"a":1,"b":1}');
    await user.set('SHARED_SCOPE', '{"a":2}');
    await user.delete('SHARED_SCOPE', 'before');
    await withMqtt(device, async (client) => {
      await subscribed(client, device, attributes, qos);
      expect((await client.message(attributes)).json).toEqual({ a: 2, b: 1 });
      expect((await client.message(attributes)).json).toEqual({ deleted: ['before'] });
      await client.nothingFor(200);
    });
    await withMqtt(device, async (client) => {
      await subscribed(client, device, attributes, qos);
      await client.nothingFor(200);
    });
  },
);

test('an update that the client did not acknowledge is sent again, also when it acknowledged a later one', async () => {
  const device = await newDevice();
  const user = new DeviceUser(device);
  const first = await connectMqtt(device);
  await subscribed(first, device);
  await user.set('SHARED_SCOPE', '{"k":1}');
  expect((await first.message(attributes, { ack: false })).text).toBe('{"k":1}');
  await user.set('SHARED_SCOPE', '{"m":1}');
  // When the first update came from the read at the subscription, the second one waits for its acknowledgement.
  const later = await first.message(attributes, { waitMsMax: 1_000 }).catch(() => undefined);
  expect([undefined, '{"m":1}']).toContain(later?.text);
  await first.quiet();
  first.cut();
  await withMqtt(device, async (client) => {
    await subscribed(client, device);
    expect((await client.message(attributes)).json).toEqual({ k: 1, m: 1 });
    await client.nothingFor(200);
  });
});

test('every update of a user who never stops reaches a device that moves between two workers', async () => {
  const device = await newDevice();
  const user = new DeviceUser(device);
  const seen = new Set<number>();
  const { token } = device;
  let client = await connectMqttOn(0, { token });
  await subscribed(client, device);
  const writing = (async () => {
    for (let n = 0; n < 60; n += 1) await user.set('SHARED_SCOPE', `{"n${n}":${n}}`);
  })();
  for (let round = 1; round < 6; round += 1) {
    for (let n = 0; n < 4; n += 1) see((await client.message(attributes)).json);
    client.cut();
    client = await connectMqttOn(round % 2, { token });
    await subscribed(client, device);
  }
  await writing;
  while (seen.size < 60) see((await client.message(attributes)).json);
  expect([...seen].sort((a, b) => a - b)).toEqual(Array.from({ length: 60 }, (_, n) => n));
  client.cut();

  function see(update: Record<string, number>): void {
    for (const n of Object.values(update)) seen.add(n);
  }
}, 30_000);

test('an update above the Maximum Packet Size of the client comes key by key; what alone is too large is left out', () =>
  withDevice({ properties: { maximumPacketSize: 200 } }, async (client, device) => {
    const user = await subscribed(client, device);
    const [a, b] = ['x'.repeat(100), 'y'.repeat(100)];
    await user.set('SHARED_SCOPE', JSON.stringify({ a, large: 'z'.repeat(300), b }));
    expect((await client.message(attributes)).json).toEqual({ a });
    expect((await client.message(attributes)).json).toEqual({ b });
    await user.set('SHARED_SCOPE', '{"k":1}');
    expect((await client.message(attributes)).text).toBe('{"k":1}');
  }));

test('an update larger than a packet of this server reaches a client that names no maximum', () =>
  withDevice({}, async (client, device) => {
    const user = await subscribed(client, device);
    const body = `{"large":"${'x'.repeat(200_000)}"}`;
    await user.set('SHARED_SCOPE', body);
    expect((await client.message(attributes)).text).toBe(body);
  }));
