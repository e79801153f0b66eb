/**
 * Lists of devices of a large tenant, as a console reads them: p50 and p99 of each kind of page, one caller, nothing
 * else running. The devices are written by SQL into a PostgreSQL of its own; the engine's code reads the lists.
 */
import { join } from 'node:path';
import type { DeviceFilter } from '../../src/device/list/list-filter-store.ts';
import { listDevices } from '../../src/device/list/list-store.ts';
import { openPostgres, type Postgres } from '../../src/postgres/client.ts';
import { migratePostgres } from '../../src/postgres/migrate.ts';
import type { PageLink } from '../../src/postgres/page.ts';
import { root } from '../../test/harness/engine.ts';
import { startOwnPostgres } from '../own-postgres.ts';
import { type Cell, figure, measuring, say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
import { Targets } from '../targets.ts';

const log = { debug() {}, info() {}, warn: console.warn, error: console.error };
const tenantId = '00000000-0000-7000-8000-000000000001';
/**
 * The greatest p99 of pages up to the hundredth and of searches with up to 10 000 matches. The next one is for
 * everything else.
 */
const nearMsMax = 50;
const farMsMax = 300;

interface Kind {
  name: string;
  msMax: number;
  filter?: Omit<DeviceFilter, 'tenantId'>;
  link: Partial<PageLink>;
}

export async function runLists(settings: BenchSettings): Promise<boolean> {
  const { lists } = settings;
  const own = await startOwnPostgres('millrace-lists-');
  const postgres = openPostgres({ url: own.server.url, poolMax: 2, log });
  try {
    await migratePostgres(postgres, { log, dir: join(root, 'src/postgres/migrations') });
    const began = performance.now();
    await fill(postgres, lists.devices);
    say(`${figure(lists.devices)} devices in ${Math.round((performance.now() - began) / 1_000)} s\n`);
    const kinds = await kindsOf(postgres, lists.devices);
    const rows: Cell[][] = [];
    measuring('rows', () => rows);
    const targets = new Targets();
    for (const kind of kinds) {
      const { p50, p99, total } = await measure(postgres, kind, lists.samples);
      const isHeld = targets.atMost(`${kind.name}: p99`, p99, kind.msMax, ' ms');
      rows.push([kind.name, total, p50, p99, isHeld ? '' : `above ${kind.msMax}`]);
    }
    table(['list', 'devices', 'p50 ms', 'p99 ms', ''], rows);
    say(`targets: p99 ${nearMsMax} ms of near pages and of few matches, ${farMsMax} ms of all others`);
    const holds = targets.tell();
    writeResult('lists', settings, { rows, missed: targets.missed });
    return holds;
  } finally {
    await postgres.close();
    await own.close();
  }
}

/** A thousand customers, twenty profiles, labels for a third; triggers are off, so the counts are written here. */
async function fill(postgres: Postgres, devices: number): Promise<void> {
  await postgres.transaction(
    async (queries) => {
      await queries.query('set local session_replication_role = replica');
      await queries.query(`
        insert into tenant (id, created_time, title) values ('${tenantId}', 0, 'T');
        insert into device_profile (id, created_time, tenant_id, name, profile_data)
        select gen_random_uuid(), 0, '${tenantId}', 'profile ' || n, '{}' from generate_series(1, 20) n;
        insert into customer (id, created_time, tenant_id, title)
        select gen_random_uuid(), 0, '${tenantId}', 'customer ' || md5(n::text) from generate_series(1, 1000) n`);
      await queries.query(
        `with profiles as (select array_agg(id) as ids from device_profile),
              customers as (select array_agg(id) as ids from customer)
         insert into device (id, created_time, tenant_id, customer_id, device_profile_id, name, label, device_data)
         select (lpad(to_hex(1700000000000 + n), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
                 || substr(md5(n::text), 4, 15))::uuid, 1700000000000 + n, '${tenantId}',
                case when n % 2 = 0 then c.ids[1 + abs(hashint4(n::int)) % 1000] end,
                p.ids[1 + abs(hashint4(n::int + 7)) % 20],
                (array['berlin', 'paris', 'oslo', 'madrid', 'wien', 'lyon', 'bern', 'prag'])[1 + abs(hashint4(n::int + 5)) % 8]
                || '-' || (array['meter', 'pump', 'sensor', 'valve'])[1 + abs(hashint4(n::int + 9)) % 4]
                || '-' || lpad(n::text, 7, '0'),
                case when n % 3 = 0 then 'Room ' || abs(hashint4(n::int + 1)) % 5000 end, '{}'
           from generate_series(1, $1::bigint) n, profiles p, customers c`,
        [devices],
      );
      await queries.query(`
        insert into device_activity (device, active, woke_time)
        select number, number % 10 < 8, 1 from device where number % 10 > 0;
        select set_activity_bits(array_agg(device)) from device_activity where active;
        insert into device_group_count (tenant_id, device_profile_id, customer_id, count)
        select tenant_id, device_profile_id, coalesce(customer_id, '00000000-0000-0000-0000-000000000000'), count(*)
          from device group by 1, 2, 3;
        insert into device_count (tenant_id, count) select '${tenantId}', sum(count) from device_group_count`);
    },
    { timeoutMs: 3_600_000 },
  );
  // `vacuum` cannot run in a transaction and may take longer than the limit of statements, so each is sent alone and
  // without that limit.
  for (const name of ['device', 'device_activity', 'activity_bits', 'device_group_count', 'customer']) {
    await postgres.query('set statement_timeout = 0');
    await postgres.query(`vacuum analyze ${name}`, [], { timeoutMs: 3_600_000 });
  }
}

async function kindsOf(postgres: Postgres, devices: number): Promise<Kind[]> {
  const [some] = await postgres.query<{ customerId: string; profileId: string }>(
    `select customer_id as "customerId", device_profile_id as "profileId" from device
      where customer_id is not null limit 1`,
  );
  const { customerId, profileId } = some!;
  const last = Math.floor((devices / 10) * 0.9);
  const kinds: Kind[] = [];
  for (const sortProperty of ['id', 'createdTime', 'name', 'label', 'type', 'customerTitle', 'active']) {
    for (const sortOrder of ['ASC', 'DESC'] as const) {
      const sort = `${sortProperty} ${sortOrder}`;
      kinds.push({ name: `${sort}, page 0`, msMax: nearMsMax, link: { sortProperty, sortOrder } });
      kinds.push({ name: `${sort}, page 100`, msMax: nearMsMax, link: { sortProperty, sortOrder, page: 100 } });
      kinds.push({ name: `${sort}, page ${last}`, msMax: farMsMax, link: { sortProperty, sortOrder, page: last } });
    }
  }
  kinds.push({ name: `id, page ${devices / 20}`, msMax: farMsMax, link: { page: devices / 20 } });
  for (const textSearch of ['12345', '123', 'room 12', 'PUMP-00001', 'none such']) {
    for (const sortProperty of ['', 'name', 'customerTitle']) {
      kinds.push({
        name: `"${textSearch}" by ${sortProperty || 'id'}`,
        msMax: nearMsMax,
        link: { textSearch, sortProperty },
      });
    }
  }
  // The last two are far from the beginning of an order: devices with "-09" are the newest, and those with "om" have a
  // label.
  for (const textSearch of ['berlin', 'a', 'ze', 'o-', '-09', 'om']) {
    for (const sortProperty of ['id', 'createdTime', 'name', 'label', 'type', 'customerTitle']) {
      const sortOrder = sortProperty === 'label' ? ('DESC' as const) : ('ASC' as const);
      const name = `"${textSearch}" by ${sortProperty}${sortOrder === 'DESC' ? ' DESC' : ''}`;
      kinds.push({ name, msMax: farMsMax, link: { textSearch, sortProperty, sortOrder } });
    }
  }
  kinds.push({
    name: '"a" by name, page 20000',
    msMax: farMsMax,
    link: { textSearch: 'a', sortProperty: 'name', page: 20_000 },
  });
  for (const sortProperty of ['id', 'name']) {
    const link = { textSearch: 'a', sortProperty };
    kinds.push({ name: `"a" of a customer by ${sortProperty}`, msMax: nearMsMax, filter: { customerId }, link });
    kinds.push({ name: `"a" of a profile by ${sortProperty}`, msMax: farMsMax, filter: { profileId }, link });
    kinds.push({ name: `"a", active by ${sortProperty}`, msMax: farMsMax, filter: { active: true }, link });
  }
  for (const sortProperty of ['', 'name', 'customerTitle']) {
    const by = `by ${sortProperty || 'id'}`;
    kinds.push({ name: `a customer ${by}`, msMax: nearMsMax, filter: { customerId }, link: { sortProperty } });
    kinds.push({ name: `a profile ${by}`, msMax: farMsMax, filter: { profileId }, link: { sortProperty } });
  }
  kinds.push({ name: 'a customer and a profile', msMax: nearMsMax, filter: { customerId, profileId }, link: {} });
  for (const active of [true, false]) {
    const name = active ? 'active' : 'inactive';
    kinds.push({ name, msMax: nearMsMax, filter: { active }, link: {} });
    kinds.push({ name: `${name}, page ${last / 2}`, msMax: farMsMax, filter: { active }, link: { page: last / 2 } });
    for (const sortProperty of ['name', 'type', 'customerTitle']) {
      kinds.push({ name: `${name} by ${sortProperty}`, msMax: farMsMax, filter: { active }, link: { sortProperty } });
    }
    kinds.push({ name: `${name}, a profile`, msMax: farMsMax, filter: { active, profileId }, link: {} });
  }
  return kinds;
}

async function measure(postgres: Postgres, { filter, link }: Kind, samples: number) {
  const whole = { pageSize: 10, page: 0, textSearch: '', sortProperty: '', sortOrder: 'ASC' as const, ...link };
  const times: number[] = [];
  let total = 0;
  // The first call fills caches and does not count.
  for (let n = 0; n <= samples; n += 1) {
    const began = performance.now();
    ({ totalElements: total } = await listDevices(postgres, { tenantId, ...filter }, whole));
    if (n > 0) times.push(performance.now() - began);
  }
  times.sort((a, b) => a - b);
  const at = (share: number) => times[Math.min(times.length - 1, Math.floor(times.length * share))]!;
  return { p50: at(0.5), p99: at(0.99), total };
}
