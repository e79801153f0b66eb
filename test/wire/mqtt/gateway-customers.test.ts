/**
 * Gateways and customers: the devices for which a gateway acts, and the effect of giving a child to another customer.
 */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../../harness/api.ts';
import { connectMqtt, type MqttClient } from '../../harness/mqtt-client.ts';
import {
  attributesOf,
  call,
  childName,
  childNamed,
  findChild,
  gatewayTopic,
  newGateway,
  setShared,
} from '../../harness/mqtt-gateway.ts';
import { newCustomer, newCustomerUser, ok } from '../../harness/people.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

const { connect, telemetry, attributes, request, response, rpc, claim } = gatewayTopic;
const notice = 'v1/gateway/disconnect';
let [customerA, customerB]: string[] = [];
let gateway: Device;
let client: MqttClient;

async function deviceOf(customer: string | undefined, name = childName()): Promise<Device & { name: string }> {
  const owner = customer && { entityType: 'CUSTOMER', id: customer };
  const { id } = await ok('POST', '/api/device', { name, ...(owner && { customerId: owner }) });
  const { credentialsId } = await ok('GET', `/api/device/${id.id}/credentials`);
  return { id: id.id, token: credentialsId, name };
}

const assign = (customer: string, device: Device) => ok('POST', `/api/customer/${customer}/device/${device.id}`);

beforeAll(async () => {
  [customerA, customerB] = [await newCustomer(), await newCustomer()];
  gateway = await newGateway();
  await assign(customerA!, gateway);
  client = await connectMqtt({ token: gateway.token });
  for (const topic of [gatewayTopic.attributes, rpc, response]) await client.subscribe(topic);
});

afterAll(() => client.cut());

test("it connects its customer's devices, and makes new ones that belong to that customer", async () => {
  const own = await deviceOf(customerA);
  const fresh = childName();
  expect((await client.publish(connect, { device: own.name })).reasonCode).toBe(0);
  expect((await client.publish(telemetry, { [own.name]: [{ t: 1 }], [fresh]: [{ t: 2 }] })).reasonCode).toBe(0);
  expect((await findChild(fresh)).customerId.id).toBe(customerA);
});

test('other devices are refused by name on every topic, and nothing of them is read, written or received', async () => {
  const foreigners = [await deviceOf(customerB), await deviceOf(undefined)];
  const answers = foreigners.map((foreign) => call(foreign, { method: 'unlock', timeout: 1500 }));
  for (const foreign of foreigners) await refusesAll(foreign);
  for (const answer of answers) expect((await answer).status).toBe(504);
  await client.quiet();
  for (const foreign of foreigners) {
    expect(await attributesOf(foreign, 'CLIENT_SCOPE')).toEqual({});
    const { additionalInfo } = await findChild(foreign.name);
    expect(additionalInfo?.lastConnectedGateway).toBeUndefined();
    // No telemetry was stored before: the first point is one that the device sends itself.
    await sharedEngine().postTelemetry(foreign.token, '{"own":1}');
    const latest = await eventually(async () => {
      const values = await sharedEngine().readLatest(foreign.id);
      return values['own'] ? values : undefined;
    });
    expect(Object.keys(latest)).toEqual(['own']);
  }
});

async function refusesAll(foreign: Device & { name: string }): Promise<void> {
  await setShared(foreign, { secret: 'door code 4711' });
  const { name } = foreign;
  const own = childName();
  const bodies: [string, object][] = [
    [connect, { device: name }],
    [telemetry, { [name]: [{ forged: 1 }], [own]: [{ t: 1 }] }],
    [attributes, { [name]: { forged: 1 } }],
    [request, { id: 1, device: name, shared: ['secret'], client: [] }],
  ];
  for (const [topic, body] of bodies) {
    const ack = await client.publish(topic, body);
    expect(ack.reasonCode, topic).toBe(0x87);
    expect(ack.properties?.reasonString, topic).toContain(name);
  }
  expect((await client.publish(claim, { [name]: { secretKey: 'mine' } })).reasonCode).toBe(0x99);
  await client.publish(rpc, { device: name, id: 1, data: { forged: true } });
  expect(await findChild(own)).toBeDefined();
}

test('MQTT 3 is not cut for it', async () => {
  const foreign = await deviceOf(customerB);
  const [hub, own] = [await newGateway(), childName()];
  await assign(customerA!, hub);
  const old = await connectMqtt({ token: hub.token, level: 4 });
  await old.publish(telemetry, { [foreign.name]: [{ forged: 1 }], [own]: [{ t: 1 }] });
  await old.quiet();
  expect((await findChild(own)).customerId.id).toBe(customerA);
  old.cut();
});

test('a child that is given to another customer leaves the gateway, and comes back with its customer', async () => {
  const device = childName();
  await client.publish(connect, { device });
  const child = await childNamed(device);
  await assign(customerB!, child);
  expect((await client.message(notice)).json).toEqual({ device, reason: 135 });
  expect((await client.publish(telemetry, { [device]: [{ forged: 1 }] })).reasonCode).toBe(0x87);
  await setShared(child, { secret: 1 });
  await client.quiet();
  await assign(customerA!, child);
  const again = async () => ((await client.publish(connect, { device })).reasonCode === 0 ? true : undefined);
  expect(await eventually(again)).toBe(true);
});

test('a gateway that is given to another customer loses its children; one of the tenant acts for all devices', async () => {
  const hub = await newGateway();
  const link = await connectMqtt({ token: hub.token });
  const [ofA, ofB] = [await deviceOf(customerA), await deviceOf(customerB)];
  for (const { name } of [ofA, ofB]) expect((await link.publish(connect, { device: name })).reasonCode).toBe(0);
  await assign(customerB!, hub);
  expect((await link.message(notice)).json).toEqual({ device: ofA.name, reason: 135 });
  expect((await link.publish(telemetry, { [ofB.name]: [{ t: 1 }] })).reasonCode).toBe(0);
  link.cut();
});

test('a gateway that is taken from a customer acts for what it made, until it gets another token', async () => {
  const user = await newCustomerUser(customerA!);
  const hub = await newGateway();
  await assign(customerA!, hub);
  const { credentialsId } = await ok('GET', `/api/device/${hub.id}/credentials`, undefined, user.token);
  const own = childName();
  const link = await connectMqtt({ token: credentialsId });
  expect((await link.publish(connect, { device: own })).reasonCode).toBe(0);
  link.cut();
  await ok('DELETE', `/api/customer/device/${hub.id}`);
  // A connection of a user of the former customer, with the gateway token that this user has read before.
  const thief = await connectMqtt({ token: credentialsId });
  const [ofTenant, ofB, made] = [await deviceOf(undefined), await deviceOf(customerB), childName()];
  for (const { name } of [ofTenant, ofB]) {
    const ack = await thief.publish(connect, { device: name });
    expect(ack.reasonCode).toBe(0x87);
    expect(ack.properties?.reasonString).toContain('former customer');
  }
  for (const device of [own, made]) expect((await thief.publish(connect, { device })).reasonCode).toBe(0);
  // After the gateway was given to another customer, the former user may not act for devices of that customer either.
  await assign(customerB!, hub);
  const isRefused = async () => (await thief.publish(connect, { device: ofB.name })).reasonCode === 0x87 || undefined;
  expect(await eventually(isRefused)).toBe(true);
  thief.cut();
  await ok('DELETE', `/api/customer/device/${hub.id}?rotateToken=true`);
  const rotated = await ok('GET', `/api/device/${hub.id}/credentials`);
  const again = await connectMqtt({ token: rotated.credentialsId });
  for (const { name } of [ofTenant, ofB]) expect((await again.publish(connect, { device: name })).reasonCode).toBe(0);
  again.cut();
});

test('another client id beside the same password frees no gateway that was taken from a customer', async () => {
  const hub = await newGateway();
  const [username, ofB] = [childName(), await deviceOf(customerB)];
  const save = async (clientId: string, password: string) => {
    const credentials = await ok('GET', `/api/device/${hub.id}/credentials`);
    const credentialsValue = JSON.stringify({ clientId, userName: username, password });
    await ok('POST', '/api/device/credentials', { ...credentials, credentialsType: 'MQTT_BASIC', credentialsValue });
  };
  const codeWith = async (clientId: string, password: string) => {
    const link = await connectMqtt({ clientId, username, password });
    const { reasonCode } = await link.publish(connect, { device: ofB.name });
    link.cut();
    return reasonCode;
  };
  await save('one', 'pear');
  await assign(customerA!, hub);
  await ok('DELETE', `/api/customer/device/${hub.id}`);
  await save('two', 'pear');
  expect(await codeWith('two', 'pear')).toBe(0x87);
  await save('two', 'plum');
  expect(await codeWith('two', 'plum')).toBe(0);
});

test("a customer's user neither widens its gateway nor has commands sent to another customer's", async () => {
  const user = await newCustomerUser(customerA!);
  const hub = await newGateway();
  await ok('POST', '/api/device', {
    ...(await ok('GET', `/api/device/${hub.id}`)),
    additionalInfo: { gateway: true, gatewayScope: 'own' },
  });
  await assign(customerA!, hub);
  const stored = await ok('GET', `/api/device/${hub.id}`, undefined, user.token);
  const saved = await ok(
    'POST',
    '/api/device',
    { ...stored, additionalInfo: { gateway: true, note: 'x' } },
    user.token,
  );
  expect(saved.additionalInfo).toEqual({ gateway: true, gatewayScope: 'own', note: 'x' });
  // A renamed device is reported to the gateway that its additional info names, which the user writes.
  const hubOfB = await newGateway();
  await assign(customerB!, hubOfB);
  const own = await deviceOf(customerA);
  const info = { ...(await ok('GET', `/api/device/${own.id}`)), additionalInfo: { lastConnectedGateway: hubOfB.id } };
  await ok('POST', '/api/device', info, user.token);
  const now = await ok('GET', `/api/device/${own.id}`);
  await ok('POST', '/api/device', { ...now, name: childName() }, user.token);
  const calls = await ok('GET', `/api/rpc/persistent/device/${hubOfB.id}?pageSize=10&page=0`);
  expect(calls.data).toEqual([]);
});

test('a gateway that made itself by provisioning acts for what it made, until an administrator allows more', async () => {
  const profileName = `gate-${randomUUID()}`;
  const [key, secret] = [randomUUID(), randomUUID()];
  await ok('POST', '/api/deviceProfile', {
    name: profileName,
    type: 'DEFAULT',
    transportType: 'DEFAULT',
    provisionType: 'ALLOW_CREATE_NEW_DEVICES',
    provisionDeviceKey: key,
    profileData: {
      configuration: { type: 'DEFAULT' },
      transportConfiguration: { type: 'DEFAULT' },
      provisionConfiguration: { type: 'ALLOW_CREATE_NEW_DEVICES', provisionDeviceSecret: secret },
    },
  });
  const deviceName = childName('gate');
  const body = { provisionDeviceKey: key, provisionDeviceSecret: secret, deviceName, gateway: true };
  const { credentialsValue: token } = await ok('POST', '/api/v1/provision', body, '');
  const foreign = await deviceOf(undefined);
  const device = childName();
  const link = await connectMqtt({ token });
  expect((await link.publish(connect, { device })).reasonCode).toBe(0);
  const ack = await link.publish(connect, { device: foreign.name });
  expect(ack.reasonCode).toBe(0x87);
  expect(ack.properties?.reasonString).toContain('gatewayScope');
  const gate = await findChild(deviceName);
  await ok('POST', '/api/device', { ...gate, additionalInfo: { gateway: true } });
  const retried = async () =>
    (await link.publish(connect, { device: foreign.name })).reasonCode === 0 ? true : undefined;
  expect(await eventually(retried)).toBe(true);
  link.cut();
});
