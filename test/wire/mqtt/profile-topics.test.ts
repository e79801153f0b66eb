/**
 * Topics that a device profile adds (docs/mqtt.md#telemetry-and-attributes): they are served beside the usual ones,
 * to its devices only.
 */
import { randomUUID } from 'node:crypto';
import { beforeAll, expect, test } from 'vitest';
import type { Device } from '../../harness/api.ts';
import { DeviceUser } from '../../harness/device-user.ts';
import { hex, withMqtt } from '../../harness/mqtt-client.ts';
import { storedValues } from '../../harness/mqtt-device.ts';
import { saveDevice } from '../../harness/ota.ts';
import { ok } from '../../harness/people.ts';
import { newDevice } from '../../harness/shared-engine.ts';

async function newProfile(topics: object): Promise<object> {
  const profileData = { transportConfiguration: { type: 'MQTT', ...topics } };
  const profile = { name: `profile-${randomUUID()}`, type: 'DEFAULT', transportType: 'MQTT', profileData };
  return (await ok('POST', '/api/deviceProfile', profile)).id;
}

async function deviceOf(deviceProfileId: object): Promise<Device> {
  const device = await newDevice();
  await saveDevice(device.id, { deviceProfileId });
  return device;
}

let plant: object;

beforeAll(async () => {
  plant = await newProfile({
    deviceTelemetryTopic: 'plant/+/data/#',
    deviceAttributesTopic: 'plant/facts',
    deviceAttributesSubscribeTopic: 'plant/+/news',
  });
});

test('telemetry and attributes are taken on topics that match, and on the usual ones', async () => {
  const device = await deviceOf(plant);
  await withMqtt(device, async (client) => {
    const f = async (topic: string, body: string) => hex((await client.publish(topic, body)).reasonCode);
    expect(await f('plant/7/data/now', '{"t":1}')).toBe('0x00');
    expect(await f('plant/7/data', '{"u":2}')).toBe('0x00');
    expect(await f('v1/devices/me/telemetry', '{"v":3}')).toBe('0x00');
    expect(await f('plant/facts', '{"a":1}')).toBe('0x00');
    expect(await f('v2/a', '{"b":2}')).toBe('0x00');
    expect(await f('plant/facts', '{"a":')).toBe('0x99');
    expect(await f('plant/7/8', '{"w":4}')).toBe('0x90');
    expect(await f('plant/7/news', '{"w":4}')).toBe('0x90');
  });
  for (const [key, value] of Object.entries({ t: '1', u: '2', v: '3' })) {
    expect(await storedValues(device, key)).toEqual([value]);
  }
  expect(await new DeviceUser(device).values('CLIENT_SCOPE')).toBe('[{"key":"a","value":1},{"key":"b","value":2}]');
});

test.each([
  ['plant/7/news', 'plant/7/news'],
  ['plant/+/news', 'plant/me/news'],
])('shared attributes are sent to a subscription of %s on %s', async (filter, topic) => {
  const device = await deviceOf(plant);
  const user = new DeviceUser(device);
  await withMqtt(device, async (client) => {
    expect(await client.subscribe(filter)).toEqual([1]);
    await user.set('SHARED_SCOPE', '{"k":1}');
    expect((await client.message(topic)).text).toBe('{"k":1}');
    expect(await client.subscribe('v1/devices/me/attributes')).toEqual([1]);
    await user.set('SHARED_SCOPE', '{"k":2}');
    expect((await client.message('v1/devices/me/attributes')).text).toBe('{"k":2}');
    await client.quiet();
  });
});

test('a filter whose topic would be too long for a PUBLISH is refused, and no worker ends', async () => {
  const device = await deviceOf(await newProfile({ deviceAttributesSubscribeTopic: 'x/#' }));
  const user = new DeviceUser(device);
  await withMqtt(device, async (client) => {
    const long = `x/+/${'y'.repeat(65_500)}`;
    // The filter of 65 522 bytes would become a topic of 65 542 bytes, because each `+` becomes `me`.
    expect(await client.subscribe(`x${'/+'.repeat(20)}/${'y'.repeat(65_480)}`)).toEqual([0x8f]);
    expect(await client.subscribe(`x${'/+'.repeat(32_750)}`)).toEqual([0x8f]);
    expect(await client.subscribe(long)).toEqual([1]);
    await user.set('SHARED_SCOPE', '{"k":1}');
    expect((await client.message(long.replace('+', 'me'))).text).toBe('{"k":1}');
  });
});

test('a device of another profile has none of them', async () => {
  const device = await newDevice();
  await withMqtt(device, async (client) => {
    expect(hex((await client.publish('plant/7/data', '{"t":1}')).reasonCode)).toBe('0x90');
    expect(await client.subscribe('plant/7/news')).toEqual([0x8f]);
  });
});
