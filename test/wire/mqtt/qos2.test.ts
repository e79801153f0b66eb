/** QoS 2 inbound: PUBREC, PUBREL, PUBCOMP; stored once, however often it is sent ([MQTT-4.3.3-2]). */
import { describe, expect, test } from 'vitest';
import { levelName, levels } from '../../harness/mqtt-client.ts';
import { storedKeys, storedValues, telemetry, withDevice } from '../../harness/mqtt-device.ts';

for (const level of levels) {
  const code = (five: number) => (level === 5 ? five : undefined);

  describe(levelName[level], () => {
    test('the whole handshake stores once', () =>
      withDevice({ level }, async (client, device) => {
        await client.write(client.publishPacket(telemetry, '{"q":2}', { qos: 2, messageId: 7 }));
        await client.expect('pubrec', { messageId: 7 });
        await client.write({ cmd: 'pubrel', messageId: 7 });
        await client.expect('pubcomp', { messageId: 7 });
        await client.quiet();
        expect(await storedValues(device, 'q')).toEqual(['2']);
      }));

    test('a repeated PUBLISH before PUBREL is answered again and stored once', () =>
      withDevice({ level }, async (client, device) => {
        for (const dup of [false, true, true]) {
          await client.write(client.publishPacket(telemetry, '{"q":"once"}', { qos: 2, messageId: 8, dup }));
          await client.expect('pubrec', { messageId: 8 });
        }
        await client.write({ cmd: 'pubrel', messageId: 8 });
        await client.expect('pubcomp', { messageId: 8 });
        expect(await storedValues(device, 'q')).toEqual(['"once"']);
        await client.publish(telemetry, '{"behind":1}');
        await storedValues(device, 'behind');
        expect(await storedValues(device, 'q')).toHaveLength(1);
      }));

    test('a repeated PUBLISH that comes before PUBREC is stored once, too', () =>
      withDevice({ level }, async (client, device) => {
        const packets = [false, true, true].map((dup) =>
          client.publishPacket(telemetry, '{"q":"once"}', { qos: 2, messageId: 8, dup }),
        );
        await client.write(...packets);
        await client.expect('pubrec', { messageId: 8 });
        await client.write({ cmd: 'pubrel', messageId: 8 });
        await client.expect('pubcomp', { messageId: 8 });
        await client.quiet();
        await client.publish(telemetry, '{"behind":1}');
        await storedValues(device, 'behind');
        expect(await storedValues(device, 'q')).toHaveLength(1);
      }));

    test('an id is free again after PUBCOMP', () =>
      withDevice({ level }, async (client, device) => {
        await client.publishQos2(telemetry, `{"ts":${Date.now() - 5},"values":{"q":1}}`, 9);
        await client.publishQos2(telemetry, '{"q":2}', 9);
        expect(await storedValues(device, 'q', 2)).toEqual(['1', '2']);
      }));

    test('PUBREL of an unused id is completed', () =>
      withDevice({ level }, async (client) => {
        await client.write({ cmd: 'pubrel', messageId: 99 });
        const { reasonCode } = await client.expect('pubcomp', { messageId: 99 });
        expect(reasonCode).toBe(code(0x92));
        await client.quiet();
      }));

    test('what is refused ends at PUBREC in MQTT 5, and completes in MQTT 3; its id is free', () =>
      withDevice({ level }, async (client, device) => {
        const { reasonCode } = await client.publishQos2(telemetry, '{"q":', 10);
        expect(reasonCode).toBe(code(0x99));
        await client.publishQos2(telemetry, '{"good":1}', 10);
        expect(await storedValues(device, 'good')).toEqual(['1']);
        expect(await storedKeys(device)).toEqual(['good']);
      }));

    test('QoS 0, 1 and 2 in one segment are answered in order', () =>
      withDevice({ level }, async (client) => {
        await client.write(
          client.publishPacket(telemetry, '{"a":1}', { qos: 2, messageId: 1 }),
          client.publishPacket(telemetry, '{"a":1}', { qos: 0 }),
          client.publishPacket(telemetry, '{"a":1}', { qos: 1, messageId: 2 }),
          client.publishPacket(telemetry, '{"a":1}', { qos: 2, messageId: 3 }),
        );
        await client.expect('pubrec', { messageId: 1 });
        await client.expect('puback', { messageId: 2 });
        await client.expect('pubrec', { messageId: 3 });
        await client.write({ cmd: 'pubrel', messageId: 1 }, { cmd: 'pubrel', messageId: 3 });
        await client.expect('pubcomp', { messageId: 1 });
        await client.expect('pubcomp', { messageId: 3 });
      }));
  });
}

test('MQTT 5: more unfinished QoS 2 messages than the Receive Maximum end the connection with 0x93', () =>
  withDevice({}, async (client) => {
    const most = client.connack!.properties!.receiveMaximum ?? 65_535;
    const packets = Array.from({ length: most + 1 }, (_, n) =>
      client.encode(client.publishPacket(telemetry, '{}', { qos: 2, messageId: n + 1 })),
    );
    await client.send(Buffer.concat(packets));
    await client.closed();
    expect(client.received.at(-1)).toMatchObject({ cmd: 'disconnect', reasonCode: 0x93 });
  }));

test('MQTT 3: a client that never sends PUBREL is disconnected after 10 000 messages', () =>
  withDevice({ level: 4 }, async (client) => {
    const most = 10_000;
    const batch = 100;
    const packetOf = (messageId: number) => client.encode(client.publishPacket(telemetry, '{}', { qos: 2, messageId }));
    for (let sent = 0; sent < most; sent += batch) {
      await client.send(Buffer.concat(Array.from({ length: batch }, (_, n) => packetOf(sent + n + 1))));
      for (let n = 1; n <= batch; n += 1) await client.expect('pubrec', { messageId: sent + n });
    }
    await client.write({ cmd: 'pubrel', messageId: 1 });
    await client.expect('pubcomp', { messageId: 1 });
    await client.send(packetOf(1));
    await client.expect('pubrec', { messageId: 1 });
    await client.send(packetOf(most + 1));
    await client.closed();
  }));
