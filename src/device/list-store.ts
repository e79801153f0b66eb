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
  const keys = isWalk ? walked(sort, where, total, link) : sorted(sort, where, link);
  const activity = active === undefined ? '' : activityJoin;
  const count = total ?? `select count(*) from device d ${activity} where ${where.join(' and ')}`;
  return await read(queries, { count, keys, sort, values }, link);
}

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

function searched(text: string, parameter: (value: unknown) => string): string {
  const pattern = parameter(containsPattern(text));
  const found = `d.search_text like (lower(${pattern}::text collate any_letter_case) collate "C")`;
  if (!text.includes('\n')) return found;
  // A line end divides the name from the label.
  return `${found} and (${contains('d.name', pattern)} or ${contains('d.label', pattern)})`;
}

const activityJoin = 'left join device_activity a on a.device = d.number';

function sorted({ column }: Sort, where: string[], link: PageLink): Keys {
  const joins = [
    column.startsWith('p.') ? 'join device_profile p on p.id = d.device_profile_id' : '',
    column.startsWith('c.') ? 'left join customer c on c.id = d.customer_id' : '',
    column.includes('a.') || where.some((condition) => condition.includes('a.active')) ? activityJoin : '',
  ];
  const select = `select d.id as key from device d ${joins.join(' ')} where ${where.join(' and ')}
    order by ${orderOf(column, link)} limit ${link.pageSize} offset ${link.page * link.pageSize}`;
  return { select, on: 'd.id = page.key' };
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
  count: string;
  keys: Keys;
  sort: Sort;
  values: unknown[];
}

/** Throws 400 for a page whose documents together are too long. */
async function read(
  queries: Queries,
  { count, keys, sort, values }: Reading,
  link: PageLink,
): Promise<Page<DeviceInfo>> {
  const device = `from (${keys.select}) as page join device d on ${keys.on}`;
  if (link.pageSize * documents.rowBytesMax > limits.pageBytesMax) {
    await checkBytes(queries, documents.columns, device, values);
  }
  const [counted, data] = await Promise.all([
    queries.query<{ count: number }>(count, values),
    queries.query<DeviceInfo>(
      `select ${infoColumns} ${device} ${infoJoins} order by ${orderOf(sort.column, link)}`,
      values,
    ),
  ]);
  const totalElements = counted[0]!.count;
  const totalPages = Math.ceil(totalElements / link.pageSize);
  return { data, totalPages, totalElements, hasNext: link.page + 1 < totalPages };
}
