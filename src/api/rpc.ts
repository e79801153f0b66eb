/**
 * Commands to devices (docs/rest.md#commands): one-way and two-way in both generations of paths, which differ in their
 * failures only, and persistent ones.
 */
import type { Auth } from '../auth/auth.ts';
import { entityNotFound, type Principal, requireTenant, tenantAdmins, tenantUsers, users } from '../auth/roles.ts';
import type { Clock } from '../base/clock.ts';
import { badRequest, Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import * as Type from '../base/schema.ts';
import type { DeviceRow } from '../device/model/cached-device.ts';
import type { Queries } from '../postgres/client.ts';
import { readExactJson } from '../rest/body.ts';
import { pageLink, pageQuery } from '../rest/parameters.ts';
import { type Call, empty, json, jsonAnswer, type Route, route } from '../rest/route.ts';
import { anyJson, closed, milliseconds, nullable, pageShape } from '../rest/shapes.ts';
import type { PersistentRpcs } from '../rpc/persistent.ts';
import { expirationOf, type RpcOutcome, type RpcTimeouts } from '../rpc/rpc.ts';
import type { Rpc } from '../rpc/send.ts';
import { findRpc, listRpcs, rpcStatuses, type StoredRpc } from '../rpc/store.ts';
import type { Answer } from '../uws/exchange.ts';
import type { HttpRequest } from '../uws/request.ts';
import { type Json, JsonNumber, writeJson } from '../value/json.ts';
import { deviceTarget, plainText, usableDevice } from './plain-text.ts';
import { entityId } from './shapes.ts';

export interface RpcRoutesDeps {
  postgres: Queries;
  auth: Auth;
  rpc: Rpc;
  persistentRpcs: PersistentRpcs;
  rpcTimeouts: RpcTimeouts;
  clock: Clock;
}

/** The highest accepted value; the setting limits the actual retries. */
const retriesAskedMax = 1_000_000;

const commandBody = Type.Object({
  method: Type.String({ minLength: 1 }),
  params: Type.Optional(Type.Unknown()),
  timeout: Type.Optional(Type.Integer({ minimum: 0 })),
  expirationTime: Type.Optional(Type.Integer({ minimum: 0 })),
  persistent: Type.Optional(Type.Boolean()),
  retries: Type.Optional(Type.Integer({ minimum: 0, maximum: retriesAskedMax })),
  additionalInfo: Type.Optional(Type.Unknown()),
});

const rpcShape = closed(
  {
    id: entityId,
    createdTime: milliseconds,
    tenantId: entityId,
    deviceId: entityId,
    expirationTime: milliseconds,
    request: closed({
      id: Type.String({ format: 'uuid' }),
      tenantId: entityId,
      deviceId: entityId,
      oneway: Type.Boolean(),
      expirationTime: milliseconds,
      body: closed({ method: Type.String(), params: Type.String() }),
      persisted: Type.Boolean(),
      retries: nullable(Type.Integer()),
    }),
    response: anyJson,
    status: Type.Enum(rpcStatuses),
    additionalInfo: anyJson,
  },
  'Rpc',
);
const persistentShape = closed({ rpcId: Type.String({ format: 'uuid' }) }, 'PersistentRpcId');

const listQuery = Type.Object({ ...pageQuery.properties, rpcStatus: Type.Optional(Type.Enum(rpcStatuses)) });

/** Empty answers when no reply came in time, and when no session was there to take the command. */
interface Failures {
  unanswered: number;
  unreachable: number;
}

const generations: { prefix: string; failures: Failures }[] = [
  { prefix: '/api/rpc', failures: { unanswered: 504, unreachable: 504 } },
  { prefix: '/api/plugins/rpc', failures: { unanswered: 408, unreachable: 409 } },
];

export function rpcRoutes(deps: RpcRoutesDeps): Route[] {
  const { postgres, persistentRpcs } = deps;

  async function rpcSeenBy(principal: Principal, id: string): Promise<StoredRpc> {
    const { tenantId } = requireTenant(principal);
    const rpc = await findRpc(postgres, tenantId, id);
    if (!rpc) throw entityNotFound('Rpc', id);
    await usableDevice(postgres, principal, deviceTarget(rpc.deviceId));
    return rpc;
  }

  const commands = generations.flatMap(({ prefix, failures }) =>
    [true, false].map((oneway) =>
      route({
        method: 'POST',
        pattern: `${prefix}/${oneway ? 'oneway' : 'twoway'}/:deviceId`,
        summary: oneway ? 'A command to a device' : 'A command to a device, and its reply',
        roles: users,
        waits: true,
        // Numbers of the reply keep their digits.
        ownBody: { shape: commandBody },
        answer: oneway ? persistentShape : Type.Union([persistentShape, anyJson]),
        otherAnswers: {
          [failures.unanswered]: 'empty',
          [failures.unreachable]: 'empty',
          406: 'empty',
        },
        plainTextErrors: true,
        bodyBytesMax: limits.rpcBodyBytesMax,
        handle: async (call) => await command(deps, call, call.params.deviceId, oneway, failures),
      }),
    ),
  );

  return [
    ...commands,
    route({
      method: 'GET',
      pattern: '/api/rpc/persistent/:rpcId',
      summary: 'A persistent command',
      roles: tenantUsers,
      answer: rpcShape,
      plainTextErrors: true,
      handle: async ({ principal, params }) => jsonAnswer(rpcJson(await rpcSeenBy(principal, params.rpcId))),
    }),
    route({
      method: 'GET',
      pattern: '/api/rpc/persistent/device/:deviceId',
      summary: 'The persistent commands of a device',
      roles: tenantUsers,
      query: listQuery,
      answer: pageShape(rpcShape),
      plainTextErrors: true,
      handle: async ({ principal, params, query }) => {
        const link = pageLink(query);
        return await plainText(async () => {
          const device = await usableDevice(postgres, principal, deviceTarget(params.deviceId));
          const page = await listRpcs(postgres, device.id, query.rpcStatus, link);
          const { totalPages, totalElements, hasNext } = page;
          const rest = JSON.stringify({ totalPages, totalElements, hasNext });
          return jsonAnswer(`{"data":[${page.data.map(rpcJson).join(',')}],${rest.slice(1)}`);
        });
      },
    }),
    route({
      method: 'DELETE',
      pattern: '/api/rpc/persistent/:rpcId',
      summary: 'Withdraws and deletes a persistent command',
      roles: tenantAdmins,
      handle: async ({ principal, params: { rpcId } }) => {
        const { tenantId } = requireTenant(principal);
        if (!(await persistentRpcs.delete(tenantId, rpcId))) throw entityNotFound('Rpc', rpcId);
        return empty;
      },
    }),
  ];
}

async function command(
  { postgres, auth, rpc, persistentRpcs, rpcTimeouts, clock }: RpcRoutesDeps,
  { request, principal, inTurn }: Call,
  deviceId: string,
  oneway: boolean,
  failures: Failures,
): Promise<Answer> {
  const body = commandOf(request);
  let device: DeviceRow | undefined;
  const refused = await plainText(async () => {
    device = await inTurn(() => usableDevice(postgres, principal, deviceTarget(deviceId)));
    return empty;
  });
  if (!device) return refused;
  const expirationTime = expirationOf(body, rpcTimeouts, clock.now());
  const { method, params } = body;
  const { number, tenantId, customerId } = device;
  auth.callers.admitCommand(tenantId);
  const call = {
    ...{ device: number, tenantId, customerId, method, params, oneway, expirationTime },
    callerCustomerId: principal.authority === 'CUSTOMER_USER' ? principal.customerId : null,
  };
  if (body.persistent) {
    const { retries, additionalInfo } = body;
    const rpcId = await inTurn(() => persistentRpcs.create({ ...call, deviceId, retries, additionalInfo }));
    return json({ rpcId });
  }
  return outcomeAnswer(await rpc.call(call, request.aborted), failures);
}

function outcomeAnswer(outcome: RpcOutcome, failures: Failures): Answer {
  switch (outcome.kind) {
    case 'delivered':
      return empty;
    case 'replied':
      return jsonAnswer(outcome.text);
    case 'unanswered':
      return { status: failures.unanswered };
    case 'unreachable':
      return { status: failures.unreachable };
  }
}

interface CommandBody {
  method: string;
  params: string;
  timeoutMs: number | undefined;
  expirationTime: number | undefined;
  persistent: boolean;
  retries: number | null;
  additionalInfo: string | null;
}

function commandOf(request: HttpRequest): CommandBody {
  const body = readBody(request.body);
  const method = body.get('method');
  if (typeof method !== 'string' || method === '') {
    throw badRequest('rpc_method', 'Member "method" must be a non-empty string.');
  }
  const additionalInfo = body.get('additionalInfo') ?? null;
  const persistent = body.get('persistent') ?? false;
  if (typeof persistent !== 'boolean') throw badRequest('rpc_persistent', 'Member "persistent" must be a boolean.');
  return {
    method,
    params: writeJson(body.get('params') ?? null),
    timeoutMs: wholeMember(body, 'timeout'),
    expirationTime: wholeMember(body, 'expirationTime'),
    persistent,
    retries: wholeMember(body, 'retries') ?? null,
    additionalInfo: additionalInfo === null ? null : writeJson(additionalInfo),
  };
}

function readBody(bytes: Buffer): Map<string, Json> {
  let json: Json;
  try {
    json = readExactJson(bytes);
  } catch (error) {
    const isMalformed = error instanceof Fault && error.reason === 'malformed_json';
    throw isMalformed ? badRequest(error.reason, 'Invalid request body') : error;
  }
  if (!(json instanceof Map)) throw badRequest('rpc_body', 'Invalid request body');
  return json;
}

function wholeMember(body: Map<string, Json>, name: string): number | undefined {
  const json = body.get(name) ?? null;
  if (json === null) return undefined;
  const value = json instanceof JsonNumber ? Number(json.literal) : Number.NaN;
  const max = name === 'retries' ? retriesAskedMax : Number.MAX_SAFE_INTEGER;
  if (!Number.isSafeInteger(value) || value < 0 || value > max) {
    throw badRequest('rpc_number', `Member "${name}" must be a whole number from 0 to ${max}.`);
  }
  return value;
}

/** Reply and additional info are returned as they were sent. */
function rpcJson(rpc: StoredRpc): string {
  const { id, createdTime, expirationTime, oneway, method, params, retries, status } = rpc;
  const tenantId = { entityType: 'TENANT', id: rpc.tenantId };
  const deviceId = { entityType: 'DEVICE', id: rpc.deviceId };
  const body = { method, params };
  const request = { id, tenantId, deviceId, oneway, expirationTime, body, persisted: true, retries };
  const head = { id: { entityType: 'RPC', id }, createdTime, tenantId, deviceId, expirationTime, request };
  const tail = `"response":${rpc.response ?? 'null'},"status":"${status}","additionalInfo":${rpc.additionalInfo ?? 'null'}`;
  return `${JSON.stringify(head).slice(0, -1)},${tail}}`;
}
