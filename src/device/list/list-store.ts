/**
 * Lists of devices. A list without a search and without `active` has its total from counts that triggers keep, and is
 * read from the nearer end of an index. A search of a whole tenant that the index of letters does not help is read in
 * its order up to the end of the page, and the rest is counted. For any other list a few devices are read first. When
 * the list has no more devices, these are sorted; else the devices are counted, and the page is read in its order
 * (docs/rest.md#lists). The page and the total are of one moment: devices that are created or deleted meanwhile would
 * shift a page that is read from the far end. A list uses one connection, and its statements share one deadline.
 */
import { limits } from '../../base/limits.ts';
import type { Queries, SnapshotQueries } from '../../postgres/client.ts';
import { checkBytes, type Page, type PageLink, pageOf, totalOfLast, wrongSort } from '../../postgres/page.ts';
import type { DeviceInfo } from '../model/device.ts';
import { documents, infoColumns, infoJoins } from '../sql/store.ts';
import {
  activeCondition,
  type Conditions,
  conditionsOf,
  type DeviceFilter,
  hasLetters,
  inactiveCondition,
  ownerConditions,
  type ResolvedFilter,
  resolveFilter,
  withBits,
} from './list-filter-store.ts';
import {
  byId,
  countedAfter,
  countedAll,
  countedGroups,
  type Group,
  givenGroups,
  groupColumn,
  type Keys,
  keptGroups,
  oneGroup,
  ordered,
  orderedAmongFirst,
  orderedByActivity,
  orderedBySorting,
  orderOf,
  type Slice,
  type Sort,
  sliceAt,
  sorted,
  sorts,
  throughGroups,
  type Walked,
  walked,
  walkedColumns,
  withFor,
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
): Promise<Page<Pick<DeviceInfo, 'id'>>> {
  return await list(postgres, filter, link, { columns: walkedColumns }, usualSortedMax);
}

async function list(
  postgres: SnapshotQueries,
  filter: DeviceFilter,
  link: PageLink,
  reads: Reading['reads'],
  sortedMax: number,
): Promise<Page<Walked>> {
  const sort = sorts.get(link.sortProperty);
  if (!sort) throw wrongSort(link, sorts.keys());
  return await postgres.snapshot(async (queries) => {
    // The indexes have the columns that lists select by. The planner expects the table to be as fast, and it is not.
    await queries.query('set local enable_seqscan = off');
    const resolved = await resolveFilter(queries, filter, link.textSearch);
    if (!resolved) return pageOf([], 0, link);
    return await read(queries, { resolved, sort: isConstant(sort, resolved) ? byId : sort, link, reads, sortedMax });
  });
}

async function read(queries: Queries, reading: Reading): Promise<Page<Walked>> {
  const { resolved } = reading;
  if (hasKeptTotal(resolved)) {
    return resolved.active === undefined ? await listKept(queries, reading) : await listActive(queries, reading);
  }
  if (!isWide(resolved)) {
    return (
      (await readFew(queries, reading)) ?? (await listNear(queries, reading)) ?? (await listMany(queries, reading))
    );
  }
  // The few devices of a wide list are found by a look at all devices.
  return (await listNear(queries, reading)) ?? (await readFew(queries, reading)) ?? (await listMany(queries, reading));
}

/** True when the total is known without a look at the devices. */
function hasKeptTotal(resolved: ResolvedFilter): boolean {
  return resolved.text === '' && (resolved.active === undefined || isWholeTenant(resolved));
}

/** True when no index narrows the devices that are looked at. */
function isWide(resolved: ResolvedFilter): boolean {
  return isWholeTenant(resolved) && !hasLetters(resolved.text);
}

/**
 * True when the index of the order has all columns of the conditions (migrations 0052 and 0072): the rows of the table
 * are not read.
 */
function isWalk({ sort, resolved }: Reading): boolean {
  return sort === byId || (!sort.groups && isWholeTenant(resolved));
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

async function listKept(queries: Queries, reading: Reading): Promise<Page<Walked>> {
  const { resolved, sort, link, sortedMax } = reading;
  const { where: owners, values } = ownerConditions(resolved);
  const { where } = conditionsOf(resolved);
  const total = totalOf(owners);
  // An index holds the devices of the tenant in any order, and those of a customer or a profile in the order of ids.
  const isIndexed = owners.length === 1 ? sort.groups !== 'activity' : sort === byId && owners.length === 2;
  const [counted] = await queries.query<{ count: number }>(total, values);
  const { count } = counted!;
  if (!isIndexed) {
    const few = count <= sortedMax ? await readFew(queries, reading) : undefined;
    if (few) return few;
    if (!sort.groups) return pageOf(await readOrdered(queries, reading, count), count, link);
    if (sort.groups === 'activity') {
      const isWhole = isWholeTenant(resolved);
      const counts = isWhole ? countByActivity(queries, resolved.tenantId) : countEach(queries, resolved);
      return await listByActivity(queries, reading, await counts);
    }
  }
  const groups = sort.groups ? keptGroups(sort, owners) : oneGroup(total);
  const keys = walked(sort, where, groups, link, 'plain');
  return pageOf(await readRows(queries, keys, values, reading), count, link);
}

/** Lists the active devices of a tenant, or the other ones. */
async function listActive(queries: Queries, reading: Reading): Promise<Page<Walked>> {
  const { resolved, sort, link, sortedMax } = reading;
  const { active, inactive } = await countByActivity(queries, resolved.tenantId);
  const total = resolved.active ? active : inactive;
  const few = total <= sortedMax && sort !== byId ? await readFew(queries, reading) : undefined;
  if (few) return few;
  if (!sort.groups) return pageOf(await readOrdered(queries, reading, total), total, link);
  const { where, values } = conditionsOf(resolved);
  const slice = sliceAt(link, total);
  const { where: owners } = ownerConditions(resolved);
  const part = { inside: where, where: [], slice, firstMax: slice.skip + slice.take };
  const keys = throughGroups(sort, keptGroups(sort, owners), part);
  return pageOf(await readRows(queries, keys, values, reading), total, link);
}

/** Lists devices in the order of `active`. */
async function listByActivity(queries: Queries, reading: Reading, counts: ActivityCounts): Promise<Page<Walked>> {
  const { resolved, link } = reading;
  const { where, values } = conditionsOf(resolved);
  const { active, inactive } = counts;
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
              then (select bit_count(bytes) from bits) - (select count(*) from ${others} where ${activeCondition})
              else (select count(*) from device d where d.tenant_id = $1 and ${activeCondition})
            end as active
       from own, every`,
    [tenantId],
  );
  const { active, total } = row!;
  return { active, inactive: total - active };
}

async function countEach(queries: Queries, resolved: ResolvedFilter): Promise<ActivityCounts> {
  const { where, values } = conditionsOf(resolved);
  const [row] = await queries.query<ActivityCounts>(
    `${withBits} select count(*) filter (where ${activeCondition}) as active,
       count(*) filter (where ${inactiveCondition}) as inactive from device d where ${where.join(' and ')}`,
    values,
  );
  return row!;
}

/** The total of a list that is read from its beginning. */
const notCounted = Number.MAX_SAFE_INTEGER;

/** Lists more than `sortedMax` devices, of which the page is not near the start. */
async function listMany(queries: Queries, reading: Reading): Promise<Page<Walked>> {
  const { resolved, sort, link } = reading;
  if (isWalk(reading)) return await listWalked(queries, reading);
  if (sort.groups === 'activity') {
    return await listByActivity(queries, reading, await countEach(queries, resolved));
  }
  if (sort.groups) return await listGroups(queries, reading, await readGroups(queries, reading));
  const total = await countMatches(queries, resolved);
  return pageOf(await readOrdered(queries, reading, total), total, link);
}

/**
 * Lists a full page that is near the start of its order, and counts the devices. Returns undefined when the page is not
 * near, or not full.
 */
async function listNear(queries: Queries, reading: Reading): Promise<Page<Walked> | undefined> {
  const { resolved, link } = reading;
  const data = await readNear(queries, reading, sliceAt(link, notCounted));
  if (data?.length !== link.pageSize) return undefined;
  return pageOf(data, await countMatches(queries, resolved), link);
}

async function countMatches(queries: Queries, resolved: ResolvedFilter): Promise<number> {
  const { where, values } = conditionsOf(resolved);
  const [row] = await queries.query<{ count: number }>(countedAll(where), values);
  return row!.count;
}

/** Reads the index of the order once: up to the end of the page, and then the rest of it, to count. */
async function listWalked(queries: Queries, reading: Reading): Promise<Page<Walked>> {
  const { resolved, sort, link } = reading;
  const data = await readOrdered(queries, reading, notCounted);
  const known = totalOfLast(data, link);
  if (known !== undefined) return pageOf(data, known, link);
  const before = link.page * link.pageSize;
  const last = data.at(-1);
  const { where, values } = conditionsOf(resolved);
  const [row] = await queries.query<{ count: number }>(countedAfter(sort, where, values, link, last), values);
  return pageOf(data, (last ? before + data.length : 0) + row!.count, link);
}

async function readGroups(queries: Queries, { resolved, sort }: Reading): Promise<Group[]> {
  const { where, values } = conditionsOf(resolved);
  return await queries.query<Group>(countedGroups(sort, where), values);
}

/** Reads a page of a list in an order by `groups`. */
async function listGroups(queries: Queries, reading: Reading, groups: Group[]): Promise<Page<Walked>> {
  const { resolved, sort, link } = reading;
  const { where, values } = conditionsOf(resolved);
  const keys = walked(sort, where, givenGroups(sort, groups, values), link, 'any');
  const total = groups.reduce((sum, { count }) => sum + count, 0);
  return pageOf(await readRows(queries, keys, values, reading), total, link);
}

/**
 * Reads the page of a list of `total` devices in the order of an index when its devices are near one end of the index:
 * a row that an index leads to costs ten times a row of a sort. Else all devices of the list are sorted.
 */
async function readOrdered(queries: Queries, reading: Reading, total: number): Promise<Walked[]> {
  const { resolved, sort, link } = reading;
  const { where, values } = conditionsOf(resolved);
  const slice = sliceAt(link, total);
  if (slice.take === 0) return [];
  if (isWalk(reading)) return await readRows(queries, ordered(sort, where, slice), values, reading);
  // `listNear` has read from the start of a list whose total is not kept.
  const isTried = !hasKeptTotal(resolved) && slice.direction === sliceAt(link, notCounted).direction;
  const near = isTried ? undefined : await readNear(queries, reading, slice);
  if (near?.length === slice.take) return near;
  return await readRows(queries, orderedBySorting(sort, where, slice), values, reading);
}

/**
 * Reads the devices of a slice that are among the first of the tenant in the order of an index; undefined when the
 * slice is far from the end of the index.
 */
async function readNear(queries: Queries, reading: Reading, slice: Slice): Promise<Walked[] | undefined> {
  const { resolved, sort, sortedMax } = reading;
  if (slice.skip > sortedMax || sort.groups === 'activity') return undefined;
  const firstMax = Math.ceil(Math.min(3 * sortedMax, Math.max(sortedMax / 5, 8 * (slice.skip + slice.take))));
  const { where, values } = conditionsOf(resolved);
  if (!sort.groups) return await readRows(queries, orderedAmongFirst(sort, where, slice, firstMax), values, reading);
  const { where: owners } = ownerConditions(resolved);
  const part = { inside: where.slice(0, owners.length), where: where.slice(owners.length), slice, firstMax };
  return await readRows(queries, throughGroups(sort, keptGroups(sort, owners), part), values, reading);
}

/** The part of all devices from which it is guessed how many have a text. */
const sampledPercent = 0.5;

/** Returns undefined when the list has more than `sortedMax` devices. */
async function readFew(queries: Queries, reading: Reading): Promise<Page<Walked> | undefined> {
  const { resolved, sort, link, sortedMax } = reading;
  const { where, values } = conditionsOf(resolved, 'letters');
  const own = ['d.name', 'd.label', 'd.created_time'].filter((column) => column === sort.column);
  // These columns are not in the index that holds all others: a list that may read all devices reads these columns
  // later.
  const isAll = isWide(resolved);
  const columns = ['d.id', ...(sort.groups ? [`d.${groupColumn(sort)}`] : []), ...(isAll ? [] : own)];
  const source = isAll && own.length > 0 ? 'found join device d on d.id = found.id' : 'found d';
  // The index of letters finds all devices of a text that very many have, before the first of them is read. Without
  // that index all devices may be looked at, and then once more. Devices that were created together are on few pages,
  // so a small sample may find none of them, or too many.
  const isSampled = isWholeTenant(resolved) && resolved.text !== '';
  const sampled = `from device d tablesample system (${sampledPercent}) where ${where.join(' and ')}`;
  const isMany = isSampled
    ? `(select count(*) * ${100 / sampledPercent} > ${(isAll ? 1 : 2) * sortedMax} ${sampled})`
    : 'false';
  const page = sorted(source, sort, link, `(select count from total) <= ${sortedMax}`);
  const few = `${withFor([...where, page])}
    guess as materialized (select ${isMany} as "isMany"),
    found as materialized (
      select ${columns.join(', ')} from device d where ${where.join(' and ')} and not (select "isMany" from guess)
       limit ${sortedMax + 1}),
    total as (select count(*) as count from found)
    select "isMany", count, array(${page}) as ids from total, guess`;
  const [row] = await queries.query<{ isMany: boolean; count: number; ids: string[] }>(few, values);
  const { isMany: isGuessed, count, ids } = row!;
  if (isGuessed || count > sortedMax) return undefined;
  return pageOf(await readIds(queries, ids, reading), count, link);
}

async function readIds(queries: Queries, ids: string[], reading: Reading): Promise<Walked[]> {
  if (ids.length === 0) return [];
  return await readRows(queries, { select: 'select unnest($1::uuid[]) as key', on: 'd.id = page.key' }, [ids], reading);
}

async function readRows(
  queries: Queries,
  keys: Keys,
  values: Conditions['values'],
  { sort, link, reads }: Reading,
): Promise<Walked[]> {
  const device = `from (${keys.select}) as page join device d on ${keys.on}`;
  if (reads.documents && link.pageSize * reads.documents.rowBytesMax > limits.pageBytesMax) {
    await checkBytes(queries, reads.documents.columns, device, values);
  }
  const order = orderOf(sort.column, link);
  return await queries.query<Walked>(`select ${reads.columns} ${device} ${infoJoins} order by ${order}`, values);
}
