/** Where the API document is (docs/rest.md#the-api-document). Off, these paths do not exist. */
import * as Type from '../base/schema.ts';
import { type OpenApiInfo, openApiDocument, type TaggedRoutes } from '../rest/openapi.ts';
import { jsonText, publicRoute, type Route } from '../rest/route.ts';
import { anyJson, closed } from '../rest/shapes.ts';
import { deviceApi } from './device-api.ts';

const prefix = '/v3/api-docs';

export interface DocsConfig {
  enabled: boolean;
  groupName: string;
  title: string;
}

export function docsRoutes(table: TaggedRoutes[], { enabled, groupName, title }: DocsConfig, version: string): Route[] {
  if (!enabled) return [];
  const url = `${prefix}/${groupName}`;
  const swaggerConfig = JSON.stringify({
    configUrl: `${prefix}/swagger-config`,
    url,
    urls: [{ url, name: groupName }],
    // A key that is kept in the browser outlives the one who typed it in.
    persistAuthorization: false,
  });
  // Made at the first request: a worker that serves only devices never needs the document.
  let document: string | undefined;
  const info: OpenApiInfo = { title, version };
  const routes: Route[] = [
    publicRoute({
      method: 'GET',
      pattern: url,
      summary: 'This document',
      answer: Type.Record(anyJson),
      handle: async () => {
        document ??= JSON.stringify(openApiDocument([...all, { tag: 'device-api', routes: deviceApi }], info));
        return jsonText(document);
      },
    }),
    publicRoute({
      method: 'GET',
      pattern: `${prefix}/swagger-config`,
      summary: 'Which documents there are',
      answer: closed({
        configUrl: Type.String(),
        url: Type.String(),
        urls: Type.Array(closed({ url: Type.String(), name: Type.String() })),
        persistAuthorization: Type.Boolean(),
      }),
      handle: async () => jsonText(swaggerConfig),
    }),
  ];
  const all: TaggedRoutes[] = [...table, { tag: 'docs', routes }];
  return routes;
}
