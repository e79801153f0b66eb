/**
 * Lists of devices. A list without a search and without `active` has its total from counts that triggers keep, and is
 * read from the nearer end of an index. For any other list a few devices are read first. When the list has no more
 * devices, these are sorted; else the devices are counted, and the page is read in its order (docs/rest.md#lists).
 * The page and the total are of one moment: devices that are created or deleted meanwhile would shift a page that is
 * read from the far end. Only a page near the start of a long list of matches is read beside its count.
 */
import { badRequest } from '../../base/errors.ts';
import { limits } from '../../base/limits.ts';
import type { Queries, SnapshotQueries } from '../../postgres/client.ts';
import { checkBytes, type Page, type PageLink } from '../../postgres/page.ts';
import type { DeviceInfo } from '../model/device.ts';
import { documents, infoColumns, infoJoins } from '../sql/store.ts';
import {
  type Conditions,
  conditionsOf,
  type DeviceFilter,
  hasLetters,
  isActive,
  ownerConditions,
  type ResolvedFilter,
  resolveFilter,
  withBits,
} from './list-filter-store.ts';
import {
  byId,
  countedGroups,
  type Group,
  givenGroups,
  inIdOrder,
  type Keys,
  keptGroups,
  ordered,
  orderedAmongFirst,
  orderedByActivity,
  orderedBySorting,
  orderOf,
  type Sort,
  sliceAt,
  sorted,
  sorts,
  usesBits,
  walked,
} from './list-order-store.ts';

/** A list of so many devices is sorted as a whole, whatever the order. */
const usualSortedMax = 20_000;

/** A request for a page. */
interface Reading {
  resolved: ResolvedFilter;
  sort: Sort;
  link: PageLink;
  /** The columns of a device, and which of them are documents. */
  reads: { columns: string; documents?: typeof documents };
  sortedMax: number;
}

type Listed = Pick<DeviceInfo, 'id'>;

/** Tests have a smaller `sortedMax`. Throws 400 for a page whose documents together are too long. */
export async function listDevices(
  postgres: SnapshotQueries,
  filter: DeviceFilter,
  link: PageLink,
  sortedMax = usualSortedMax,
): Promise<Page<DeviceInfo>> {
  return (await list(postgres, filter, link, { columns: infoColumns, documents }, sortedMax)) as Page<DeviceInfo>;
}

/** Lists as `listDevices` does, without the documents of the devices. */
export async function listDeviceIds(
  postgres: SnapshotQueries,
  filter: DeviceFilter,
  link: PageLink,
): Promise<Page<Listed>> {
  return await list(postgres, filter, link, { columns: 'd.id' }, usualSortedMax);
}

async function list(
  postgres: SnapshotQueries,
  filter: DeviceFilter,
  link: PageLink,
  reads: Reading['reads'],
  sortedMax: number,
): Promise<Page<Listed>> {
  const sort = sorts.get(link.sortProperty);
  if (!sort) throw badRequest('sort_property', 'Invalid sort property');
  const resolved = await resolveFilter(postgres, filter, link.textSearch);
  if (!resolved) return pageOf([], 0, link);
  const reading = { resolved, sort: isConstant(sort, resolved) ? byId : sort, link, reads, sortedMax };
  if (resolved.text === '' && resolved.active === undefined) {
    return await postgres.snapshot((queries) => listKept(queries, reading));
  }
  if (resolved.text === '' && isWholeTenant(resolved)) {
    return await postgres.snapshot((queries) => listActive(queries, reading));
  }
  if (isNearStart(reading)) {
    const few = await postgres.snapshot((queries) => readFew(queries, reading));
    return few ?? (await listNearStart(postgres, reading));
  }
  return await postgres.snapshot(
    async (queries) => (await readFew(queries, reading)) ?? (await listCounted(queries, reading)),
  );
}

/** True when all devices of the list are equal in the sort column: their ids decide. */
function isConstant({ groups }: Sort, { customerId, profileId, active }: ResolvedFilter): boolean {
  if (groups === 'profile') return profileId !== undefined;
  if (groups === 'customer') return customerId !== undefined;
  return groups === 'activity' && active !== undefined;
}

function isWholeTenant({ customerId, profileId }: ResolvedFilter): boolean {
  return customerId === undefined && profileId === undefined;
}

/** Returns a select of the number of devices, from numbers and what changed since (migration 0052). */
function totalOf(owners: string[]): string {
  if (owners.length > 1) {
    return `select coalesce(sum(count), 0)::bigint as count from device_group where ${owners.join(' and ')}`;
  }
  return `select (coalesce((select count from device_count where tenant_id = $1), 0)
    + coalesce((select sum(change) from device_count_change where tenant_id = $1), 0))::bigint as count`;
}

/** Returns how many devices the tenant has. */
export async function countDevices(queries: Queries, tenantId: string): Promise<number> {
  const [row] = await queries.query<{ count: number }>(totalOf(['tenant_id = $1']), [tenantId]);
  return row!.count;
}

async function listKept(queries: Queries, reading: Reading): Promise<Page<Listed>> {
  const { resolved, sort, link, sortedMax } = reading;
  const { where: owners, values } = ownerConditions(resolved);
  const { where } = conditionsOf(resolved);
  const total = totalOf(owners);
  const [counted] = await queries.query<{ count: number }>(total, values);
  const { count } = counted!;
  // An index holds the devices of the tenant in any order, and those of a customer or a profile in the order of ids.
  const isWalk = owners.length === 1 ? sort.groups !== 'activity' : sort === byId && owners.length === 2;
  if (!isWalk) {
    const few = count <= sortedMax ? await readFew(queries, reading) : undefined;
    if (few) return few;
    if (!sort.groups) return pageOf(await readOrdered(queries, reading, count), count, link);
    if (sort.groups === 'activity') return await listByActivity(queries, reading);
  }
  const keys = walked(sort, where, keptGroups(sort, owners, total), link, true);
  return pageOf(await readRows(queries, keys, values, reading), count, link);
}

/** Lists the active devices of a tenant, or the other ones. */
async function listActive(queries: Queries, reading: Reading): Promise<Page<Listed>> {
  const { resolved, sort, link, sortedMax } = reading;
  const { active, inactive } = await countByActivity(queries, resolved.tenantId);
  const total = resolved.active ? active : inactive;
  const few = total <= sortedMax && sort !== byId ? await readFew(queries, reading) : undefined;
  if (few) return few;
  if (sort.groups) return await listCounted(queries, reading);
  return pageOf(await readOrdered(queries, reading, total), total, link);
}

/** Lists devices in the order of `active`. */
async function listByActivity(queries: Queries, reading: Reading): Promise<Page<Listed>> {
  const { resolved, link } = reading;
  const { where, values } = conditionsOf(resolved);
  const isWhole = resolved.text === '' && isWholeTenant(resolved);
  const counts = isWhole ? countByActivity(queries, resolved.tenantId) : countEach(queries, { where, values });
  const { active, inactive } = await counts;
  const keys = orderedByActivity(where, active, inactive, link);
  return pageOf(await readRows(queries, keys, values, reading), active + inactive, link);
}

interface ActivityCounts {
  active: number;
  inactive: number;
}

/**
 * Counts the devices of a tenant. When the tenant has most of all devices, the devices of the other tenants are counted
 * instead.
 */
async function countByActivity(queries: Queries, tenantId: string): Promise<ActivityCounts> {
  const others = `(select number from device where tenant_id < $1 union all
                   select number from device where tenant_id > $1) as d`;
  const [row] = await queries.query<{ active: number; total: number }>(
    `${withBits}, own as (${totalOf(['tenant_id = $1'])}), every as (
       select coalesce((select sum(count) from device_count), 0)
            + coalesce((select sum(change) from device_count_change), 0) as count)
     select own.count as total, case when own.count * 2 > every.count
              then (select bit_count(bytes) from bits) - (select count(*) from ${others} where ${isActive(true)})
              else (select count(*) from device d where d.tenant_id = $1 and ${isActive(true)})
            end as active
       from own, every`,
    [tenantId],
  );
  const { active, total } = row!;
  return { active, inactive: total - active };
}

async function countEach(queries: Queries, { where, values }: Conditions): Promise<ActivityCounts> {
  const [row] = await queries.query<ActivityCounts>(
    `${withBits} select count(*) filter (where ${isActive(true)}) as active,
       count(*) filter (where ${isActive(false)}) as inactive from ${inIdOrder(where)}`,
    values,
  );
  return row!;
}

/** True for a page that is read from the start of a list of more than `sortedMax` devices, whatever their number. */
function isNearStart({ sort, link, sortedMax }: Reading): boolean {
  return !sort.groups && (link.page + 1) * link.pageSize * 2 <= sortedMax;
}

/** Reads a page near the start of a list of more than `sortedMax` devices, and counts the devices at the same time. */
async function listNearStart(queries: Queries, reading: Reading): Promise<Page<Listed>> {
  const { resolved, sort, link, sortedMax } = reading;
  const { where, values } = conditionsOf(resolved);
  const [[counted], data] = await Promise.all([
    queries.query<Group>(countedGroups(sort, where), values),
    readOrdered(queries, reading, sortedMax + 1),
  ]);
  return pageOf(data, counted!.count, link);
}

/** Reads all devices of the list, which has more than `sortedMax`, to count them by group; then reads the page. */
async function listCounted(queries: Queries, reading: Reading): Promise<Page<Listed>> {
  const { resolved, sort, link } = reading;
  if (sort.groups === 'activity') return await listByActivity(queries, reading);
  const { where, values } = conditionsOf(resolved);
  const groups = await queries.query<Group>(countedGroups(sort, where), values);
  const total = groups.reduce((sum, { count }) => sum + count, 0);
  if (!sort.groups) return pageOf(await readOrdered(queries, reading, total), total, link);
  const keys = walked(sort, where, givenGroups(sort, groups, values), link, false);
  return pageOf(await readRows(queries, keys, values, reading), total, link);
}

/**
 * Reads the page of a list of `total` devices in the order of an index when its devices are near one end of the index:
 * a row that an index leads to costs ten times a row of a sort. Else all devices of the list are sorted.
 */
async function readOrdered(queries: Queries, reading: Reading, total: number): Promise<Listed[]> {
  const { resolved, sort, link, sortedMax } = reading;
  const { where, values } = conditionsOf(resolved);
  const slice = sliceAt(link, total);
  if (slice.take === 0) return [];
  // The index in the order of ids has all columns of the conditions; the others lead to a row of the table per device.
  if (sort === byId) return await readRows(queries, ordered(sort, where, slice), values, reading);
  if (slice.skip <= sortedMax) {
    const firstMax = Math.min(3 * sortedMax, Math.max(sortedMax / 5, 8 * (slice.skip + slice.take)));
    const first = orderedAmongFirst(sort, where, slice, Math.ceil(firstMax));
    const near = await readRows(queries, first, values, reading);
    if (near.length === slice.take) return near;
  }
  return await readRows(queries, orderedBySorting(sort, where, slice), values, reading);
}

/** Returns undefined when the list has more than `sortedMax` devices. */
async function readFew(queries: Queries, reading: Reading): Promise<Page<Listed> | undefined> {
  const { resolved, sort, link, sortedMax } = reading;
  const { where, values } = conditionsOf(resolved, 'letters');
  const own = ['d.name', 'd.label', 'd.created_time'].filter((column) => column === sort.column);
  // These columns are not in the index that holds all others: a list that may read all devices reads these columns
  // later.
  const isWide = resolved.customerId === undefined && resolved.profileId === undefined && !hasLetters(resolved.text);
  const columns = ['d.id', 'd.number', 'd.customer_id', 'd.device_profile_id', ...(isWide ? [] : own)];
  const order = isWide ? 'order by d.id' : '';
  const source = isWide && own.length > 0 ? 'found join device d on d.id = found.id' : 'found d';
  const few = `${sort.groups === 'activity' || usesBits(where) ? `${withBits},` : 'with'}
    found as materialized (
      select ${columns.join(', ')} from device d where ${where.join(' and ')} ${order} limit ${sortedMax + 1}),
    total as (select count(*) as count from found)
    select count, array(${sorted(source, sort, link, `(select count from total) <= ${sortedMax}`)}) as ids from total`;
  const [row] = await queries.query<{ count: number; ids: string[] }>(few, values);
  if (row!.count > sortedMax) return undefined;
  return pageOf(await readIds(queries, row!.ids, reading), row!.count, link);
}

function pageOf(data: Listed[], totalElements: number, link: PageLink): Page<Listed> {
  const totalPages = Math.ceil(totalElements / link.pageSize);
  return { data, totalPages, totalElements, hasNext: link.page + 1 < totalPages };
}

async function readIds(queries: Queries, ids: string[], reading: Reading): Promise<Listed[]> {
  if (ids.length === 0) return [];
  return await readRows(queries, { select: 'select unnest($1::uuid[]) as key', on: 'd.id = page.key' }, [ids], reading);
}

async function readRows(
  queries: Queries,
  keys: Keys,
  values: Conditions['values'],
  { sort, link, reads }: Reading,
): Promise<Listed[]> {
  const device = `from (${keys.select}) as page join device d on ${keys.on}`;
  if (reads.documents && link.pageSize * reads.documents.rowBytesMax > limits.pageBytesMax) {
    await checkBytes(queries, reads.documents.columns, device, values);
  }
  const order = orderOf(sort.column, link);
  return await queries.query<Listed>(`select ${reads.columns} ${device} ${infoJoins} order by ${order}`, values);
}
