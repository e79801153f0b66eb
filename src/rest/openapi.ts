/**
 * The OpenAPI 3.1 document, made of the same table that the server routes and checks by. Shapes with a title become
 * components; other shapes are inlined.
 */
import type { Properties, Schema } from '../base/schema.ts';
import { version } from './body.ts';
import { exampleOf } from './example.ts';
import { namesOf, pathParameters } from './parameters.ts';
import { type AnswerShape, isMedium, type Medium, type RouteDescription } from './route.ts';
import { errorShape } from './shapes.ts';

export interface TaggedRoutes {
  tag: string;
  description?: string;
  routes: readonly RouteDescription[];
  /** The port of a door that is not this one. */
  port?: number;
}

export interface OpenApiInfo {
  title: string;
  /** The version of Millrace. */
  version: string;
  /** The version of ThingsBoard whose API this is. */
  platform: string;
}

type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
type JsonObject = { [name: string]: Json };

const schemes: JsonObject = {
  ApiKeyForm: {
    type: 'apiKey',
    in: 'header',
    name: 'X-Authorization',
    description: 'An API key, written as `ApiKey <key>`.',
  },
  HttpLoginForm: {
    type: 'apiKey',
    in: 'header',
    name: 'X-Authorization',
    description: 'Deprecated in favour of API keys. The token of a sign-in, written as `Bearer <token>`.',
    'x-deprecated': true,
    'x-login-path': '/api/auth/login',
  },
};

const reasons: Record<number, string> = {
  200: 'OK',
  202: 'Kept, and carried out later',
  400: 'Something is wrong with the request; the message names it',
  401: 'Not signed in, or the session has ended',
  403: 'Not allowed to this role, or for this entity',
  404: 'There is no such entity',
  406: 'The device answered with something that is no JSON',
  408: 'Nothing came in time',
  409: 'Another caller changed the entity, or no device took the command',
  413: 'The body is larger than allowed',
  415: 'The body is of a type that is not read',
  429: 'Too many requests',
  431: 'The headers have more than 8192 characters, or the head with its path and query more than 16384',
  500: 'A part that is needed is not configured',
  503: 'A store is unavailable or the server is overloaded; try again',
  504: 'No reply came in time',
};

/** `host`: at which a reader of the document reaches the ports of this server. */
export function openApiDocument(table: TaggedRoutes[], info: OpenApiInfo, host: string): JsonObject {
  const components = new Components();
  const paths: { [path: string]: JsonObject } = {};
  for (const { tag, routes, port } of table) {
    const otherServer: JsonObject = port === undefined ? {} : { servers: [{ url: `http://${host}:${port}` }] };
    for (const route of routes.filter(({ hidden }) => !hidden)) {
      const path = route.pattern.replace(/:(\w+)/g, '{$1}');
      (paths[path] ??= { ...otherServer })[route.method.toLowerCase()] = operation(route, tag, components);
    }
  }
  return {
    openapi: '3.1.0',
    info: {
      title: info.title,
      version: info.version,
      description: `Administration of devices, and what devices themselves call: the API of ThingsBoard ${info.platform}. Sign in with an API key: \`X-Authorization: ApiKey <key>\`; where a JWT comes along, the JWT counts.`,
    },
    servers: [{ url: '/' }],
    tags: table.map(({ tag: name, description }) => ({ name, ...(description && { description }) })),
    paths,
    components: { schemas: components.schemas, securitySchemes: schemes },
  };
}

function operation(route: RouteDescription, tag: string, components: Components): JsonObject {
  const { method, pattern, summary, description, deprecated, roles, apiKeys } = route;
  const content = requestContent(route, components);
  return {
    tags: [tag],
    operationId: operationId(method, pattern),
    // Pages show a summary as plain text, and a description as Markdown.
    summary: summary.replaceAll('`', ''),
    description: [
      description,
      route.plainTextErrors && 'Its own errors are plain text, not JSON.',
      roles !== 'public' && `Open to: ${roles.join(', ')}.`,
    ]
      .filter(Boolean)
      .join(' '),
    ...(deprecated && { deprecated }),
    parameters: [...pathParametersOf(pattern, components), ...queryParametersOf(route, components)],
    ...(content && { requestBody: { required: !route.ownBody?.optional, content } }),
    responses: responses(route, components),
    // Each scheme alone is enough; a public route has none.
    security: roles === 'public' ? [] : [...(apiKeys === false ? [] : [{ ApiKeyForm: [] }]), { HttpLoginForm: [] }],
  };
}

function pathParametersOf(pattern: string, components: Components): JsonObject[] {
  return namesOf(pattern).map((name) => ({
    name,
    in: 'path',
    required: true,
    schema: components.schemaOf((pathParameters as Properties)[name]!),
  }));
}

function queryParametersOf({ query }: RouteDescription, components: Components): JsonObject[] {
  if (!query) return [];
  const required = new Set(query.required);
  return Object.entries(query.properties).map(([name, schema]) => ({
    name,
    in: 'query',
    required: required.has(name),
    schema: components.schemaOf(schema),
    // A list is one parameter with commas; the parameter `key` is repeated.
    ...(schema.type === 'array' && { style: 'form', explode: name === 'key' }),
  }));
}

function requestContent({ body, ownBody }: RouteDescription, components: Components): JsonObject | undefined {
  const shape = body ?? ownBody?.shape;
  if (!shape) return undefined;
  if (isMedium(shape)) return contentOf(shape, components);
  const content = contentOf({ contentType: 'application/json', schema: shape }, components);
  if (!ownBody || ownBody.jsonOnly) return content;
  if (ownBody.form) return { ...content, ...contentOf({ contentType: formType, schema: ownBody.form }, components) };
  return { ...content, ...Object.fromEntries(otherTypes.map((type) => [type, { schema: jsonInText }])) };
}

/**
 * The media type that generated clients and `curl -d` give a JSON body: a body that a handler reads itself may have any
 * type.
 */
const formType = 'application/x-www-form-urlencoded';
const otherTypes = ['text/plain', formType];
const jsonInText: JsonObject = {
  type: 'string',
  contentMediaType: 'application/json',
  description: 'The same JSON, as it is: nothing of it is encoded',
};

function responses(route: RouteDescription, components: Components): JsonObject {
  const { roles, body, ownBody, plainTextErrors, answer = 'empty', answerHeaders, otherAnswers = {} } = route;
  const statuses = new Map<number, AnswerShape[]>([[200, [answer]]]);
  const errors = [400, 404, 429, 503];
  if (roles !== 'public') errors.push(route.unknownCaller ?? 401, 403);
  if (body || ownBody) errors.push(413, 415);
  const shape = body ?? ownBody?.shape;
  if (shape && !isMedium(shape) && shape.properties?.['version'] === version) errors.push(409);
  const error: AnswerShape[] = [errorShape, ...(plainTextErrors ? [plainText] : [])];
  for (const status of errors) statuses.set(status, error);
  // Without a shape: the HTTP library refuses the longest heads itself, with a page and no content type.
  statuses.set(431, ['empty']);
  for (const [status, shape] of Object.entries(otherAnswers)) {
    const known = statuses.get(Number(status)) ?? [];
    // Two JSON shapes of one status are one schema with both.
    statuses.set(Number(status), shape === errorShape ? [errorShape] : [shape, ...known]);
  }
  const sorted = [...statuses].sort(([a], [b]) => a - b);
  const responses = Object.fromEntries(
    sorted.map(([status, shapes]) => [status, response(status, shapes, components)] as const),
  );
  return answerHeaders ? { ...responses, 200: { ...responses[200], headers: headersOf(answerHeaders) } } : responses;
}

function headersOf(headers: Record<string, string>): JsonObject {
  const of = (description: string): JsonObject => ({ description, schema: { type: 'string' } });
  return Object.fromEntries(Object.entries(headers).map(([name, description]) => [name, of(description)]));
}

const plainText: Medium = { contentType: 'text/plain', schema: { type: 'string' } as Schema };

function response(status: number, shapes: AnswerShape[], components: Components): JsonObject {
  const description = reasons[status] ?? 'An error';
  const media = shapes
    .filter((shape) => shape !== 'empty')
    .map((shape) => (isMedium(shape) ? shape : { contentType: 'application/json', schema: shape }));
  const content: { [type: string]: Json } = {};
  for (const type of new Set(media.map(({ contentType }) => contentType))) {
    const shapesOfType = media.filter(({ contentType }) => contentType === type).map(({ schema }) => schema);
    const schemas = shapesOfType.map((schema) => components.schemaOf(schema));
    const hasExample = status === 200 && type === 'application/json';
    content[type] = {
      schema: schemas.length === 1 ? schemas[0]! : { anyOf: schemas },
      ...(hasExample && { example: exampleOf(shapesOfType[0]!) }),
    };
  }
  return Object.keys(content).length > 0 ? { description, content } : { description };
}

function contentOf({ contentType, schema }: Medium, components: Components): JsonObject {
  return { [contentType]: { schema: components.schemaOf(schema) } };
}

/** `GET /api/device/:deviceId` → getDeviceByDeviceId */
function operationId(method: string, pattern: string): string {
  const words = pattern
    .replace(/^\/api\//, '')
    .split('/')
    .map((part) => (part.startsWith(':') ? `by-${part.slice(1)}` : part))
    .flatMap((part) => part.split(/[^A-Za-z0-9]+/))
    .map((word) => word.charAt(0).toUpperCase() + word.slice(1));
  return method.toLowerCase() + words.join('');
}

/** The named schemas of the document, collected while its paths are made. */
class Components {
  readonly schemas: JsonObject = {};

  schemaOf(schema: Schema): Json {
    return this.#referred(JSON.parse(JSON.stringify(schema)) as Json);
  }

  #referred(node: Json): Json {
    if (Array.isArray(node)) return node.map((each) => this.#referred(each));
    if (typeof node !== 'object' || node === null) return node;
    const { title } = node;
    const inner = Object.fromEntries(Object.entries(node).map(([name, value]) => [name, this.#referred(value)]));
    // Readers of the document show a parameter without a type as one of any type.
    if (Array.isArray(node['enum']) && node['type'] === undefined) inner['type'] = 'string';
    if (typeof title !== 'string') return inner;
    const known = this.schemas[title];
    if (known && JSON.stringify(known) !== JSON.stringify(inner))
      throw new Error(`BUG: two shapes are called ${title}`);
    this.schemas[title] = inner;
    return { $ref: `#/components/schemas/${title}` };
  }
}
