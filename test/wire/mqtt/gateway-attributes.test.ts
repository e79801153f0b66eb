/** Attributes of a gateway's devices: saved, requested, and sent. */
import { expect, test } from 'vitest';
import type { Device } from '../../harness/api.ts';
import { connectMqtt, type MqttClient } from '../../harness/mqtt-client.ts';
import {
  attributesOf,
  childName,
  childNamed,
  deleteShared,
  findChild,
  gatewayTopic,
  setShared,
  withGateway,
} from '../../harness/mqtt-gateway.ts';

const { attributes, connect, request, response } = gatewayTopic;

/** A child with the client attributes k=1 and both=c, and the shared ones s="x", t=2.0 and both=s. */
async function withChild(use: (client: MqttClient, device: string, child: Device) => Promise<void>): Promise<void> {
  await withGateway({}, async (client) => {
    const device = childName();
    await client.publish(attributes, `{"${device}":{"k":1,"both":"c"}}`);
    const child = await childNamed(device);
    await setShared(child, { s: 'x', t: 2.5, both: 's' });
    await use(client, device, child);
  });
}

async function asked(client: MqttClient, body: object | string): Promise<string> {
  expect((await client.publish(request, body)).reasonCode, JSON.stringify(body)).toBe(0);
  const { text } = await client.message(response);
  return text;
}

test('attributes of several devices are their client attributes', async () => {
  await withGateway({}, async (client) => {
    const [a, b] = [childName('A'), childName('B')];
    expect((await client.publish(attributes, `{"${a}":{"k":1,"o":{"x":[1]}},"${b}":{}}`)).reasonCode).toBe(0);
    expect(await attributesOf(await childNamed(a), 'CLIENT_SCOPE')).toEqual({ k: 1, o: { x: [1] } });
    expect(await attributesOf(await childNamed(b), 'CLIENT_SCOPE')).toEqual({});
  });
});

test('a large message is saved for its devices, in order with its neighbours, and its bad children are named', async () => {
  await withGateway({}, async (client) => {
    const names = Array.from({ length: 40 }, (_, i) => childName(`L${i}`));
    const values = Array.from({ length: 400 }, (_, i) => `"k${i}":${i}.50`).join(',');
    const nested = `{${values}}`;
    const large = names.map((name, i) => (i === 39 ? `"${name}":[]` : `"${name}":{${values},"o":${nested},"n":2}`));
    const answers = await Promise.all([
      client.publish(attributes, `{"${names[0]}":{"n":1,"before":true}}`),
      client.publish(attributes, `{${large.join(',')}}`),
      client.publish(attributes, `{"${names[0]}":{"n":3,"after":true}}`),
    ]);
    expect(answers.map(({ reasonCode }) => reasonCode)).toEqual([0, 0x99, 0]);
    expect(answers[1]!.properties?.reasonString).toContain(names[39]);
    const first = await attributesOf(await childNamed(names[0]!), 'CLIENT_SCOPE');
    expect(first).toEqual({ before: true, ...JSON.parse(nested), o: JSON.parse(nested), n: 3, after: true });
    const last = await attributesOf(await childNamed(names[38]!), 'CLIENT_SCOPE');
    expect(last).toEqual({ ...JSON.parse(nested), o: JSON.parse(nested), n: 2 });
  });
});

test('a bad child of an attribute message is refused by name, and the others are saved', async () => {
  await withGateway({}, async (client) => {
    const [a, b, c] = [childName('A'), childName('B'), childName('C')];
    const ack = await client.publish(attributes, `{"${a}":5,"${b}":{"k":1},"${c}":{"":1}}`);
    expect(ack.reasonCode).toBe(0x99);
    expect(ack.properties?.reasonString).toContain(a);
    expect(ack.properties?.reasonString).toContain(c);
    expect(await attributesOf(await childNamed(b), 'CLIENT_SCOPE')).toEqual({ k: 1 });
    expect(await findChild(a)).toBeUndefined();
    expect((await client.publish(attributes, '{"x":')).reasonCode).toBe(0x99);
    expect((await client.publish(attributes, '{}')).reasonCode).toBe(0);
  });
});

test('one key of one scope is `value`, several are `values`, nothing is neither', async () => {
  await withChild(async (client, device) => {
    const ask = (rest: object) => asked(client, { id: 1, device, ...rest });
    const start = `{"id":1,"device":"${device}"`;
    expect(await ask({ client: true, key: 'k' })).toBe(`${start},"value":1}`);
    expect(await ask({ client: true, keys: ['k', 'z'] })).toBe(`${start},"values":{"k":1}}`);
    expect(await ask({ client: true, key: 'z' })).toBe(`${start}}`);
    expect(await ask({ client: true, keys: ['y', 'z'] })).toBe(`${start}}`);
    expect(await ask({ client: false, key: 's' })).toBe(`${start},"value":"x"}`);
    expect(await ask({ client: false, keys: ['t'] })).toBe(`${start},"value":2.5}`);
    expect(await ask({ client: false, key: 'k' })).toBe(`${start}}`);
    // `key` has priority over `keys`.
    expect(await ask({ client: false, key: 's', keys: ['t'] })).toBe(`${start},"value":"x"}`);
  });
});

test('no keys is all of the scope that was asked for', async () => {
  await withChild(async (client, device) => {
    const all = async (of: boolean) => JSON.parse(await asked(client, { id: 2, device, client: of, keys: [] })).values;
    expect(await all(false)).toEqual({ s: 'x', t: 2.5, both: 's' });
    expect(await all(true)).toEqual({ k: 1, both: 'c' });
  });
});

test('lists for the scopes: both, one of them, or neither, which is everything', async () => {
  await withChild(async (client, device) => {
    const ask = async (rest: object) => JSON.parse(await asked(client, { id: 3, device, ...rest }));
    const start = { id: 3, device };
    expect(await ask({ client: ['k'], shared: ['s', 'z'] })).toEqual({
      ...start,
      client: { k: 1 },
      shared: { s: 'x' },
      values: { k: 1, s: 'x' },
    });
    expect(await ask({ client: ['k', 's'] })).toEqual({ ...start, client: { k: 1 }, values: { k: 1 } });
    expect(await ask({ shared: ['both', 'k'] })).toEqual({ ...start, shared: { both: 's' }, values: { both: 's' } });
    expect(await ask({ client: ['none'] })).toEqual(start);
    expect(await ask({})).toEqual({
      ...start,
      client: { k: 1, both: 'c' },
      shared: { s: 'x', t: 2.5, both: 's' },
      values: { k: 1, s: 'x', t: 2.5, both: 's' },
    });
  });
});

test('a request makes the child that is missing; one that cannot be read is refused', async () => {
  await withGateway({}, async (client) => {
    const device = childName();
    expect(await asked(client, { id: 4, device, client: true, key: 'k' })).toBe(`{"id":4,"device":"${device}"}`);
    expect(await findChild(device)).toMatchObject({ name: device });
    const bad = [
      { device, client: true, key: 'k' },
      { id: 'x', device, client: true, key: 'k' },
      { id: 1, client: true, key: 'k' },
      { id: 1, device, client: true },
      { id: 1, device, key: 'k' },
      { id: 1, device, client: true, keys: 'k' },
      { id: 1, device, client: [5] },
      [],
    ];
    for (const body of bad) expect((await client.publish(request, body)).reasonCode, JSON.stringify(body)).toBe(0x99);
    await client.quiet();
  });
});

test('shared attributes that change go to a gateway that subscribed, deletions too', async () => {
  await withGateway({}, async (client) => {
    const device = childName();
    expect(await client.subscribe(attributes)).toEqual([1]);
    await client.publish(connect, { device });
    const child = await childNamed(device);
    await setShared(child, { s: 5.5 });
    expect((await client.message(attributes)).text).toBe(`{"device":"${device}","data":{"s":5.5}}`);
    await deleteShared(child, 's');
    expect((await client.message(attributes)).text).toBe(`{"device":"${device}","data":{"deleted":["s"]}}`);
    await client.quiet();
  });
});

test('an update of which no part fits the gateway is left out, and the next one comes', async () => {
  await withGateway({ properties: { maximumPacketSize: 200 } }, async (client) => {
    const device = childName('c');
    await client.subscribe(attributes);
    await client.publish(connect, { device });
    const child = await childNamed(device);
    await setShared(child, { large: 'z'.repeat(300) });
    await setShared(child, { s: 1 });
    expect((await client.message(attributes)).json).toEqual({ device, data: { s: 1 } });
    await client.nothingFor(300);
  });
});

test('a gateway without a subscription receives nothing; nor for a child that is disconnected', async () => {
  await withGateway({}, async (client) => {
    const [device, other] = [childName(), childName()];
    await client.publish(connect, { device });
    await client.publish(connect, { device: other });
    const [child, second] = [await childNamed(device), await childNamed(other)];
    await setShared(child, { s: 1 });
    await client.nothingFor(300);
    await client.subscribe(attributes);
    await setShared(second, { o: 1 });
    expect((await client.message(attributes)).json).toMatchObject({ device: other });
    await client.publish(gatewayTopic.disconnect, { device: other });
    await setShared(second, { o: 2 });
    await client.nothingFor(300);
    await client.unsubscribe(attributes);
    await setShared(child, { s: 3 });
    await client.nothingFor(300);
  });
});

test('a change made while the gateway was disconnected is sent when the child is connected again, once', async () => {
  await withGateway({}, async (client, gateway) => {
    const device = childName();
    await client.subscribe(attributes);
    await client.publish(connect, { device });
    const child = await childNamed(device);
    await setShared(child, { a: 1 });
    await client.message(attributes);
    await client.disconnect();
    await setShared(child, { a: 2 });
    await setShared(child, { b: 3 });
    const again = await connectMqtt({ token: gateway.token });
    await again.subscribe(attributes);
    await again.publish(connect, { device });
    expect((await again.message(attributes)).json).toEqual({ device, data: { a: 2, b: 3 } });
    await again.nothingFor(300);
    await again.disconnect();
    const third = await connectMqtt({ token: gateway.token });
    await third.publish(connect, { device });
    await third.subscribe(attributes);
    await third.nothingFor(300);
    third.cut();
  });
});
