/** SUBSCRIBE and UNSUBSCRIBE: which filters are granted, codes in order (docs/mqtt.md#which-filters-are-granted). */
import { describe, expect, test } from 'vitest';
import { frame, packetType, properties, string, uint16 } from '../../harness/mqtt-bytes.ts';
import { type Level, levelName, levels, type MqttClient } from '../../harness/mqtt-client.ts';
import { withDevice } from '../../harness/mqtt-device.ts';

/** Filters that can match a topic of the server. */
const granted = [
  'v1/devices/me/attributes',
  'v2/a',
  'v2/a/j',
  'v1/devices/me/rpc/request/+',
  'v2/r/req/+',
  'v2/r/req/j/+',
  'v1/devices/me/attributes/response/+',
  'v2/a/res/+',
  'v2/a/res/j/+',
  'v1/devices/me/rpc/response/+',
  'v2/r/res/+',
  'v2/r/res/j/+',
  'v2/fw/response/+/chunk/+',
  'v2/sw/response/+/chunk/+',
  'v2/fw/error',
  'v2/sw/error',
  'v1/gateway/attributes',
  'v1/gateway/rpc',
  'v1/gateway/attributes/response',
  'v2/fw/response/+',
  'v2/fw/response/7/chunk/+',
  'v1/devices/me/attributes/response/7',
  'v1/devices/me/#',
];

/** Filters that match no topic of the server, that the server does not offer, or that are invalid. */
const refused = [
  'foo/bar',
  '$SYS/#',
  '$share/group/v1/devices/me/attributes',
  'v1/gateway/connect',
  'v1/devices/me/telemetry',
  'v1/devices/you/attributes',
  'v1/devices/me/attributes/#/x',
  'v1/devices/me/rpc/request/a+',
  'v1/devices/me#',
  '/v1/devices/me/attributes',
  'v1/devices/me/attributes/',
  'V1/devices/me/attributes',
  '/provision/response',
];

const no = (level: Level) => (level === 5 ? 0x8f : 0x80);

/** Subscribes to the filters as they are given. An object of filters could hold none that occurs twice. */
async function subscribeRaw(client: MqttClient, filters: [string, number][]): Promise<number[]> {
  const messageId = client.nextId();
  await client.send(
    frame(
      packetType.subscribe,
      2,
      uint16(messageId),
      ...(client.level === 5 ? [properties()] : []),
      ...filters.flatMap(([filter, options]) => [string(filter), options]),
    ),
  );
  return (await client.expect('suback', { messageId })).granted as number[];
}

for (const level of levels) {
  describe(levelName[level], () => {
    test('QoS 2 is granted as 1, 1 as 1, 0 as 0', () =>
      withDevice({ level }, async (client) => {
        const filter = 'v1/devices/me/attributes';
        for (const [asked, given] of [
          [2, 1],
          [1, 1],
          [0, 0],
        ] as const) {
          expect(await client.subscribe({ [filter]: asked })).toEqual([given]);
        }
      }));

    test('codes come in the order of the filters, and the connection stays', () =>
      withDevice({ level }, async (client) => {
        expect(await client.subscribe({ 'v1/devices/me/rpc/request/+': 1, 'foo/bar': 1 })).toEqual([1, no(level)]);
        expect(await client.subscribe({ foo: 0, 'v2/a': 0, bar: 2, 'v2/fw/error': 2 })).toEqual([
          no(level),
          0,
          no(level),
          1,
        ]);
        await client.quiet();
      }));

    test('what can match a topic of the server is granted', () =>
      withDevice({ level }, async (client) => {
        const codes = await client.subscribe(Object.fromEntries(granted.map((filter) => [filter, 1 as const])));
        const not = granted.filter((_, n) => codes[n] !== 1);
        expect(not).toEqual([]);
      }));

    test('what cannot is refused, one by one', () =>
      withDevice({ level }, async (client) => {
        const codes = await client.subscribe(Object.fromEntries(refused.map((filter) => [filter, 1 as const])));
        expect(codes).toEqual(refused.map(() => no(level)));
        await client.quiet();
      }));

    test('the same filter twice in one packet gets two codes', () =>
      withDevice({ level }, async (client) => {
        expect(
          await subscribeRaw(client, [
            ['v2/a', 0],
            ['v2/a', 1],
            ['v2/a', 2],
          ]),
        ).toEqual([0, 1, 1]);
      }));

    test('a thousand filters in one packet get a thousand codes or the end', () =>
      withDevice({ level }, async (client) => {
        const filters = Array.from({ length: 1_000 }, (_, n): [string, number] => [`no/such/topic/${n}`, 1]);
        const codes = await subscribeRaw(client, filters).catch(() => undefined);
        if (codes) expect(codes).toEqual(filters.map(() => no(level)));
        else await client.closed();
      }));

    test('UNSUBSCRIBE is answered, whether there was anything or not', () =>
      withDevice({ level }, async (client) => {
        await client.subscribe('v1/devices/me/attributes');
        const codes = await client.unsubscribe('v1/devices/me/attributes', 'v2/a', 'v1/devices/me/attributes');
        expect(codes).toEqual(level === 5 ? [0, 0x11, 0x11] : []);
        await client.quiet();
      }));
  });
}

test('MQTT 5: the answer to a refused filter says what is wrong with it', () =>
  withDevice({}, async (client) => {
    const filters: [string, number][] = [
      ['v1/devices/me/attributes', 1],
      ['v1/device/me/attributes', 1],
    ];
    const messageId = client.nextId();
    await client.send(
      frame(packetType.subscribe, 2, uint16(messageId), properties(), ...filters.flatMap(([f, o]) => [string(f), o])),
    );
    expect(await client.expect('suback', { messageId })).toMatchObject({
      granted: [1, 0x8f],
      properties: {
        reasonString:
          'The filter "v1/device/me/attributes" matches no topic on which this session is sent anything; check its spelling.',
      },
    });
  }));

test('MQTT 5: an unknown filter gets another code than one that was not subscribed', () =>
  withDevice({}, async (client) => {
    const [code] = await client.unsubscribe('foo/bar');
    expect([0x11, 0x8f]).toContain(code);
  }));

test('MQTT 5: subscribe options that have no effect here are accepted', () =>
  withDevice({}, async (client) => {
    // These are the options no local, retain as published and retain handling 2.
    expect(await subscribeRaw(client, [['v2/a', 0x2d]])).toEqual([1]);
  }));

test('MQTT 5: a subscription identifier is refused, they are not available', () =>
  withDevice({}, async (client) => {
    await client.send(frame(packetType.subscribe, 2, uint16(1), properties(0x0b, 5), string('v2/a'), 1));
    await client.closedFor([0xa1, 0x82]);
  }));
