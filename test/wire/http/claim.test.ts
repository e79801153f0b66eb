/** Claiming, from the device and from the customer user (docs/http.md#claiming, docs/rest.md#claiming). */
import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { beforeAll, expect, test } from 'vitest';
import type { Device } from '../../harness/api.ts';
import { newCustomer, newCustomerUser, ok, type Person } from '../../harness/people.ts';
import { fault, faultOf } from '../../harness/rest.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

const nullUuid = '13814000-1dd2-11b2-8080-808080808080';

let customerId: string;
let user: Person;

beforeAll(async () => {
  customerId = await newCustomer();
  user = await newCustomerUser(customerId);
});

interface NamedDevice extends Device {
  name: string;
}

async function newDevice(): Promise<NamedDevice> {
  const name = `pump ${randomUUID()}`;
  return { name, ...(await sharedEngine().createDevice(name)) };
}

/** The device announces that it may be claimed. */
async function offer(device: Device, body?: string): Promise<Response> {
  return await fetch(`${sharedEngine().http}/api/v1/${device.token}/claim`, {
    method: 'POST',
    ...(body !== undefined && { body }),
  });
}

async function offered(device: Device, body?: string): Promise<void> {
  const response = await offer(device, body);
  const text = await response.text();
  expect([response.status, text]).toEqual([200, '']);
}

/** Claims as a user; returns the status and the text of the answer. */
async function claim(device: NamedDevice, body: object | undefined, token = user.token): Promise<[number, string]> {
  const path = `/api/customer/device/${encodeURIComponent(device.name)}/claim`;
  const response = await sharedEngine().send('POST', path, body, token);
  return [response.status, await response.text()];
}

async function ownerOf(device: Device): Promise<string> {
  return (await ok('GET', `/api/device/${device.id}`)).customerId.id;
}

test('a device may offer itself with and without a body', async () => {
  await offered(await newDevice());
  await offered(await newDevice(), '{}');
  await offered(await newDevice(), '{"secretKey":"s","durationMs":60000}');
  await offered(await newDevice(), '{"secretKey":null,"durationMs":null}');
});

test('an offer that is none is refused', async () => {
  const device = await newDevice();
  expect(await faultOf(await offer(device, '[]'))).toBe('400/31 A claim must be a JSON object.');
  expect(await faultOf(await offer(device, '{"secretKey":5}'))).toBe('400/31 Member "secretKey" must be a string.');
  expect((await offer(device, '{"secretKey":')).status).toBe(400);
  expect((await offer({ id: '', token: 'nobody' }, '{"secretKey":')).status).toBe(401);
});

test('the right key makes the device one of the own customer', async () => {
  const device = await newDevice();
  await offered(device, '{"secretKey":"plum"}');
  const [status, text] = await claim(device, { secretKey: 'plum' });
  expect(status, text).toBe(200);
  expect(JSON.parse(text)).toMatchObject({
    response: 'SUCCESS',
    device: { id: { id: device.id }, customerId: { entityType: 'CUSTOMER', id: customerId } },
  });
  expect(Object.keys(JSON.parse(text)).sort()).toEqual(['device', 'response']);
  expect(await ownerOf(device)).toBe(customerId);
  expect(await claim(device, { secretKey: 'plum' })).toEqual([400, '"CLAIMED"']);
});

test('a wrong key fails, and the right one still works after it', async () => {
  const device = await newDevice();
  await offered(device, '{"secretKey":"plum"}');
  expect(await claim(device, { secretKey: 'pear' })).toEqual([400, '"FAILURE"']);
  expect((await claim(device, { secretKey: 'plum' }))[0]).toBe(200);
});

test('no key on both sides is a key', async () => {
  const [silent, empty] = [await newDevice(), await newDevice()];
  await offered(silent);
  expect((await claim(silent, undefined))[0]).toBe(200);
  await offered(empty, '{"secretKey":""}');
  expect((await claim(empty, {}))[0]).toBe(200);
});

test('a device that did not offer itself cannot be claimed', async () => {
  expect(await claim(await newDevice(), {})).toEqual([400, '"FAILURE"']);
});

test('an offer ends with its time', async () => {
  const device = await newDevice();
  await offered(device, '{"secretKey":"plum","durationMs":300}');
  await sleep(400);
  expect(await claim(device, { secretKey: 'plum' })).toEqual([400, '"FAILURE"']);
});

test('the first offer stays valid until it ends', async () => {
  const device = await newDevice();
  await offered(device, '{"secretKey":"first","durationMs":6000}');
  await offered(device, '{"secretKey":"second"}');
  expect(await claim(device, { secretKey: 'second' })).toEqual([400, '"FAILURE"']);
  await sleep(6_100);
  await offered(device, '{"secretKey":"second"}');
  expect((await claim(device, { secretKey: 'second' }))[0]).toBe(200);
});

test('wrong keys are counted, and too many have to wait', async () => {
  const device = await newDevice();
  await offered(device, '{"secretKey":"plum"}');
  for (let i = 0; i < 10; i += 1) expect(await claim(device, { secretKey: `${i}` })).toEqual([400, '"FAILURE"']);
  const [status, text] = await claim(device, { secretKey: 'plum' });
  expect([status, JSON.parse(text).errorCode]).toEqual([429, 33]);
  expect(await ownerOf(device)).toBe(nullUuid);
});

test('a device that has a customer keeps it, with any offer', async () => {
  const device = await newDevice();
  await ok('POST', `/api/customer/${await newCustomer()}/device/${device.id}`);
  await offered(device, '{"secretKey":"plum"}');
  expect(await claim(device, { secretKey: 'plum' })).toEqual([400, '"CLAIMED"']);
  await ok('DELETE', `/api/customer/device/${device.id}`);
  expect(await claim(device, { secretKey: 'plum' })).toEqual([400, '"FAILURE"']);
});

test('of two customers that claim at once, one gets the device', async () => {
  const device = await newDevice();
  const other = await newCustomerUser(await newCustomer());
  await offered(device, '{"secretKey":"plum"}');
  const answers = await Promise.all(
    [user, other, user, other].map(({ token }) => claim(device, { secretKey: 'plum' }, token)),
  );
  expect(answers.filter(([status]) => status === 200)).toHaveLength(1);
  expect(answers.filter(([, text]) => text === '"CLAIMED"')).toHaveLength(3);
});

test('a returned device may be claimed again', async () => {
  const device = await newDevice();
  const path = `/api/customer/device/${encodeURIComponent(device.name)}/claim`;
  await offered(device, '{"secretKey":"plum"}');
  await claim(device, { secretKey: 'plum' });
  expect((await ok('DELETE', path, undefined, user.token)).customerId.id).toBe(nullUuid);
  expect(await ownerOf(device)).toBe(nullUuid);
  expect(await claim(device, { secretKey: 'plum' })).toEqual([400, '"FAILURE"']);
  await offered(device, '{"secretKey":"fig"}');
  expect((await claim(device, { secretKey: 'fig' }))[0]).toBe(200);
  await ok('DELETE', path);
  expect(await ownerOf(device)).toBe(nullUuid);
});

test('only users of its customer can give a device back', async () => {
  const device = await newDevice();
  await offered(device);
  await claim(device, {});
  const other = await newCustomerUser(await newCustomer());
  const path = `/api/customer/device/${encodeURIComponent(device.name)}/claim`;
  const denied = "403/20 You don't have permission to perform this operation!";
  expect(await fault('DELETE', path, undefined, other.token)).toBe(denied);
  expect(await ownerOf(device)).toBe(customerId);
});

test('only a customer user claims, and only what there is', async () => {
  const path = `/api/customer/device/${randomUUID()}/claim`;
  expect(await fault('POST', path, {}, user.token)).toBe("404/32 Requested item wasn't found!");
  expect(await fault('POST', path, {})).toBe("403/20 You don't have permission to perform this operation!");
  expect(await fault('POST', path, { secretKey: 5 }, user.token)).toBe(
    '400/31 Validation error: secretKey must be string',
  );
});

test('a user may offer the device too, with the server attribute claimingData', async () => {
  const device = await newDevice();
  const server = `/api/plugins/telemetry/DEVICE/${device.id}/SERVER_SCOPE`;
  await ok('POST', server, { claimingData: { secretKey: 'plum', expirationTime: Date.now() - 1 } });
  expect(await claim(device, { secretKey: 'plum' })).toEqual([400, '"FAILURE"']);
  await ok('POST', server, { claimingData: { secretKey: 'plum', expirationTime: Date.now() + 60_000 } });
  expect((await claim(device, { secretKey: 'plum' }))[0]).toBe(200);
  expect(
    await ok('GET', `/api/plugins/telemetry/DEVICE/${device.id}/values/attributes/SERVER_SCOPE?keys=claimingData`),
  ).toEqual([]);
});
