/** Devices over the REST API: saving, lists, credentials, deletes; and which of them are gateways. */
import { beforeAll, describe, expect, it } from 'vitest';
import { type Answer, error, sharedApi, unique } from '../../test/harness/api-handlers.ts';
import { nullUuid } from '../base/uuid.ts';
import { lookUpLogins, lookUpTokens } from '../device/sql/look-up-store.ts';

const { call, tokenOf, create, postgres, tokens } = await sharedApi();

describe('devices', () => {
  let jwt: string;
  beforeAll(async () => {
    jwt = await tokenOf('tenant@thingsboard.org', 'tenant');
  });

  it('have exactly the members of the wire', async () => {
    const name = unique('pump');
    const device = await create(jwt, { name, additionalInfo: { gateway: false, n: 1.5 } });
    expect(JSON.stringify(device)).toBe(
      JSON.stringify({
        id: { entityType: 'DEVICE', id: device.id.id },
        createdTime: device.createdTime,
        tenantId: { entityType: 'TENANT', id: device.tenantId.id },
        customerId: { entityType: 'CUSTOMER', id: nullUuid },
        name,
        type: 'default',
        label: null,
        deviceProfileId: { entityType: 'DEVICE_PROFILE', id: device.deviceProfileId.id },
        deviceData: { configuration: { type: 'DEFAULT' }, transportConfiguration: { type: 'DEFAULT' } },
        firmwareId: null,
        softwareId: null,
        externalId: null,
        version: 1,
        additionalInfo: { gateway: false, n: 1.5 },
      }),
    );
    const read = await call('GET', `/api/device/${device.id.id}`, { jwt });
    expect(read.body).toEqual(device);
    const info = await call('GET', `/api/device/info/${device.id.id}`, { jwt });
    expect(info.body).toEqual({
      ...device,
      customerTitle: null,
      customerIsPublic: false,
      deviceProfileName: 'default',
      active: false,
    });
  });

  it('get a random token, or the one asked for, once', async () => {
    const device = await create(jwt);
    const { body } = await call('GET', `/api/device/${device.id.id}/credentials`, { jwt });
    expect(body).toEqual({
      id: { id: expect.any(String) },
      createdTime: expect.any(Number),
      deviceId: device.id,
      credentialsType: 'ACCESS_TOKEN',
      credentialsId: expect.stringMatching(/^[A-Za-z0-9]{20}$/),
      credentialsValue: null,
      version: 1,
    });
    const token = unique('KEY');
    await create(jwt, {}, `?accessToken=${token}`);
    const again = await call('POST', `/api/device?accessToken=${token}`, { jwt, body: { name: unique('pump') } });
    expect(again).toMatchObject(error(400, 31, 'These device credentials cannot be used: choose others.'));
  });

  it('are refused with a reason', async () => {
    const device = await create(jwt);
    const post = (body: unknown, query = '') => call('POST', `/api/device${query}`, { jwt, body });
    expect(await post({ name: device.name })).toMatchObject(error(400, 31, 'Device with such name already exists!'));
    expect(await post({})).toMatchObject(error(400, 31, 'Device name should be specified!'));
    expect(await post({ name: 'x'.repeat(256) })).toMatchObject(
      error(400, 31, 'Validation error: name length must be equal or less than 255'),
    );
    expect(await post({ name: 'a<script>' })).toMatchObject(error(400, 31, expect.stringContaining('is malformed')));
    expect(await post({ name: 'a\0b' })).toMatchObject({ status: 400, body: { errorCode: 31 } });
    expect(await post({ name: 5 })).toMatchObject(error(400, 31, expect.stringContaining('name')));
    expect(await post('{"name":')).toMatchObject({ status: 400 });
    expect(await post('')).toMatchObject({ status: 400 });
    expect(await post({ name: unique('a'), deviceProfileId: { id: nullUuid.replace('1', '2') } })).toMatchObject(
      error(400, 31, 'Device is referencing non existing device profile!'),
    );
    expect(await post({ name: unique('a'), customerId: { id: nullUuid.replace('1', '2') } })).toMatchObject(
      error(400, 31, "Can't assign device to non-existent customer!"),
    );
    expect(await post({ name: unique('a'), customerId: { id: '12' } })).toMatchObject(
      error(400, 31, 'Invalid UUID string: 12'),
    );
    const xml = await call('POST', '/api/device', { jwt, body: '<a/>', headers: { 'content-type': 'text/xml' } });
    expect(xml).toMatchObject({ status: 415 });
    const unified = await post({ name: device.name }, '?nameConflictPolicy=UNIQUIFY');
    expect(unified.body.name).toMatch(new RegExp(`^${device.name}_[a-z0-9]{6}$`));
  });

  it('with a taken name are numbered, however many there are', async () => {
    const name = unique('Насос 100%');
    const query = '?nameConflictPolicy=UNIQUIFY&uniquifyStrategy=INCREMENTAL&uniquifySeparator=-%5C';
    const number = async () => (await create(jwt, { name }, query)).name.slice(name.length);
    expect([await number(), await number(), await number()]).toEqual(['', '-\\1', '-\\2']);
    for (const taken of ['-\\150', '-\\0900', '-\\x', '-950']) await create(jwt, { name: name + taken });
    expect(await number()).toBe('-\\151');
    const racing = await Promise.all(Array.from({ length: 8 }, number));
    expect(racing.sort()).toEqual(Array.from({ length: 8 }, (_, n) => `-\\${152 + n}`));
  });

  it('find or make the profile of their type', async () => {
    const type = unique('Pump');
    const first = await create(jwt, { type });
    const [second, third] = await Promise.all([create(jwt, { type }), create(jwt, { type: type.toLowerCase() })]);
    expect(second.deviceProfileId).toEqual(first.deviceProfileId);
    expect(third.deviceProfileId).not.toEqual(first.deviceProfileId);
    const byId = await create(jwt, { type: 'ignored', deviceProfileId: first.deviceProfileId });
    expect(byId.type).toBe(type);
  });

  it('are replaced by a save, under a version', async () => {
    const { body: customer } = await call('GET', '/api/tenant/device?deviceName=Test%20Device%20A1', { jwt });
    const device = await create(jwt, { customerId: customer.customerId, label: 'North', type: 'thermostat' });
    expect(device.customerId).toEqual(customer.customerId);
    const save = (body: object) => call('POST', '/api/device', { jwt, body });
    const saved = await save({ id: device.id, name: device.name, version: 1 });
    expect(saved.body).toMatchObject({ version: 2, label: null, customerId: { id: nullUuid }, type: 'default' });
    expect(await save({ ...device, version: 1 })).toMatchObject(
      error(409, 35, 'Device was already changed by someone else'),
    );
    expect((await save({ ...device, version: null })).body).toMatchObject({ version: 3, label: 'North' });
    const other = await create(jwt);
    expect(await save({ ...device, name: other.name, version: null })).toMatchObject(
      error(400, 31, 'Device with such name already exists!'),
    );
  });

  it('are listed by page', async () => {
    const type = unique('listed');
    for (const name of ['e', 'd', 'c', 'b', 'a']) await create(jwt, { type, name: `${type}_%${name}`, label: 'x\\y' });
    const list = (query: string) => call('GET', `/api/tenant/devices?type=${type}&${query}`, { jwt });
    const names = (answer: Answer) => answer.body.data.map((device: { name: string }) => device.name.at(-1)).join('');
    const all = await list('pageSize=10&page=0');
    expect(names(all)).toBe('edcba');
    expect(names(await list('pageSize=10&page=0&sortProperty=name'))).toBe('abcde');
    expect(names(await list('pageSize=2&page=0&sortProperty=name&sortOrder=DESC'))).toBe('ed');
    const last = await list('pageSize=2&page=2');
    expect(last.body).toMatchObject({ totalPages: 3, totalElements: 5, hasNext: false });
    expect(names(last)).toBe('a');
    expect((await list('pageSize=2&page=9')).body).toEqual({
      data: [],
      totalPages: 3,
      totalElements: 5,
      hasNext: false,
    });
    expect(names(await list(`pageSize=9&page=0&textSearch=${encodeURIComponent(`${type.toUpperCase()}_%C`)}`))).toBe(
      'c',
    );
    expect(names(await list(`pageSize=9&page=0&textSearch=${encodeURIComponent('\\')}`))).toBe('edcba');
    expect(names(await list('pageSize=9&page=0&textSearch=_x'))).toBe('');
    const infos = await call('GET', `/api/tenant/deviceInfos?type=${type}&pageSize=1&page=0`, { jwt });
    expect(infos.body.data[0]).toMatchObject({ deviceProfileName: type, active: false });
  });

  it.each([
    ['page=0', "Required request parameter 'pageSize' is not present"],
    ['pageSize=5', "Required request parameter 'page' is not present"],
    ['pageSize=0&page=0', "Incorrect page link page size '0'. Page size must be greater than zero."],
    ['pageSize=1&page=-1', "Incorrect page link page '-1'. Page must be positive integer."],
    [
      'pageSize=1&page=0&sortProperty=password',
      "Invalid sort property 'password': this list can be sorted by id, createdTime, name, label, type, deviceProfileName, customerTitle, active.",
    ],
    ['pageSize=1&page=0&sortOrder=UP', "Unsupported sort order 'UP'! Only 'ASC' or 'DESC' types are allowed."],
  ])('the list %s is refused', async (query, message) => {
    expect(await call('GET', `/api/tenant/devices?${query}`, { jwt })).toMatchObject(error(400, 31, message));
  });

  it.each([
    ['Насос', 'насос', 'НАСОС'],
    ['ümläut', 'ÜMLÄUT', 'Mläu'],
    ['Pump', 'pUMP', 'UM'],
  ])('named %s are found as %s and as %s', async (name, ...searches) => {
    const device = await create(jwt, { name: unique(name) });
    for (const search of searches) {
      const found = await call(
        'GET',
        `/api/tenant/devices?pageSize=1000&page=0&textSearch=${encodeURIComponent(search)}`,
        { jwt },
      );
      expect(found.body.data).toContainEqual(device);
    }
  });

  it('are found by name and by ids', async () => {
    const [one, two] = [await create(jwt), await create(jwt)];
    expect((await call('GET', `/api/tenant/devices?deviceName=${one.name}`, { jwt })).body).toEqual(one);
    const missing = error(404, 32, "Requested item wasn't found!");
    expect(await call('GET', '/api/tenant/devices?deviceName=nope', { jwt })).toMatchObject(missing);
    const ids = await call('GET', `/api/devices?deviceIds=${one.id.id},${two.id.id}`, { jwt });
    expect(ids.body).toEqual([one, two]);
  });

  it('of another tenant are not there', async () => {
    const device = await create(await tokenOf());
    const { id } = device.id;
    const missing = error(404, 32, `Device with id [${id}] is not found`);
    expect(await call('GET', `/api/device/${id}`, { jwt })).toMatchObject(missing);
    expect(await call('DELETE', `/api/device/${id}`, { jwt })).toMatchObject(missing);
    expect(await call('GET', `/api/device/${id}/credentials`, { jwt })).toMatchObject(missing);
    expect(await call('POST', '/api/device', { jwt, body: device })).toMatchObject(missing);
    expect(await call('GET', '/api/device/123', { jwt })).toMatchObject(error(400, 31, 'Invalid UUID string: 123'));
  });

  it('are seen by a customer user when they are the own ones, and by no system administrator', async () => {
    const customer = await tokenOf('customer@thingsboard.org', 'customer');
    const { body: own } = await call('GET', '/api/tenant/device?deviceName=Test%20Device%20A1', { jwt });
    const { body: other } = await call('GET', '/api/tenant/device?deviceName=Test%20Device%20B1', { jwt });
    const denied = error(403, 20, "You don't have permission to perform this operation!");
    expect(await call('GET', `/api/device/${own.id.id}`, { jwt: customer })).toMatchObject({ status: 200 });
    expect(await call('GET', `/api/device/${own.id.id}/credentials`, { jwt: customer })).toMatchObject({ status: 200 });
    expect(await call('GET', `/api/device/${other.id.id}`, { jwt: customer })).toMatchObject(denied);
    expect(await call('DELETE', `/api/device/${own.id.id}`, { jwt: customer })).toMatchObject(denied);
    expect(await call('POST', '/api/device', { jwt: customer, body: { name: 'x' } })).toMatchObject(denied);
    const page = 'pageSize=10&page=0&sortProperty=name';
    const list = await call('GET', `/api/customer/${own.customerId.id}/devices?${page}`, { jwt: customer });
    expect(list.body.data.map((device: { name: string }) => device.name)).toEqual(
      expect.arrayContaining(['Test Device A1', 'Test Device A2', 'Test Device A3']),
    );
    expect(await call('GET', `/api/customer/${other.customerId.id}/devices?${page}`, { jwt: customer })).toMatchObject(
      denied,
    );
    const saved = await call('POST', '/api/device', {
      jwt: customer,
      body: { ...own, customerId: null, label: 'mine' },
    });
    expect(saved.body).toMatchObject({ label: 'mine', customerId: own.customerId });
    const sysadmin = await tokenOf('sysadmin@thingsboard.org', 'sysadmin');
    expect(await call('GET', '/api/tenant/devices?pageSize=1&page=0', { jwt: sysadmin })).toMatchObject(denied);
  });

  it('change their token: the old one stops, the new one works', async () => {
    const device = await create(jwt, {}, `?accessToken=${unique('OLD')}`);
    const { body: credentials } = await call('GET', `/api/device/${device.id.id}/credentials`, { jwt });
    const next = unique('NEW');
    expect((await tokens.lookup(credentials.credentialsId))?.id).toBe(device.id.id);
    expect(await tokens.lookup(next)).toBeNull();
    const save = (change: object) =>
      call('POST', '/api/device/credentials', { jwt, body: { ...credentials, ...change } });
    expect((await save({ credentialsId: next })).body).toEqual({ ...credentials, credentialsId: next, version: 2 });
    expect(await tokens.lookup(credentials.credentialsId)).toBeNull();
    expect((await tokens.lookup(next))?.id).toBe(device.id.id);
    expect(await save({ credentialsId: 'A1_TEST_TOKEN', version: 2 })).toMatchObject(
      error(400, 31, 'These device credentials cannot be used: choose others.'),
    );
    expect(await save({ credentialsId: '', version: 2 })).toMatchObject(
      error(400, 31, 'Device credentials id should be specified!'),
    );
    expect(await save({ credentialsType: null })).toMatchObject(
      error(400, 31, 'Device credentials type should be specified'),
    );
    expect(await save({ version: 1 })).toMatchObject({ status: 409 });
    expect(await save({ id: { id: device.id.id }, version: 2 })).toMatchObject(
      error(400, 31, 'Unable to update non-existent device credentials!'),
    );
  });

  it('are deleted once, with their token and, through a tombstone, their data', async () => {
    const token = unique('GONE');
    const device = await create(jwt, {}, `?accessToken=${token}`);
    const { number } = (await tokens.lookup(token))!;
    expect(await call('DELETE', `/api/device/${device.id.id}`, { jwt })).toMatchObject({ status: 200, text: '' });
    expect(await tokens.lookup(token)).toBeNull();
    expect(await call('DELETE', `/api/device/${device.id.id}`, { jwt })).toMatchObject({ status: 404 });
    const tombstones = await postgres.query('select device, keys, order_number from tombstones where device = $1', [
      number,
    ]);
    expect(tombstones).toEqual([{ device: number, keys: null, order_number: null }]);
    const reborn = await create(jwt, { name: device.name }, `?accessToken=${token}`);
    expect((await tokens.lookup(token))!.number).toBeGreaterThan(number);
    expect(reborn.id).not.toEqual(device.id);
  });
});

describe('a gateway', () => {
  it('is a device with that member in its additional info, at its top and as a boolean', async () => {
    const jwt = await tokenOf();
    const device = await create(jwt);
    const { body } = await call('GET', `/api/device/${device.id.id}/credentials`, { jwt });
    const isGateway = async (additionalInfo: unknown) => {
      await call('POST', '/api/device', { jwt, body: { ...device, version: undefined, additionalInfo } });
      const [login] = await lookUpLogins(postgres, [body.credentialsId]);
      const token = (await lookUpTokens(postgres, [body.credentialsId])).get(body.credentialsId);
      expect(token!.isGateway).toBe(login!.isGateway);
      return login!.isGateway;
    };
    expect(await isGateway({ gateway: true, a: '\u0001 😀' })).toBe(true);
    expect(await isGateway({ x: { gateway: true } })).toBe(false);
    expect(await isGateway({ a: 1, gateway: true })).toBe(true);
    expect(await isGateway({ gateway: 'true' })).toBe(false);
    expect(await isGateway(['gateway'])).toBe(false);
    expect(await isGateway({ gateway: true })).toBe(true);
    expect(await isGateway(null)).toBe(false);
  });
});
