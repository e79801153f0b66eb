/** Serves the API document (docs/rest.md#the-api-document). When it is switched off, these paths do not exist. */
import * as Type from '../base/schema.ts';
import { type OpenApiInfo, openApiDocument, type TaggedRoutes } from '../rest/openapi.ts';
import { jsonAnswer, publicRoute, type Route } from '../rest/route.ts';
import { anyJson, closed } from '../rest/shapes.ts';
import type { HttpRequest } from '../uws/request.ts';
import { deviceApi } from './device-api.ts';

const prefix = '/v3/api-docs';
/** A placeholder in the document for the host of its reader. */
const hostMark = '<host>';

interface DocsConfig {
  enabled: boolean;
  groupName: string;
  title: string;
}

/** `elsewhere`: routes of other doors that the document names, too. */
export function docsRoutes(
  table: TaggedRoutes[],
  elsewhere: readonly TaggedRoutes[],
  { enabled, groupName, title }: DocsConfig,
  versions: { version: string; platform: string },
): Route[] {
  if (!enabled) return [];
  const url = `${prefix}/${groupName}`;
  const swaggerConfig = JSON.stringify({
    configUrl: `${prefix}/swagger-config`,
    url,
    urls: [{ url, name: groupName }],
    // A key that the browser keeps would be usable by its next user.
    persistAuthorization: false,
  });
  // Made at the first request, because a worker that serves only devices never needs it. Cut at the places of the host.
  let document: string[] | undefined;
  const info: OpenApiInfo = { title, ...versions };
  const routes: Route[] = [
    publicRoute({
      method: 'GET',
      pattern: url,
      summary: 'This document',
      answer: Type.Record(anyJson),
      handle: async ({ request }) => {
        document ??= JSON.stringify(openApiDocument(all, info, hostMark)).split(hostMark);
        return jsonAnswer(document.join(hostOf(request)));
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
      handle: async () => jsonAnswer(swaggerConfig),
    }),
  ];
  const all: TaggedRoutes[] = [
    ...table,
    { tag: 'docs', routes },
    { tag: 'device-api', routes: deviceApi },
    ...elsewhere,
  ];
  return routes;
}

/** Returns the host by which the reader of the document reached this server, without its port. */
function hostOf(request: HttpRequest): string {
  return /^(\[[\da-f:.]+\]|[\w.-]+)(:\d+)?$/i.exec(request.header('host'))?.[1] ?? 'localhost';
}
