/** What a tenant has and sent this month, beside what it may (docs/rest.md#tenant-profiles). */
import { monthOf } from '../activity/tenant-usage.ts';
import { readUsage } from '../activity/tenant-usage-store.ts';
import { countCustomers, countUsers, findTenant } from '../admin/store.ts';
import { administrators, entityNotFound, requireTenant, tenantAdmins } from '../auth/roles.ts';
import type { TenantMaxima } from '../auth/tenant-limits.ts';
import type { Clock } from '../base/clock.ts';
import * as Type from '../base/schema.ts';
import { countDevices } from '../device/list/list-store.ts';
import type { Postgres } from '../postgres/client.ts';
import { json, type Route, route } from '../rest/route.ts';
import { closed } from '../rest/shapes.ts';

export interface TenantUsageRoutesDeps {
  postgres: Postgres;
  clock: Clock;
  /** Returns what a tenant may have and send now. */
  maximaOf: (tenantId: string) => TenantMaxima;
}

const most = Type.Integer({ description: '0 = no limit' });
const usageShape = closed(
  {
    month: Type.String({ description: 'The calendar month (UTC) of the messages and data points, as 2026-11' }),
    devices: Type.Integer(),
    maxDevices: most,
    customers: Type.Integer(),
    maxCustomers: most,
    users: Type.Integer(),
    maxUsers: most,
    transportMessages: Type.Integer({ description: 'Without those of the last seconds' }),
    maxTransportMessages: most,
    transportDataPoints: Type.Integer({ description: 'Without those of the last seconds' }),
    maxTransportDataPoints: most,
    maxTelemetryKeysPerDevice: most,
  },
  'UsageInfo',
);

export function tenantUsageRoutes(deps: TenantUsageRoutesDeps): Route[] {
  return [
    route({
      method: 'GET',
      pattern: '/api/usage',
      summary: 'What the own tenant has and sent this month, and what it may',
      roles: tenantAdmins,
      answer: usageShape,
      handle: async ({ principal }) => json(await usageOf(deps, requireTenant(principal).tenantId)),
    }),
    route({
      method: 'GET',
      pattern: '/api/tenant/usage/:tenantId',
      summary: 'What a tenant has and sent this month, and what it may',
      roles: administrators,
      answer: usageShape,
      async handle({ principal: { tenantId }, params }) {
        const isVisible = tenantId === null || tenantId === params.tenantId;
        const tenant = isVisible ? await findTenant(deps.postgres, params.tenantId) : undefined;
        if (!tenant) throw entityNotFound('Tenant', params.tenantId);
        return json(await usageOf(deps, tenant.id));
      },
    }),
  ];
}

async function usageOf({ postgres, clock, maximaOf }: TenantUsageRoutesDeps, tenantId: string) {
  const { day } = monthOf(clock.now());
  const sent = await readUsage(postgres, day, tenantId);
  const maxima = maximaOf(tenantId);
  return {
    month: day.slice(0, 7),
    devices: await countDevices(postgres, tenantId),
    maxDevices: maxima.devicesMax,
    customers: await countCustomers(postgres, tenantId),
    maxCustomers: maxima.customersMax,
    users: await countUsers(postgres, tenantId),
    maxUsers: maxima.usersMax,
    transportMessages: sent.messages,
    maxTransportMessages: maxima.messagesPerMonthMax,
    transportDataPoints: sent.points,
    maxTransportDataPoints: maxima.pointsPerMonthMax,
    maxTelemetryKeysPerDevice: maxima.keysPerDeviceMax,
  };
}
