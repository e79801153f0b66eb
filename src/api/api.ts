/** The one table of the REST API, and the document made from it. The roof registers the result of `createApi`. */

import type { ApiKeyDeps } from '../admin/api-keys.ts';
import type { ImportDeps } from '../admin/import.ts';
import type { TenantProfileDeps } from '../admin/tenant-profiles.ts';
import { limits } from '../base/limits.ts';
import type { Config } from '../base/settings/config.ts';
import { ownVersion } from '../base/version.ts';
import type { ClaimDeps } from '../onboarding/claim.ts';
import type { Postgres } from '../postgres/client.ts';
import type { TaggedRoutes } from '../rest/openapi.ts';
import { type Route, type ServedRoute, served } from '../rest/route.ts';
import { apiKeyRoutes } from './api-keys.ts';
import { type AttributesDeps, attributesRoutes } from './attributes.ts';
import { bulkDeviceRoutes } from './bulk-devices.ts';
import { bulkImportRoutes } from './bulk-import.ts';
import { completenessRoutes } from './completeness.ts';
import { customerRoutes } from './customers.ts';
import { deviceSearchRoutes } from './device-search.ts';
import { type DeviceRoutesDeps, deviceRoutes } from './devices.ts';
import { type DiagnosticsRoutesDeps, diagnosticsRoutes } from './diagnostics.ts';
import { docsRoutes } from './docs.ts';
import { entityQueryRoutes } from './entity-queries.ts';
import { loginRoutes } from './login.ts';
import { type OtaDeps, otaRoutes } from './ota.ts';
import { passwordRoutes } from './passwords.ts';
import { type ProfileRoutesDeps, profileRoutes } from './profiles.ts';
import { type ReceiptRoutesDeps, receiptRoutes } from './receipts.ts';
import { relationRoutes } from './relations.ts';
import { type RpcRoutesDeps, rpcRoutes } from './rpc.ts';
import { platformVersion, systemRoutes } from './system.ts';
import { tenantProfileRoutes } from './tenant-profiles.ts';
import { type TenantUsageRoutesDeps, tenantUsageRoutes } from './tenant-usage.ts';
import { tenantRoutes } from './tenants.ts';
import { type TimeseriesDeps, timeseriesRoutes } from './timeseries.ts';
import { type UserRoutesDeps, userRoutes } from './users.ts';

/** The collaborators of all routes; each file of routes names its own. */
interface ApiDeps
  extends UserRoutesDeps,
    ApiKeyDeps,
    ProfileRoutesDeps,
    TenantProfileDeps,
    TenantUsageRoutesDeps,
    DeviceRoutesDeps,
    ImportDeps,
    ClaimDeps,
    RpcRoutesDeps,
    TimeseriesDeps,
    AttributesDeps,
    OtaDeps,
    Omit<DiagnosticsRoutesDeps, 'postgres'>,
    Pick<ReceiptRoutesDeps, 'signingKey' | 'refusedPoints'> {
  postgres: Postgres;
  config: Config;
  /** Routes of other doors that the API document names. */
  elsewhere: readonly TaggedRoutes[];
}

/** Routes by the groups of the document. */
function apiTable(deps: ApiDeps): { tag: string; routes: Route[] }[] {
  return [
    { tag: 'login-endpoint', routes: loginRoutes(deps.auth) },
    { tag: 'passwords', routes: passwordRoutes(deps.auth) },
    { tag: 'api-keys', routes: apiKeyRoutes(deps) },
    { tag: 'users', routes: userRoutes(deps) },
    { tag: 'tenants', routes: [...tenantRoutes(deps), ...tenantProfileRoutes(deps), ...tenantUsageRoutes(deps)] },
    { tag: 'customers', routes: customerRoutes(deps) },
    { tag: 'device-profiles', routes: profileRoutes(deps) },
    {
      tag: 'devices',
      routes: [
        ...deviceRoutes(deps),
        ...deviceSearchRoutes(deps),
        ...bulkDeviceRoutes(deps),
        ...bulkImportRoutes(deps),
      ],
    },
    {
      tag: 'telemetry',
      routes: [...timeseriesRoutes(deps), ...completenessRoutes(deps), ...receiptRoutes(deps)],
    },
    { tag: 'attributes', routes: attributesRoutes(deps) },
    { tag: 'rpc', routes: rpcRoutes(deps) },
    { tag: 'ota-packages', routes: otaRoutes(deps) },
    { tag: 'diagnostics', routes: diagnosticsRoutes(deps) },
    { tag: 'relations', routes: relationRoutes(deps) },
    { tag: 'entity-queries', routes: entityQueryRoutes(deps) },
    { tag: 'system', routes: systemRoutes() },
  ];
}

export function createApi(deps: ApiDeps): ServedRoute[] {
  const { auth, config, elsewhere } = deps;
  const table = apiTable(deps);
  const docs = docsRoutes(table, elsewhere, config.docs, { version: ownVersion(), platform: platformVersion });
  const bodyBytesMax = Math.min(limits.apiBodyBytesMax, config.http.apiBodyBytesMax);
  return served([...table.flatMap(({ routes }) => routes), ...docs], {
    callers: auth.callers,
    deps: undefined,
    bodyBytesMax,
  });
}
