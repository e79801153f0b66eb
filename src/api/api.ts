/** The one table of the REST API. The roof registers what `createApi` gives; the API description is made of `apiTable`. */
import type { Auth } from '../auth/auth.ts';
import type { Config } from '../base/config.ts';
import type { FleetParts } from '../fleet/devices.ts';
import { deviceRoutes } from './devices.ts';
import { loginRoutes } from './login.ts';
import type { ApiRoute, Route } from './route.ts';
import { type TimeseriesParts, timeseriesRoutes } from './timeseries.ts';

export interface ApiParts extends FleetParts, TimeseriesParts {
  auth: Auth;
  postgres: FleetParts['postgres'];
  config: Config;
}

export function apiTable(parts: ApiParts): Route[] {
  return [...loginRoutes(parts.auth), ...deviceRoutes(parts), ...timeseriesRoutes(parts)];
}

export function createApi(parts: ApiParts): ApiRoute[] {
  return apiTable(parts).map((route) => ({
    method: route.method,
    pattern: route.pattern,
    bodyBytesMax: route.bodyBytesMax ?? parts.config.http.apiBodyBytesMax,
    handler: (request) => route.run(request, parts.auth),
  }));
}
