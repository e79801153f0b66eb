/** The first packet of a connection must be CONNECT, and must be whole, small and in time (docs/mqtt.md#connect). */
import { describe, expect, test } from 'vitest';
import { connectBytes, lyingFrame, packetType, publishBytes, string, uint16 } from '../../harness/mqtt-bytes.ts';
import { levelName, levels, withSocket } from '../../harness/mqtt-client.ts';
import { telemetry } from '../../harness/mqtt-device.ts';
import { newDevice } from '../../harness/shared-engine.ts';

for (const level of levels) {
  describe(levelName[level], () => {
    test('any other first packet ends the connection without a word', async () => {
      for (const bytes of [
        publishBytes({ topic: telemetry, payload: '{"a":1}' }),
        publishBytes({ topic: telemetry, payload: '{"a":1}', qos: 1, messageId: 1 }),
        Buffer.from([0xc0, 0]),
        Buffer.from([0xe0, 0]),
        Buffer.from([0x82, 6, 0, 1, 0, 1, 0x61, 0]),
        Buffer.from([0x20, 2, 0, 0]),
        Buffer.from([0xf0, 0]),
        Buffer.from([0x00, 0]),
      ]) {
        await withSocket({ level }, async (client) => {
          await client.send(bytes);
          await client.closed();
          expect(client.received).toEqual([]);
        });
      }
    });
  });
}

test('a CONNECT that announces more than 4 kB ends the connection at its header', async () => {
  for (const length of [4_200, 65_000, 268_435_455]) {
    await withSocket({ level: 4 }, async (client) => {
      await client.send(lyingFrame(packetType.connect, 0, length, string('MQTT'), 4));
      await client.closed();
    });
  }
});

test('HTTP and TLS spoken to the MQTT port end at once', async () => {
  for (const bytes of [
    Buffer.from(`GET / HTTP/1.1\r\nHost: localhost:1883\r\nUser-Agent: ${'curl/7.88.1'.repeat(4)}\r\n\r\n`),
    Buffer.from([0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc]),
  ]) {
    await withSocket({ level: 4 }, async (client) => {
      await client.send(bytes);
      await client.closed(2_000);
      expect(client.received).toEqual([]);
    });
  }
});

test('a CONNECT in single bytes is a CONNECT', async () => {
  const { token } = await newDevice();
  for (const level of levels) {
    await withSocket({ level }, async (client) => {
      await client.sendInPieces(connectBytes({ level, clientId: 'c', username: token }));
      await client.expect('connack');
      await client.quiet();
    });
  }
});

test('a remaining length of five bytes ends the connection', () =>
  withSocket({ level: 4 }, async (client) => {
    await client.send(Buffer.from([0x10, 0xff, 0xff, 0xff, 0xff, 0x01]), uint16(0));
    await client.closed();
  }));
