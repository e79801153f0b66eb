/**
 * Defines a row of a REST table and the steps of a call: caller → role → limits → path, query, body → handler. The same
 * row checks requests and describes the route in the API document, so the two cannot differ; a test compares answers
 * with the document.
 */
import type { KnownCaller, LongRead } from '../auth/request-callers.ts';
import { type Principal, type Role, requireRole } from '../auth/roles.ts';
import { tokenExpired } from '../auth/unauthorized.ts';
import type { Account } from '../auth/user.ts';
import { type Fault, notFound } from '../base/errors.ts';
import { networkOf } from '../base/network.ts';
import { placeOwners } from '../base/places.ts';
import * as Type from '../base/schema.ts';
import { isForeignKeyViolation, isLostRace, raceLost } from '../postgres/postgres-error.ts';
import type { Answer } from '../uws/exchange.ts';
import type { HttpRequest } from '../uws/request.ts';
import type { HttpHandler, HttpMethod, HttpServer } from '../uws/server.ts';
import { bodyReader } from './body.ts';
import { type PathValues, pathReader, queryReader } from './parameters.ts';

/** The callers of a door: `RequestCallers` for the REST API, `ReportCallers` for reports. */
export interface Callers {
  /** Throws the fault for a caller that is not known. */
  find(request: HttpRequest, route: RouteDescription): Promise<KnownCaller>;
  /** Counts a request of the caller. Throws 429 when the caller has made too many. */
  admit(principal: Principal): void;
  /**
   * Runs the call now or when it is the caller's turn; with `kind` also its turn for a read of that kind. Throws 503
   * when too many calls wait.
   */
  inTurn<T>(principal: Principal, call: () => Promise<T>, kinds?: readonly LongRead[]): Promise<T>;
}

/** The content of an answer: JSON, a string or bytes of another type, or nothing. */
export type AnswerShape = Type.Schema | Medium | 'empty';

export interface Medium {
  contentType: string;
  schema: Type.Schema;
}

export const isMedium = (shape: Type.Schema | Medium): shape is Medium => 'contentType' in shape;

/** A call of a public route. */
interface PublicCall<Path = object, Query = object, Body = unknown> {
  request: HttpRequest;
  params: Path;
  query: Query;
  body: Body;
}

export interface Call<Path = object, Query = object, Body = unknown> extends PublicCall<Path, Query, Body> {
  principal: Principal;
  account: Account;
  /**
   * For a route that waits: runs its statements when it is the caller's turn. `kinds`: the long reads among them, by
   * default those of the route.
   */
  inTurn<T>(work: () => Promise<T>, kinds?: readonly LongRead[]): Promise<T>;
}

/** The description of a route in its row of the table. */
export interface RouteDescription {
  method: HttpMethod;
  /** Path in the form of the HTTP server: `/api/device/:deviceId`. */
  pattern: string;
  summary: string;
  description?: string;
  deprecated?: boolean;
  /** The roles that may call the route; 'public' = every caller, without a sign-in. */
  roles: readonly Role[] | 'public';
  /** False: for callers with a token only. */
  apiKeys?: false;
  /** Status for a caller that is not known, by default 401. */
  unknownCaller?: 403;
  query?: Type.ObjectSchema;
  /** JSON, checked before the handler. */
  body?: Type.Schema;
  /**
   * A body that the handler reads itself: its numbers keep their digits, or it is no JSON, or a decoder below checks
   * it. `form`: the members of the form that the handler takes besides JSON. `jsonOnly`: the content type must be JSON;
   * with neither of them JSON may have any content type.
   */
  ownBody?: { shape: Type.Schema | Medium; optional?: boolean; form?: Type.ObjectSchema; jsonOnly?: true };
  /** Answer with the status 200. */
  answer?: AnswerShape;
  /** Headers of that answer, with their descriptions. */
  answerHeaders?: Record<string, string>;
  /** Answers beside 200 and the errors that every route may have. */
  otherAnswers?: Record<number, AnswerShape>;
  /** True for the paths of telemetry and commands, whose own errors are plain text. */
  plainTextErrors?: boolean;
  /**
   * True: the calls wait for a device or ClickHouse and have caps of their own, so only their statements take turns
   * (`Call.inTurn`).
   */
  waits?: boolean;
  /** True: the handler reads ClickHouse, where few reads run at once. */
  readsTelemetry?: true;
  /** True: the handler reads a page of a list, as every route whose query has `pageSize`. */
  readsPage?: true;
  /** True: the route changes nothing, as every GET. */
  reads?: true;
  /** True: the API document leaves the route out. */
  hidden?: boolean;
  /** Default: that of the door. A handler of larger bodies must not read one in a single turn of the loop. */
  bodyBytesMax?: number;
}

/** A row of the table without its types. `Deps`: the collaborators that the serving door passes to the handler. */
export interface Route<Deps = void> extends RouteDescription {
  run(request: HttpRequest, callers: Callers, deps: Deps): Promise<Answer>;
  /** The sender of a body that comes in pieces, before the rest of it is read. */
  admit?(request: HttpRequest, callers: Callers): Promise<string>;
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
  Deps = void,
>(
  input: RouteInput<Pattern, Query, Body> & {
    roles: readonly Role[];
    handle: (call: Call<PathValues<Pattern>, Type.Static<Query>, Type.Static<Body>>, deps: Deps) => Promise<Answer>;
  },
): Route<Deps> {
  const { handle, ...description } = input;
  const read = callReader(input);
  const kinds = longReadsOf(input);
  return {
    ...description,
    async run(request, callers, deps) {
      const { principal, account } = await callers.find(request, description);
      request.identify(`user ${principal.userId}`);
      requireRole(principal, input.roles);
      callers.admit(principal);
      const inTurn = <T>(work: () => Promise<T>, own = kinds): Promise<T> => callers.inTurn(principal, work, own);
      const answering = input.waits
        ? handle({ ...read(request), principal, account, inTurn }, deps)
        : // A call that waits for its turn holds only bytes: the values in them may take many times as much memory.
          inTurn(async () => await handle({ ...read(request), principal, account, inTurn: (work) => work() }, deps));
      const answer = await answering.catch((error: unknown) => {
        if (isForeignKeyViolation(error, /_tenant_id_fkey$/)) throw tenantGone(principal);
        throw isLostRace(error) ? raceLost() : error;
      });
      const { tenantId, customerId } = principal;
      return isRead(description) ? { ...answer, owners: placeOwners(tenantId, customerId) } : answer;
    },
    async admit(request, callers) {
      const { principal } = await callers.find(request, description);
      requireRole(principal, input.roles);
      return `user ${principal.userId}`;
    },
  };
}

/** Refuses a write to a tenant that was deleted while the call ran. Its users are deleted with it. */
function tenantGone({ authority }: Principal): Fault {
  return authority === 'SYS_ADMIN' ? notFound('The tenant was deleted at this moment.') : tokenExpired();
}

export function publicRoute<
  const Pattern extends string,
  Query extends Type.ObjectSchema = NoQuery,
  Body extends Type.Schema = Type.Schema,
  Deps = void,
>(
  input: RouteInput<Pattern, Query, Body> & {
    handle: (
      call: PublicCall<PathValues<Pattern>, Type.Static<Query>, Type.Static<Body>>,
      deps: Deps,
    ) => Promise<Answer>;
  },
): Route<Deps> {
  const { handle, ...description } = input;
  const read = callReader(input);
  return {
    ...description,
    roles: 'public',
    async run(request, _, deps) {
      const answer = await handle(read(request), deps);
      if (!isRead(description)) return answer;
      return { ...answer, owners: [{ name: `address ${networkOf(request.remoteAddress)}`, timesFree: 3 }] };
    },
  };
}

function longReadsOf({
  readsTelemetry,
  readsPage,
  query,
}: Pick<RouteDescription, 'readsTelemetry' | 'readsPage' | 'query'>): LongRead[] {
  const hasPageSize = query !== undefined && 'pageSize' in query.properties;
  return [...(readsTelemetry ? ['telemetry' as const] : []), ...(readsPage || hasPageSize ? ['page' as const] : [])];
}

/** A long answer of a call that changed something is sent in any case. */
function isRead({ method, reads }: Pick<RouteDescription, 'method' | 'reads'>): boolean {
  return method === 'GET' || reads === true;
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

/** The functions that the HTTP server registers for a route. */
export interface ServedRoute {
  method: HttpMethod;
  pattern: string;
  bodyBytesMax: number;
  handler: HttpHandler;
  admit?: (request: HttpRequest) => Promise<string>;
}

/** `bodyBytesMax`: of the rows that name none. */
export function served<Deps>(
  routes: readonly Route<Deps>[],
  { callers, deps, bodyBytesMax }: { callers: Callers; deps: Deps; bodyBytesMax: number },
): ServedRoute[] {
  return routes.map((route) => ({
    method: route.method,
    pattern: route.pattern,
    bodyBytesMax: route.bodyBytesMax ?? bodyBytesMax,
    handler: (request) => route.run(request, callers, deps),
    ...(route.admit && { admit: (request) => route.admit!(request, callers) }),
  }));
}

export function register(server: HttpServer, rows: readonly ServedRoute[]): void {
  for (const { method, pattern, handler, bodyBytesMax, admit } of rows) {
    server.route(method, pattern, handler, bodyBytesMax, admit);
  }
}

export function json(value: unknown): Answer {
  return jsonAnswer(JSON.stringify(value));
}

export function jsonAnswer(text: string): Answer {
  return { status: 200, contentType: 'application/json', body: text };
}

export const empty: Answer = { status: 200 };
