/**
 * Entity queries over REST (docs/rest.md#entity-queries), with the request bodies of ThingsBoard's dashboards and SDKs.
 */
import { randomUUID } from 'node:crypto';
import { beforeAll, expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { newTenant, newUser, ok, type Person } from '../../harness/people.ts';
import { fault } from '../../harness/rest.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

interface Ref {
  entityType: string;
  id: string;
}

let admin: Person;
let tenantId: string;
let orchard: Ref;
/** The devices pump-1 to pump-4 and valve-1, by name; pump-4 has no values. */
const devices: Record<string, Ref> = {};

const send = (method: string, path: string, body?: unknown, token = admin.token) => ok(method, path, body, token);
const key = (type: string, name: string) => ({ type, key: name });
const name = key('ENTITY_FIELD', 'name');
const temperature = key('TIME_SERIES', 'temperature');
const page = (members: object = {}) => ({ page: 0, pageSize: 100, ...members });
const sorted = (by: object, direction = 'ASC') => page({ sortOrder: { key: by, direction } });
const anyPump = { type: 'deviceType', deviceTypes: ['pump'] };
const find = (query: object, token = admin.token) =>
  send('POST', '/api/entitiesQuery/find', { pageLink: sorted(name), entityFields: [name], ...query }, token);
const count = (query: object, token = admin.token) => send('POST', '/api/entitiesQuery/count', query, token);
const refusal = (query: object, path = 'find') =>
  fault('POST', `/api/entitiesQuery/${path}`, { pageLink: page(), ...query }, admin.token);
interface Found {
  data: { entityId: Ref; latest: Record<string, Record<string, { ts: number; value: string }>> }[];
}
const namesOf = ({ data }: Found) => data.map(({ latest }) => latest['ENTITY_FIELD']!['name']!.value);
const filterOf = (of: object, type: string, operation: string, defaultValue: unknown, more: object = {}) => ({
  key: of,
  valueType: type,
  predicate: { type, operation, value: { defaultValue, dynamicValue: null }, ...more },
});

beforeAll(async () => {
  ({ admin, id: tenantId } = await newTenant());
  orchard = (await send('POST', '/api/customer', { title: `Orchard ${randomUUID()}`, city: 'Lviv' })).id;
  for (const [i, each] of ['pump-1', 'pump-2', 'Pump-3', 'pump-4', 'valve-1'].entries()) {
    const body = { name: each, type: each.toLowerCase().split('-')[0], label: i % 2 ? 'South' : 'North field' };
    const made = await send('POST', '/api/device', { ...body, additionalInfo: { row: i } });
    devices[each] = made.id;
    if (each === 'pump-4') continue;
    const path = `/api/plugins/telemetry/DEVICE/${made.id.id}`;
    const values = { temperature: 20.5 + i, count: i, on: i % 2 === 0, mode: i < 2 ? 'auto' : 'Manual' };
    await send('POST', `${path}/timeseries/ANY`, { ts: 1_700_000_000_000 + i, values });
    await send('POST', `${path}/attributes/SERVER_SCOPE`, { floor: i, site: `s${i}` });
    await send('POST', `${path}/attributes/SHARED_SCOPE`, { site: `shared${i}` });
  }
  for (const each of ['pump-1', 'valve-1'])
    await send('POST', `/api/customer/${orchard.id}/device/${devices[each]!.id}`);
  await eventually(async () => {
    const query = { entityFilter: anyPump, keyFilters: [filterOf(temperature, 'NUMERIC', 'GREATER', 0)] };
    return (await count(query)) === 3 || undefined;
  });
});

test('an entity has the fields, the latest telemetry and the attributes that are asked for', async () => {
  const latestValues = [
    ...[temperature, key('TIME_SERIES', 'count'), key('TIME_SERIES', 'on'), key('TIME_SERIES', 'none')],
    ...[key('SERVER_ATTRIBUTE', 'floor'), key('SHARED_ATTRIBUTE', 'site'), key('CLIENT_ATTRIBUTE', 'site')],
    ...[key('ATTRIBUTE', 'site'), key('SERVER_ATTRIBUTE', 'active')],
  ];
  const fields = ['name', 'type', 'label', 'entityType', 'createdTime', 'additionalInfo', 'email', 'title'];
  const found = await find({
    entityFilter: { type: 'singleEntity', singleEntity: devices['pump-2'] },
    entityFields: fields.map((each) => key('ENTITY_FIELD', each)),
    latestValues,
  });
  const { createdTime } = await send('GET', `/api/device/${devices['pump-2']!.id}`);
  const field = (value: string) => ({ ts: 0, value });
  const at = (value: string) => ({ ts: 1_700_000_000_001, value });
  const written = (value: string) => ({ ts: expect.any(Number), value });
  expect(found).toEqual({
    data: [
      {
        entityId: devices['pump-2'],
        latest: {
          ENTITY_FIELD: {
            ...{ name: field('pump-2'), type: field('pump'), label: field('South'), entityType: field('DEVICE') },
            ...{ createdTime: field(String(createdTime)), additionalInfo: field('{"row":1}'), email: field('') },
            title: field('pump-2'),
          },
          TIME_SERIES: { temperature: at('21.5'), count: at('1'), on: at('false'), none: field('') },
          SERVER_ATTRIBUTE: { floor: written('1'), active: field('') },
          SHARED_ATTRIBUTE: { site: written('shared1') },
          CLIENT_ATTRIBUTE: { site: field('') },
          ATTRIBUTE: { site: written('shared1') },
        },
        timeseries: {},
      },
    ],
    totalPages: 1,
    totalElements: 1,
    hasNext: false,
  });
});

test('each filter selects its entities', async () => {
  const names = async (entityFilter: object) => namesOf(await find({ entityFilter }));
  const list = [devices['pump-1']!.id, devices['valve-1']!.id, randomUUID()];
  expect(await names({ type: 'entityList', entityType: 'DEVICE', entityList: list })).toEqual(['pump-1', 'valve-1']);
  expect(await names({ type: 'entityName', entityType: 'DEVICE', entityNameFilter: 'pump-' })).toEqual([
    ...['Pump-3', 'pump-1', 'pump-2', 'pump-4'],
  ]);
  expect(await names({ type: 'entityName', entityType: 'DEVICE', entityNameFilter: '%-1' })).toEqual([
    ...['pump-1', 'valve-1'],
  ]);
  expect(await names({ type: 'entityName', entityType: 'DEVICE', entityNameFilter: 'pump_' })).toEqual([]);
  expect(await names({ type: 'entityType', entityType: 'DEVICE' })).toHaveLength(5);
  expect(await names(anyPump)).toEqual(['Pump-3', 'pump-1', 'pump-2', 'pump-4']);
  expect(await names({ type: 'deviceType', deviceTypes: ['pump', 'valve'], deviceNameFilter: 'v' })).toEqual([
    'valve-1',
  ]);
  expect(await names({ type: 'deviceType', deviceType: 'valve', deviceNameFilter: '' })).toEqual(['valve-1']);
  const { title } = await send('GET', `/api/customer/${orchard.id}`);
  const customers = await find({
    entityFilter: { type: 'entityType', entityType: 'CUSTOMER' },
    entityFields: [name, key('ENTITY_FIELD', 'city')],
  });
  expect(customers.data).toEqual([
    {
      entityId: orchard,
      latest: { ENTITY_FIELD: { name: { ts: 0, value: title }, city: { ts: 0, value: 'Lviv' } } },
      timeseries: {},
    },
  ]);
  expect(await names({ type: 'singleEntity', singleEntity: { entityType: 'CURRENT_USER', id: null } })).toEqual([
    admin.email,
  ]);
});

test('a device that has sent something is found by its activity', async () => {
  const filter = filterOf(key('SERVER_ATTRIBUTE', 'active'), 'BOOLEAN', 'EQUAL', true);
  const isActive = { entityFilter: { type: 'singleEntity', singleEntity: devices['pump-2'] }, keyFilters: [filter] };
  expect(await count(isActive)).toBe(0);
  const { credentialsId } = await send('GET', `/api/device/${devices['pump-2']!.id}/credentials`);
  expect(await sharedEngine().postTelemetry(credentialsId, '{"woken": true}')).toBe(200);
  await eventually(async () => (await count(isActive)) === 1 || undefined);
});

test('relations lead to entities', async () => {
  const relate = (from: Ref, to: Ref, type = 'Contains') => send('POST', '/api/relation', { from, to, type });
  const tenant = { entityType: 'TENANT', id: tenantId };
  await relate(tenant, devices['pump-1']!);
  await relate(devices['pump-1']!, devices['pump-2']!);
  await relate(devices['pump-1']!, devices['valve-1']!, 'Feeds');
  await relate(devices['pump-1']!, orchard, 'Feeds');
  const from = { rootEntity: devices['pump-1'], direction: 'FROM', maxLevel: 1 };
  const names = async (entityFilter: object) => namesOf(await find({ entityFilter }));
  expect(await names({ ...from, type: 'deviceSearchQuery', relationType: 'Contains', deviceTypes: ['pump'] })).toEqual([
    'pump-2',
  ]);
  expect(await names({ ...from, type: 'deviceSearchQuery', relationType: 'Feeds', deviceTypes: ['pump'] })).toEqual([]);
  const deep = { type: 'relationsQuery', rootEntity: tenant, direction: 'FROM', maxLevel: 2 };
  const devicesOnly = [{ relationType: 'Contains', entityTypes: ['DEVICE'] }];
  const either = [...devicesOnly, { relationType: 'Contains', entityTypes: ['USER'] }, { relationType: 'Feeds' }];
  expect(await names({ ...from, type: 'relationsQuery', filters: either.slice(0, 2) })).toEqual(['pump-2']);
  expect(await names({ ...from, type: 'relationsQuery', filters: either })).toHaveLength(3);
  const anyType = [{ relationType: 'Contains', entityTypes: ['USER'] }, { entityTypes: ['CUSTOMER'] }];
  expect(await names({ ...from, type: 'relationsQuery', filters: anyType })).toHaveLength(1);
  expect(await names({ ...deep, filters: devicesOnly })).toEqual(['pump-1', 'pump-2']);
  expect(await names({ ...deep, filters: devicesOnly, fetchLastLevelOnly: true })).toEqual(['pump-2']);
  const any = await find({ entityFilter: { ...from, type: 'relationsQuery', filters: [] } });
  expect(any.data.map(({ entityId }: { entityId: Ref }) => entityId.entityType).sort()).toEqual([
    ...['CUSTOMER', 'DEVICE', 'DEVICE'],
  ]);
  expect(
    await refusal({
      entityFilter: { ...from, type: 'relationsQuery', rootEntity: { entityType: 'DEVICE', id: randomUUID() } },
    }),
  ).toMatch(/^404\/32 /);
});

test('key filters compare fields, telemetry and attributes', async () => {
  const names = async (keyFilters: object[], more: object = {}) =>
    namesOf(await find({ entityFilter: { type: 'entityType', entityType: 'DEVICE' }, keyFilters, ...more }));
  const mode = key('TIME_SERIES', 'mode');
  expect(await names([filterOf(temperature, 'NUMERIC', 'GREATER_OR_EQUAL', 22.5)])).toEqual(['Pump-3', 'valve-1']);
  expect(await names([filterOf(key('TIME_SERIES', 'count'), 'NUMERIC', 'EQUAL', 1)])).toEqual(['pump-2']);
  expect(await names([filterOf(mode, 'STRING', 'EQUAL', 'manual')])).toEqual([]);
  const manual = filterOf(mode, 'STRING', 'EQUAL', 'manual', { ignoreCase: true });
  expect(await names([manual])).toEqual(['Pump-3', 'valve-1']);
  expect(await names([filterOf(mode, 'STRING', 'NOT_EQUAL', 'auto')])).toEqual(['Pump-3', 'pump-4', 'valve-1']);
  expect(await names([filterOf(mode, 'STRING', 'IN', 'auto, other')])).toEqual(['pump-1', 'pump-2']);
  expect(await names([filterOf(key('TIME_SERIES', 'on'), 'BOOLEAN', 'EQUAL', true)])).toEqual([
    ...['Pump-3', 'pump-1', 'valve-1'],
  ]);
  expect(await names([filterOf(key('SERVER_ATTRIBUTE', 'site'), 'STRING', 'ENDS_WITH', '2')])).toEqual(['Pump-3']);
  const label = filterOf(key('ENTITY_FIELD', 'label'), 'STRING', 'STARTS_WITH', 'North');
  expect(await names([label, manual])).toEqual(['Pump-3', 'valve-1']);
  const pump1 = filterOf(name, 'STRING', 'EQUAL', 'pump-1');
  expect(await names([pump1, manual])).toEqual([]);
  expect(await names([pump1, manual], { keyFiltersOperation: 'OR' })).toEqual(['Pump-3', 'pump-1', 'valve-1']);
  const number = (operation: string, defaultValue: number) => filterOf(temperature, 'NUMERIC', operation, defaultValue);
  const either = {
    key: temperature,
    valueType: 'NUMERIC',
    predicate: {
      type: 'COMPLEX',
      operation: 'OR',
      predicates: [number('LESS', 21).predicate, number('GREATER', 24).predicate],
    },
  };
  expect(await names([either])).toEqual(['pump-1', 'valve-1']);
  expect(await count({ entityFilter: anyPump, keyFilters: [either] })).toBe(1);
  const chosen = { type: 'NUMERIC', operation: 'EQUAL', value: { defaultValue: 9, userValue: 20.5 } };
  expect(await names([{ key: temperature, valueType: 'NUMERIC', predicate: chosen }])).toEqual(['pump-1']);
});

test('pages are sorted by a field or a value, and those without the value are last', async () => {
  const by = async (sortKey: object, direction: string, members: object = {}) => {
    const pageLink = { ...sorted(sortKey, direction), ...members };
    return await find({ entityFilter: anyPump, pageLink });
  };
  expect(namesOf(await by(temperature, 'ASC'))).toEqual(['pump-1', 'pump-2', 'Pump-3', 'pump-4']);
  expect(namesOf(await by(temperature, 'DESC'))).toEqual(['Pump-3', 'pump-2', 'pump-1', 'pump-4']);
  expect(namesOf(await by(key('SERVER_ATTRIBUTE', 'floor'), 'DESC'))[0]).toBe('Pump-3');
  expect(
    namesOf(await by(key('ENTITY_FIELD', 'label'), 'DESC'))
      .slice(0, 2)
      .sort(),
  ).toEqual(['pump-2', 'pump-4']);
  const second = await by(temperature, 'ASC', { pageSize: 3, page: 1 });
  expect([namesOf(second), second.totalPages, second.totalElements, second.hasNext]).toEqual([['pump-4'], 2, 4, false]);
  const first = await by(name, 'DESC', { pageSize: 3 });
  expect([namesOf(first), first.totalElements, first.hasNext]).toEqual([['pump-4', 'pump-2', 'pump-1'], 4, true]);
  expect(namesOf(await by(name, 'ASC', { textSearch: 'SOUTH' }))).toEqual(['pump-2', 'pump-4']);
  expect(namesOf(await by(temperature, 'DESC', { textSearch: 'SOUTH' }))).toEqual(['pump-2', 'pump-4']);
  expect(namesOf(await by(name, 'ASC', { page: 7 }))).toEqual([]);
  expect(await count({ entityFilter: anyPump })).toBe(4);
});

test("a customer's user finds what belongs to the customer", async () => {
  const user = { authority: 'CUSTOMER_USER', customerId: orchard };
  const { token } = await newUser(user, sharedEngine(), admin.token);
  const names = async (entityFilter: object) => namesOf(await find({ entityFilter }, token));
  expect(await names({ type: 'entityType', entityType: 'DEVICE' })).toEqual(['pump-1', 'valve-1']);
  expect(await names({ type: 'entityName', entityType: 'DEVICE', entityNameFilter: 'pump' })).toEqual(['pump-1']);
  expect(await names({ type: 'singleEntity', singleEntity: devices['pump-2'] })).toEqual([]);
  expect(await names({ type: 'entityType', entityType: 'TENANT' })).toEqual([]);
  expect(await names({ type: 'singleEntity', singleEntity: { entityType: 'CURRENT_CUSTOMER' } })).toHaveLength(1);
  expect(await count({ entityFilter: { type: 'entityType', entityType: 'DEVICE' } }, token)).toBe(2);
  const { admin: stranger } = await newTenant();
  expect(await count({ entityFilter: { type: 'singleEntity', singleEntity: devices['pump-1'] } }, stranger.token)).toBe(
    0,
  );
});

test('what is not supported is refused by name', async () => {
  const entityFilter = { type: 'entityType', entityType: 'DEVICE' };
  const of = (query: object) => refusal({ entityFilter, ...query });
  expect(await refusal({ entityFilter: { type: 'assetType', assetTypes: ['barn'] } })).toBe(
    '400/31 "entityFilter.type" "assetType" is not supported: use singleEntity, entityList, entityName, entityType, deviceType, deviceSearchQuery or relationsQuery.',
  );
  expect(await refusal({ entityFilter: { type: 'entityType', entityType: 'ASSET' } }, 'count')).toBe(
    '400/31 "entityFilter.entityType" must be DEVICE, CUSTOMER, TENANT, USER or DEVICE_PROFILE.',
  );
  expect(await of({ latestValues: [key('ALARM_FIELD', 'severity')] })).toContain(
    '"latestValues" has the type "ALARM_FIELD"',
  );
  expect(await of({ entityFields: [key('ENTITY_FIELD', 'nmae')] })).toContain('"nmae", which no entity has');
  expect(await of({ keyFilters: [filterOf(temperature, 'NUMERIC', 'CONTAINS', 1)] })).toContain(
    '"keyFilters.predicate.operation" must be one of EQUAL, NOT_EQUAL, GREATER',
  );
  expect(await of({ keyFilters: [filterOf(temperature, 'NUMERIC', 'EQUAL', '1')] })).toBe(
    '400/31 "keyFilters.predicate.value.defaultValue" must be a value of the type NUMERIC.',
  );
  const dynamicValue = { sourceType: 'CURRENT_USER', sourceAttribute: 'limit' };
  const predicate = { type: 'NUMERIC', operation: 'EQUAL', value: { defaultValue: 1, dynamicValue } };
  expect(await of({ keyFilters: [{ key: temperature, valueType: 'NUMERIC', predicate }] })).toBe(
    '400/31 "keyFilters.predicate.value.dynamicValue" is not supported: leave the member out.',
  );
  const root = { rootEntity: devices['pump-1'], direction: 'FROM', multiRoot: true };
  expect(await refusal({ entityFilter: { ...root, type: 'relationsQuery' } })).toContain('"entityFilter.multiRoot"');
  expect(await of({ pageLink: { page: 0, pageSize: 20_001 } })).toMatch(/^400\/31 .*pageLink.pageSize/);
  const equal = filterOf(temperature, 'NUMERIC', 'EQUAL', 1).predicate;
  const nested = (depth: number): object =>
    depth === 0 ? equal : { type: 'COMPLEX', operation: 'OR', predicates: Array(9).fill(nested(depth - 1)) };
  expect(await of({ keyFilters: [{ key: temperature, valueType: 'NUMERIC', predicate: nested(3) }] })).toBe(
    '400/31 "keyFilters" have more than 100 predicates.',
  );
  const few = { entityFilter, keyFilters: [{ key: temperature, valueType: 'NUMERIC', predicate: nested(2) }] };
  expect(await count(few)).toBe(0);
  const texts = (chars: number) => ({
    keyFilters: [filterOf(name, 'STRING', 'IN', 'x'.repeat(chars)), filterOf(name, 'STRING', 'EQUAL', 'x')],
  });
  expect(await of(texts(65_536))).toBe('400/31 The texts of "keyFilters" have more than 65536 characters.');
  expect(await count({ entityFilter, ...texts(65_535) })).toBe(0);
});

test('a page beyond the end is empty, however far it is', async () => {
  const pageLink = page({ page: Number.MAX_SAFE_INTEGER, pageSize: 20_000 });
  const entityFilter = { type: 'entityType', entityType: 'DEVICE' };
  for (const keyFilters of [[], [filterOf(name, 'STRING', 'NOT_EQUAL', '')]]) {
    expect(await find({ entityFilter, keyFilters, pageLink })).toMatchObject({ data: [], totalElements: 5 });
  }
});

test('devices with large documents are listed, because a list reads no documents', async () => {
  const { token } = (await newTenant()).admin;
  const additionalInfo = { note: 'x'.repeat(60_000) };
  const made = Array.from({ length: 300 }, (_, i) =>
    send('POST', '/api/device', { name: `d${i}`, additionalInfo }, token),
  );
  await Promise.all(made);
  const pageLink = page({ pageSize: 5_000 });
  const listed = await find({ entityFilter: { type: 'entityType', entityType: 'DEVICE' }, pageLink }, token);
  expect(listed.data).toHaveLength(300);
});

test('a guest finds the devices of the public customer only', async () => {
  const shared = await send('POST', '/api/device', { name: `shared-${randomUUID()}` });
  const { customerId } = await send('POST', `/api/customer/public/device/${shared.id.id}`);
  try {
    const { token } = await send('POST', '/api/auth/login/public', { publicId: customerId.id }, '');
    const found = async (entityType: string) =>
      (await find({ entityFilter: { type: 'entityType', entityType } }, token)).data.map(
        ({ entityId }: { entityId: Ref }) => entityId.id,
      );
    expect(await found('DEVICE')).toEqual([shared.id.id]);
    for (const other of ['CUSTOMER', 'USER', 'TENANT', 'DEVICE_PROFILE']) expect(await found(other)).toEqual([]);
  } finally {
    await send('DELETE', `/api/device/${shared.id.id}`);
  }
});
