/** Packets are found in the stream however it is cut. */
import { describe, expect, test } from 'vitest';
import { levelName, levels } from '../../harness/mqtt-client.ts';
import { storedValues, telemetry, withDevice } from '../../harness/mqtt-device.ts';

for (const level of levels) {
  describe(levelName[level], () => {
    test('a hundred publishes in single bytes are a hundred publishes', () =>
      withDevice({ level }, async (client, device) => {
        const now = Date.now();
        const packets = Array.from({ length: 100 }, (_, n) =>
          client.encode(client.publishPacket(telemetry, `{"ts":${now - n},"values":{"n":${n}}}`)),
        );
        await client.sendInPieces(Buffer.concat(packets));
        for (let id = 1; id <= 100; id += 1) await client.expect('puback', { messageId: id });
        expect(new Set(await storedValues(device, 'n', 100)).size).toBe(100);
      }));

    test('a large packet in thousands of fragments is one packet', () =>
      withDevice({ level }, async (client, device) => {
        const text = 'ä'.repeat(30_000);
        await client.sendInPieces(client.encode(client.publishPacket(telemetry, JSON.stringify({ text }))), 11);
        await client.expect('puback', { messageId: 1 });
        expect(await storedValues(device, 'text')).toEqual([JSON.stringify(text)]);
      }));

    test('packets cut anywhere, two and a half at a time', () =>
      withDevice({ level }, async (client, device) => {
        const now = Date.now();
        const packets = Array.from({ length: 50 }, (_, n) =>
          client.encode(client.publishPacket(telemetry, `{"ts":${now - n},"values":{"cut":${n}}}`)),
        );
        const stream = Buffer.concat(packets);
        await client.sendInPieces(stream, Math.floor(packets[0]!.length * 2.5));
        for (let id = 1; id <= 50; id += 1) await client.expect('puback', { messageId: id });
        expect(await storedValues(device, 'cut', 50)).toHaveLength(50);
      }));
  });
}
