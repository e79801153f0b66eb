/** The one table of the REST API. The roof registers what `createApi` gives; the API description is made of `apiTable`. */
import type { Auth } from '../auth/auth.ts';
import type { Config } from '../base/config.ts';
import type { ClaimParts } from '../fleet/claim.ts';
import { type AttributesParts, attributesRoutes } from './attributes.ts';
import { customerRoutes } from './customers.ts';
import { deviceRoutes } from './devices.ts';
import { loginRoutes } from './login.ts';
import { type OtaParts, otaRoutes } from './ota.ts';
import { profileRoutes } from './profiles.ts';
import type { ApiRoute, Route } from './route.ts';
import { type RpcRoutesParts, rpcRoutes } from './rpc.ts';
import { tenantRoutes } from './tenants.ts';
import { type TimeseriesParts, timeseriesRoutes } from './timeseries.ts';
import { userRoutes } from './users.ts';

export interface ApiParts extends ClaimParts, RpcRoutesParts, TimeseriesParts, AttributesParts, OtaParts {
  auth: Auth;
  postgres: ClaimParts['postgres'];
  config: Config;
}

export function apiTable(parts: ApiParts): Route[] {
  return [
    ...loginRoutes(parts.auth),
    ...userRoutes(parts),
    ...tenantRoutes(parts),
    ...customerRoutes(parts),
    ...profileRoutes(parts),
    ...deviceRoutes(parts),
    ...timeseriesRoutes(parts),
    ...rpcRoutes(parts),
    ...attributesRoutes(parts, parts.config.values.castNumericStrings),
    ...otaRoutes(parts),
  ];
}

export function createApi(parts: ApiParts): ApiRoute[] {
  return apiTable(parts).map((route) => ({
    method: route.method,
    pattern: route.pattern,
    bodyBytesMax: route.bodyBytesMax ?? parts.config.http.apiBodyBytesMax,
    handler: (request) => route.run(request, parts.auth),
  }));
}
