/** Telemetry of many devices in one message: `v1/gateway/telemetry`. */
import { expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { levels } from '../../harness/mqtt-client.ts';
import { storedKeys, storedPoints, storedValues } from '../../harness/mqtt-device.ts';
import {
  attributesOf,
  childName,
  childNamed,
  findChild,
  gatewayTopic,
  withGateway,
} from '../../harness/mqtt-gateway.ts';
import { ok } from '../../harness/people.ts';
import { aroundNow } from '../../harness/stored.ts';

const { telemetry } = gatewayTopic;
const old = { startTs: 0, endTs: 1000 };

test('one acknowledgement for two devices, of which one is new', async () => {
  await withGateway({}, async (client) => {
    const [a, b] = [childName('A'), childName('B')];
    await client.publish(gatewayTopic.connect, { device: a });
    const ack = await client.publish(telemetry, `{"${a}":[{"ts":1,"values":{"a":1}}],"${b}":[{"b":2}]}`);
    expect(ack.reasonCode).toBe(0);
    expect(await storedPoints(await childNamed(a), 'a', 1, old)).toEqual([{ ts: 1, value: '1' }]);
    expect(await storedValues(await childNamed(b), 'b')).toEqual(['2']);
  });
});

test('values without a ts have the time of the server', async () => {
  await withGateway({}, async (client) => {
    const device = childName();
    const { startTs, endTs } = aroundNow();
    expect((await client.publish(telemetry, { [device]: [{ values: { a: 1 } }] })).reasonCode).toBe(0);
    const child = await childNamed(device);
    const [point] = await storedPoints(child, 'a');
    expect(point!.value).toBe('1');
    expect(point!.ts).toBeGreaterThan(startTs);
    expect(point!.ts).toBeLessThan(endTs);
  });
});

test('an empty array and an empty object are fine; the child is connected', async () => {
  for (const level of levels) {
    await withGateway({ level }, async (client) => {
      const device = childName();
      const acks = [await client.publish(telemetry, { [device]: [] }), await client.publish(telemetry, '{}')];
      if (level === 5) expect(acks.map(({ reasonCode }) => reasonCode)).toEqual([0, 0]);
      expect(await findChild(device)).toMatchObject({ name: device });
      await client.quiet();
    });
  }
});

test('a bad child is refused by name, and the others are stored', async () => {
  await withGateway({}, async (client) => {
    const [a, b, c] = [childName('A'), childName('B'), childName('C')];
    const ack = await client.publish(telemetry, `{"${a}":[5],"${b}":[{"b":1}],"${c}":7}`);
    expect(ack.reasonCode).toBe(0x99);
    expect(ack.properties?.reasonString).toContain(a);
    expect(ack.properties?.reasonString).toContain(c);
    expect(ack.properties?.reasonString).not.toContain(b);
    expect(await storedValues(await childNamed(b), 'b')).toEqual(['1']);
    expect(await findChild(c)).toBeUndefined();
    const known = await client.publish(telemetry, `{"${b}":[{"ts":"x","values":{"b":9}}],"${a}":[{"a":3}]}`);
    expect(known.reasonCode).toBe(0x99);
    expect(await storedValues(await childNamed(a), 'a')).toEqual(['3']);
    expect(await storedKeys(await childNamed(b))).toEqual(['b']);
    await client.quiet();
  });
});

test('a name that no device can have is refused as it was written, and the others are stored', async () => {
  await withGateway({}, async (client) => {
    const good = childName();
    for (const [n, bad] of ['a\\u0000', '\\ud800', `${'long'.repeat(75)}`].entries()) {
      for (const topic of [telemetry, gatewayTopic.attributes]) {
        const value = topic === telemetry ? `[{"n":${n}}]` : `{"n":${n}}`;
        const ack = await client.publish(topic, `{"${bad}":${value},"${good}":${value}}`);
        expect(ack.reasonCode).toBe(0x99);
        expect(ack.properties?.reasonString).toContain(JSON.stringify(bad).slice(0, 12));
      }
    }
    const child = await childNamed(good);
    expect(await storedValues(child, 'n', 3)).toEqual(['0', '1', '2']);
    expect(await attributesOf(child, 'CLIENT_SCOPE')).toEqual({ n: 2 });
  });
});

test('MQTT 3 gets its acknowledgement for what is bad, and the others are stored', async () => {
  await withGateway({ level: 4 }, async (client) => {
    const [a, b] = [childName('A'), childName('B')];
    await client.publish(telemetry, `{"${a}":[5],"${b}":[{"b":1}]}`);
    await client.publish(telemetry, `{"${a}"`);
    expect(await storedValues(await childNamed(b), 'b')).toEqual(['1']);
    await client.quiet();
  });
});

test('metadata is no telemetry, well-formed or not', async () => {
  await withGateway({}, async (client) => {
    const device = childName();
    const metadata = { connector: 'modbus', receivedTs: 1, publishedTs: 2 };
    const records = [
      { ts: 1, values: { a: 1 }, metadata },
      { ts: 2, values: { a: 2 }, metadata: 'none' },
      { values: { b: 1 }, metadata: [1] },
    ];
    expect((await client.publish(telemetry, { [device]: records })).reasonCode).toBe(0);
    const child = await childNamed(device);
    await storedValues(child, 'b');
    expect(await storedKeys(child)).toEqual(['a', 'b']);
  });
});

test('what is no JSON object is refused as a whole, with a reason, and stores nothing', async () => {
  await withGateway({}, async (client) => {
    const device = childName();
    await client.publish(gatewayTopic.connect, { device });
    for (const body of ['', '5', '[]', `{"${device}":[{"a":1}`, `{"${device}":[{"a":1}]},`]) {
      const ack = await client.publish(telemetry, body);
      expect(ack.reasonCode, body).toBe(0x99);
      expect(ack.properties?.reasonString, body).toBeTruthy();
    }
    expect(await storedKeys(await childNamed(device))).toEqual([]);
  });
});

test('of one name that is there twice the last counts', async () => {
  await withGateway({}, async (client) => {
    const device = childName();
    const body = `{"${device}":[{"ts":5,"values":{"a":1}}],"${device}":[{"ts":6,"values":{"a":2}}]}`;
    for (let round = 0; round < 2; round += 1) expect((await client.publish(telemetry, body)).reasonCode).toBe(0);
    expect(await storedPoints(await childNamed(device), 'a', 1, old)).toEqual([{ ts: 6, value: '2' }]);
  });
});

test('messages of one device without a ts keep their order, also after one that waits for a new device', async () => {
  await withGateway({}, async (client) => {
    const device = childName();
    const values = Array.from({ length: 50 }, (_, n) => n);
    const packets = values.map((n) => {
      const body = n % 10 === 0 ? { [childName('new')]: [], [device]: [{ n }] } : { [device]: [{ n }] };
      return client.publishPacket(telemetry, JSON.stringify(body));
    });
    await client.write(...packets);
    for (const { messageId } of packets) await client.expect('puback', { messageId: messageId!, reasonCode: 0 });
    expect(await storedValues(await childNamed(device), 'n', values.length)).toEqual(values.map(String));
  });
});

test('a message of many new devices makes all of them before its acknowledgement', async () => {
  await withGateway({}, async (client) => {
    const prefix = childName();
    const names = Array.from({ length: 1500 }, (_, n) => `${prefix.slice(0, 14)}-${n}`);
    const ack = await client.publish(telemetry, Object.fromEntries(names.map((name) => [name, [{ n: 1 }]])));
    expect(ack.reasonCode).toBe(0);
    const page = await ok('GET', `/api/tenant/devices?pageSize=1&page=0&textSearch=${prefix.slice(0, 14)}-`);
    expect(page.totalElements).toBe(1500);
  });
});

test('QoS 0 is stored as well, and a bad message of QoS 0 is dropped', async () => {
  await withGateway({}, async (client) => {
    const device = childName();
    await client.publishQos0(telemetry, { [device]: [{ a: 1 }] });
    await client.publishQos0(telemetry, '{"');
    await client.publishQos0(telemetry, { [device]: [5] });
    await client.publishQos0(telemetry, { [device]: [{ b: 2 }] });
    await client.quiet();
    await eventually(() => findChild(device));
    expect(await storedValues(await childNamed(device), 'b')).toEqual(['2']);
    expect(await storedValues(await childNamed(device), 'a')).toEqual(['1']);
  });
});
