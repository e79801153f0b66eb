/** Several packets in one segment: all are handled, all answers come in order, none is lost. */
import { describe, expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { levelName, levels, withSocket } from '../../harness/mqtt-client.ts';
import { storedValues, telemetry, withDevice } from '../../harness/mqtt-device.ts';
import {
  attributesOf,
  childName,
  childNamed,
  findChild,
  gatewayTopic,
  newGateway,
} from '../../harness/mqtt-gateway.ts';
import { newDevice } from '../../harness/shared-engine.ts';

for (const level of levels) {
  describe(levelName[level], () => {
    test('CONNECT, SUBSCRIBE and PUBLISH in one segment are answered in this order', async () => {
      const device = await newDevice();
      await withSocket({ level }, async (client) => {
        await client.write(
          client.connectPacket({ token: device.token }),
          client.subscribePacket('v1/devices/me/attributes', 1),
          client.publishPacket(telemetry, '{"a":1}', { messageId: 2 }),
          { cmd: 'pingreq' },
        );
        await client.expect('connack');
        await client.expect('suback', { messageId: 1 });
        // A pong waits for no disk.
        await client.pick('pingresp');
        await client.expect('puback', { messageId: 2 });
        expect(await storedValues(device, 'a')).toEqual(['1']);
      });
    });

    test('CONNECT, PUBLISH and DISCONNECT in one segment, and the end at once: stored', async () => {
      for (const halfClose of [true, false]) {
        const device = await newDevice();
        await withSocket({ level }, async (client) => {
          await client.write(
            client.connectPacket({ token: device.token }),
            client.publishPacket(telemetry, '{"breath":1}', { messageId: 9 }),
            { cmd: 'disconnect' },
          );
          if (halfClose) client.stream.end();
          await client.closed();
          expect(await storedValues(device, 'breath')).toEqual(['1']);
        });
      }
    });

    test('CONNECT and PUBLISH of many clients at once are stored for the client that sent them', async () => {
      const devices = await Promise.all(Array.from({ length: 20 }, () => newDevice()));
      const send = (token: string, n: number) =>
        withSocket({ level }, async (client) => {
          // The PUBLISH waits for the sign-in while bytes of other clients are read.
          await client.write(
            client.connectPacket({ token }),
            client.publishPacket(telemetry, `{"own":${1000 + n}}`, { messageId: 3 }),
          );
          await client.expect('connack');
          await client.expect('puback', { messageId: 3 });
        });
      await Promise.all(devices.map(({ token }, n) => send(token, n)));
      const stored = await Promise.all(devices.map((device) => storedValues(device, 'own')));
      expect(stored).toEqual(devices.map((_, n) => [String(1000 + n)]));
    });

    test('QoS 0 in one segment is stored too', async () => {
      const device = await newDevice();
      await withSocket({ level }, async (client) => {
        await client.write(
          client.connectPacket({ token: device.token }),
          client.publishPacket(telemetry, '{"breath":0}', { qos: 0 }),
          { cmd: 'disconnect' },
        );
        client.stream.end();
        await client.closed();
        expect(await storedValues(device, 'breath')).toEqual(['0']);
      });
    });

    test('packets of a gateway in one segment are stored for its children, new and known, with QoS 0 as well', async () => {
      const gateway = await newGateway();
      const name = childName();
      for (const n of [1, 2]) {
        await withSocket({ level }, async (client) => {
          await client.write(
            client.connectPacket({ token: gateway.token }),
            client.publishPacket(gatewayTopic.telemetry, `{"${name}":[{"breath":${n}}]}`, { qos: 0 }),
            client.publishPacket(gatewayTopic.attributes, `{"${name}":{"breath":${n}}}`, { qos: 0 }),
            { cmd: 'disconnect' },
          );
          client.stream.end();
          await client.closed();
        });
        await eventually(async () => (await findChild(name)) !== undefined);
        const child = await childNamed(name);
        expect(await storedValues(child, 'breath', n)).toHaveLength(n);
        await eventually(async () => (await attributesOf(child, 'CLIENT_SCOPE'))['breath'] === n);
      }
    });

    test('a hundred publishes at once are acknowledged in order', () =>
      withDevice({ level }, async (client, device) => {
        const now = Date.now();
        const packets = Array.from({ length: 100 }, (_, n) =>
          client.publishPacket(telemetry, `{"ts":${now - n},"values":{"n":${n}}}`, { messageId: n + 1 }),
        );
        await client.write(...packets);
        for (let id = 1; id <= 100; id += 1) await client.expect('puback', { messageId: id });
        expect(await storedValues(device, 'n', 100)).toHaveLength(100);
      }));

    test('an order is kept with a refused packet in the middle', () =>
      withDevice({ level }, async (client) => {
        const bodies = ['{"a":1}', '{"a":', '{"b":1}', '[]', 'x', '{"c":1}'];
        await client.write(...bodies.map((body, n) => client.publishPacket(telemetry, body, { messageId: n + 1 })));
        for (const [n] of bodies.entries()) await client.expect('puback', { messageId: n + 1 });
        await client.quiet();
      }));

    test('ten thousand publishes without a pause are all acknowledged, in order', () =>
      withDevice({ level }, async (client, device) => {
        const now = Date.now();
        const count = 10_000;
        const packets = Array.from({ length: count }, (_, n) =>
          client.encode(client.publishPacket(telemetry, `{"ts":${now - n},"values":{"n":${n}}}`, { messageId: n + 1 })),
        );
        // MQTT 5 agrees on a window; from an MQTT 3 client that sends too much the server stops reading.
        const window = client.connack!.properties?.receiveMaximum ?? count;
        for (let id = 1; id <= count; id += 1) {
          if ((id - 1) % window === 0) await client.send(Buffer.concat(packets.slice(id - 1, id - 1 + window)));
          await client.expect('puback', { messageId: id });
        }
        expect(await storedValues(device, 'n', count)).toHaveLength(count);
      }));
  });
}
