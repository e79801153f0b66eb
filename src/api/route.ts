/**
 * What a route of the REST API is, and the way of a call through it: caller → role → body → handler. The table of
 * routes also feeds the API description, so each route names its schemas.
 */

import type Type from 'typebox';
import type { TSchema } from 'typebox';
import { Compile } from 'typebox/compile';
import type { Auth } from '../auth/auth.ts';
import { type Authority, type Principal, requireAuthority } from '../auth/roles.ts';
import type { UserAccount } from '../auth/user.ts';
import { badRequest, ErrorCode, Fault } from '../base/errors.ts';
import type { HttpHandler, HttpMethod, HttpRequest, HttpResponse } from '../uws/server.ts';
import { readJson, startOfJson } from '../value/json.ts';

/** One call of a public route. */
export interface PublicCall<Body = unknown> {
  request: HttpRequest;
  params: string[];
  query: URLSearchParams;
  body: Body;
}

export interface Call<Body = unknown> extends PublicCall<Body> {
  principal: Principal;
  account: UserAccount;
}

/** A row of the table, its body type forgotten. */
export interface Route {
  method: HttpMethod;
  /** As the HTTP server wants it: `/api/device/:deviceId`. */
  pattern: string;
  summary: string;
  /** Who may call it; 'public' = anybody, without signing in. */
  roles: readonly Authority[] | 'public';
  query?: TSchema;
  body?: TSchema;
  answer?: TSchema;
  bodyBytesMax?: number;
  run(request: HttpRequest, auth: Auth): Promise<HttpResponse>;
}

interface RouteInput<Body extends TSchema> extends Omit<Route, 'run' | 'roles' | 'body'> {
  body?: Body;
}

/** A route for callers that have signed in, with one of `roles`. */
export function route<Body extends TSchema = TSchema>(
  input: RouteInput<Body> & {
    roles: readonly Authority[];
    handle: (call: Call<Type.Static<Body>>) => Promise<HttpResponse>;
  },
): Route {
  const { handle, ...rest } = input;
  const readBody = bodyReader<Type.Static<Body>>(input.body);
  return {
    ...rest,
    async run(request, auth) {
      const { principal, account } = await auth.session((name) => request.headers(name));
      requireAuthority(principal, input.roles);
      return await handle({ ...publicCall(request, readBody(request)), principal, account });
    },
  };
}

export function publicRoute(
  input: RouteInput<TSchema> & { handle: (call: PublicCall) => Promise<HttpResponse> },
): Route {
  const { handle, ...rest } = input;
  return {
    ...rest,
    roles: 'public',
    run: (request) => handle(publicCall(request, undefined)),
  };
}

/** What the HTTP server registers. */
export interface ApiRoute {
  method: HttpMethod;
  pattern: string;
  bodyBytesMax: number;
  handler: HttpHandler;
}

export function json(value: unknown): HttpResponse {
  return jsonText(JSON.stringify(value));
}

export function jsonText(text: string): HttpResponse {
  return { status: 200, contentType: 'application/json', body: text };
}

export const empty: HttpResponse = { status: 200 };

function publicCall<Body>(request: HttpRequest, body: Body): PublicCall<Body> {
  return { request, params: request.params, query: new URLSearchParams(request.query), body };
}

/** Bodies are lenient: members that the schema does not know are ignored. */
function bodyReader<Body>(schema: TSchema | undefined): (request: HttpRequest) => Body {
  if (!schema) return () => undefined as Body;
  const validator = Compile(schema);
  return (request) => {
    checkContentType(request.header('content-type'));
    const body = parseJson(request.body);
    if (!validator.Check(body)) {
      const [error] = validator.Errors(body);
      const where = error?.instancePath.slice(1).replaceAll('/', '.');
      throw badRequest('body', `Validation error: ${where || 'the body'} ${error?.message ?? 'is malformed'}`);
    }
    return body as Body;
  };
}

export function checkContentType(contentType: string): void {
  if (contentType === '' || /^application\/([a-z.+-]+\+)?json\b/i.test(contentType)) return;
  const message = `Content type '${contentType.slice(0, 100)}' not supported`;
  throw new Fault(415, ErrorCode.badRequest, 'media_type', message);
}

export function parseJson(body: Buffer): unknown {
  if (body.length === 0) throw badRequest('body_missing', 'Required request body is missing');
  // The exact reader refuses what is malformed, too deep or not UTF-8; the values of entities need no exact numbers.
  readJson(body);
  return JSON.parse(body.toString('utf8', startOfJson(body)));
}
