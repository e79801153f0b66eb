/**
 * The reasons why a device is missing: its refusals and connections on all workers, without secrets, for users who may
 * see the device; and the lists of refused devices and addresses.
 */
import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { connectMqtt, withMqtt } from '../../harness/mqtt-client.ts';
import { childName, childNamed, gatewayTopic, type Json, withGateway } from '../../harness/mqtt-gateway.ts';
import { newTenant, newUser, ok } from '../../harness/people.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';
import { withWorkers } from '../../harness/workers.ts';

const api = sharedEngine();
const of = (id: string): Promise<Json> => ok('GET', `/api/device/${id}/diagnostics`);
const words = (outcomes: Json[]) => outcomes.map(({ event, door, reason }) => `${event} ${door} ${reason}`);

test('a device without trouble: no records, no session, nothing that waits', async () => {
  const device = await api.newDevice();
  expect(await api.postTelemetry(device.token, '{"a":1}')).toBe(200);
  expect(await of(device.id)).toMatchObject({
    deviceId: { id: device.id },
    workers: { asked: 2, answered: 2 },
    session: null,
    gateway: null,
    refusalCount: 0,
    refusals: [],
    connections: [],
    rateLimits: [],
    waiting: { commands: 0, attributes: null, firmware: null, software: null },
  });
});

test('refusals of two workers are one list, with sentence, place and the first bytes', () =>
  withWorkers(api.address.port, async (connections) => {
    const { id, token } = await api.newDevice();
    const post = (worker: number, path: string, body: string) =>
      connections[worker]!.ask({ path: `/api/v1/${token}/${path}`, body });
    expect((await post(0, 'telemetry', '{"a":')).status).toBe(400);
    expect((await post(1, 'attributes', '[7]')).status).toBe(400);
    expect((await post(0, 'telemetry', '')).status).toBe(400);
    expect((await post(1, 'rpc', '{"method":')).status).toBe(400);
    expect((await post(0, 'claim', '{"secretKey":"pear","durationMs":{}}')).status).toBe(400);
    const found = await of(id);
    expect(found).toMatchObject({ workers: { asked: 2, answered: 2 }, refusalCount: 5 });
    expect(found.refusals.map(({ excerpt }: Json) => excerpt).sort()).toEqual([
      '',
      '[7]',
      '{"a":',
      '{"method":',
      '{"secretKey":***,"durationMs":{}}',
    ]);
    const cut = found.refusals.find(({ excerpt }: Json) => excerpt === '{"a":');
    expect(cut).toMatchObject({ event: 'refused', door: 'http', address: '127.0.0.1', count: 1 });
    expect(cut.message).toContain('not valid JSON');
    expect(Math.abs(cut.ts - Date.now())).toBeLessThan(60_000);
    // Reads the answer of the other worker.
    const { token: jwt } = await api.login();
    const headers = { 'x-authorization': `Bearer ${jwt}` };
    const path = `/api/device/${id}/diagnostics`;
    for (const connection of connections) {
      const answer = await connection.ask({ method: 'GET', path, headers });
      const { workers, refusals, refusalCount } = JSON.parse(answer.body.toString());
      expect({ workers, refusals, refusalCount }).toMatchObject({ workers: found.workers, refusalCount: 5 });
      expect(refusals).toEqual(found.refusals);
    }
  }));

test('MQTT: refused messages, the open session, and how connections ended', async () => {
  const { id, token } = await api.newDevice();
  await withMqtt({ token }, async (client) => {
    const ack = await client.publish('v1/devices/me/telemetry', '{"a":');
    expect(ack.reasonCode).toBe(0x99);
    const { session, refusals, connections } = await of(id);
    expect(session).toMatchObject({ address: '127.0.0.1', gateway: null });
    expect(Math.abs(session.connectedTime - Date.now())).toBeLessThan(60_000);
    expect(words(refusals)).toEqual(['refused mqtt malformed_json']);
    expect(refusals[0].excerpt).toBe('{"a":');
    expect(connections).toEqual([]);
  });
  const first = await connectMqtt({ token });
  const second = await connectMqtt({ token });
  await first.closedFor(0x8e);
  const { connections, session } = await eventually(async () => {
    const found = await of(id);
    return found.connections.some(({ reason }: Json) => reason === 'taken_over') && found;
  });
  expect(session).not.toBeNull();
  expect(words(connections)).toContain('disconnected mqtt taken_over');
  second.cut();
  await eventually(async () => {
    const found = await of(id);
    return found.session === null && words(found.connections).includes('disconnected mqtt connection_lost');
  });
});

test('a child: refused through its gateway, which made it and acts for it', () =>
  withGateway({}, async (client, gateway) => {
    const name = childName();
    const { message } = { message: JSON.stringify({ [name]: [{ ts: 1, values: { a: 1 } }, 7] }) };
    const ack = await client.publish(gatewayTopic.telemetry, message);
    expect(ack.reasonCode).toBe(0x99);
    const child = await childNamed(name);
    const found = await of(child.id);
    expect(found).toMatchObject({
      session: { address: null, gateway: { id: { id: gateway.id } } },
      gateway: { id: { id: gateway.id } },
    });
    expect(words(found.refusals)).toEqual(['refused gateway wrong_shape']);
    const own = await of(gateway.id);
    expect(words(own.refusals)).toEqual(['refused gateway wrong_shape']);
    expect(own.refusals[0].message).toContain(name);
  }));

test('what waits for the device', async () => {
  const { id, token } = await api.newDevice();
  await api.sendPersistent(id, { method: 'turn' });
  await fetch(`${api.http}/api/v1/${token}/attributes/updates?timeout=1`);
  await ok('POST', `/api/plugins/telemetry/DEVICE/${id}/SHARED_SCOPE`, { target: 1, other: 2 });
  expect((await of(id)).waiting).toMatchObject({ commands: 1, attributes: 2 });
});

test('lists: the newest first or the most, by pages; none of another tenant; addresses for the system', async () => {
  const { admin } = await newTenant();
  const devices = await Promise.all(
    [1, 2, 3].map(() => ok('POST', '/api/device', { name: randomUUID() }, admin.token)),
  );
  const tokens = await Promise.all(
    devices.map(
      async ({ id }) => (await ok('GET', `/api/device/${id.id}/credentials`, undefined, admin.token)).credentialsId,
    ),
  );
  for (const [n, times] of [3, 1, 2].entries()) {
    for (let i = 0; i < times; i += 1) expect(await api.postTelemetry(tokens[n], '[7]')).toBe(400);
  }
  const list = (query: string, token = admin.token) => ok('GET', `/api/refusals?${query}`, undefined, token);
  const most = await list('pageSize=2&page=0&order=most');
  expect(most).toMatchObject({ totalPages: 2, totalElements: 3, hasNext: true, workers: { asked: 2, answered: 2 } });
  expect(most.data.map(({ deviceId, count }: Json) => [deviceId.id, count])).toEqual([
    [devices[0].id.id, 3],
    [devices[2].id.id, 2],
  ]);
  expect((await list('pageSize=2&page=1&order=most')).data).toMatchObject([{ name: devices[1].name, count: 1 }]);
  const newest = await list('pageSize=10&page=0');
  expect(newest.data.map(({ name }: Json) => name)).toEqual([devices[2].name, devices[1].name, devices[0].name]);
  expect(newest.data[0].last).toMatchObject({ reason: 'wrong_shape', excerpt: '[7]', address: '127.0.0.1' });
  const { admin: other } = await newTenant();
  expect(await list('pageSize=10&page=0', other.token)).toMatchObject({ data: [], totalElements: 0 });
  // A deleted device leaves the list.
  await ok('DELETE', `/api/device/${devices[0].id.id}`, undefined, admin.token);
  await eventually(async () => (await list('pageSize=10&page=0')).totalElements === 2);

  expect(await api.postTelemetry('unknown-token', '{"a":1}')).toBe(401);
  const { token: system } = await api.login('sysadmin@thingsboard.org', 'sysadmin');
  const addresses = await ok('GET', '/api/refusals/addresses?pageSize=10&page=0&order=most', undefined, system);
  expect(JSON.stringify(addresses)).not.toContain('unknown-token');
  expect(addresses.data.find(({ network }: Json) => network === '127.0.0.1')).toMatchObject({
    door: expect.any(String),
  });
});

test('a user of a customer sees the own devices, without addresses', async () => {
  const { admin } = await newTenant();
  const customer = await ok('POST', '/api/customer', { title: randomUUID() }, admin.token);
  const user = await newUser({ authority: 'CUSTOMER_USER', customerId: customer.id }, api, admin.token);
  const { id } = await ok('POST', '/api/device', { name: randomUUID() }, admin.token);
  const { credentialsId } = await ok('GET', `/api/device/${id.id}/credentials`, undefined, admin.token);
  const path = `/api/device/${id.id}/diagnostics`;
  expect((await api.send('GET', path, undefined, user.token)).status).toBe(403);
  await ok('POST', `/api/customer/${customer.id.id}/device/${id.id}`, undefined, admin.token);
  expect(await api.postTelemetry(credentialsId, '[7]')).toBe(400);
  expect((await ok('GET', path, undefined, user.token)).refusals).toMatchObject([{ address: null, excerpt: '[7]' }]);
  expect((await ok('GET', path, undefined, admin.token)).refusals).toMatchObject([{ address: '127.0.0.1' }]);
});
