/**
 * Telemetry over MQTT: what is stored, what is refused and how (docs/mqtt.md#telemetry-and-attributes,
 * docs/mqtt.md#refusals).
 */
import { describe, expect, test } from 'vitest';
import { levelName, levels } from '../../harness/mqtt-client.ts';
import { storedKeys, storedPoints, storedValues, telemetry, withDevice } from '../../harness/mqtt-device.ts';
import { at, clockErrorMs } from '../../harness/stored.ts';

for (const level of levels) {
  const isFive = level === 5;
  /** MQTT 3 has no codes: a plain PUBACK. */
  const code = (five: number) => (isFive ? five : undefined);

  describe(levelName[level], () => {
    test('an object is stored at the time of its arrival', () =>
      withDevice({ level }, async (client, device) => {
        const before = Date.now();
        expect((await client.publish(telemetry, '{"t":1}')).reasonCode).toBe(code(0));
        const after = Date.now();
        const [point] = await storedPoints(device, 't');
        expect(point!.value).toBe('1');
        expect(point!.ts).toBeGreaterThanOrEqual(before - clockErrorMs);
        expect(point!.ts).toBeLessThanOrEqual(after + clockErrorMs);
      }));

    test('an array of both forms is stored', () =>
      withDevice({ level }, async (client, device) => {
        const ack = await client.publish(telemetry, '[{"ts":1,"values":{"a":1}},{"b":2}]');
        expect(ack.reasonCode).toBe(code(0));
        expect((await storedPoints(device, 'a', 1, at(1)))[0]).toEqual({ ts: 1, value: '1' });
        expect(await storedValues(device, 'b')).toEqual(['2']);
      }));

    test('the short topics are the same', () =>
      withDevice({ level }, async (client, device) => {
        expect((await client.publish('v2/t', '{"short":1}')).reasonCode).toBe(code(0));
        expect((await client.publish('v2/t/j', '{"json":2.5}')).reasonCode).toBe(code(0));
        expect(await storedValues(device, 'short')).toEqual(['1']);
        expect(await storedValues(device, 'json')).toEqual(['2.5']);
      }));

    test('nothing to store is acknowledged', () =>
      withDevice({ level }, async (client, device) => {
        expect((await client.publish(telemetry, '{}')).reasonCode).toBe(code(0));
        expect((await client.publish(telemetry, '[]')).reasonCode).toBe(code(0));
        expect(await storedKeys(device)).toEqual([]);
      }));

    test('what cannot be read is refused with 0x99, MQTT 3 gets a plain PUBACK; it stays', () =>
      withDevice({ level }, async (client, device) => {
        for (const body of [
          '{"a":',
          '',
          ' ',
          'null',
          '5',
          '"text"',
          '[5]',
          '{"ts":"x","values":{"a":1}}',
          '{"ts":null,"values":{"a":1}}',
          '{"a":1} trailing',
          Buffer.from([0x7b, 0x22, 0xff, 0x22, 0x3a, 0x31, 0x7d]),
          Buffer.from([0x0a, 0x03, 0x61, 0x62, 0x63]),
        ]) {
          const ack = await client.publish(telemetry, body);
          expect(`${String(body)}: ${ack.reasonCode}`).toBe(`${String(body)}: ${code(0x99)}`);
          if (isFive) expect(ack.properties?.reasonString).toMatch(/\w/);
        }
        await client.quiet();
        expect(await storedKeys(device)).toEqual([]);
      }));

    test('at QoS 0 it is dropped, and the connection stays', () =>
      withDevice({ level }, async (client, device) => {
        for (const body of ['{"a":', '', 'x', '{"ts":"x","values":{"a":1}}']) {
          await client.publishQos0(telemetry, body);
        }
        await client.quiet();
        await client.publishQos0(telemetry, '{"good":1}');
        expect(await storedValues(device, 'good')).toEqual(['1']);
        expect(await storedKeys(device)).toEqual(['good']);
      }));

    test('an unknown topic is refused with 0x90, MQTT 3 gets a plain PUBACK; it stays', () =>
      withDevice({ level }, async (client, device) => {
        for (const topic of [
          'foo',
          'v1/devices/me/nothing',
          'v1/devices/me/telemetry/',
          '/v1/devices/me/telemetry',
          'v1/devices/me',
          'v2/x',
          'v1/devices/you/telemetry',
        ]) {
          expect(`${topic} ${(await client.publish(topic, '{"a":1}')).reasonCode}`).toBe(`${topic} ${code(0x90)}`);
          await client.publishQos0(topic, '{"a":1}');
        }
        await client.quiet();
        expect(await storedKeys(device)).toEqual([]);
      }));

    test('a gateway topic is not for a device that is no gateway: 0x87', () =>
      withDevice({ level }, async (client) => {
        for (const topic of ['v1/gateway/telemetry', 'v1/gateway/connect', 'v1/gateway/attributes']) {
          expect((await client.publish(topic, '{"device":"A"}')).reasonCode).toBe(code(0x87));
        }
        await client.quiet();
      }));

    test('Protobuf topics are refused: 0x99', () =>
      withDevice({ level }, async (client) => {
        expect((await client.publish('v2/t/p', '{"a":1}')).reasonCode).toBe(code(0x99));
        await client.quiet();
      }));
  });
}

test('the reason of a refusal is left out when the client wants no problem information', () =>
  withDevice({ properties: { requestProblemInformation: false } }, async (client) => {
    const ack = await client.publish(telemetry, '{"a":');
    expect(ack.reasonCode).toBe(0x99);
    expect(ack.properties?.reasonString).toBeUndefined();
  }));

test('the reason of a refusal is left out when it would exceed the largest packet of the client', () =>
  withDevice({ properties: { maximumPacketSize: 20 } }, async (client) => {
    const ack = await client.publish(telemetry, '{"a":');
    expect(ack.reasonCode).toBe(0x99);
    expect(ack.properties?.reasonString).toBeUndefined();
  }));
