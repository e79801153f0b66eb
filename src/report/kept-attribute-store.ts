/**
 * SQL of the attributes that are kept in ClickHouse for reports: those that a saved view names, counted for each
 * tenant. `MetadataCopier` removes an attribute that no view names any more.
 */
import { assert, badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import type { ReportAttribute } from './view.ts';

/**
 * `copying`: all attributes are kept, and some are not in ClickHouse yet. An attribute: no saved view of the tenant
 * names it.
 */
type AttributesState = 'ready' | 'copying' | ReportAttribute;

export async function stateOf(
  queries: Queries,
  tenantId: string,
  attributes: ReportAttribute[],
): Promise<AttributesState> {
  if (attributes.length === 0) return 'ready';
  const rows = await queries.query<ReportAttribute & { isKept: boolean; isFilled: boolean }>(
    `select n.scope, n.key, k.filled_time is not null as "isFilled",
            k.key is not null and exists (select from report_view_key v
              where v.tenant_id = $1 and v.scope = n.scope and v.key = n.key) as "isKept"
       from unnest($2::smallint[], $3::text[]) as n (scope, key)
       left join report_key k on k.scope = n.scope and k.key = n.key`,
    [tenantId, ...columnsOf(attributes)],
  );
  const unkept = rows.find(({ isKept }) => !isKept);
  if (unkept) return { scope: unkept.scope, key: unkept.key };
  return rows.every(({ isFilled }) => isFilled) ? 'ready' : 'copying';
}

/**
 * Records the attributes that the view names. Throws 400 above the share of the tenant. Locks the row of the tenant, so
 * that views saved at once on several hosts are counted one after the other.
 */
export async function keepAttributes(
  queries: Queries,
  view: { id: string; tenantId: string },
  attributes: ReportAttribute[],
  now: number,
): Promise<void> {
  const columns = columnsOf(attributes);
  await queries.query('select 1 from tenant where id = $1 for no key update', [view.tenantId]);
  await queries.query(
    `delete from report_view_key where view_id = $1
        and (scope, key) not in (select * from unnest($2::smallint[], $3::text[]))`,
    [view.id, ...columns],
  );
  if (attributes.length === 0) return;
  await queries.query(
    `insert into report_view_key (view_id, tenant_id, scope, key)
     select $1, $2, * from unnest($3::smallint[], $4::text[]) on conflict do nothing`,
    [view.id, view.tenantId, ...columns],
  );
  const [counts] = await queries.query<{ ofTenant: number; all: number }>(
    `select (select count(*) from (select distinct scope, key from report_view_key where tenant_id = $1) as t) as "ofTenant",
            (select count(*) from report_key) as "all"`,
    [view.tenantId],
  );
  assert(counts, 'an aggregate has one row');
  if (counts.ofTenant > limits.reportKeysPerTenantMax) {
    const message = `The saved views of a tenant name at most ${limits.reportKeysPerTenantMax} different attributes: delete views that are not used, or name fewer.`;
    throw badRequest('report_keys_tenant', message);
  }
  if (counts.all + attributes.length > limits.reportKeysMax) {
    const message = `The saved views of this installation name more than ${limits.reportKeysMax} attributes: delete views that are not used.`;
    throw badRequest('report_keys', message);
  }
  await queries.query(
    `insert into report_key (scope, key, created_time)
     select n.scope, n.key, $3 from unnest($1::smallint[], $2::text[]) as n (scope, key)
      order by n.scope, n.key on conflict do nothing`,
    [...columns, now],
  );
}

/** Like `keepAttributes`, for a saved view. Returns false when the view was deleted or has changed. */
export async function keepSaved(
  postgres: Postgres,
  view: { id: string; tenantId: string; version: number },
  attributes: ReportAttribute[],
  now: number,
): Promise<boolean> {
  return await postgres.transaction(async (queries) => {
    const found = await queries.query('select 1 from report_view where id = $1 and version = $2 for update', [
      view.id,
      view.version,
    ]);
    if (found.length === 0) return false;
    await keepAttributes(queries, view, attributes, now);
    return true;
  });
}

/**
 * Returns attributes that no saved view names. A view that is saved at this moment records its attributes again at its
 * first report.
 */
export async function unnamedAttributes(queries: Queries): Promise<ReportAttribute[]> {
  return await queries.query<ReportAttribute>(
    `select k.scope, k.key from report_key k
      where not exists (select from report_view_key v where v.scope = k.scope and v.key = k.key)
      order by k.scope, k.key limit ${limits.reportKeysPrunedMax} for update skip locked`,
  );
}

export async function forgetAttributes(queries: Queries, attributes: ReportAttribute[]): Promise<void> {
  await queries.query(
    `delete from report_key k using unnest($1::smallint[], $2::text[]) as n (scope, key)
      where k.scope = n.scope and k.key = n.key
        and not exists (select from report_view_key v where v.scope = k.scope and v.key = k.key)`,
    columnsOf(attributes),
  );
}

function columnsOf(attributes: ReportAttribute[]): [number[], string[]] {
  return [attributes.map(({ scope }) => scope), attributes.map(({ key }) => key)];
}
