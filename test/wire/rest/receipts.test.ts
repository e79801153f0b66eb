/**
 * Receipts over HTTP and MQTT 5, and the answers of `GET /api/receipt/{receipt}` (docs/rest.md#receipts): while the
 * message waits, and when it is stored, replaced or deleted; to other users; and for invalid receipts.
 */
import { describe, expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { connectMqtt, type MqttClient, withMqtt } from '../../harness/mqtt-client.ts';
import { childName, childNamed, gatewayTopic, withGateway } from '../../harness/mqtt-gateway.ts';
import { newCustomer, newCustomerUser, newTenant, ok } from '../../harness/people.ts';
import { postForReceipt, readReceipt } from '../../harness/receipts.ts';
import { fault } from '../../harness/rest.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';

const api = sharedEngine();
const telemetry = 'v1/devices/me/telemetry';
const name = 'x-millrace-receipt';
const ask = { userProperties: { [name]: 'true' } };

// biome-ignore lint/suspicious/noExplicitAny: an answer of the REST API
type Json = any;

/** Returns the answer once its state is `state`. */
const readAs = (receipt: string, state: string): Promise<Json> =>
  eventually(async () => {
    const answer = await readReceipt(receipt);
    expect(answer.state, JSON.stringify(answer)).toBe(state);
    return answer;
  });
const states = (answer: Json) => answer.namedPoints.map(({ key, state }: Json) => `${key} ${state}`);

async function publishForReceipt(client: MqttClient, topic: string, payload: string, qos: 1 | 2 = 1): Promise<string> {
  const messageId = 77;
  await client.send(client.encode(client.publishPacket(topic, payload, { qos, messageId, properties: ask })));
  const ack = await client.expect(qos === 2 ? 'pubrec' : 'puback', { messageId });
  expect(ack.reasonCode).toBe(0);
  return ack.properties!.userProperties![name] as string;
}

describe('over HTTP', () => {
  test('a message is journaled at once, stored later, and names all values as they were sent', async () => {
    const device = await newDevice();
    const sent = Date.now();
    const values = { flag: true, long: -9007199254740991, double: -0.0, text: 'é\n', json: { a: [1, null] } };
    const body = JSON.stringify({ ts: 1_700_000_000_000, values }).replace('"double":0', '"double":-0.0');
    const receipt = await postForReceipt(device.token, body);
    expect(receipt).toMatch(/^[\w-]{100,1366}$/);
    expect(['journaled', 'stored']).toContain((await readReceipt(receipt!)).state);
    const answer = await readAs(receipt!, 'stored');
    expect(answer).toMatchObject({
      deviceId: { entityType: 'DEVICE', id: device.id },
      acknowledgement: 'journal',
      points: 5,
      devices: 1,
      oldestTs: 1_700_000_000_000,
      newestTs: 1_700_000_000_000,
    });
    expect(states(answer).sort()).toEqual(['double', 'flag', 'json', 'long', 'text'].map((key) => `${key} stored`));
    expect(Math.abs(answer.journaledTime - sent)).toBeLessThan(60_000);
    expect(answer.storedBefore).toBeGreaterThanOrEqual(answer.journaledTime);
  });

  test('points at server time of one millisecond have receipts of their own', async () => {
    const device = await newDevice();
    const receipt = await postForReceipt(device.token, '[{"a":1},{"a":2},{"a":3}]');
    const answer = await readAs(receipt!, 'stored');
    expect(states(answer)).toEqual(['a stored', 'a stored', 'a stored']);
  });

  test('a point that is older than the profile of its device allows has expired', async () => {
    const device = await newDevice();
    const old = Date.now() - 2 * 86_400_000;
    const receipt = await postForReceipt(device.token, JSON.stringify({ ts: old, values: { a: 1 } }));
    await readAs(receipt!, 'stored');
    const profileData = { telemetryTtlDays: 1 };
    const profile = await ok('POST', '/api/deviceProfile', { name: `kept-${device.id}`, profileData });
    const found = await ok('GET', `/api/device/${device.id}`);
    await ok('POST', '/api/device', { ...found, deviceProfileId: profile.id });
    expect((await readReceipt(receipt!)).state).toBe('expired');
  });

  test('a later write of a point replaces it, also one of the same message', async () => {
    const device = await newDevice();
    const first = await postForReceipt(device.token, '{"ts":1000,"values":{"a":1,"b":1}}');
    await readAs(first!, 'stored');
    const second = await postForReceipt(device.token, '[{"ts":1000,"values":{"a":2}},{"ts":1000,"values":{"a":3}}]');
    const later = await readAs(second!, 'replaced');
    expect(states(later)).toEqual(['a replaced', 'a stored']);
    expect(later.namedPoints[0].replacedBy.order).toBe(later.order);
    const answer = await readReceipt(first!);
    expect(answer.state).toBe('replaced');
    expect(states(answer)).toEqual(['a replaced', 'b stored']);
    expect(answer.namedPoints[0].replacedBy.order).toBe(later.order);
    expect(Math.abs(answer.namedPoints[0].replacedBy.receivedTime - later.journaledTime)).toBeLessThan(10_000);
    expect(answer.namedPoints[1].replacedBy).toBeNull();
  });

  test('deleted points say so, and so does the receipt of a deleted device', async () => {
    const device = await newDevice();
    const receipt = (await postForReceipt(device.token, '{"ts":1700000000000,"values":{"a":1,"b":2}}'))!;
    await readAs(receipt, 'stored');
    const range = 'keys=a&startTs=1699999999999&endTs=1700000000001';
    const path = `/api/plugins/telemetry/DEVICE/${device.id}/timeseries/delete?${range}`;
    expect([200, 202]).toContain((await api.send('DELETE', path)).status);
    expect(states(await readAs(receipt, 'deleted'))).toEqual(['a deleted', 'b stored']);
    await ok('DELETE', `/api/device/${device.id}`);
    await eventually(async () => states(await readReceipt(receipt)).join() === 'a deleted,b deleted');
    expect((await readReceipt(receipt)).deviceId.id).toBe(device.id);
  });

  test('no receipt without the header, without a point, or for a refused message; scripts may read the header', async () => {
    const { token } = await newDevice();
    const post = (body: string, headers: Record<string, string>) =>
      fetch(`${api.http}/api/v1/${token}/telemetry`, { method: 'POST', body, headers });
    for (const headers of [{}, { 'X-Millrace-Receipt': 'false' }] as Record<string, string>[]) {
      expect((await post('{"a":1}', headers)).headers.get(name)).toBeNull();
    }
    expect(await postForReceipt(token, '{}')).toBeNull();
    const refused = await post('{"a":', { 'X-Millrace-Receipt': 'true' });
    expect([refused.status, refused.headers.get(name)]).toEqual([400, null]);
    const asked = await post('{"a":1}', { 'X-Millrace-Receipt': 'TRUE', origin: 'https://orchard.example' });
    expect(asked.headers.get(name)).not.toBeNull();
    expect(asked.headers.get('access-control-expose-headers')).toBe('X-Millrace-Receipt');
  });

  test('a large body is named by its first points', async () => {
    const { token } = await newDevice();
    const many = Array.from({ length: 40_000 }, (_, n) => ({ ts: 1_700_000_000_000 + n, values: { many: n + 0.5 } }));
    const receipt = await postForReceipt(token, JSON.stringify(many));
    const answer = await readAs(receipt!, 'stored');
    expect(answer).toMatchObject({ points: 40_000, oldestTs: 1_700_000_000_000, newestTs: 1_700_000_039_999 });
    expect(answer.namedPoints.length).toBeGreaterThan(20);
    expect(answer.namedPoints[3]).toMatchObject({ key: 'many', ts: 1_700_000_000_003, state: 'stored' });
  });
});

describe('over MQTT 5', () => {
  test('PUBACK and PUBREC carry it on request only', async () => {
    const device = await newDevice();
    await withMqtt({ token: device.token }, async (client) => {
      for (const qos of [1, 2] as const) {
        const receipt = await publishForReceipt(client, telemetry, `{"ts":1700000000000,"values":{"q${qos}":1}}`, qos);
        expect(states(await readAs(receipt, 'stored'))).toEqual([`q${qos} stored`]);
      }
      const without = await client.publish(telemetry, '{"a":1}');
      expect(without.properties?.userProperties).toBeUndefined();
      const no = await client.publish(telemetry, '{"a":1}', { properties: { userProperties: { [name]: 'no' } } });
      expect(no.properties?.userProperties).toBeUndefined();
    });
  });

  test('messages of one commit have receipts of their own, in order', async () => {
    const device = await newDevice();
    await withMqtt({ token: device.token }, async (client) => {
      const packet = (messageId: number) =>
        client.publishPacket(telemetry, `{"ts":5000,"values":{"same":${messageId}}}`, { messageId, properties: ask });
      const bytes = [1, 2, 3, 4, 5].map((messageId) => client.encode(packet(messageId)));
      await client.send(Buffer.concat(bytes));
      const receipts: string[] = [];
      for (const messageId of [1, 2, 3, 4, 5]) {
        const ack = await client.expect('puback', { messageId });
        receipts.push(ack.properties!.userProperties![name] as string);
      }
      await readAs(receipts[4]!, 'stored');
      for (const receipt of receipts.slice(0, 4)) expect((await readReceipt(receipt)).state).toBe('replaced');
    });
  });

  test('none for a client that wants no Reason Strings, or whose Maximum Packet Size is smaller', async () => {
    for (const properties of [{ requestProblemInformation: false }, { maximumPacketSize: 100 }]) {
      const client = await connectMqtt({ token: (await newDevice()).token, properties });
      const ack = await client.publish(telemetry, '{"a":1}', { properties: ask });
      expect([ack.reasonCode ?? 0, ack.properties?.userProperties]).toEqual([0, undefined]);
      client.cut();
    }
  });

  test('a gateway has one receipt for all its devices; refused devices are not in it', async () => {
    const [good, bad] = [childName(), childName()];
    const point = (value: unknown) => [{ ts: 1_700_000_000_000, values: { t: value } }];
    await withGateway({}, async (client, gateway) => {
      const whole = await publishForReceipt(client, gatewayTopic.telemetry, JSON.stringify({ [good]: point(1) }));
      const child = await childNamed(good);
      const answer = await readAs(whole, 'stored');
      expect(answer).toMatchObject({ deviceId: { id: gateway.id }, points: 1, devices: 1 });
      expect(answer.namedPoints).toMatchObject([{ deviceId: { id: child.id }, key: 't', state: 'stored' }]);
      const part = JSON.stringify({ [good]: point(2), [bad]: 'no array' });
      await client.send(
        client.encode(client.publishPacket(gatewayTopic.telemetry, part, { messageId: 9, properties: ask })),
      );
      const ack = await client.expect('puback', { messageId: 9 });
      expect(ack.reasonCode).not.toBe(0);
      expect(ack.properties?.reasonString).toContain(bad);
      const rest = await readAs(ack.properties!.userProperties![name] as string, 'stored');
      expect(rest).toMatchObject({ points: 1, devices: 1 });
      expect((await readReceipt(whole)).state).toBe('replaced');
    });
  });
});

describe('who reads a receipt, and which receipts are none', () => {
  test('the tenant and the customer of the device; not another customer, not another tenant', async () => {
    const device = await newDevice();
    const receipt = (await postForReceipt(device.token, '{"ts":1000,"values":{"a":1}}'))!;
    const [own, other] = [await newCustomer(), await newCustomer()];
    await ok('POST', `/api/customer/${own}/device/${device.id}`);
    const owner = await newCustomerUser(own);
    expect((await readReceipt(receipt, api, owner.token)).points).toBe(1);
    const stranger = await newCustomerUser(other);
    expect(await fault('GET', `/api/receipt/${receipt}`, undefined, stranger.token)).toMatch(/^403\/20 /);
    const foreign = await newTenant();
    const answer = await fault('GET', `/api/receipt/${receipt}`, undefined, foreign.admin.token);
    expect(answer).toBe('404/32 Receipt is not found');
    expect(await fault('GET', `/api/receipt/${receipt}`, undefined, '')).toMatch(/^401\/10 /);
  });

  test('a user of a customer sees the points of the own devices only', async () => {
    const [mine, theirs] = [childName(), childName()];
    await withGateway({}, async (client, gateway) => {
      const body = { [mine]: [{ ts: 1000, values: { a: 1 } }], [theirs]: [{ ts: 1000, values: { b: 1 } }] };
      const receipt = await publishForReceipt(client, gatewayTopic.telemetry, JSON.stringify(body));
      const customer = await newCustomer();
      for (const id of [gateway.id, (await childNamed(mine)).id]) {
        await ok('POST', `/api/customer/${customer}/device/${id}`);
      }
      const user = await newCustomerUser(customer);
      await readAs(receipt, 'stored');
      const answer = await readReceipt(receipt, api, user.token);
      expect(states(answer)).toEqual(['a stored']);
      expect(answer).toMatchObject({ points: 2, devices: 2 });
    });
  });

  test('damaged, forged, cut and huge receipts are refused with what to do', async () => {
    const device = await newDevice();
    const receipt = (await postForReceipt(device.token, '{"ts":1000,"values":{"a":1}}'))!;
    const at = receipt.length >> 1;
    const changed = `${receipt.slice(0, at)}${receipt[at] === 'A' ? 'B' : 'A'}${receipt.slice(at + 1)}`;
    expect(await fault('GET', `/api/receipt/${changed}`)).toMatch(/^400\/31 The receipt was changed/);
    for (const wrong of ['x', 'not a receipt', '%00', '%F0%9F%8D%90', 'A'.repeat(12_000), `${receipt}=`, 'AQ']) {
      expect(await fault('GET', `/api/receipt/${encodeURIComponent(wrong)}`)).toMatch(/^400\/31 /);
    }
  });
});
