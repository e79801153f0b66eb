/**
 * Lists of devices on a real PostgreSQL: every answer equals that of a plain count and sort, whatever changes came
 * before.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startTestPostgres, type TestPostgres } from '../../../test/harness/postgres-server.ts';
import { createUuid } from '../../base/uuid.ts';
import type { Queries, SnapshotQueries } from '../../postgres/client.ts';
import { contains, containsPattern, type PageLink, readPage } from '../../postgres/page.ts';
import { hasSearchIndex } from '../../postgres/server-facts.ts';
import type { DeviceInfo } from '../model/device.ts';
import { infoColumns, infoJoins, listDeviceTypes } from '../sql/store.ts';
import type { DeviceFilter } from './list-filter-store.ts';
import { countDevices, listDevices } from './list-store.ts';

let server: TestPostgres;
const tenants = [createUuid(1), createUuid(2)];
const profiles: { id: string; tenantId: string; name: string }[] = [];
const customers: { id: string; tenantId: string }[] = [];

/** A small generator, so that a failure can be repeated. */
let state = 20_260_131;
function random(below: number): number {
  state = (Math.imul(state, 1_103_515_245) + 12_345) & 0x7fffffff;
  return (state >> 8) % below;
}
const pick = <T>(list: readonly T[]): T => list[random(list.length)]!;

beforeAll(async () => {
  server = await startTestPostgres(4);
  for (const [t, tenantId] of tenants.entries()) {
    await server.postgres.query(`insert into tenant (id, created_time, title) values ($1, 0, 'T')`, [tenantId]);
    for (let i = 0; i < 4; i += 1) {
      const profile = { id: createUuid(10 + i), tenantId, name: `${'dbca'[i]} profile ${t}` };
      profiles.push(profile);
      await server.postgres.query(
        `insert into device_profile (id, created_time, tenant_id, name, profile_data) values ($1, 0, $2, $3, '{}')`,
        [profile.id, tenantId, profile.name],
      );
      const customer = { id: createUuid(20 + i), tenantId };
      customers.push(customer);
      await server.postgres.query(`insert into customer (id, created_time, tenant_id, title) values ($1, 0, $2, $3)`, [
        customer.id,
        tenantId,
        `${'bdac'[i]} customer`,
      ]);
    }
  }
}, 60_000);

afterAll(() => server.stop(), 60_000);

// The Kelvin sign and İ have ASCII letters as their small letters; ß and Σ have several forms.
const letters = [
  'a',
  'B',
  'c',
  '1',
  '2',
  '-',
  '_',
  '%',
  '\\',
  ' ',
  '"',
  'ж',
  'Ж',
  'ß',
  'Σ',
  '\u212a',
  'İ',
  'é',
  '温',
  '\n',
];
const word = (length: number) => Array.from({ length }, () => pick(letters)).join('');
let made = 0;

async function make(count: number, tenantId = pick(tenants)): Promise<void> {
  const own = customers.filter((customer) => customer.tenantId === tenantId);
  const rows = Array.from({ length: count }, () => ({
    id: createUuid(1_000 + made),
    name: `${word(random(6))}${(made += 1)}${word(random(4))}`,
    label: random(3) === 0 ? word(random(8)) : null,
    profile: pick(profiles.filter((profile) => profile.tenantId === tenantId)).id,
    customer: random(2) === 0 ? pick(own).id : null,
    time: random(50),
  }));
  await server.postgres.query(
    `insert into device (id, created_time, tenant_id, customer_id, device_profile_id, name, label, device_data)
     select n.id, n.time, $1, n.customer, n.profile, n.name, n.label, '{}'
       from unnest($2::uuid[], $3::text[], $4::text[], $5::uuid[], $6::uuid[], $7::bigint[])
            as n (id, name, label, profile, customer, time)`,
    [
      tenantId,
      rows.map(({ id }) => id),
      rows.map(({ name }) => name),
      rows.map(({ label }) => label),
      rows.map(({ profile }) => profile),
      rows.map(({ customer }) => customer),
      rows.map(({ time }) => time),
    ],
  );
}

/** Some devices of all tenants: a different share each time. */
const some = () => `number % ${5 + random(40)} = ${random(5)}`;

const changes: (() => Promise<unknown>)[] = [
  () => make(1),
  () => make(1 + random(60)),
  () => server.postgres.query(`delete from device where ${some()}`),
  () => server.postgres.query(`update device set customer_id = null where ${some()}`),
  () => {
    const customer = pick(customers);
    return server.postgres.query(`update device set customer_id = $1 where tenant_id = $2 and ${some()}`, [
      customer.id,
      customer.tenantId,
    ]);
  },
  () => {
    const profile = pick(profiles);
    return server.postgres.query(`update device set device_profile_id = $1 where tenant_id = $2 and ${some()}`, [
      profile.id,
      profile.tenantId,
    ]);
  },
  () => server.postgres.query(`update device set name = name || $1, label = $2 where ${some()}`, [word(2), word(3)]),
  () =>
    server.postgres.query(
      `insert into device_activity (device, active, woke_time)
       select number, number % 3 <> 0, 5 from device where ${some()} on conflict (device) do update set active = not device_activity.active`,
    ),
  () =>
    expect(
      server.postgres.transaction(async (queries) => {
        await queries.query(`delete from device where ${some()}`);
        await queries.query(`update device set customer_id = null where ${some()}`);
        throw new Error('undone');
      }),
    ).rejects.toThrow('undone'),
];

/** Returns the list without the use of counts and indexes. */
async function plainly(filter: DeviceFilter, link: PageLink, queries: Queries = server.postgres) {
  const values: unknown[] = [filter.tenantId];
  const conditions = ['d.tenant_id = $1'];
  const where = (condition: string, value: unknown) =>
    conditions.push(condition.replaceAll('?', `$${values.push(value)}`));
  if (filter.customerId) where('d.customer_id = ?', filter.customerId);
  if (filter.type) where('p.name = ?', filter.type);
  if (filter.profileId) where('d.device_profile_id = ?', filter.profileId);
  if (filter.active !== undefined) where('coalesce(a.active, false) = ?', filter.active);
  if (link.textSearch)
    where(`(${contains('d.name', '?')} or ${contains('d.label', '?')})`, containsPattern(link.textSearch));
  const sortColumns = new Map([
    ['id', 'd.id'],
    ['createdTime', 'd.created_time'],
    ['name', 'd.name'],
    ['label', 'd.label'],
    ['type', 'p.name'],
    ['deviceProfileName', 'p.name'],
    ['customerTitle', 'c.title'],
    ['active', 'coalesce(a.active, false)'],
  ]);
  const list = { columns: infoColumns, from: `device d ${infoJoins}`, where: conditions.join(' and '), values };
  return await readPage<DeviceInfo>(queries, { ...list, sortColumns, idColumn: 'd.id' }, link);
}

const sortProperties = [
  '',
  'id',
  'createdTime',
  'name',
  'label',
  'type',
  'deviceProfileName',
  'customerTitle',
  'active',
];

function anyFilter(): DeviceFilter {
  return {
    tenantId: pick(tenants),
    ...(random(3) === 0 && { customerId: pick(customers).id }),
    ...(random(4) === 0 && { type: random(9) === 0 ? 'none' : pick(profiles).name }),
    ...(random(4) === 0 && { profileId: pick(profiles).id }),
    ...(random(4) === 0 && { active: random(2) === 0 }),
  };
}

async function anyLink(queries: Queries = server.postgres): Promise<PageLink> {
  let textSearch = '';
  if (random(2) === 0) {
    const texts = await queries.query<{ name: string; label: string | null }>(
      'select name, label from device order by id offset $1 limit 1',
      [random(100)],
    );
    const text = [...(texts[0]?.label || texts[0]?.name || 'ab')];
    const start = random(text.length);
    textSearch = text.slice(start, start + 1 + random(5)).join('');
    if (random(2) === 0) textSearch = random(2) === 0 ? textSearch.toUpperCase() : textSearch.toLowerCase();
  }
  const pageSize = pick([1, 3, 10, 50, 1000]);
  const page = random(1 + Math.ceil(200 / pageSize));
  return { pageSize, page, textSearch, sortProperty: pick(sortProperties), sortOrder: pick(['ASC', 'DESC']) };
}

/** Devices of a test are few, or too many to be sorted, or neither. */
const anySortedMax = () => pick([0, 5, 30, 1000]);

async function expectSame(times: number): Promise<void> {
  for (let i = 0; i < times; i += 1) {
    const [filter, link, sortedMax] = [anyFilter(), await anyLink(), anySortedMax()];
    const [answer, plain] = [await listDevices(server.postgres, filter, link, sortedMax), await plainly(filter, link)];
    expect({ filter, link, sortedMax, answer }).toEqual({ filter, link, sortedMax, answer: plain });
  }
}

test('a page, its order and its total are those of a plain count and sort', async () => {
  await make(150, tenants[0]!);
  await make(80, tenants[1]!);
  for (let round = 0; round < 15; round += 1) {
    for (let i = 0; i < 4; i += 1) await pick(changes)();
    await expectSame(14);
  }
}, 60_000);

test('a search by the index of three letters finds what a search without it finds', async () => {
  expect(await hasSearchIndex(server.postgres)).toBe(true);
  const forced = server.postgres.transaction(async (queries) => {
    await queries.query(`alter table device drop constraint device_name_unique;
      drop index device_by_tenant, device_by_label, device_by_created, device_by_customer; set local enable_seqscan = off`);
    const search = `d.search_text like (lower($2::text collate any_letter_case) collate "C")`;
    const plan = await queries.query<{ 'QUERY PLAN': string }>(
      `explain select * from device d where tenant_id = $1 and ${search}`,
      [tenants[0], '%abc%'],
    );
    expect(plan.map((line) => line['QUERY PLAN']).join('\n')).toContain('device_search');
    let found = 0;
    for (let i = 0; i < 80; i += 1) {
      const filter = { tenantId: pick(tenants) };
      const link = { ...(await anyLink(queries)), textSearch: word(3 + random(2)), page: 0, sortProperty: 'id' };
      const text = await queries.query<{ name: string }>('select name from device order by id offset $1 limit 1', [
        random(150),
      ]);
      if (text[0] && random(4) > 0) link.textSearch = text[0].name.slice(random(3)).toUpperCase();
      const answer = await listDevices({ ...queries, snapshot: (work) => work(queries) }, filter, link);
      const plain = await plainly(filter, link, queries);
      expect({ link, answer }).toEqual({ link, answer: plain });
      found += plain.totalElements;
    }
    expect(found).toBeGreaterThan(30);
    await queries.query('drop index device_search');
    expect(await hasSearchIndex(queries)).toBe(false);
    throw new Error('undone');
  });
  await expect(forced).rejects.toThrow('undone');
}, 60_000);

test('each page of a search and of the active devices of a tenant has the true total, in each order', async () => {
  const tenantId = tenants[0]!;
  for (const [n, sortProperty] of sortProperties.entries()) {
    for (const sortOrder of ['ASC', 'DESC'] as const) {
      for (const { active, textSearch } of [
        { active: undefined, textSearch: '1' },
        { active: true, textSearch: '1' },
        { active: n % 2 === 0, textSearch: '' },
      ]) {
        for (let page = 0; page < 6; page += 1) {
          const [filter, link] = [
            { tenantId, active },
            { pageSize: 25, page, textSearch, sortProperty, sortOrder },
          ];
          const plain = await plainly(filter, link);
          for (const sortedMax of [5, 60, 1000]) {
            const answer = await listDevices(server.postgres, filter, link, sortedMax);
            expect({ filter, link, sortedMax, answer }).toEqual({ filter, link, sortedMax, answer: plain });
          }
        }
      }
    }
  }
});

test('a search of a tenant in an order, and the active devices of a profile or customer, read no row of a skipped device', async () => {
  const { postgres } = server;
  const tenantId = tenants[0]!;
  const profileId = profiles[0]!.id;
  const customerId = customers[0]!.id;
  const lists: [filter: Omit<DeviceFilter, 'tenantId'>, sortProperty: string, textSearch: string, index: string][] = [
    [{}, 'name', '1', 'device_name_unique'],
    [{}, 'label', '1', 'device_by_label'],
    [{}, 'createdTime', '1', 'device_by_created'],
    [{}, 'id', '1', 'device_by_tenant'],
    [{}, 'type', '1', 'device_by_profile'],
    [{ active: true, profileId }, 'id', '', 'device_by_profile'],
    [{ active: true, customerId }, 'id', '', 'device_by_customer'],
    [{ active: true }, 'type', '', 'device_by_profile'],
    [{ active: true }, 'customerTitle', '', 'device_by_customer'],
  ];
  const explained = postgres.transaction(async (queries) => {
    await queries.query('set local enable_seqscan = off; set local enable_bitmapscan = off');
    for (const [filter, sortProperty, textSearch, index] of lists) {
      const plans: string[] = [];
      const explaining: Queries = {
        query: async (text, values) => {
          if (!text.startsWith('set ')) {
            const plan = await queries.query<{ 'QUERY PLAN': string }>(`explain ${text}`, values);
            plans.push(plan.map((line) => line['QUERY PLAN']).join('\n'));
          }
          return await queries.query(text, values);
        },
      };
      const link = { pageSize: 3, page: 1, textSearch, sortProperty, sortOrder: 'DESC' } as const;
      const snapshot: SnapshotQueries['snapshot'] = (work) => work(explaining);
      await listDevices({ ...explaining, snapshot }, { tenantId, ...filter }, link, 5);
      expect(plans.join('\n')).toMatch(new RegExp(`Index Only Scan (Backward )?using ${index} `));
    }
    throw new Error('undone');
  });
  await expect(explained).rejects.toThrow('undone');
});

test('a name and a label of any length that is accepted fit into the indexes', async () => {
  const { postgres } = server;
  // Letters of three bytes that no index can compress.
  const letters = () => Array.from({ length: 255 }, () => String.fromCharCode(0x4e00 + random(20_000))).join('');
  await postgres.query(
    `insert into device (id, created_time, tenant_id, device_profile_id, name, label, device_data)
     values ($1, 0, $2, $3, $4, $5, '{}')`,
    [createUuid(3), tenants[0], profiles[0]!.id, letters(), letters()],
  );
});

test('totals are exact after changes at once, and changes are added up', async () => {
  const { postgres } = server;
  const loop = (statement: string) => postgres.query(`do $$ begin for n in 1..150 loop ${statement}; end loop; end $$`);
  await Promise.all([
    loop(`update device set customer_id = (array['${customers[0]!.id}', null]::uuid[])[1 + n % 2]
           where tenant_id = '${tenants[0]}' and number % 10 = n % 10`),
    loop(`update device set device_profile_id = (array['${profiles[0]!.id}', '${profiles[1]!.id}']::uuid[])[1 + n % 2]
           where tenant_id = '${tenants[0]}' and number % 10 = n % 10 and number % 2 = 1`),
    loop(`insert into device (id, created_time, tenant_id, device_profile_id, name, device_data)
          values (gen_random_uuid(), n, '${tenants[0]}', '${profiles[2]!.id}', 'at once ' || n, '{}');
          delete from device where name = 'at once ' || (n - 20)`),
  ]).catch((error: { code?: string }) => {
    // Two updates of the same devices may wait for each other; one of them is undone as a whole.
    expect(error.code).toBe('40P01');
  });
  await expectSame(60);
  const groups = await postgres.query(
    `select tenant_id, device_profile_id, customer_id, count from device_group order by 1, 2, 3`,
  );
  expect(groups).toEqual(
    await postgres.query(`select tenant_id, device_profile_id, customer_id, count(*) as count from device
                           group by 1, 2, 3 order by 1, 2, 3`),
  );
  expect(groups.length).toBeGreaterThan(4);
  // One of a hundred changes adds up those before it, so the loops above may end without any.
  const added = `select count(*) > 0 as "isAdded" from device_group_count`;
  for (let n = 0; n < 3_000; n += 1) {
    const [found] = await postgres.query<{ isAdded: boolean }>(added);
    if (found!.isAdded) break;
    await postgres.query(
      `update device set customer_id = (array['${customers[0]!.id}', null]::uuid[])[${1 + (n % 2)}]
        where tenant_id = '${tenants[0]}' and number = (select min(number) from device where tenant_id = '${tenants[0]}')`,
    );
  }
  expect(await postgres.query(added)).toEqual([{ isAdded: true }]);
});

test('the types in use are those of a plain look at the devices', async () => {
  const { postgres } = server;
  const [tenantId] = tenants;
  await postgres.query('delete from device where tenant_id = $1 and device_profile_id = $2', [
    tenantId,
    profiles[0]!.id,
  ]);
  for (const customerId of [null, ...customers.map(({ id }) => id)]) {
    const plain = await postgres.query<{ name: string }>(
      `select distinct p.name from device d join device_profile p on p.id = d.device_profile_id
        where d.tenant_id = $1 and ($2::uuid is null or d.customer_id = $2) order by 1`,
      [tenantId, customerId],
    );
    expect(await listDeviceTypes(postgres, tenantId!, customerId)).toEqual(plain.map(({ name }) => name));
  }
});

test('the bits of active devices are those of their rows after changes at once', async () => {
  const { postgres } = server;
  const wake = (n: number) => `insert into device_activity (device, active, woke_time)
    select number, true, 1 from device where number % ${n} = n % ${n} order by number
    on conflict (device) do update set active = true`;
  const end = `update device_activity set active = false where device in (
    select device from device_activity where active and device % 7 = n % 7 order by device for update skip locked)`;
  const loop = (statement: string) => {
    return postgres.query(`do $$ begin for n in 1..60 loop ${statement}; commit; end loop; end $$`);
  };
  await Promise.all([loop(wake(5)), loop(wake(3)), loop(end)]);
  await postgres.query('delete from device where number % 11 = 3');
  await postgres.query(
    `update device_activity set active = false where device % 7 = 2;
     insert into device_activity (device, active, woke_time) select max(number) + 200, true, 1 from device;
     delete from device_activity a where not exists (select from device where number = a.device)`,
  );
  const bits = await postgres.query(
    `select n as device from activity_bits, generate_series(word * 64, word * 64 + 63) as n
      where bits & activity_bit(n) <> 0 order by n`,
  );
  expect(bits).toEqual(await postgres.query('select device from device_activity where active order by device'));
  expect(bits.length).toBeGreaterThan(20);
  await expectSame(20);
});

test('statements that both insert and update active devices do not wait for each other in a circle', async () => {
  const { postgres } = server;
  const [last] = await postgres.query<{ device: number }>('select max(device) + 1 as device from device_activity');
  // Each of two callers has an inactive device in every other word, and adds one to each word between.
  const loop = (digit: number) => {
    const device = `${last!.device} + word * 64 + ${digit}`;
    return postgres.query(`do $$ begin for n in 1..20 loop
      insert into device_activity (device, active, woke_time)
        select ${device}, true, 1 from generate_series(0, 399) as word order by 1
        on conflict (device) do update set active = true;
      commit;
      delete from device_activity where device in (select ${device} from generate_series(${1 - digit}, 399, 2) as word);
      commit;
      update device_activity set active = false
       where device in (select ${device} from generate_series(${digit}, 399, 2) as word);
      commit;
    end loop; end $$`);
  };
  await Promise.all([loop(0), loop(1)]);
  await postgres.query('delete from device_activity where device >= $1', [last!.device]);
});

test('a page in the second half of a list stays the same, and totals are those of the page, while devices are created at its end', async () => {
  const { postgres } = server;
  const tenantId = createUuid(3);
  const [profileId, customerId] = [createUuid(30), createUuid(31)];
  await postgres.query(`insert into tenant (id, created_time, title) values ($1, 0, 'T')`, [tenantId]);
  await postgres.query(
    `insert into device_profile (id, created_time, tenant_id, name, profile_data) values ($1, 0, $2, 'p', '{}')`,
    [profileId, tenantId],
  );
  await postgres.query(`insert into customer (id, created_time, tenant_id, title) values ($1, 0, $2, 'c')`, [
    customerId,
    tenantId,
  ]);
  // The last devices of every order.
  const append = (first: number, last: number) =>
    postgres.query(
      `with made as (
         insert into device (id, created_time, tenant_id, customer_id, device_profile_id, name, label, device_data)
         select ('ffffffff-0000-1000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 1000 + n, $1, $2, $3,
                'device ' || 100000 + n, 'label ' || 100000 + n, '{}'
           from generate_series($4::int, $5::int) as n returning number)
       insert into device_activity (device, active, woke_time) select number, true, 1 from made`,
      [tenantId, customerId, profileId, first, last],
    );
  await append(1, 100);
  let made = 100;
  // Statements run one after another, and a device is created after each of them.
  let turn: Promise<unknown> = Promise.resolve();
  const creating = (queries: Queries): Queries => ({
    async query<Row>(text: string, values?: unknown[]): Promise<Row[]> {
      const rows = turn.then(() => queries.query<Row>(text, values));
      turn = rows.then(() => append((made += 1), made));
      await turn;
      return await rows;
    },
  });
  const busy: SnapshotQueries = {
    ...creating(postgres),
    snapshot: (work) => postgres.snapshot((queries) => work(creating(queries))),
  };
  const filters = [{}, { customerId }, { profileId }, { customerId, profileId }];
  for (const filter of [...filters, ...filters.map((each) => ({ ...each, active: true }))]) {
    for (const [n, sortProperty] of sortProperties.entries()) {
      for (const textSearch of ['', 'DEVICE']) {
        const page = Math.ceil(made / 10) - 2;
        const link = { pageSize: 10, page, textSearch, sortProperty, sortOrder: 'ASC' as const };
        const sortedMax = n % 2 === 0 ? 5 : 10 * made;
        const { data, totalElements } = await listDevices(busy, { tenantId, ...filter }, link, sortedMax);
        const names = Array.from({ length: 10 }, (_, at) => `device ${100_001 + page * 10 + at}`);
        const answer = { filter, link, names: data.map(({ name }) => name) };
        expect(answer).toEqual({ filter, link, names });
        expect(totalElements).toBeGreaterThanOrEqual(10 * (page + 1));
      }
    }
    for (const sortProperty of sortProperties) {
      const link = { pageSize: 10_000, page: 0, textSearch: '', sortProperty, sortOrder: 'DESC' as const };
      const { data, totalElements } = await listDevices(busy, { tenantId, ...filter }, link);
      expect({ filter, sortProperty, totalElements }).toEqual({ filter, sortProperty, totalElements: data.length });
    }
  }
});

test('a tenant that is deleted leaves no count', async () => {
  const { postgres } = server;
  const tenantId = tenants[1]!;
  await postgres.query('delete from device_activity');
  await postgres.query('delete from device where tenant_id = $1', [tenantId]);
  expect(await countDevices(postgres, tenantId)).toBe(0);
  for (const table of ['device_profile', 'customer']) {
    await postgres.query(`delete from ${table} where tenant_id = $1`, [tenantId]);
  }
  await postgres.query('delete from tenant where id = $1', [tenantId]);
  for (const table of ['device_count', 'device_group_count', 'device_count_change']) {
    expect(await postgres.query(`select 1 from ${table} where tenant_id = $1`, [tenantId])).toEqual([]);
  }
});
