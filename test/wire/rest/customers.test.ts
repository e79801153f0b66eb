/** Customers, and what their users may do (docs/rest.md#customers, docs/rest.md#roles). */
import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { newCustomer, newCustomerUser, newTenant, ok, systemAdminToken } from '../../harness/people.ts';
import { fault } from '../../harness/rest.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';

const denied = "403/20 You don't have permission to perform this operation!";
const nullUuid = '13814000-1dd2-11b2-8080-808080808080';
const page = 'pageSize=10&page=0';

test('a customer has exactly the documented members', async () => {
  const title = `Orchard ${randomUUID()}`;
  const customer = await ok('POST', '/api/customer', {
    title,
    city: 'Lund',
    email: 'a@b.example',
    additionalInfo: { a: 1 },
  });
  expect(Object.keys(customer).sort()).toEqual(
    [
      ...[
        'additionalInfo',
        'address',
        'address2',
        'city',
        'country',
        'createdTime',
        'email',
        'externalId',
        'id',
        'name',
      ],
      ...['phone', 'state', 'tenantId', 'title', 'version', 'zip'],
    ].sort(),
  );
  expect(customer).toMatchObject({
    title,
    name: title,
    city: 'Lund',
    country: null,
    version: 1,
    additionalInfo: { a: 1 },
  });
  const { id } = customer.id;
  expect(await ok('GET', `/api/customer/${id}`)).toEqual(customer);
  expect(await ok('GET', `/api/customer/${id}/shortInfo`)).toEqual({ title, isPublic: false });
  expect(await ok('GET', `/api/customer/${id}/title`)).toBe(title);
  expect(await ok('GET', `/api/tenant/customers?customerTitle=${encodeURIComponent(title)}`)).toEqual(customer);
  const list = await ok('GET', `/api/customers?${page}&textSearch=${title.slice(8).toUpperCase()}`);
  expect(list).toMatchObject({ data: [customer], totalPages: 1, totalElements: 1, hasNext: false });
});

test('a customer is replaced by a save, and checked', async () => {
  const customer = await ok('POST', '/api/customer', { title: randomUUID(), city: 'Lund' });
  const { city: _city, ...rest } = customer;
  expect(await ok('POST', '/api/customer', rest)).toMatchObject({ city: null, version: 2 });
  expect(await fault('POST', '/api/customer', customer)).toBe('409/35 Customer was already changed by someone else');
  expect(await fault('POST', '/api/customer', { title: customer.title })).toBe(
    '400/31 Customer with such title already exists!',
  );
  expect(await fault('POST', '/api/customer', {})).toBe('400/31 Customer title should be specified!');
  expect(await fault('POST', '/api/customer', { title: 'Public' })).toBe(
    "400/31 'Public' title for customer is system reserved!",
  );
  const unknown = randomUUID();
  expect(await fault('GET', `/api/customer/${unknown}`)).toBe(`404/32 Customer with id [${unknown}] is not found`);
  expect(await fault('GET', '/api/customer/123')).toBe('400/31 Invalid UUID string: 123');
});

test('a device is given to a customer and taken back', async () => {
  const [customerId, device] = [await newCustomer(), await newDevice()];
  const given = await ok('POST', `/api/customer/${customerId}/device/${device.id}`);
  expect(given).toMatchObject({ customerId: { entityType: 'CUSTOMER', id: customerId }, version: 2 });
  const list = await ok('GET', `/api/customer/${customerId}/devices?${page}`);
  expect(list.data).toEqual([given]);
  const infos = await ok('GET', `/api/customer/${customerId}/deviceInfos?${page}`);
  expect(infos.data).toMatchObject([{ id: { id: device.id }, customerIsPublic: false }]);
  expect((await ok('DELETE', `/api/customer/device/${device.id}`)).customerId.id).toBe(nullUuid);
  expect(await fault('DELETE', `/api/customer/device/${device.id}`)).toBe(
    "400/31 Device isn't assigned to any customer!",
  );
  const unknown = randomUUID();
  expect(await fault('POST', `/api/customer/${unknown}/device/${device.id}`)).toBe(
    `404/32 Customer with id [${unknown}] is not found`,
  );
  expect(await fault('POST', `/api/customer/${customerId}/device/${unknown}`)).toBe(
    `404/32 Device with id [${unknown}] is not found`,
  );
});

test('a save without a customer unassigns the device', async () => {
  const [customerId, device] = [await newCustomer(), await newDevice()];
  const { customerId: _, ...rest } = await ok('POST', `/api/customer/${customerId}/device/${device.id}`);
  expect((await ok('POST', '/api/device', rest)).customerId.id).toBe(nullUuid);
});

test('public devices share one customer of the tenant', async () => {
  const devices = await Promise.all([newDevice(), newDevice(), newDevice()]);
  const given = await Promise.all(devices.map(({ id }) => ok('POST', `/api/customer/public/device/${id}`)));
  expect(new Set(given.map(({ customerId }) => customerId.id)).size).toBe(1);
  const { id } = given[0].customerId;
  expect(await ok('GET', `/api/customer/${id}/shortInfo`)).toEqual({ title: 'Public', isPublic: true });
  expect(await ok('GET', `/api/device/info/${devices[0]!.id}`)).toMatchObject({ customerIsPublic: true });
});

test('with a customer its users go, and its devices stay', async () => {
  const [customerId, device] = [await newCustomer(), await newDevice()];
  const user = await newCustomerUser(customerId);
  await ok('POST', `/api/customer/${customerId}/device/${device.id}`);
  await ok('DELETE', `/api/customer/${customerId}`);
  expect((await ok('GET', `/api/device/${device.id}`)).customerId.id).toBe(nullUuid);
  expect(await fault('GET', '/api/auth/user', undefined, user.token)).toBe('401/11 Token has expired');
  expect(await fault('GET', `/api/user/${user.id}`)).toBe(`404/32 User with id [${user.id}] is not found`);
  expect(await fault('DELETE', `/api/customer/${customerId}`)).toBe(
    `404/32 Customer with id [${customerId}] is not found`,
  );
});

test('what was offered to claim under a customer is not offered after the delete of the customer', async () => {
  const [customerId, device] = [await newCustomer(), await newDevice()];
  const { name } = await ok('POST', `/api/customer/${customerId}/device/${device.id}`);
  const data = { claimingData: { secretKey: 'plum', expirationTime: Date.now() + 600_000 } };
  await ok('POST', `/api/plugins/telemetry/DEVICE/${device.id}/SERVER_SCOPE`, data);
  await ok('DELETE', `/api/customer/${customerId}`);
  const { token } = await newCustomerUser(await newCustomer());
  const path = `/api/customer/device/${encodeURIComponent(name)}/claim`;
  const answer = await sharedEngine().send('POST', path, { secretKey: 'plum' }, token);
  expect([answer.status, await answer.text()]).toEqual([400, '"FAILURE"']);
});

test('a customer of many devices is deleted, and each of its devices stays', async () => {
  const customerId = await newCustomer();
  const [run, customer] = [randomUUID(), { entityType: 'CUSTOMER', id: customerId }];
  const devices = Array.from({ length: 1_001 }, (_, n) => ({ name: `${run}-${n}`, customerId: customer }));
  const { created, results } = await ok('POST', '/api/devices/bulk', { devices });
  expect(created).toBe(devices.length);
  await ok('DELETE', `/api/customer/${customerId}`);
  const list = await ok('GET', `/api/tenant/deviceInfos?pageSize=1000&page=0&textSearch=${run}`);
  expect(list.totalElements).toBe(devices.length);
  expect(new Set(list.data.map((device: { customerId: { id: string } }) => device.customerId.id))).toEqual(
    new Set([nullUuid]),
  );
  const { accessToken } = results.at(-1);
  expect(await sharedEngine().postTelemetry(accessToken, '{"a":1}')).toBe(200);
});

test('a customer user makes no gateway of a device, and moves it to no other profile or owner', async () => {
  const [customerId, device, hub] = [await newCustomer(), await newDevice(), await newDevice()];
  const { token } = await newCustomerUser(customerId);
  const change = async (id: string, members: object, by?: string) =>
    await ok('POST', '/api/device', { ...(await ok('GET', `/api/device/${id}`)), ...members }, by);
  await change(hub.id, { additionalInfo: { gateway: true, note: 'roof' } });
  for (const { id } of [device, hub]) await ok('POST', `/api/customer/${customerId}/device/${id}`);
  const stored = await ok('GET', `/api/device/${device.id}`);
  const type = randomUUID();
  const saved = await change(
    device.id,
    { label: 'mine', type, deviceProfileId: null, customerId: null, additionalInfo: { gateway: true, note: 'mine' } },
    token,
  );
  const { customerId: owner, deviceProfileId, type: storedType } = stored;
  expect(saved).toMatchObject({ label: 'mine', customerId: owner, deviceProfileId, type: storedType });
  expect(saved.additionalInfo).toEqual({ note: 'mine' });
  const names = await ok('GET', '/api/deviceProfile/names');
  expect(names.some(({ name }: { name: string }) => name === type)).toBe(false);
  expect((await change(hub.id, { additionalInfo: null }, token)).additionalInfo).toEqual({ gateway: true });
});

test('a customer user sees and changes the own devices, and no others', async () => {
  const [customerId, own, foreign] = [await newCustomer(), await newDevice(), await newDevice()];
  const { token } = await newCustomerUser(customerId);
  await ok('POST', `/api/customer/${customerId}/device/${own.id}`);
  await ok('POST', `/api/customer/${await newCustomer()}/device/${foreign.id}`);
  const device = await ok('GET', `/api/device/${own.id}`, undefined, token);
  expect(await ok('GET', `/api/device/${own.id}/credentials`, undefined, token)).toMatchObject({
    credentialsId: own.token,
  });
  const saved = await ok('POST', '/api/device', { ...device, label: 'north' }, token);
  expect(saved).toMatchObject({ label: 'north', customerId: { id: customerId } });
  const both = await ok('GET', `/api/devices?deviceIds=${own.id},${foreign.id}`, undefined, token);
  expect(both).toEqual([saved]);
  expect(await ok('GET', `/api/customer/${customerId}/devices?${page}`, undefined, token)).toMatchObject({
    totalElements: 1,
  });
  const refused: [string, string, unknown?][] = [
    ['GET', `/api/device/${foreign.id}`],
    ['GET', `/api/device/${foreign.id}/credentials`],
    ['POST', '/api/device', { name: randomUUID() }],
    ['DELETE', `/api/device/${own.id}`],
    ['POST', '/api/device/credentials', {}],
    ['GET', `/api/tenant/devices?${page}`],
    ['POST', `/api/customer/${customerId}/device/${foreign.id}`],
    ['DELETE', `/api/customer/device/${own.id}`],
    ['POST', '/api/customer', { title: randomUUID() }],
    ['GET', `/api/customers?${page}`],
    ['POST', '/api/deviceProfile', { name: randomUUID() }],
    ['GET', `/api/deviceProfiles?${page}`],
    ['POST', '/api/tenant', { title: randomUUID() }],
  ];
  for (const [method, path, body] of refused) expect(await fault(method, path, body, token), path).toBe(denied);
  expect(await ok('GET', `/api/customer/${customerId}`, undefined, token)).toMatchObject({ id: { id: customerId } });
});

test('tenants do not know of each other', async () => {
  const { id, admin } = await newTenant();
  const device = await newDevice();
  const customerId = await newCustomer();
  const f = (method: string, path: string) => fault(method, path, undefined, admin.token);
  expect(await f('GET', `/api/device/${device.id}`)).toBe(`404/32 Device with id [${device.id}] is not found`);
  expect(await f('GET', `/api/customer/${customerId}`)).toBe(`404/32 Customer with id [${customerId}] is not found`);
  expect(await f('DELETE', `/api/customer/${customerId}`)).toBe(`404/32 Customer with id [${customerId}] is not found`);
  expect(await ok('GET', `/api/tenant/devices?${page}`, undefined, admin.token)).toMatchObject({ totalElements: 0 });
  expect(await ok('GET', `/api/tenant/${id}`, undefined, admin.token)).toMatchObject({ id: { id } });
  expect(await fault('GET', `/api/tenant/${id}`)).toBe(`404/32 Tenant with id [${id}] is not found`);
  const caller = await systemAdminToken();
  expect(await fault('GET', `/api/tenant/devices?pageSize=1&page=0`, undefined, caller)).toBe(denied);
});
