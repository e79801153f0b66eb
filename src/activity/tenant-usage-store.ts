/** SQL of what tenants sent in a month. */
import type { Queries } from '../postgres/client.ts';

interface Usage {
  messages: number;
  points: number;
}

export interface UsageOfTenant extends Usage {
  tenantId: string;
}

/**
 * Adds counts to a month, `2026-11-01`, and returns the sums. Tenants that were deleted are left out. Writers take the
 * rows in one order, so that they do not deadlock.
 */
export async function addUsage(queries: Queries, month: string, counted: UsageOfTenant[]): Promise<UsageOfTenant[]> {
  return await queries.query<UsageOfTenant>(
    `insert into tenant_usage as known (tenant_id, month, messages, points)
     select counted.tenant_id, $1, counted.messages, counted.points
       from unnest($2::uuid[], $3::bigint[], $4::bigint[]) as counted (tenant_id, messages, points)
       join tenant on tenant.id = counted.tenant_id
      order by counted.tenant_id
     on conflict (tenant_id, month)
     do update set messages = known.messages + excluded.messages, points = known.points + excluded.points
     returning tenant_id as "tenantId", messages, points`,
    [
      month,
      counted.map(({ tenantId }) => tenantId),
      counted.map(({ messages }) => messages),
      counted.map(({ points }) => points),
    ],
  );
}

export async function readUsage(queries: Queries, month: string, tenantId: string): Promise<Usage> {
  const [row] = await queries.query<Usage>(
    'select messages, points from tenant_usage where month = $1 and tenant_id = $2',
    [month, tenantId],
  );
  return row ?? { messages: 0, points: 0 };
}
