/**
 * Children are connected and disconnected: `v1/gateway/connect` and `…/disconnect`, who may use them, and the members
 * of a new child.
 */
import { expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { connectMqtt, levels, withMqtt } from '../../harness/mqtt-client.ts';
import { withDevice } from '../../harness/mqtt-device.ts';
import {
  activity,
  attributesOf,
  call,
  childName,
  childNamed,
  findChild,
  gatewayTopic,
  withGateway,
} from '../../harness/mqtt-gateway.ts';
import { ok } from '../../harness/people.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

test('a child that is new is made with the default profile, active and connected', async () => {
  await withGateway({}, async (client) => {
    const device = childName();
    expect((await client.publish(gatewayTopic.connect, { device })).reasonCode).toBe(0);
    const child = await findChild(device);
    expect(child).toMatchObject({ name: device, type: 'default', customerId: expect.anything() });
    const { active, lastConnectTime } = await activity({ id: child.id.id, token: '' }, (it) => it['lastConnectTime']);
    expect(active).toBe(true);
    expect(lastConnectTime).toBeGreaterThan(Date.now() - 30_000);
  });
});

test('the type of a child that exists does not change', async () => {
  await withGateway({}, async (client) => {
    const device = childName();
    await client.publish(gatewayTopic.connect, { device });
    expect((await client.publish(gatewayTopic.connect, { device, type: 'thermo' })).reasonCode).toBe(0);
    await client.publish(gatewayTopic.disconnect, { device });
    expect((await client.publish(gatewayTopic.connect, { device, type: 'thermo' })).reasonCode).toBe(0);
    expect((await findChild(device)).type).toBe('default');
  });
});

test('a new child with a new type makes the profile of that name', async () => {
  await withGateway({}, async (client) => {
    const [device, type] = [childName(), childName('type')];
    expect((await client.publish(gatewayTopic.connect, { device, type })).reasonCode).toBe(0);
    expect((await findChild(device)).type).toBe(type);
  });
});

test('a connect without a device is refused with a reason, and the gateway stays', async () => {
  await withGateway({}, async (client) => {
    for (const body of ['{}', '{"device":null}', '{"device":{}}', '[]', '5', '{"device":', '']) {
      const ack = await client.publish(gatewayTopic.connect, body);
      expect(ack.reasonCode, body).toBe(0x99);
      expect(ack.properties?.reasonString, body).toBeTruthy();
    }
    expect((await client.publish(gatewayTopic.connect, `{"device":"${childName()}","type":5}`)).reasonCode).toBe(0x99);
    await client.quiet();
  });
});

test('an empty name, a blank one and one that is too long are refused at once', async () => {
  await withGateway({}, async (client) => {
    for (const device of ['', '  ', 'x'.repeat(256)]) {
      expect((await client.publish(gatewayTopic.connect, { device })).reasonCode).toBe(0x99);
    }
    const longest = childName('y'.repeat(200));
    expect((await client.publish(gatewayTopic.connect, { device: longest })).reasonCode).toBe(0);
  });
});

test('names are text as it is: numbers, quotes, other scripts, names of JavaScript', async () => {
  await withGateway({}, async (client) => {
    const names = ['say "hi" \\', 'Gerät №5 温度', '__proto__', 'a/b+c#'].map((name) => childName(name));
    for (const device of names) {
      expect((await client.publish(gatewayTopic.connect, { device })).reasonCode).toBe(0);
      expect((await findChild(device)).name).toBe(device);
    }
    const number = String(Date.now()) + String(Math.floor(Math.random() * 1e6));
    expect((await client.publish(gatewayTopic.connect, `{"device":${number}}`)).reasonCode).toBe(0);
    expect((await findChild(number)).name).toBe(number);
  });
});

test('a child that is disconnected gets no command; disconnecting an unknown child is allowed', async () => {
  await withGateway({}, async (client) => {
    const device = childName();
    await client.subscribe(gatewayTopic.rpc);
    await client.publish(gatewayTopic.connect, { device });
    expect((await client.publish(gatewayTopic.disconnect, { device })).reasonCode).toBe(0);
    expect((await client.publish(gatewayTopic.disconnect, { device: childName('nobody') })).reasonCode).toBe(0);
    expect((await client.publish(gatewayTopic.disconnect, '{}')).reasonCode).toBe(0x99);
    const answer = call(await childNamed(device), { method: 'm', timeout: 5000 });
    expect((await answer).status).toBe(504);
    await client.quiet();
  });
});

test('a topic of gateways that does not exist is 0x90 for MQTT 5, acknowledged for MQTT 3', async () => {
  for (const level of levels) {
    await withGateway({ level }, async (client) => {
      const ack = await client.publish('v1/gateway/foo', '{}');
      if (level === 5) expect(ack.reasonCode).toBe(0x90);
      await client.quiet();
    });
  }
});

test('a device that is no gateway is refused with 0x87 (MQTT 3: acknowledged), and makes nothing', async () => {
  const device = childName();
  for (const level of levels) {
    await withDevice({ level }, async (client) => {
      for (const topic of Object.values(gatewayTopic)) {
        if (topic === gatewayTopic.response) continue;
        const ack = await client.publish(topic, { device });
        if (level === 5) expect(ack.reasonCode, topic).toBe(0x87);
      }
      await client.quiet();
    });
  }
  expect(await findChild(device)).toBeUndefined();
});

test('when the socket of a gateway is cut, it and each child are disconnected once', async () => {
  await withGateway({}, async (client, gateway) => {
    const names = [childName(), childName()];
    for (const device of names) await client.publish(gatewayTopic.connect, { device });
    const children = await Promise.all(names.map(childNamed));
    await activity(children[0]!, (it) => it['lastConnectTime']);
    client.cut();
    for (const device of [gateway, ...children]) {
      const { lastConnectTime, lastDisconnectTime } = await activity(device, (it) => it['lastDisconnectTime']);
      expect(lastDisconnectTime).toBeGreaterThanOrEqual(lastConnectTime);
    }
  });
});

test('a thousand connects in one segment make a thousand children', async () => {
  await withGateway({}, async (client) => {
    const prefix = childName();
    const packets = Array.from({ length: 1000 }, (_, n) =>
      client.publishPacket(gatewayTopic.connect, JSON.stringify({ device: `${prefix}-${n}`, type: prefix })),
    );
    await client.write(...packets);
    for (const { messageId } of packets) await client.expect('puback', { messageId: messageId!, reasonCode: 0 });
    const page = await ok('GET', `/api/tenant/devices?pageSize=1&page=0&type=${prefix}`);
    expect(page.totalElements).toBe(1000);
  });
});

test('the token of the gateway is a device like any other: on the same connection, and over HTTP at the same time', async () => {
  await withGateway({}, async (client, gateway) => {
    const device = childName();
    await client.publish(gatewayTopic.connect, { device });
    expect((await client.publish('v1/devices/me/telemetry', '{"own":1}')).reasonCode).toBe(0);
    expect((await client.publish('v1/devices/me/attributes', '{"build":"r12"}')).reasonCode).toBe(0);
    expect(await sharedEngine().postTelemetry(gateway.token, '{"http":2}')).toBe(200);
    expect((await client.publish(gatewayTopic.telemetry, { [device]: [{ t: 3 }] })).reasonCode).toBe(0);
    expect(await attributesOf(gateway, 'CLIENT_SCOPE')).toEqual({ build: 'r12' });
    const own = await eventually(async () => {
      const latest = await sharedEngine().readLatest(gateway.id);
      return latest['own'] && latest['http'] ? Object.keys(latest).sort() : undefined;
    });
    expect(own).toEqual(['http', 'own']);
    await client.quiet();
  });
});

test('another connection of the same gateway takes over, and its children with it', async () => {
  await withGateway({}, async (client, gateway) => {
    const device = childName();
    await client.publish(gatewayTopic.connect, { device });
    const newer = await connectMqtt({ token: gateway.token });
    await newer.subscribe(gatewayTopic.rpc);
    expect((await newer.publish(gatewayTopic.connect, { device })).reasonCode).toBe(0);
    await client.closed();
    const answer = call(await childNamed(device), { method: 'm' });
    const { json } = await newer.message(gatewayTopic.rpc);
    await newer.publishQos0(gatewayTopic.rpc, { device, id: json.data.id, data: 'here' });
    expect((await answer).text).toBe('"here"');
    newer.cut();
  });
});

test('a child of another gateway changes over, and its former gateway is notified with MQTT 5', async () => {
  await withGateway({}, async (first) => {
    await withGateway({}, async (second) => {
      const device = childName();
      await first.subscribe(gatewayTopic.rpc);
      await second.subscribe(gatewayTopic.rpc);
      await first.publish(gatewayTopic.connect, { device });
      await second.publish(gatewayTopic.connect, { device });
      expect((await first.message('v1/gateway/disconnect')).json).toEqual({ device, reason: 142 });
      const answer = call(await childNamed(device), { method: 'm' });
      const { json } = await second.message(gatewayTopic.rpc);
      await second.publishQos0(gatewayTopic.rpc, { device, id: json.data.id, data: 2 });
      expect((await answer).text).toBe('2');
      await first.quiet();
    });
  });
});

test('a child that connects by its own token is its own', async () => {
  await withGateway({}, async (client) => {
    const device = childName();
    await client.subscribe(gatewayTopic.rpc);
    await client.publish(gatewayTopic.connect, { device });
    const child = await childNamed(device);
    await withMqtt({ token: child.token }, async (direct) => {
      expect((await client.message('v1/gateway/disconnect')).json).toEqual({ device, reason: 142 });
      await direct.subscribe('v1/devices/me/rpc/request/+');
      const answer = call(child, { method: 'm' });
      const { topic } = await direct.message();
      await direct.publish(topic.replace('request', 'response'), '{"direct":true}');
      expect((await answer).text).toBe('{"direct":true}');
      await client.quiet();
    });
  });
});
