/** Commands to the devices of a gateway, and their replies: `v1/gateway/rpc`. */
import { expect, test } from 'vitest';
import { connectMqtt } from '../../harness/mqtt-client.ts';
import { call, childName, childNamed, findChild, gatewayTopic, withGateway } from '../../harness/mqtt-gateway.ts';
import { ok } from '../../harness/people.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

const { connect, rpc } = gatewayTopic;

test('a command reaches the gateway of the child, and its reply the caller unchanged', async () => {
  await withGateway({}, async (client) => {
    const device = childName();
    await client.subscribe(rpc);
    await client.publish(connect, { device });
    const child = await childNamed(device);
    const plain = ['{"ok":true}', '"{\\"ok\\":true}"', '42.0', 'null', '[1,{"a": 2}]', '12345678901234567890'];
    // What telemetry could not hold is still a reply.
    const odd = ['{"log":"a\\u0000b"}', '"\\ud83d"', '1e400', '['.repeat(70) + ']'.repeat(70)];
    const replies = [...plain, ...odd];
    for (const [n, data] of replies.entries()) {
      const answer = call(child, { method: 'setGpio', params: { pin: n, on: 1.5 } });
      const { json } = await client.message(rpc);
      expect(json).toEqual({ device, data: { id: n + 1, method: 'setGpio', params: { pin: n, on: 1.5 } } });
      await client.publishQos0(rpc, `{"device":"${device}","id":${n + 1},"data":${data}}`);
      expect(await answer).toEqual({ status: 200, text: data });
    }
  });
});

test('commands of several children reach them, with replies in any order', async () => {
  await withGateway({}, async (client) => {
    await client.subscribe(rpc);
    const names = Array.from({ length: 20 }, () => childName());
    await client.publish(gatewayTopic.telemetry, Object.fromEntries(names.map((name) => [name, []])));
    const children = await Promise.all(names.map(childNamed));
    const answers = children.map((child, n) => call(child, { method: 'm', params: n }));
    const messages = [];
    while (messages.length < names.length) messages.push((await client.message(rpc)).json);
    for (const { device, data } of messages.reverse()) {
      await client.publish(rpc, { device, id: data.id, data: { to: data.params } });
    }
    for (const [n, answer] of answers.entries()) expect((await answer).text).toBe(`{"to":${n}}`);
  });
});

test('a gateway that has not subscribed gets no command; when it does, what waits comes at once', async () => {
  await withGateway({}, async (client) => {
    const device = childName();
    await client.publish(connect, { device });
    const answer = call(await childNamed(device), { method: 'm' });
    await client.nothingFor(500);
    await client.subscribe(rpc);
    const { json } = await client.message(rpc);
    await client.publishQos0(rpc, { device, id: json.data.id, data: {} });
    expect((await answer).status).toBe(200);
    await client.unsubscribe(rpc);
    const { status } = await call(await childNamed(device), { method: 'm', timeout: 5000 });
    expect(status).toBe(504);
    await client.quiet();
  });
});

test('a persistent command waits until the gateway and the child are there', async () => {
  await withGateway({}, async (client, gateway) => {
    const device = childName();
    await client.publish(connect, { device });
    await client.disconnect();
    const child = await childNamed(device);
    const body = { method: 'later', params: {}, persistent: true, expirationTime: Date.now() + 60_000 };
    await ok('POST', `/api/rpc/oneway/${child.id}`, body);
    const again = await connectMqtt({ token: gateway.token });
    await again.subscribe(rpc);
    await again.publish(connect, { device });
    expect((await again.message(rpc)).json).toMatchObject({ device, data: { method: 'later' } });
    again.cut();
  });
});

test('a reply for a child that is not connected here goes nowhere and makes nothing; a bad one is refused', async () => {
  await withGateway({}, async (client) => {
    const device = childName();
    expect((await client.publish(rpc, { device, id: 1, data: {} })).reasonCode).toBe(0);
    expect(await findChild(device)).toBeUndefined();
    for (const body of [{ id: 1, data: 1 }, { device, data: 1 }, { device, id: 'x', data: 1 }, { device, id: 1 }, []]) {
      expect((await client.publish(rpc, body)).reasonCode, JSON.stringify(body)).toBe(0x99);
    }
    await client.quiet();
  });
});

test('a reply right after the connect of its child reaches the caller: the gateway lost its connection meanwhile', async () => {
  await withGateway({}, async (client, gateway) => {
    const device = childName();
    await client.subscribe(rpc);
    await client.publish(connect, { device });
    const answer = call(await childNamed(device), { method: 'm' });
    const { json } = await client.message(rpc);
    await client.disconnect();
    const again = await connectMqtt({ token: gateway.token });
    const reply = { device, id: json.data.id, data: { done: true } };
    await again.write(
      again.publishPacket(connect, JSON.stringify({ device })),
      again.publishPacket(rpc, JSON.stringify(reply)),
    );
    expect(await answer).toEqual({ status: 200, text: '{"done":true}' });
    again.cut();
  });
});

test('a gateway is notified when one of its devices is deleted or renamed, also later', async () => {
  await withGateway({}, async (client, gateway) => {
    const [gone, before, after] = [childName('gone'), childName('before'), childName('after')];
    await client.subscribe('v1/devices/me/rpc/request/+');
    await client.publish(connect, { device: gone });
    await client.publish(connect, { device: before });
    const deleted = await childNamed(gone);
    expect((await sharedEngine().send('DELETE', `/api/device/${deleted.id}`)).status).toBe(200);
    expect((await client.message('v1/gateway/disconnect')).json).toEqual({ device: gone, reason: 152 });
    expect((await client.message()).json).toEqual({ method: 'gateway_device_deleted', params: gone });
    await client.disconnect();
    const child = await findChild(before);
    await ok('POST', '/api/device', { ...child, name: after, version: null });
    const again = await connectMqtt({ token: gateway.token });
    await again.subscribe('v1/devices/me/rpc/request/+');
    expect((await again.message()).json).toEqual({ method: 'gateway_device_renamed', params: { [before]: after } });
    again.cut();
  });
});

test('a child that is renamed while it is connected continues under its new name', async () => {
  await withGateway({}, async (client) => {
    const [before, after] = [childName('before'), childName('after')];
    await client.subscribe(gatewayTopic.attributes);
    await client.publish(connect, { device: before });
    const child = await findChild(before);
    await ok('POST', '/api/device', { ...child, name: after, version: null });
    await client.publish(gatewayTopic.telemetry, { [after]: [{ a: 1 }] });
    const { id } = await childNamed(after);
    expect(id).toBe(child.id.id);
    await ok('POST', `/api/plugins/telemetry/DEVICE/${id}/SHARED_SCOPE`, { s: 1 });
    expect((await client.message(gatewayTopic.attributes)).json).toEqual({ device: after, data: { s: 1 } });
    await client.quiet();
  });
});
