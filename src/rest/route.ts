/**
 * Defines a route of the REST API and the steps of a call: caller → role → limits → path, query, body → handler. The
 * same row of the table checks what comes in and describes the route in the API document, so the two cannot drift
 * apart; what goes out is held against the document by a test.
 */
import type { Auth } from '../auth/auth.ts';
import { type Principal, type Role, requireRole } from '../auth/roles.ts';
import type { Account } from '../auth/user.ts';
import * as Type from '../base/schema.ts';
import type { HttpHandler, HttpMethod, HttpRequest, HttpResponse } from '../uws/server.ts';
import { bodyReader } from './body.ts';
import { type PathValues, pathReader, queryReader } from './parameters.ts';

/** What an answer brings: JSON, text or bytes of another kind, or nothing. */
export type AnswerShape = Type.Schema | Medium | 'empty';

export interface Medium {
  contentType: string;
  schema: Type.Schema;
}

export const isMedium = (shape: Type.Schema | Medium): shape is Medium => 'contentType' in shape;

/** A call of a public route. */
export interface PublicCall<Path = object, Query = object, Body = unknown> {
  request: HttpRequest;
  params: Path;
  query: Query;
  body: Body;
}

export interface Call<Path = object, Query = object, Body = unknown> extends PublicCall<Path, Query, Body> {
  principal: Principal;
  account: Account;
}

/** What a row of the table says about itself. */
export interface RouteDescription {
  method: HttpMethod;
  /** Path in the form of the HTTP server: `/api/device/:deviceId`. */
  pattern: string;
  summary: string;
  description?: string;
  deprecated?: boolean;
  /** Who may call the route; 'public' = every caller, without a sign-in. */
  roles: readonly Role[] | 'public';
  query?: Type.ObjectSchema;
  /** JSON, checked before the handler. */
  body?: Type.Schema;
  /**
   * A body that the handler reads itself: its numbers keep their digits, or it is no JSON. `form`: the members of the form
   * that the handler takes besides JSON; without it the JSON may have any content type.
   */
  ownBody?: { shape: Type.Schema | Medium; optional?: boolean; form?: Type.ObjectSchema };
  /** Answer with the status 200. */
  answer?: AnswerShape;
  /** Answers beside 200 and the errors that every route may have. */
  otherAnswers?: Record<number, AnswerShape>;
  /** The paths of telemetry and commands answer their own errors as plain text. */
  plainTextErrors?: boolean;
  /** True: the API document leaves the route out. */
  hidden?: boolean;
  /** Default `limits.apiBodyBytesMax`: a handler of larger bodies must not read one in a single turn of the loop. */
  bodyBytesMax?: number;
}

/** A row of the table, its types forgotten. */
export interface Route extends RouteDescription {
  run(request: HttpRequest, auth: Auth): Promise<HttpResponse>;
  /** The sender of a body that comes in pieces, before the rest of it is read. */
  admit?(request: HttpRequest, auth: Auth): Promise<string>;
}

interface RouteInput<Pattern extends string, Query extends Type.ObjectSchema, Body extends Type.Schema>
  extends Omit<RouteDescription, 'roles'> {
  pattern: Pattern;
  query?: Query;
  body?: Body;
}

type NoQuery = Type.ObjectSchema<Record<never, never>>;

/** A route for callers that have signed in, with one of `roles`. */
export function route<
  const Pattern extends string,
  Query extends Type.ObjectSchema = NoQuery,
  Body extends Type.Schema = Type.Schema,
>(
  input: RouteInput<Pattern, Query, Body> & {
    roles: readonly Role[];
    handle: (call: Call<PathValues<Pattern>, Type.Static<Query>, Type.Static<Body>>) => Promise<HttpResponse>;
  },
): Route {
  const { handle, ...description } = input;
  const read = callReader(input);
  return {
    ...description,
    async run(request, auth) {
      const { principal, account } = await auth.session(request);
      request.identify(`user ${principal.userId}`);
      requireRole(principal, input.roles);
      auth.admit(principal);
      return await handle({ ...read(request), principal, account });
    },
    async admit(request, auth) {
      const { principal } = await auth.session(request);
      requireRole(principal, input.roles);
      return `user ${principal.userId}`;
    },
  };
}

export function publicRoute<
  const Pattern extends string,
  Query extends Type.ObjectSchema = NoQuery,
  Body extends Type.Schema = Type.Schema,
>(
  input: RouteInput<Pattern, Query, Body> & {
    handle: (call: PublicCall<PathValues<Pattern>, Type.Static<Query>, Type.Static<Body>>) => Promise<HttpResponse>;
  },
): Route {
  const { handle, ...description } = input;
  const read = callReader(input);
  return { ...description, roles: 'public', run: async (request) => await handle(read(request)) };
}

function callReader<Pattern extends string, Query extends Type.ObjectSchema, Body extends Type.Schema>(
  input: RouteInput<Pattern, Query, Body>,
): (request: HttpRequest) => PublicCall<PathValues<Pattern>, Type.Static<Query>, Type.Static<Body>> {
  const readPath = pathReader(input.pattern);
  const readQuery = queryReader((input.query ?? Type.Object({})) as Query);
  const readBody = bodyReader(input.body);
  return (request) => ({
    request,
    params: readPath(request.params),
    query: readQuery(request.query),
    body: readBody(request) as Type.Static<Body>,
  });
}

/** What the HTTP server registers. */
export interface ApiRoute {
  method: HttpMethod;
  pattern: string;
  bodyBytesMax: number;
  handler: HttpHandler;
  admit?: (request: HttpRequest) => Promise<string>;
}

export function json(value: unknown): HttpResponse {
  return jsonText(JSON.stringify(value));
}

export function jsonText(text: string): HttpResponse {
  return { status: 200, contentType: 'application/json', body: text };
}

export const empty: HttpResponse = { status: 200 };
