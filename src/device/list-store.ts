/**
 * SQL of the lists of devices. Lists without a search read their total from counts that triggers keep, and start to
 * read at the nearer end of an index; other lists are left to the planner (docs/rest.md#lists).
 */
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Queries } from '../postgres/client.ts';
import { checkBytes, contains, containsPattern, type Page, type PageLink } from '../postgres/page.ts';
import type { DeviceInfo } from './device.ts';
import { documents, infoColumns, infoJoins } from './store.ts';

export interface DeviceFilter {
  tenantId: string;
  customerId?: string | undefined;
  /** Name of a profile. */
  type?: string | undefined;
  profileId?: string | undefined;
  active?: boolean | undefined;
}

interface Sort {
  /** Of `device d` and `infoJoins`. */
  column: string;
  /** Columns of an index, after the columns that are equal in all devices of a group. */
  walk?: string[];
  groups?: 'profile' | 'customer';
}

const byId = { column: 'd.id', walk: ['d.id'] };
const byProfile: Sort = { column: 'p.name', walk: ['d.id'], groups: 'profile' };
const byCustomer: Sort = { column: 'c.title', walk: ['d.id'], groups: 'customer' };
const sorts = new Map<string, Sort>([
  ['', byId],
  ['id', byId],
  ['createdTime', { column: 'd.created_time', walk: ['d.created_time', 'd.id'] }],
  ['name', { column: 'd.name', walk: ['d.name'] }],
  ['label', { column: 'd.label', walk: ['d.label', 'd.id'] }],
  ['type', byProfile],
  ['deviceProfileName', byProfile],
  ['customerTitle', byCustomer],
  ['active', { column: 'coalesce(a.active, false)' }],
]);

/** A filter whose profile, if any, exists. */
interface Scope {
  tenantId: string;
  customerId: string | undefined;
  profileId: string | undefined;
}

/** The devices of a page: a select of the column `key`, and how a device `d` is joined to it. */
interface Keys {
  select: string;
  on: string;
}

export async function listDevices(queries: Queries, filter: DeviceFilter, link: PageLink): Promise<Page<DeviceInfo>> {
  const found = sorts.get(link.sortProperty);
  if (!found) throw badRequest('sort_property', 'Invalid sort property');
  const scope = await scopeOf(queries, filter);
  if (!scope) return { data: [], totalPages: 0, totalElements: 0, hasNext: false };
  const { active } = filter;
  const sort = isConstant(found, scope) ? byId : found;
  const isCounted = active === undefined && link.textSearch === '';
  const values: unknown[] = [scope.tenantId];
  const parameter = (value: unknown) => `$${values.push(value)}`;
  const conditions = scopeConditions(scope, parameter);
  const total = isCounted ? totalOf(conditions) : undefined;
  const where = conditions.map((condition) => `d.${condition}`);
  if (active !== undefined) where.push(`coalesce(a.active, false) = ${parameter(active)}`);
  if (link.textSearch !== '') where.push(searched(link.textSearch, parameter));
  const isWalk = total !== undefined && sort.walk !== undefined && (conditions.length === 1 || isEither(scope, sort));
  const activity = active === undefined ? '' : activityJoin;
  const count = total ?? `select count(*) from device d ${activity} where ${where.join(' and ')}`;
  const reading = { sort, values, link };
  if (isWalk) return await read(queries, count, walked(sort, where, total, link), reading);
  const few = collected(sort, `device d ${activity} where ${where.join(' and ')}`, link);
  if (link.textSearch !== '') return await read(queries, count, few, reading);
  const many = sorted(sort, where, link);
  if (total === undefined) return await read(queries, count, many, reading);
  // A total that is kept comes at once.
  const [kept] = await queries.query<{ count: number }>(count, values);
  return await read(queries, count, kept!.count > collectedMax ? many : few, reading);
}

/** So many devices are sorted whatever the sort. */
const collectedMax = 20_000;

/** Undefined when no device can be in the list. */
async function scopeOf(queries: Queries, filter: DeviceFilter): Promise<Scope | undefined> {
  const { tenantId, type } = filter;
  const customerId = filter.customerId || undefined;
  const profileId = filter.profileId || undefined;
  if (!type) return { tenantId, customerId, profileId };
  const [profile] = await queries.query<{ id: string }>(
    'select id from device_profile where tenant_id = $1 and name = $2',
    [tenantId, type],
  );
  if (!profile || (profileId && profileId.toLowerCase() !== profile.id)) return undefined;
  return { tenantId, customerId, profileId: profile.id };
}

/** True when all devices of the list are equal in the sort column: their ids decide. */
function isConstant(sort: Sort, { customerId, profileId }: Scope): boolean {
  return (sort === byProfile && profileId !== undefined) || (sort === byCustomer && customerId !== undefined);
}

/** True when an index holds the devices of the one customer, or of the one profile, in the order of the list. */
function isEither({ customerId, profileId }: Scope, sort: Sort): boolean {
  return sort === byId && (customerId === undefined || profileId === undefined);
}

/** Returns conditions on columns that both `device` and `device_group` have. */
function scopeConditions({ customerId, profileId }: Scope, parameter: (value: unknown) => string): string[] {
  const conditions = ['tenant_id = $1'];
  if (customerId !== undefined) conditions.push(`customer_id = ${parameter(customerId)}`);
  if (profileId !== undefined) conditions.push(`device_profile_id = ${parameter(profileId)}`);
  return conditions;
}

/** Returns a select of the number of devices, from numbers and what changed since (migration 0052). */
function totalOf(conditions: string[]): string {
  if (conditions.length > 1) {
    return `select coalesce(sum(count), 0)::bigint as count from device_group where ${conditions.join(' and ')}`;
  }
  return `select (coalesce((select count from device_count where tenant_id = $1), 0)
    + coalesce((select sum(change) from device_count_change where tenant_id = $1), 0))::bigint as count`;
}

/** Returns how many devices the tenant has. */
export async function countDevices(queries: Queries, tenantId: string): Promise<number> {
  const [row] = await queries.query<{ count: number }>(totalOf(['tenant_id = $1']), [tenantId]);
  return row!.count;
}

/**
 * True when an index of three letters helps: those of pg_trgm are ASCII letters and digits in a database of locale C.
 */
function hasLetters(text: string): boolean {
  return /[a-z0-9]{3}/i.test(text);
}

function searched(text: string, parameter: (value: unknown) => string): string {
  const isIndexed = hasLetters(text);
  // The planner would look at the whole index of letters for a pattern without three of them, but not for `strpos`.
  const lower = `lower(${parameter(isIndexed ? containsPattern(text) : text)}::text collate any_letter_case) collate "C"`;
  const found = isIndexed ? `d.search_text like (${lower})` : `strpos(d.search_text, ${lower}) > 0`;
  if (!text.includes('\n')) return found;
  // A line end divides the name from the label.
  const pattern = parameter(containsPattern(text));
  return `${found} and (${contains('d.name', pattern)} or ${contains('d.label', pattern)})`;
}

const activityJoin = 'left join device_activity a on a.device = d.number';

/** Leaves the access to the planner, which expects the devices of the list anywhere among all. */
function sorted(sort: Sort, where: string[], link: PageLink): Keys {
  const isActive = where.some((condition) => condition.includes('a.active'));
  const joins = isActive && !sort.column.includes('a.') ? `${joinsOf(sort)} ${activityJoin}` : joinsOf(sort);
  const select = `select d.id as key from device d ${joins} where ${where.join(' and ')}
    order by ${orderOf(sort.column, link)} limit ${link.pageSize} offset ${link.page * link.pageSize}`;
  return { select, on: 'd.id = page.key' };
}

/**
 * Looks at all devices of the list and sorts them. The subselect has its own plan: in the order of an index the devices
 * of a search may be the last ones.
 */
function collected(sort: Sort, from: string, link: PageLink): Keys {
  const own = ['d.name', 'd.label', 'd.created_time'].filter((column) => column === sort.column);
  const columns = ['d.id', 'd.number', 'd.customer_id', 'd.device_profile_id', ...own];
  const select = `select d.id as key from (select ${columns.join(', ')} from ${from} offset 0) as d ${joinsOf(sort)}
    order by ${orderOf(sort.column, link)} limit ${link.pageSize} offset ${link.page * link.pageSize}`;
  return { select, on: 'd.id = page.key' };
}

function joinsOf({ column }: Sort): string {
  if (column.startsWith('p.')) return 'join device_profile p on p.id = d.device_profile_id';
  if (column.startsWith('c.')) return 'left join customer c on c.id = d.customer_id';
  return column.includes('a.') ? activityJoin : '';
}

function orderOf(column: string, { sortOrder }: PageLink): string {
  const direction = sortOrder === 'DESC' ? 'desc' : 'asc';
  return column === 'd.id' ? `d.id ${direction}` : `${column} ${direction}, d.id ${direction}`;
}

/**
 * Reads keys in the order of an index, without a look at what the page skips. A list that is in the order of several
 * groups has the groups' numbers of devices, so that only groups of the page are read, each from its nearer end.
 */
function walked(sort: Sort, where: string[], total: string, link: PageLink): Keys {
  const isDown = link.sortOrder === 'DESC';
  const offset = link.page * link.pageSize;
  const end = offset + link.pageSize;
  const byName = sort.walk![0] === 'd.name';
  const columns = sort.walk!;
  const arm = (condition: string, when: string, isBack: boolean) => {
    const direction = isDown === isBack ? 'asc' : 'desc';
    const order = columns.map((column) => `${column} ${direction}`).join(', ');
    const isNearer = isBack ? 's.skip * 2 > s.count' : 's.skip * 2 <= s.count';
    const skip = isBack ? 's.count - s.skip - s.take' : 's.skip';
    return `(select ${byName ? 'd.name' : 'd.id'} as key from device d where ${condition} order by ${order}
      limit case when ${isNearer} ${when} then s.take else 0 end offset ${skip})`;
  };
  const both = (condition: string, when = '') => [arm(condition, when, false), arm(condition, when, true)];
  let arms: string[];
  if (sort.groups === 'profile') arms = both('d.device_profile_id = s.id');
  else if (sort.groups === 'customer') {
    arms = [
      ...both('d.customer_id = s.id', 'and s.id is not null'),
      ...both('d.tenant_id = $1 and d.customer_id is null', 'and s.id is null'),
    ];
    // A profile and a customer are of one tenant: their indexes lack it, and the number of devices is of this tenant.
  } else arms = both((where.length > 1 ? where.slice(1) : where).join(' and '));
  const direction = isDown ? 'desc' : 'asc';
  const select = `with groups as (${groupsOf(sort, total)}),
    placed as (select *, sum(count) over (order by title ${direction}, id ${direction}) - count as before from groups),
    slice as (
      select id, title, count, greatest(${offset} - before, 0)::bigint as skip,
             (least(count, ${end} - before) - greatest(${offset} - before, 0))::bigint as take
        from placed where before < ${end} and before + count > ${offset})
    select k.key from slice s cross join lateral (${arms.join(' union all ')}) as k limit ${link.pageSize}`;
  return { select, on: byName ? 'd.tenant_id = $1 and d.name = page.key' : 'd.id = page.key' };
}

/** Returns a select of groups in which the title decides the order, with their numbers of devices. */
function groupsOf(sort: Sort, total: string): string {
  if (!sort.groups) return `select null::uuid as id, null::text as title, count from (${total}) as t`;
  const [column, table, title] =
    sort.groups === 'profile' ? ['device_profile_id', 'device_profile', 'name'] : ['customer_id', 'customer', 'title'];
  return `select g.id, t.${title} as title, g.count
    from (select ${column} as id, sum(count)::bigint as count from device_group where tenant_id = $1 group by ${column}
          having sum(count) > 0) as g left join ${table} t on t.id = g.id`;
}

interface Reading {
  sort: Sort;
  values: unknown[];
  link: PageLink;
}

async function read(queries: Queries, count: string, keys: Keys, reading: Reading): Promise<Page<DeviceInfo>> {
  const { link, values } = reading;
  const [counted, data] = await Promise.all([
    queries.query<{ count: number }>(count, values),
    readRows(queries, keys, reading),
  ]);
  const totalElements = counted[0]!.count;
  const totalPages = Math.ceil(totalElements / link.pageSize);
  return { data, totalPages, totalElements, hasNext: link.page + 1 < totalPages };
}

/** Throws 400 for a page whose documents together are too long. */
async function readRows(queries: Queries, keys: Keys, { sort, values, link }: Reading): Promise<DeviceInfo[]> {
  const device = `from (${keys.select}) as page join device d on ${keys.on}`;
  if (link.pageSize * documents.rowBytesMax > limits.pageBytesMax) {
    await checkBytes(queries, documents.columns, device, values);
  }
  const order = orderOf(sort.column, link);
  return await queries.query<DeviceInfo>(`select ${infoColumns} ${device} ${infoJoins} order by ${order}`, values);
}
