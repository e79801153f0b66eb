/**
 * Lists of devices and counts over REST, of two tenants, compared with a list in memory. Devices with odd names are
 * created, renamed, moved and deleted between the questions.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Engine, startEngine } from '../harness/engine.ts';
import { call, makeTenant, makeUser, type Person } from '../harness/tenants.ts';

interface Known {
  id: string;
  name: string;
  label: string | null;
  type: string;
  customer: string | null;
  createdTime: number;
  active: boolean;
}

interface Fleet {
  admin: Person;
  customers: { id: string; title: string; user: Person }[];
  devices: Map<string, Known>;
}

/** A small generator, so that a failure can be repeated. */
let state = 14_270_131;
function random(below: number): number {
  state = (Math.imul(state, 1_103_515_245) + 12_345) & 0x7fffffff;
  return (state >> 8) % below;
}
const pick = <T>(list: readonly T[]): T => list[random(list.length)]!;
const chance = (oneOf: number) => random(oneOf) === 0;

const letters = [
  'a',
  'A',
  'b',
  'B',
  'é',
  'É',
  'ж',
  'Ж',
  '%',
  '_',
  '\\',
  '"',
  "'",
  ' ',
  '-',
  '1',
  '2',
  '温',
  ';',
  '&',
  '+',
];
const word = (length: number) => Array.from({ length }, () => pick(letters)).join('');
const oddName = () => `${word(1 + random(5))}${random(40)}${word(random(3))}`.trim();

const fleets: Fleet[] = [];
const types = ['pump', 'Pump', '100%', 'ж_"valve"'];

let engine: Engine;
const ok = (method: string, path: string, body: unknown, token: string) => call(engine.api, method, path, body, token);

beforeAll(async () => {
  engine = await startEngine({ workers: 2 });
  const { adminPassword } = engine.api.address;
  const system = (await engine.api.login('sysadmin@millrace.local', adminPassword)).token;
  for (let t = 0; t < 2; t += 1) {
    const { admin } = await makeTenant(engine.api, system);
    const customers: Fleet['customers'] = [];
    for (const title of ['b_customer', 'A customer', 'ж%']) {
      const { id } = await ok('POST', '/api/customer', { title }, admin.token);
      customers.push({
        id: id.id,
        title,
        user: await makeUser(engine.api, { authority: 'CUSTOMER_USER', customerId: id }, admin.token),
      });
    }
    fleets.push({ admin, customers, devices: new Map() });
  }
});

afterAll(() => engine?.destroy());

const send = (fleet: Fleet, method: string, path: string, body?: unknown) => ok(method, path, body, fleet.admin.token);

/** Devices of both tenants have the same names. */
async function createMany(fleet: Fleet, count: number): Promise<void> {
  const taken = new Set([...fleet.devices.values()].map(({ name }) => name));
  const rows: { name: string; type: string; label: string | null; customerId: object | null }[] = [];
  while (rows.length < count) {
    const name = oddName();
    if (name === '' || taken.has(name)) continue;
    taken.add(name);
    const customerId = chance(2) ? { entityType: 'CUSTOMER', id: pick(fleet.customers).id } : null;
    rows.push({ name, type: pick(types), label: pick([null, '', word(4), name.toUpperCase()]), customerId });
  }
  const { results } = await send(fleet, 'POST', '/api/devices/bulk', { devices: rows });
  for (const { id, error } of results) {
    expect(error).toBe(null);
    await know(fleet, id.id);
  }
}

async function know(fleet: Fleet, id: string): Promise<void> {
  const read = await send(fleet, 'GET', `/api/device/info/${id}`);
  const { name, label, type, customerId, createdTime, active } = read;
  const customer = fleet.customers.some((each) => each.id === customerId.id) ? customerId.id : null;
  fleet.devices.set(id, { id, name, label, type, customer, createdTime, active });
}

const changes: ((fleet: Fleet) => Promise<void>)[] = [
  (fleet) => createMany(fleet, 1 + random(20)),
  async (fleet) => {
    for (const id of some(fleet, 12)) {
      await send(fleet, 'DELETE', `/api/device/${id}`);
      fleet.devices.delete(id);
    }
  },
  async (fleet) => {
    for (const id of some(fleet, 10)) {
      const device = await send(fleet, 'GET', `/api/device/${id}`);
      const { deviceProfileId: _, ...rest } = device;
      const name = chance(2) ? device.name : `${oddName()}-${random(1_000_000)}`;
      await send(fleet, 'POST', '/api/device', { ...rest, name, type: pick(types), label: pick([null, '', word(3)]) });
      await know(fleet, id);
    }
  },
  async (fleet) => {
    for (const id of some(fleet, 10)) {
      if (chance(2)) await send(fleet, 'POST', `/api/customer/${pick(fleet.customers).id}/device/${id}`);
      else if (fleet.devices.get(id)!.customer) await send(fleet, 'DELETE', `/api/customer/device/${id}`);
      await know(fleet, id);
    }
  },
  // Deletes of the same devices at once: one of them finds the device.
  async (fleet) => {
    const ids = some(fleet, 6);
    const statuses = await Promise.all(
      [...ids, ...ids].map((id) =>
        ok('DELETE', `/api/device/${id}`, undefined, fleet.admin.token).then(
          () => 200,
          () => 404,
        ),
      ),
    );
    expect(statuses.filter((status) => status === 200)).toHaveLength(ids.length);
    for (const id of ids) fleet.devices.delete(id);
  },
  // A failed creation changes no count.
  async (fleet) => {
    const [first] = fleet.devices.values();
    if (!first) return;
    const made = ok('POST', '/api/device', { name: first.name, type: pick(types) }, fleet.admin.token);
    await expect(made).rejects.toThrow('400');
  },
  async (fleet) => {
    for (const id of some(fleet, 5)) {
      const { credentialsId } = await send(fleet, 'GET', `/api/device/${id}/credentials`);
      await ok('POST', `/api/v1/${credentialsId}/telemetry`, { n: 1 }, '');
      await expect.poll(async () => (await send(fleet, 'GET', `/api/device/info/${id}`)).active).toBe(true);
      fleet.devices.get(id)!.active = true;
    }
  },
];

const some = ({ devices }: Fleet, count: number) => {
  const ids = [...devices.keys()];
  return [...new Set(Array.from({ length: Math.min(count, ids.length) }, () => pick(ids)))];
};

const bytes = (text: string) => Buffer.from(text);
const compareText = (a: string, b: string) => Buffer.compare(bytes(a), bytes(b));
const sorts: Record<string, (device: Known, fleet: Fleet) => string | number | boolean | null> = {
  name: ({ name }) => name,
  label: ({ label }) => label,
  createdTime: ({ createdTime }) => createdTime,
  id: ({ id }) => id,
  type: ({ type }) => type,
  deviceProfileName: ({ type }) => type,
  customerTitle: ({ customer }, { customers }) => customers.find(({ id }) => id === customer)?.title ?? null,
  active: ({ active }) => active,
};

function compare(a: string | number | boolean | null, b: typeof a): number {
  if (a === b) return 0;
  if (a === null) return 1;
  if (b === null) return -1;
  return typeof a === 'string' ? compareText(a, b as string) : Number(a) - Number(b);
}

interface Question {
  customer: string | null;
  type: string | undefined;
  active: boolean | undefined;
  textSearch: string;
  sortProperty: string;
  sortOrder: 'ASC' | 'DESC';
  page: number;
  pageSize: number;
}

function expected(fleet: Fleet, question: Question) {
  const { customer, type, active, textSearch, sortProperty, sortOrder, page, pageSize } = question;
  const text = textSearch.toLowerCase();
  const has = (value: string | null) => value?.toLowerCase().includes(text);
  const found = [...fleet.devices.values()].filter(
    (device) =>
      (customer === null || device.customer === customer) &&
      (type === undefined || device.type === type) &&
      (active === undefined || device.active === active) &&
      (has(device.name) || has(device.label)),
  );
  const value = sorts[sortProperty || 'id']!;
  found.sort((a, b) => compare(value(a, fleet), value(b, fleet)) || compareText(a.id, b.id));
  if (sortOrder === 'DESC') found.reverse();
  const totalPages = Math.ceil(found.length / pageSize);
  const names = found.slice(page * pageSize, (page + 1) * pageSize).map(({ name }) => name);
  return { names, totalPages, totalElements: found.length, hasNext: page + 1 < totalPages };
}

function anyQuestion(fleet: Fleet): Question {
  const names = [...fleet.devices.values()];
  let textSearch = '';
  if (chance(2) && names.length > 0) {
    const device = pick(names);
    const text = [...(chance(2) ? device.name : (device.label ?? device.name))];
    const start = random(text.length || 1);
    textSearch = text.slice(start, start + 1 + random(4)).join('');
    if (chance(2)) textSearch = chance(2) ? textSearch.toUpperCase() : textSearch.toLowerCase();
  }
  return {
    customer: chance(3) ? pick(fleet.customers).id : null,
    type: chance(4) ? pick([...types, 'none']) : undefined,
    active: chance(4) ? chance(2) : undefined,
    textSearch,
    sortProperty: pick(['', ...Object.keys(sorts)]),
    sortOrder: pick(['ASC', 'DESC']),
    page: random(6),
    pageSize: pick([1, 3, 10, 50, 1000]),
  };
}

async function ask(fleet: Fleet, question: Question) {
  const { customer, type, active, ...link } = question;
  const query = new URLSearchParams({
    ...Object.fromEntries(
      Object.entries(link)
        .filter(([, value]) => value !== '')
        .map(([key, value]) => [key, String(value)]),
    ),
    ...(type !== undefined && { type }),
    ...(active !== undefined && { active: String(active) }),
  });
  const owner = customer === null ? 'tenant' : `customer/${customer}`;
  const user = fleet.customers.find(({ id }) => id === customer)?.user;
  const token = user && chance(2) ? user.token : fleet.admin.token;
  const { data, ...totals } = await ok(
    'GET',
    `/api/${owner}/${pick(['devices', 'deviceInfos'])}?${query}`,
    undefined,
    token,
  );
  return { names: data.map(({ name }: { name: string }) => name), ...totals };
}

/** The same list as an entity query, which has fewer filters. */
async function askEntities(fleet: Fleet, question: Question) {
  const { customer, type, textSearch, sortProperty, sortOrder, page, pageSize } = question;
  const user = fleet.customers.find(({ id }) => id === customer)?.user;
  const entityFilter =
    type === undefined ? { type: 'entityType', entityType: 'DEVICE' } : { type: 'deviceType', deviceTypes: [type] };
  const key = (name: string) => ({ type: 'ENTITY_FIELD', key: name });
  const sortOrderOf = sortProperty === '' ? {} : { sortOrder: { key: key(sortProperty), direction: sortOrder } };
  const { data, ...totals } = await ok(
    'POST',
    '/api/entitiesQuery/find',
    { entityFilter, entityFields: [key('name')], pageLink: { page, pageSize, textSearch, ...sortOrderOf } },
    (user ?? fleet.admin).token,
  );
  const names = data.map(
    ({ latest }: { latest: { ENTITY_FIELD: { name: { value: string } } } }) => latest.ENTITY_FIELD.name.value,
  );
  return { names, ...totals };
}

async function expectSame(times: number): Promise<void> {
  for (let n = 0; n < times; n += 1) {
    const fleet = pick(fleets);
    const question = anyQuestion(fleet);
    expect({ question, ...(await ask(fleet, question)) }).toEqual({ question, ...expected(fleet, question) });
    if (question.active !== undefined || !['', 'name', 'label', 'createdTime', 'type'].includes(question.sortProperty))
      continue;
    if (question.sortProperty === '') question.sortOrder = 'ASC';
    expect({ question, ...(await askEntities(fleet, question)) }).toEqual({ question, ...expected(fleet, question) });
  }
}

test('a list has the devices, the order and the totals of a list in memory after any changes', async () => {
  for (const fleet of fleets) await createMany(fleet, 120);
  for (let round = 0; round < 8; round += 1) {
    for (let n = 0; n < 3; n += 1) await pick(changes)(pick(fleets));
    await expectSame(20);
  }
});

test('a customer that is deleted leaves its devices to the tenant', async () => {
  for (const fleet of fleets) {
    const [first] = fleet.customers.splice(0, 1);
    await send(fleet, 'DELETE', `/api/customer/${first!.id}`);
    for (const device of fleet.devices.values()) if (device.customer === first!.id) device.customer = null;
  }
  await expectSame(40);
});
