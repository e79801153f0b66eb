/**
 * Relations over REST (docs/rest.md#relations): made, read with names, followed to devices, deleted with their ends.
 */
import { randomUUID } from 'node:crypto';
import { beforeAll, expect, test } from 'vitest';
import { newTenant, newUser, ok, type Person } from '../../harness/people.ts';
import { fault } from '../../harness/rest.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

interface Ref {
  entityType: string;
  id: string;
}

let admin: Person;
let tenantId: string;

beforeAll(async () => {
  ({ admin, id: tenantId } = await newTenant());
});

const send = (method: string, path: string, body?: unknown) => ok(method, path, body, admin.token);
const newDevice = async (name: string, members: object = {}): Promise<Ref> =>
  (await send('POST', '/api/device', { name: `${name}-${randomUUID()}`, ...members })).id;
const relate = (from: Ref, to: Ref, type = 'Contains') => send('POST', '/api/relation', { from, to, type });
const keyOf = (from: Ref, to: Ref, type = 'Contains') =>
  `fromId=${from.id}&fromType=${from.entityType}&toId=${to.id}&toType=${to.entityType}&relationType=${type}`;

test('a relation is made, read from both ends with and without names, changed and deleted', async () => {
  const { id: barn, title } = await send('POST', '/api/customer', { title: `Barn ${randomUUID()}` });
  const pump = await newDevice('pump');
  const made = await send('POST', '/api/v2/relation', {
    from: barn,
    to: pump,
    type: 'Contains',
    additionalInfo: { a: 1 },
  });
  const relation = { from: barn, to: pump, type: 'Contains', typeGroup: 'COMMON', additionalInfo: { a: 1 } };
  expect(made).toEqual({ ...relation, version: expect.any(Number) });
  expect(await send('GET', `/api/relations/from/CUSTOMER/${barn.id}`)).toEqual([made]);
  expect(await send('GET', `/api/relations/to/DEVICE/${pump.id}`)).toEqual([made]);
  expect(await send('GET', `/api/relations/from/CUSTOMER/${barn.id}/Contains`)).toEqual([made]);
  expect(await send('GET', `/api/relations/to/DEVICE/${pump.id}/Contains`)).toEqual([made]);
  expect(await send('GET', `/api/relations/to/DEVICE/${pump.id}/Manages`)).toEqual([]);
  const [info] = await send('GET', `/api/relations/info/to/DEVICE/${pump.id}`);
  expect(info).toEqual({ ...made, fromName: title, toName: expect.stringMatching(/^pump-/) });
  expect(await send('GET', `/api/relations/info/from/CUSTOMER/${barn.id}?relationType=Manages`)).toEqual([]);
  expect(await send('GET', `/api/relations?fromId=${barn.id}&fromType=CUSTOMER`)).toEqual([made]);
  expect(await relate(barn, pump)).toBeUndefined();
  expect((await send('GET', `/api/relations/from/CUSTOMER/${barn.id}`))[0].additionalInfo).toBeNull();
  expect(await send('DELETE', `/api/v2/relation?${keyOf(barn, pump)}`)).toMatchObject({ from: barn, to: pump });
  expect(await fault('DELETE', `/api/relation?${keyOf(barn, pump)}`, undefined, admin.token)).toMatch(/^404\/32 /);
});

test('a relation is read by its ends, with names by a query, and all of an entity are deleted', async () => {
  const { id: barn, title } = await send('POST', '/api/customer', { title: `Barn ${randomUUID()}` });
  const [pump, valve] = [await newDevice('pump'), await newDevice('valve')];
  await relate(barn, pump);
  await relate(pump, valve);
  await relate(valve, barn);
  const one = await send('GET', `/api/relation?${keyOf(barn, pump)}`);
  expect(one).toMatchObject({ from: barn, to: pump, type: 'Contains', typeGroup: 'COMMON' });
  expect(await fault('GET', `/api/relation?${keyOf(barn, pump, 'Manages')}`, undefined, admin.token)).toMatch(
    /^404\/32 /,
  );
  const info = { ...one, fromName: title, toName: expect.stringMatching(/^pump-/) };
  expect(await send('GET', `/api/relations/info?fromId=${barn.id}&fromType=CUSTOMER`)).toEqual([info]);
  expect(await send('GET', `/api/relations/info?toId=${pump.id}&toType=DEVICE`)).toEqual([info]);
  await send('POST', '/api/relation', { from: pump, to: valve, type: 'Contains', typeGroup: 'EDGE' });
  expect(await send('DELETE', `/api/relations?entityId=${pump.id}&entityType=DEVICE`)).toBeUndefined();
  expect(await send('GET', `/api/relations/from/DEVICE/${pump.id}`)).toEqual([]);
  expect(await send('GET', `/api/relations/to/DEVICE/${pump.id}`)).toEqual([]);
  expect(await send('GET', `/api/relations/from/DEVICE/${pump.id}?relationTypeGroup=EDGE`)).toHaveLength(1);
  expect(await send('GET', `/api/relations/from/DEVICE/${valve.id}`)).toHaveLength(1);
});

test('relations end with either of their ends, of any type', async () => {
  const pump = await newDevice('pump');
  const profile = (await send('POST', '/api/deviceProfile', { name: randomUUID() })).id;
  const user = { email: `${randomUUID()}@orchard.example`, authority: 'TENANT_ADMIN' };
  const person = (await send('POST', '/api/user?sendActivationMail=false', user)).id;
  for (const other of [profile, person]) {
    await relate(other, pump);
    await relate(pump, other);
  }
  expect(await send('GET', `/api/relations/from/DEVICE/${pump.id}`)).toHaveLength(2);
  await send('DELETE', `/api/deviceProfile/${profile.id}`);
  await send('DELETE', `/api/user/${person.id}`);
  expect(await send('GET', `/api/relations/from/DEVICE/${pump.id}`)).toEqual([]);
  expect(await send('GET', `/api/relations/to/DEVICE/${pump.id}`)).toEqual([]);
});

test('both ends must be the tenant’s, and of the customer where its user relates them', async () => {
  const stranger = (await ok('POST', '/api/device', { name: randomUUID() })).id;
  const own = await newDevice('own');
  const body = { from: own, to: stranger, type: 'Contains' };
  expect(await fault('POST', '/api/relation', body, admin.token)).toBe(
    `404/32 Device with id [${stranger.id}] is not found`,
  );
  const asset = { entityType: 'ASSET', id: randomUUID() };
  expect(await fault('POST', '/api/relation', { ...body, to: asset }, admin.token)).toMatch(/^404\/32 /);
  const customer = await send('POST', '/api/customer', { title: randomUUID() });
  const user = await newUser({ authority: 'CUSTOMER_USER', customerId: customer.id }, sharedEngine(), admin.token);
  const [a, b] = [await newDevice('a', { customerId: customer.id }), await newDevice('b', { customerId: customer.id })];
  await ok('POST', '/api/relation', { from: a, to: b, type: 'Contains' }, user.token);
  await relate(a, own, 'Manages');
  expect(await fault('POST', '/api/relation', { from: a, to: own, type: 'x' }, user.token)).toMatch(/^403\/20 /);
  expect(await fault('GET', `/api/relations/from/DEVICE/${own.id}`, undefined, user.token)).toMatch(/^403\/20 /);
  // Relations whose other end does not belong to the customer are omitted.
  const seen = await ok('GET', `/api/relations/from/DEVICE/${a.id}`, undefined, user.token);
  expect(seen.map(({ to }: { to: Ref }) => to)).toEqual([b]);
  expect(await ok('GET', `/api/relation?${keyOf(a, b)}`, undefined, user.token)).toMatchObject({ from: a, to: b });
  expect(await fault('GET', `/api/relation?${keyOf(a, own, 'Manages')}`, undefined, user.token)).toMatch(/^403\/20 /);
  const foreign = `/api/relations?entityId=${stranger.id}&entityType=DEVICE`;
  expect(await fault('DELETE', foreign, undefined, admin.token)).toMatch(/^404\/32 /);
  const all = `/api/relations?entityId=${a.id}&entityType=DEVICE`;
  expect(await fault('DELETE', all, undefined, user.token)).toMatch(/^403\/20 /);
  const wrong = { from: a, to: b, type: 'Contains', typeGroup: 'MINE' };
  expect(await fault('POST', '/api/relation', wrong, admin.token)).toMatch(/^400\/31 .*typeGroup/);
});

test('devices are found by what leads to them, over levels, of the types asked for', async () => {
  const tenant = { entityType: 'TENANT', id: tenantId };
  const [a, b, c] = [await newDevice('a'), await newDevice('b', { type: 'valve' }), await newDevice('c')];
  await relate(tenant, a);
  await relate(a, b);
  await relate(b, c);
  await relate(c, a);
  await relate(tenant, c, 'Manages');
  const search = async (parameters: object, more: object = {}) => {
    const body = {
      parameters: { rootId: tenant.id, rootType: 'TENANT', direction: 'FROM', ...parameters },
      relationType: 'Contains',
      deviceTypes: ['default', 'valve'],
      ...more,
    };
    const found: { id: Ref }[] = await send('POST', '/api/devices', body);
    const names = new Map([a, b, c].map(({ id }, i) => [id, 'abc'[i]]));
    return found
      .map(({ id }) => names.get(id.id))
      .sort()
      .join('');
  };
  expect(await search({ maxLevel: 1 })).toBe('a');
  expect(await search({ maxLevel: 2 })).toBe('ab');
  expect(await search({})).toBe('abc');
  expect(await search({}, { deviceTypes: ['valve'] })).toBe('b');
  expect(await search({ maxLevel: 1 }, { relationType: 'Manages' })).toBe('c');
  expect(await search({ maxLevel: 1, rootId: c.id, rootType: 'DEVICE', direction: 'TO' })).toBe('b');
  expect(await search({ maxLevel: 1, relationTypeGroup: 'EDGE' })).toBe('');
  const types = await send('GET', '/api/device/types');
  expect(types).toContainEqual({ tenantId: tenant, entityType: 'DEVICE', type: 'valve' });
});

test('a search of a customer’s user ends at what the user may not read', async () => {
  const customer = await send('POST', '/api/customer', { title: randomUUID() });
  const user = await newUser({ authority: 'CUSTOMER_USER', customerId: customer.id }, sharedEngine(), admin.token);
  const own = { customerId: customer.id };
  const [a, b, c] = [await newDevice('a', own), await newDevice('b', own), await newDevice('c', own)];
  const hidden = await newDevice('hidden');
  await relate(customer.id, a);
  await relate(a, b);
  await relate(b, hidden);
  await relate(hidden, c);
  const search = async (token: string, fetchLastLevelOnly = false) => {
    const root = { rootId: customer.id.id, rootType: 'CUSTOMER', direction: 'FROM', maxLevel: 4, fetchLastLevelOnly };
    const body = { parameters: root, relationType: 'Contains', deviceTypes: ['default'] };
    const found: { id: Ref }[] = await ok('POST', '/api/devices', body, token);
    const rootEntity = customer.id;
    const entityFilter = { type: 'deviceSearchQuery', rootEntity, relationType: 'Contains', maxLevel: 4 };
    const filter = { ...entityFilter, direction: 'FROM', fetchLastLevelOnly };
    expect(await ok('POST', '/api/entitiesQuery/count', { entityFilter: filter }, token)).toBe(found.length);
    const names = new Map([a, b, hidden, c].map(({ id }, i) => [id, 'abhc'[i]]));
    return found
      .map(({ id }) => names.get(id.id))
      .sort()
      .join('');
  };
  expect(await search(admin.token)).toBe('abch');
  expect(await search(admin.token, true)).toBe('c');
  expect(await search(user.token)).toBe('ab');
  // The answer does not reveal that b has a further relation.
  expect(await search(user.token, true)).toBe('b');
  // The caller's own user, customer, tenant and the tenant's profiles are readable.
  const me: Ref = (await ok('GET', '/api/auth/user', undefined, user.token)).id;
  await relate(b, me);
  await relate(me, { entityType: 'TENANT', id: tenantId });
  await relate({ entityType: 'TENANT', id: tenantId }, c);
  const ofTenant = { parameters: { rootId: b.id, rootType: 'DEVICE', direction: 'FROM' }, relationType: 'Contains' };
  const found = await ok('POST', '/api/devices', { ...ofTenant, deviceTypes: ['default'] }, user.token);
  expect(found.map(({ id }: { id: Ref }) => id.id)).toEqual([c.id]);
});
