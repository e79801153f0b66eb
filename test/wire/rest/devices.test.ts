/** Devices and their credentials (docs/rest.md#devices). */
import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { fault, faultOf } from '../../harness/rest.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';

interface DeviceJson {
  id: { entityType: string; id: string };
  name: string;
  type: string;
  version: number;
  customerId: { entityType: string; id: string };
  [member: string]: unknown;
}

interface Page {
  data: DeviceJson[];
  totalPages: number;
  totalElements: number;
  hasNext: boolean;
}

const nullUuid = '13814000-1dd2-11b2-8080-808080808080';

async function create(device: object, query = ''): Promise<DeviceJson> {
  const response = await sharedEngine().send('POST', `/api/device${query}`, device);
  const text = await response.text();
  expect(response.status, text).toBe(200);
  return JSON.parse(text) as DeviceJson;
}

async function saved<T>(path: string, body: object): Promise<T> {
  const response = await sharedEngine().send('POST', path, body);
  const text = await response.text();
  expect(response.status, text).toBe(200);
  return JSON.parse(text) as T;
}

async function list(query: string): Promise<Page> {
  const response = await sharedEngine().send('GET', `/api/tenant/devices?${query}`);
  const text = await response.text();
  expect(response.status, text).toBe(200);
  return JSON.parse(text) as Page;
}

test('a number in a document of a device is a 64-bit float', async () => {
  const body = `{"name":"${randomUUID()}","additionalInfo":{"n":9007199254740993,"x":42.0,"y":1.5e3}}`;
  const answer = await sharedEngine().send('POST', '/api/device', body);
  expect(await answer.text()).toContain('"additionalInfo":{"n":9007199254740992,"x":42,"y":1500}');
});

test('a device needs only a name; everything else is there', async () => {
  const name = `pump-${randomUUID()}`;
  const device = await create({ name });
  expect(Object.keys(device).sort()).toEqual(
    [
      'additionalInfo',
      'createdTime',
      'customerId',
      'deviceData',
      'deviceProfileId',
      'externalId',
      'firmwareId',
      'id',
      'label',
      'name',
      'softwareId',
      'tenantId',
      'type',
      'version',
    ].sort(),
  );
  expect(device).toMatchObject({
    name,
    type: 'default',
    version: 1,
    id: { entityType: 'DEVICE' },
    customerId: { entityType: 'CUSTOMER', id: nullUuid },
  });
  const read = await sharedEngine().send('GET', `/api/device/${device.id.id}`);
  expect(await read.json()).toEqual(device);
  const credentials = (await (
    await sharedEngine().send('GET', `/api/device/${device.id.id}/credentials`)
  ).json()) as Record<string, unknown>;
  expect(Object.keys(credentials).sort()).toEqual(
    ['createdTime', 'credentialsId', 'credentialsType', 'credentialsValue', 'deviceId', 'id', 'version'].sort(),
  );
  expect(credentials).toMatchObject({
    credentialsType: 'ACCESS_TOKEN',
    credentialsValue: null,
    deviceId: { entityType: 'DEVICE', id: device.id.id },
  });
  expect(credentials['credentialsId']).toMatch(/^[A-Za-z0-9]{20}$/);
});

test('a token is taken once', async () => {
  const token = `T${randomUUID()}`;
  await create({ name: randomUUID() }, `?accessToken=${token}`);
  const answer = await fault('POST', `/api/device?accessToken=${token}`, { name: randomUUID() });
  expect(answer).toBe('400/31 These device credentials cannot be used: choose others.');
});

test('a name is taken once, unless it may be made unique', async () => {
  const name = `pump-${randomUUID()}`;
  await create({ name });
  expect(await fault('POST', '/api/device', { name })).toBe('400/31 Device with such name already exists!');
  const other = await create({ name }, '?nameConflictPolicy=UNIQUIFY');
  expect(other.name.startsWith(`${name}_`)).toBe(true);
});

test('a device without a name is refused', async () => {
  expect(await fault('POST', '/api/device', { type: 'pump' })).toBe('400/31 Device name should be specified!');
});

test('saving replaces the device and checks its version', async () => {
  const device = await create({ name: `pump-${randomUUID()}`, label: 'old' });
  const saved = await create({ ...device, label: 'new' });
  expect(saved).toMatchObject({ label: 'new', version: 2 });
  const stale = await fault('POST', '/api/device', { ...device, label: 'stale' });
  expect(stale).toBe('409/35 Device was already changed by someone else');
  const { version: _version, customerId: _customerId, ...rest } = saved;
  const again = await create({ ...rest, label: 'last' });
  expect(again).toMatchObject({ label: 'last', version: 3, customerId: { entityType: 'CUSTOMER', id: nullUuid } });
});

test('an unknown type becomes a profile; letter case counts', async () => {
  const type = `pump-${randomUUID()}`;
  const device = await create({ name: randomUUID(), type });
  expect(device.type).toBe(type);
  const upper = await create({ name: randomUUID(), type: type.toUpperCase() });
  expect(upper['deviceProfileId']).not.toEqual(device['deviceProfileId']);
});

test('malformed ids and unknown ids get different answers', async () => {
  expect(await fault('GET', '/api/device/123')).toBe('400/31 Invalid UUID string: 123');
  const id = randomUUID();
  expect(await fault('GET', `/api/device/${id}`)).toBe(`404/32 Device with id [${id}] is not found`);
});

test('broken JSON, a wrong method and a wrong media type are named', async () => {
  expect(await fault('POST', '/api/device', '{"name":')).toMatch(/^400\/31 /);
  expect(await fault('PUT', '/api/device', {})).toMatch(/^405\/31 /);
  const { http } = sharedEngine();
  const xml = await fetch(`${http}/api/device`, {
    method: 'POST',
    headers: { 'content-type': 'text/xml', 'x-authorization': `Bearer ${await sharedEngine().adminToken()}` },
    body: '<device/>',
  });
  expect(await faultOf(xml)).toMatch(/^415\/31 /);
});

test('lists are paged, searched and refuse bad pages', async () => {
  const mark = randomUUID().slice(0, 13);
  for (let n = 0; n < 5; n += 1) await create({ name: `${mark}-PuMp-${n}` });
  expect(await list(`pageSize=2&page=2&textSearch=${mark}`)).toMatchObject({
    totalPages: 3,
    totalElements: 5,
    hasNext: false,
    data: [{ name: `${mark}-PuMp-4` }],
  });
  expect(await list(`pageSize=2&page=9&textSearch=${mark}`)).toMatchObject({ data: [], totalElements: 5 });
  expect((await list(`pageSize=10&page=0&textSearch=${mark}-pump-3`)).data).toHaveLength(1);
  const descending = await list(`pageSize=10&page=0&textSearch=${mark}&sortProperty=name&sortOrder=DESC`);
  expect(descending.data[0]!.name).toBe(`${mark}-PuMp-4`);
  const path = '/api/tenant/devices';
  expect(await fault('GET', `${path}?pageSize=0&page=0`)).toBe(
    "400/31 Incorrect page link page size '0'. Page size must be greater than zero.",
  );
  expect(await fault('GET', `${path}?pageSize=1&page=-1`)).toBe(
    "400/31 Incorrect page link page '-1'. Page must be positive integer.",
  );
  expect(await fault('GET', `${path}?pageSize=1`)).toMatch(/^400\/31 /);
  expect(await fault('GET', `${path}?pageSize=1&page=0&sortOrder=UP`)).toBe(
    "400/31 Unsupported sort order 'UP'! Only 'ASC' or 'DESC' types are allowed.",
  );
  expect(await fault('GET', `${path}?pageSize=1&page=0&sortProperty=nope`)).toBe(
    "400/31 Invalid sort property 'nope': this list can be sorted by id, createdTime, name, label, type, deviceProfileName, customerTitle, active.",
  );
});

test('lists of a tenant, a customer and a profile have their totals, in each order', async () => {
  const mark = randomUUID().slice(0, 13);
  const customer = await saved<{ id: object & { id: string } }>('/api/customer', { title: `! ${mark}` });
  const made: DeviceJson[] = [];
  for (let n = 0; n < 9; n += 1) {
    const label = n % 3 === 0 ? undefined : `Label ${mark} ${9 - n}`;
    const customerId = n % 2 === 0 ? customer.id : undefined;
    made.push(await create({ name: `${mark} ${(n * 4) % 9}`, label, type: `type ${mark} ${n % 2}`, customerId }));
  }
  const ofCustomer = made.filter((_, n) => n % 2 === 0).map(({ name }) => name);
  const path = `/api/customer/${customer.id.id}/deviceInfos`;
  const names = async (path: string, total: number) => {
    const page = JSON.parse(await (await sharedEngine().send('GET', path)).text()) as Page;
    expect(page).toMatchObject({ totalElements: total, totalPages: Math.ceil(total / 3) });
    return page.data.map(({ name }) => name);
  };
  for (const order of ['ASC', 'DESC']) {
    const turned = (list: string[]) => (order === 'ASC' ? list : [...list].reverse());
    for (const sort of ['', 'id', 'name', 'type', 'customerTitle']) {
      const sorted = turned(sort === 'name' ? [...ofCustomer].sort() : ofCustomer);
      const query = `pageSize=3&sortProperty=${sort}&sortOrder=${order}`;
      expect(await names(`${path}?${query}&page=0`, 5)).toEqual(sorted.slice(0, 3));
      expect(await names(`${path}?${query}&page=1`, 5)).toEqual(sorted.slice(3));
      expect(await names(`${path}?${query}&page=2`, 5)).toEqual([]);
      const infos = `/api/tenant/deviceInfos?${query}&type=type%20${mark}%200`;
      expect(await names(`${infos}&page=1`, 5)).toEqual(sorted.slice(3));
    }
    const labels = turned(made.filter(({ label }) => label !== null).map(({ name }) => name));
    const search = `pageSize=3&page=0&sortProperty=label&sortOrder=${order === 'ASC' ? 'DESC' : 'ASC'}`;
    expect(await names(`/api/tenant/devices?${search}&textSearch=LABEL%20${mark}`, 6)).toEqual(labels.slice(0, 3));
  }
  // The title sorts before those of other tests, and devices without a customer sort last.
  const first = await list('pageSize=3&page=0&sortProperty=customerTitle');
  expect(first.data.map(({ name }) => name)).toEqual(ofCustomer.slice(0, 3));
  await create({ ...made[0]!, customerId: undefined });
  expect(await names(`${path}?pageSize=3&page=0`, 4)).toEqual(ofCustomer.slice(1, 4));
  expect((await sharedEngine().send('DELETE', `/api/device/${made[2]!.id.id}`)).status).toBe(200);
  expect(await names(`${path}?pageSize=3&page=0`, 3)).toEqual(ofCustomer.slice(2));
});

test('a device is found by its name', async () => {
  const name = `pump-${randomUUID()}`;
  const device = await create({ name });
  const response = await sharedEngine().send('GET', `/api/tenant/devices?deviceName=${name}`);
  expect(await response.json()).toEqual(device);
  expect(await fault('GET', '/api/tenant/devices?deviceName=nope')).toBe("404/32 Requested item wasn't found!");
});

test('a deleted device is gone: its token on every worker, its data, its id', async () => {
  const api = sharedEngine();
  const device = await newDevice();
  const around = { startTs: Date.now() - 60_000, endTs: Date.now() + 60_000 };
  expect(await api.postTelemetry(device.token, '{"a":1}')).toBe(200);
  await eventually(async () => (await api.readSeries(device.id, ['a'], around))['a']);
  const deleted = await api.send('DELETE', `/api/device/${device.id}`);
  expect(deleted.status).toBe(200);
  expect(await deleted.text()).toBe('');
  expect(await fault('DELETE', `/api/device/${device.id}`)).toMatch(/^404\/32 /);
  await api.telemetryBecomes(device.token, 401);
});

test('a new device may send at once, though its token was refused a moment ago', async () => {
  const api = sharedEngine();
  const token = `early-${randomUUID()}`;
  for (let n = 0; n < 8; n += 1) expect(await api.postTelemetry(token, '{"a":1}')).toBe(401);
  await api.createDevice(randomUUID(), token);
  await api.telemetryBecomes(token, 200);
});

test('changed credentials replace the old token', async () => {
  const api = sharedEngine();
  const device = await newDevice();
  const credentials = (await (await api.send('GET', `/api/device/${device.id}/credentials`)).json()) as object;
  const token = `next-${randomUUID()}`;
  const saved = await api.send('POST', '/api/device/credentials', { ...credentials, credentialsId: token });
  expect(saved.status).toBe(200);
  await eventually(async () => (await api.postTelemetry(device.token, '{"a":1}')) === 401);
  expect(await api.postTelemetry(token, '{"a":1}')).toBe(200);
});

test('the users and devices of the demo are there when asked for', async () => {
  const api = sharedEngine();
  expect(await api.postTelemetry('A1_TEST_TOKEN', '{"demo":1}')).toBe(200);
  expect(await api.postTelemetry('DHT11_DEMO_TOKEN', '{"demo":1}')).toBe(200);
  const { token } = await api.login('tenant@thingsboard.org', 'tenant');
  const response = await api.send('GET', '/api/tenant/devices?deviceName=Thermostat%20T1', undefined, token);
  expect(await response.json()).toMatchObject({ name: 'Thermostat T1', type: 'thermostat' });
});
