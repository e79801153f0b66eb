/** SQL of saved views, and of the devices that a report may read. No function checks rights. */
import type { Principal } from '../auth/roles.ts';
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Queries } from '../postgres/client.ts';
import { contains, containsPattern, type Page, type PageLink, readPage } from '../postgres/page.ts';
import { isForeignKeyViolation } from '../postgres/postgres-error.ts';
import type { View, ViewDefinition } from './view.ts';

interface ViewRow extends Pick<View, 'id' | 'tenantId' | 'customerId' | 'name' | 'version' | 'createdTime'> {
  definition: ViewDefinition;
}

const viewColumns = `id, tenant_id as "tenantId", customer_id as "customerId", name, version,
  created_time as "createdTime", definition`;

const sortColumns = new Map([
  ['id', 'id'],
  ['name', 'name'],
  ['createdTime', 'created_time'],
]);

const viewOfTenant = `select ${viewColumns} from report_view where id = $1 and tenant_id = $2`;

export async function findView(queries: Queries, tenantId: string, id: string): Promise<View | undefined> {
  const [row] = await queries.query<ViewRow>(viewOfTenant, [id, tenantId]);
  return row && viewOf(row);
}

/** Locks the view until the transaction ends. */
export async function holdView(queries: Queries, tenantId: string, id: string): Promise<View | undefined> {
  const [row] = await queries.query<ViewRow>(`${viewOfTenant} for update`, [id, tenantId]);
  return row && viewOf(row);
}

export async function listViews(queries: Queries, of: Visible, link: PageLink): Promise<Page<View>> {
  const values: unknown[] = [of.tenantId];
  let where = 'tenant_id = $1';
  if (of.customerId !== null) where += ` and (customer_id is null or customer_id = $${values.push(of.customerId)})`;
  if (link.textSearch) where += ` and ${contains('name', `$${values.push(containsPattern(link.textSearch))}`)}`;
  const documents = { columns: ['definition'], rowBytesMax: limits.reportBodyBytesMax };
  const list = { columns: viewColumns, from: 'report_view', where, values, documents, sortColumns, idColumn: 'id' };
  const page = await readPage<ViewRow>(queries, list, link);
  return { ...page, data: page.data.map(viewOf) };
}

/**
 * The views that a caller sees: a customer's view is for that customer's users, a view without customer for the whole
 * tenant.
 */
interface Visible {
  tenantId: string;
  /** Null: an administrator, who sees every view. */
  customerId: string | null;
}

export function visibleTo({ tenantId, customerId, authority }: Principal & { tenantId: string }): Visible {
  return { tenantId, customerId: authority === 'CUSTOMER_USER' ? customerId : null };
}

export async function insertView(queries: Queries, view: View): Promise<void> {
  const { id, createdTime, tenantId, customerId, name, version } = view;
  await checked(
    queries.query(
      `insert into report_view (id, created_time, tenant_id, customer_id, name, version, definition)
       values ($1, $2, $3, $4, $5, $6, $7)`,
      [id, createdTime, tenantId, customerId, name, version, JSON.stringify(definitionOf(view))],
    ),
  );
}

export async function updateView(queries: Queries, view: View): Promise<void> {
  const { id, customerId, name, version } = view;
  await checked(
    queries.query('update report_view set customer_id = $2, name = $3, version = $4, definition = $5 where id = $1', [
      ...[id, customerId, name, version],
      JSON.stringify(definitionOf(view)),
    ]),
  );
}

export async function deleteView(queries: Queries, tenantId: string, id: string): Promise<boolean> {
  const deleted = await queries.query('delete from report_view where id = $1 and tenant_id = $2 returning id', [
    id,
    tenantId,
  ]);
  return deleted.length > 0;
}

export async function customerExists(queries: Queries, tenantId: string, id: string): Promise<boolean> {
  const rows = await queries.query('select 1 from customer where id = $1 and tenant_id = $2', [id, tenantId]);
  return rows.length > 0;
}

/** Returns the numbers of the customer's devices in the scope of a view; at most one more than a report may have. */
export async function findOwnDevices(
  queries: Queries,
  customerId: string,
  { deviceProfiles, deviceIds }: ViewDefinition['scope'],
): Promise<number[]> {
  const values: unknown[] = [customerId];
  let condition = 'd.customer_id = $1';
  if (deviceProfiles.length > 0) condition += ` and p.name = any($${values.push(deviceProfiles)})`;
  if (deviceIds.length > 0) condition += ` and d.id = any($${values.push(deviceIds)})`;
  const rows = await queries.query<{ number: number }>(
    `select d.number from device d join device_profile p on p.id = d.device_profile_id
      where ${condition} order by d.number limit ${limits.reportOwnDevicesMax + 1}`,
    values,
  );
  return rows.map(({ number }) => number);
}

function viewOf({ definition, ...row }: ViewRow): View {
  return { ...row, ...definition };
}

function definitionOf({
  type,
  scope,
  fields,
  timeRange,
  groupBy,
  timeZone,
  filters,
  sort,
  limit,
}: View): ViewDefinition {
  return { type, scope, fields, timeRange, groupBy, timeZone, filters, sort, limit };
}

async function checked(written: Promise<unknown>): Promise<void> {
  try {
    await written;
  } catch (error) {
    // The customer was deleted meanwhile.
    if (isForeignKeyViolation(error)) throw badRequest('customer', "The customer of the view doesn't exist!");
    throw error;
  }
}
