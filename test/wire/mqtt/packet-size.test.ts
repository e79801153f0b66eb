/**
 * Packets of 65 536 bytes are accepted; the header of a packet with one byte more ends the connection
 * (docs/mqtt.md#limits).
 */
import { describe, expect, test } from 'vitest';
import { lyingFrame, packetType, properties, publishBytes, string } from '../../harness/mqtt-bytes.ts';
import { levelName, levels } from '../../harness/mqtt-client.ts';
import { storedKeys, storedValues, telemetry, withDevice } from '../../harness/mqtt-device.ts';

const packetBytesMax = 65_536;

/** Returns a PUBLISH of exactly `bytes` bytes. */
function publishOf(bytes: number, level: number): Buffer {
  const make = (fill: number) =>
    publishBytes({
      topic: telemetry,
      payload: `{"size":${bytes},"fill":"${'x'.repeat(fill)}"}`,
      qos: 1,
      messageId: 1,
      ...(level === 5 && { properties: properties() }),
    });
  const packet = make(bytes - make(0).length - 2);
  expect(packet.length).toBe(bytes);
  return packet;
}

for (const level of levels) {
  describe(levelName[level], () => {
    test('the largest packet is stored', () =>
      withDevice({ level }, async (client, device) => {
        await client.send(publishOf(packetBytesMax, level));
        await client.expect('puback', { messageId: 1 });
        expect(await storedValues(device, 'size')).toEqual([String(packetBytesMax)]);
      }));

    test('one byte more is refused with 0x95', () =>
      withDevice({ level }, async (client, device) => {
        await client.send(publishOf(packetBytesMax + 1, level));
        await client.closedFor(0x95);
        expect(await storedKeys(device)).toEqual([]);
      }));

    test('268 435 455 announced bytes are refused at the header', () =>
      withDevice({ level }, async (client) => {
        await client.send(lyingFrame(packetType.publish, 0, 268_435_455));
        await client.closedFor(0x95);
      }));

    test('and no less when the header drips', () =>
      withDevice({ level }, async (client) => {
        await client.sendInPieces(lyingFrame(packetType.publish, 0, 268_435_455, string(telemetry)));
        await client.closedFor(0x95);
      }));
  });
}
