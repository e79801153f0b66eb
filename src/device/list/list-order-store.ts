/**
 * SQL that reads one page of devices in an order. Devices are read in the order of an index from its nearer end, or
 * group by group when several devices share a value of the order. `list-store.ts` uses it.
 */
import type { PageLink } from '../../postgres/page.ts';
import type { DeviceInfo } from '../model/device.ts';
import { activeBit, activeCondition, inactiveCondition, withBits } from './list-filter-store.ts';

export interface Sort {
  /** SQL, over `device d` and `infoJoins`. */
  column: string;
  /** Columns of an index, after the columns that are equal in all devices of a group. */
  walk: string[];
  /** Devices of a group share their value of the column. */
  groups?: 'profile' | 'customer' | 'activity';
}

export const byId: Sort = { column: 'd.id', walk: ['d.id'] };
const byProfile: Sort = { column: 'p.name', walk: ['d.id'], groups: 'profile' };
/** The order for each property that a request may name. */
export const sorts: ReadonlyMap<string, Sort> = new Map<string, Sort>([
  ['', byId],
  ['id', byId],
  ['createdTime', { column: 'd.created_time', walk: ['d.created_time', 'd.id'] }],
  ['name', { column: 'd.name', walk: ['d.name'] }],
  ['label', { column: 'd.label', walk: ['d.label', 'd.id'] }],
  ['type', byProfile],
  ['deviceProfileName', byProfile],
  ['customerTitle', { column: 'c.title', walk: ['d.id'], groups: 'customer' }],
  ['active', { column: 'coalesce(a.active, false)', walk: ['d.id'], groups: 'activity' }],
]);

/** The devices of a page: a select of the column `key`, and how a device `d` is joined to it. */
export interface Keys {
  select: string;
  on: string;
}

export function orderOf(column: string, { sortOrder }: PageLink): string {
  const direction = sortOrder === 'DESC' ? 'desc' : 'asc';
  return column === 'd.id' ? `d.id ${direction}` : `${column} ${direction}, d.id ${direction}`;
}

/** Returns a select of the ids of the page among the devices `d` of `from`, which are few. */
export function sorted(source: string, { column, groups }: Sort, link: PageLink, condition: string): string {
  let from = source;
  if (groups === 'profile') from += ' join device_profile p on p.id = d.device_profile_id';
  if (groups === 'customer') from += ' left join customer c on c.id = d.customer_id';
  const order = orderOf(groups === 'activity' ? activeBit : column, link);
  return `select d.id from ${from} where ${condition} order by ${order}
    limit ${link.pageSize} offset ${link.page * link.pageSize}`;
}

/** Reads a part of a list in the order of an index. */
export function ordered(sort: Sort, where: string[], slice: Slice): Keys {
  const select = sliceOf('device d', sort, where, slice, keyOf(sort));
  return { select: `${bitsOf(where)} ${select}`, on: joinOf(sort) };
}

/** The index in the order of names has no ids. */
function keyOf({ walk }: Sort): string {
  return walk[0] === 'd.name' ? 'd.name' : 'd.id';
}

function joinOf(sort: Sort): string {
  return keyOf(sort) === 'd.name' ? 'd.tenant_id = $1 and d.name = page.key' : 'd.id = page.key';
}

/** Reads a list in the order of `active`, of which `active` devices are active and `inactive` ones are not. */
export function orderedByActivity(where: string[], active: number, inactive: number, link: PageLink): Keys {
  const [on, off] = link.sortOrder === 'DESC' ? [0, active] : [inactive, 0];
  const select = `${withBits}
    (${sliceOf('device d', byId, [...where, inactiveCondition], sliceAt(link, inactive, off))}) union all
    (${sliceOf('device d', byId, [...where, activeCondition], sliceAt(link, active, on))})`;
  return { select, on: 'd.id = page.key' };
}

/** Reads what `ordered` reads, among the first `firstMax` devices of the tenant from the nearer end of the index. */
export function orderedAmongFirst(sort: Sort, where: string[], slice: Slice, firstMax: number): Keys {
  const first = `(select * from device d where d.tenant_id = $1 ${orderBy(sort, slice)} limit ${firstMax}) as d`;
  const select = sliceOf(first, sort, where, slice, keyOf(sort));
  return { select: `${bitsOf(where)} ${select}`, on: joinOf(sort) };
}

/**
 * Reads what `ordered` reads in an order by `groups`, which are walked one after another from the nearer end: among the
 * first `firstMax` devices that have the conditions `inside`, those that also have the conditions `where`.
 */
export function throughGroups(
  sort: Sort,
  groups: string,
  { inside, where, slice, firstMax }: { inside: string[]; where: string[]; slice: Slice; firstMax: number },
): Keys {
  const { direction } = slice;
  // The index of profiles has these columns. Other ones are looked at when a text has a line end.
  const isLabelled = where.some((condition) => condition.includes('d.label'));
  const columns = where.length === 0 ? 'd.id' : isLabelled ? 'd.*' : 'd.id, d.number, d.search_text';
  const arm = (...own: string[]) => `(select ${columns} from device d where ${[...inside, ...own].join(' and ')}
    order by d.id ${direction} limit ${firstMax})`;
  const arms = [arm(`d.${groupColumn(sort)} = g.id`)];
  if (sort.groups === 'customer') arms.push(arm('g.id is null', 'd.customer_id is null'));
  const beginning = withFor([...inside, ...where]);
  const select = `${beginning} groups as (${groups}),
    placed as (select id from groups order by title ${direction}, id ${direction})
    select d.id as key from (
      select ${columns} from placed g cross join lateral (${arms.join(' union all ')}) as d limit ${firstMax}) as d
     where ${where.join(' and ') || 'true'} limit ${slice.take} offset ${slice.skip}`;
  return { select, on: 'd.id = page.key' };
}

/** Reads what `ordered` reads, without an index of the order: all devices that have the conditions are sorted. */
export function orderedBySorting(sort: Sort, where: string[], slice: Slice): Keys {
  const found = `(select d.id, ${sort.column} from device d where ${where.join(' and ')} offset 0) as d`;
  const select = sliceOf(found, sort, ['true'], slice);
  return { select: `${bitsOf(where)} ${select}`, on: 'd.id = page.key' };
}

/** A part of a list, counted from the nearer end. */
export interface Slice {
  skip: number;
  take: number;
  direction: 'asc' | 'desc';
}

/** Returns which of `count` devices are on the page when `before` other devices come before them. */
export function sliceAt(link: PageLink, count: number, before = 0): Slice {
  const start = link.page * link.pageSize - before;
  const skip = Math.max(0, start);
  const take = Math.max(0, Math.min(start + link.pageSize, count) - skip);
  const isBack = skip * 2 > count;
  const direction = (link.sortOrder === 'DESC') === isBack ? 'asc' : 'desc';
  return { skip: isBack ? Math.max(0, count - skip - take) : skip, take, direction };
}

function sliceOf(from: string, sort: Sort, where: string[], slice: Slice, key = 'd.id'): string {
  return `select ${key} as key from ${from} where ${where.join(' and ')}
    ${orderBy(sort, slice)} limit ${slice.take} offset ${slice.skip}`;
}

function orderBy(sort: Sort, { direction }: Slice): string {
  return `order by ${sort.walk.map((column) => `${column} ${direction}`).join(', ')}`;
}

/**
 * Reads keys in the order of an index, without reading what the page skips. A list that is in the order of several
 * groups has the groups' numbers of devices, so that only groups of the page are read, each from its nearer end.
 * `groups` selects `id`, `title` and `count`; the title decides the order. `plain`: the conditions are the tenant, a
 * customer and a profile, whose indexes lack the tenant.
 */
export function walked(sort: Sort, where: string[], groups: string, link: PageLink, conditions: 'plain' | 'any'): Keys {
  const isDown = link.sortOrder === 'DESC';
  const offset = link.page * link.pageSize;
  const end = offset + link.pageSize;
  const columns = sort.walk;
  const arm = (condition: string, when: string, from: 'front' | 'back') => {
    const isBack = from === 'back';
    const direction = isDown === isBack ? 'asc' : 'desc';
    const order = columns.map((column) => `${column} ${direction}`).join(', ');
    const isNearer = isBack ? 's.skip * 2 > s.count' : 's.skip * 2 <= s.count';
    const skip = isBack ? 's.count - s.skip - s.take' : 's.skip';
    return `(select ${keyOf(sort)} as key from device d where ${condition} order by ${order}
      limit case when ${isNearer} ${when} then s.take else 0 end offset ${skip})`;
  };
  const both = (narrowed: string[], when = '') => {
    const condition = (narrowed.length === 0 ? where : narrowed).join(' and ');
    return [arm(condition, when, 'front'), arm(condition, when, 'back')];
  };
  const narrow = conditions === 'plain' ? where.slice(1) : where;
  let arms = both(narrow);
  if (sort.groups === 'profile') arms = both([...narrow, 'd.device_profile_id = s.id']);
  if (sort.groups === 'customer') {
    arms = [
      ...both([...narrow, 'd.customer_id = s.id'], 'and s.id is not null'),
      ...both([...where, 'd.customer_id is null'], 'and s.id is null'),
    ];
  }
  const direction = isDown ? 'desc' : 'asc';
  const beginning = withFor(where);
  const select = `${beginning} groups as (${groups}),
    placed as (select *, sum(count) over (order by title ${direction}, id ${direction}) - count as before from groups),
    slice as (
      select id, title, count, greatest(${offset} - before, 0)::bigint as skip,
             (least(count, ${end} - before) - greatest(${offset} - before, 0))::bigint as take
        from placed where before < ${end} and before + count > ${offset})
    select k.key from slice s cross join lateral (${arms.join(' union all ')}) as k limit ${link.pageSize}`;
  return { select, on: joinOf(sort) };
}

/** Returns a select of one group, of the whole list, whose number of devices `total` selects. */
export function oneGroup(total: string): string {
  return `select null::uuid as id, null::text as title, count from (${total}) as t`;
}

/** Returns a select of the groups of an order from the counts that triggers keep. */
export function keptGroups(sort: Sort, owners: string[]): string {
  const column = groupColumn(sort);
  const part = (table: string, count: string) =>
    `select nullif(${column}, '00000000-0000-0000-0000-000000000000') as id, ${count} as count
       from ${table} where ${owners.join(' and ')}`;
  // The view `device_group` would add up profile and customer first.
  const parts = `${part('device_group_count', 'count')} union all ${part('device_count_change', 'change')}`;
  return `select g.id, ${titleOf(sort)} as title, g.count
    from (select id, sum(count)::bigint as count from (${parts}) as part group by id having sum(count) > 0) as g
         ${titleJoin(sort)}`;
}

/** A group of an order by profile or customer, counted. */
export interface Group {
  id: string | null;
  count: number;
}

/** Returns a select of the groups of an order among the devices that have the conditions. */
export function countedGroups(sort: Sort, where: string[]): string {
  return `${bitsOf(where)}
    select d.${groupColumn(sort)} as id, count(*) as count from device d where ${where.join(' and ')} group by 1`;
}

/** Returns a select of the number of devices that have the conditions. */
export function countedAll(where: string[]): string {
  return `${bitsOf(where)} select count(*) as count from device d where ${where.join(' and ')}`;
}

/** The members of a device by which a list is walked. */
export type Walked = Pick<DeviceInfo, 'id' | 'createdTime' | 'name' | 'label'>;

/** The columns of a `Walked`. */
export const walkedColumns = 'd.id, d.created_time as "createdTime", d.name, d.label';

/**
 * Returns a select of the number of devices that have the conditions and come after `last`; undefined = of all. The
 * select reads the index of the order. Adds the members of `last` to the parameters.
 */
export function countedAfter(
  { walk }: Sort,
  where: string[],
  values: unknown[],
  link: PageLink,
  last: Walked | undefined,
): string {
  const counted = (condition: string) =>
    `(select count(*) from device d where ${where.join(' and ')} and ${condition})`;
  const parts = last ? restOf(walk, link, last, (value, type) => `$${values.push(value)}::${type}`) : ['true'];
  return `${bitsOf(where)} select ${parts.map(counted).join(' + ')} as count`;
}

/** Returns conditions of which each device after `last` has exactly one. No label comes after every label. */
function restOf(
  walk: string[],
  { sortOrder }: PageLink,
  { id, createdTime, name, label }: Walked,
  parameter: (value: unknown, type: string) => string,
): string[] {
  const isDown = sortOrder === 'DESC';
  const after = isDown ? '<' : '>';
  const none = 'd.label is null';
  if (walk[0] === 'd.label' && label === null) {
    const rest = `${none} and d.id ${after} ${parameter(id, 'uuid')}`;
    return isDown ? [rest, 'd.label is not null'] : [rest];
  }
  const members: Record<string, [value: unknown, type: string]> = {
    'd.id': [id, 'uuid'],
    'd.created_time': [createdTime, 'bigint'],
    'd.name': [name, 'text'],
    'd.label': [label, 'text'],
  };
  const lasts = walk.map((column) => parameter(...members[column]!));
  const rest = `(${walk.join(', ')}) ${after} (${lasts.join(', ')})`;
  return walk[0] === 'd.label' && !isDown ? [rest, none] : [rest];
}

/** Returns a select of groups that were counted before; adds their values to the parameters. */
export function givenGroups(sort: Sort, groups: Group[], values: unknown[]): string {
  const ids = `$${values.push(groups.map(({ id }) => id))}::uuid[]`;
  const counts = `$${values.push(groups.map(({ count }) => count))}::bigint[]`;
  return `select g.id, ${titleOf(sort)} as title, g.count
    from unnest(${ids}, ${counts}) as g (id, count) ${titleJoin(sort)}`;
}

/** The column of a device that decides its group. */
export function groupColumn({ groups }: Sort): string {
  if (groups === 'activity') return 'number';
  return groups === 'profile' ? 'device_profile_id' : 'customer_id';
}

function titleOf({ groups }: Sort): string {
  return groups === 'profile' ? 't.name' : 't.title';
}

function titleJoin({ groups }: Sort): string {
  return `left join ${groups === 'profile' ? 'device_profile' : 'customer'} t on t.id = g.id`;
}

/** True when a statement of these parts needs `withBits`. */
function usesBits(parts: string[]): boolean {
  return parts.some((part) => part.includes(activeBit));
}

/** Returns the beginning of a statement of these parts. */
function bitsOf(parts: string[]): string {
  return usesBits(parts) ? withBits : '';
}

/** Returns the beginning of a statement of these parts that has further tables in its `with`. */
export function withFor(parts: string[]): string {
  return usesBits(parts) ? `${withBits},` : 'with';
}
