/** The one table of the REST API, and the document that is made of it. The roof registers what `createApi` gives. */
import type { Auth } from '../auth/auth.ts';
import type { Config } from '../base/config.ts';
import { limits } from '../base/limits.ts';
import type { ApiKeyParts } from '../fleet/api-keys.ts';
import type { ClaimParts } from '../fleet/claim.ts';
import type { ReadBody } from '../value/lenient.ts';
import { apiKeyRoutes } from './api-keys.ts';
import { type AttributesParts, attributesRoutes } from './attributes.ts';
import { bulkDeviceRoutes } from './bulk-devices.ts';
import { bulkImportRoutes } from './bulk-import.ts';
import { customerRoutes } from './customers.ts';
import { deviceSearchRoutes } from './device-search.ts';
import { deviceRoutes } from './devices.ts';
import { docsRoutes } from './docs.ts';
import { loginRoutes } from './login.ts';
import { type OtaParts, otaRoutes } from './ota.ts';
import { passwordRoutes } from './passwords.ts';
import { profileRoutes } from './profiles.ts';
import { relationRoutes } from './relations.ts';
import type { ApiRoute, Route } from './route.ts';
import { type RpcRoutesParts, rpcRoutes } from './rpc.ts';
import { platformVersion, systemRoutes } from './system.ts';
import { tenantRoutes } from './tenants.ts';
import { type TimeseriesParts, timeseriesRoutes } from './timeseries.ts';
import { userRoutes } from './users.ts';

export interface ApiParts extends ClaimParts, ApiKeyParts, RpcRoutesParts, TimeseriesParts, AttributesParts, OtaParts {
  auth: Auth;
  postgres: ClaimParts['postgres'];
  config: Config;
  readBody: ReadBody;
}

/** By the groups of the document. */
export function apiTable(parts: ApiParts): { tag: string; routes: Route[] }[] {
  return [
    { tag: 'login-endpoint', routes: loginRoutes(parts.auth) },
    { tag: 'passwords', routes: passwordRoutes(parts.auth) },
    { tag: 'api-keys', routes: apiKeyRoutes(parts) },
    { tag: 'users', routes: userRoutes(parts) },
    { tag: 'tenants', routes: tenantRoutes(parts) },
    { tag: 'customers', routes: customerRoutes(parts) },
    { tag: 'device-profiles', routes: profileRoutes(parts) },
    {
      tag: 'devices',
      routes: [
        ...deviceRoutes(parts),
        ...deviceSearchRoutes(parts),
        ...bulkDeviceRoutes(parts),
        ...bulkImportRoutes(parts),
      ],
    },
    { tag: 'telemetry', routes: timeseriesRoutes(parts) },
    { tag: 'attributes', routes: attributesRoutes(parts, parts.readBody, parts.config.values.castNumericStrings) },
    { tag: 'rpc', routes: rpcRoutes(parts) },
    { tag: 'ota-packages', routes: otaRoutes(parts) },
    { tag: 'relations', routes: relationRoutes(parts) },
    { tag: 'system', routes: systemRoutes() },
  ];
}

export function createApi(parts: ApiParts): ApiRoute[] {
  const table = apiTable(parts);
  const docs = docsRoutes(table, parts.config.docs, platformVersion);
  return [...table.flatMap(({ routes }) => routes), ...docs].map((route) => ({
    method: route.method,
    pattern: route.pattern,
    bodyBytesMax: route.bodyBytesMax ?? Math.min(limits.apiBodyBytesMax, parts.config.http.apiBodyBytesMax),
    handler: (request) => route.run(request, parts.auth),
    ...(route.admit && { admit: (request) => route.admit!(request, parts.auth) }),
  }));
}
