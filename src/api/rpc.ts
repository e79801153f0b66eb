/**
 * Commands to devices (rest.md 3.6): one-way and two-way in both generations of paths, which differ in their failures
 * only, and persistent ones.
 */
import Type from 'typebox';
import { type Authority, authorities, entityNotFound, type Principal, requireTenant } from '../auth/roles.ts';
import type { Clock } from '../base/clock.ts';
import { badRequest, Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { DeviceInfo } from '../device/device.ts';
import type { Queries } from '../postgres/client.ts';
import type { PersistentRpcs } from '../rpc/persistent.ts';
import { expirationOf, type RpcOutcome, type RpcTimeouts } from '../rpc/rpc.ts';
import type { Rpc } from '../rpc/send.ts';
import { findRpc, listRpcs, rpcStatuses, type StoredRpc } from '../rpc/store.ts';
import type { HttpRequest, HttpResponse } from '../uws/server.ts';
import { type Json, JsonNumber, readJson, writeJson } from '../value/json.ts';
import { oneOf, pageLink, pageQuery, uuid } from './parameters.ts';
import { plainText, usableDevice } from './plain-text.ts';
import { type Call, checkContentType, empty, json, jsonText, type Route, route } from './route.ts';

export interface RpcRoutesParts {
  postgres: Queries;
  rpc: Rpc;
  persistentRpcs: PersistentRpcs;
  rpcTimeouts: RpcTimeouts;
  clock: Clock;
}

const adminAndCustomer: Authority[] = ['TENANT_ADMIN', 'CUSTOMER_USER'];

const commandBody = Type.Object({
  method: Type.String({ minLength: 1 }),
  params: Type.Optional(Type.Unknown()),
  timeout: Type.Optional(Type.Integer()),
  expirationTime: Type.Optional(Type.Integer()),
  persistent: Type.Optional(Type.Boolean()),
  retries: Type.Optional(Type.Integer({ minimum: 0 })),
  additionalInfo: Type.Optional(Type.Unknown()),
});

const rpcShape = Type.Object({
  id: Type.Object({ entityType: Type.String(), id: Type.String({ format: 'uuid' }) }),
  createdTime: Type.Integer(),
  expirationTime: Type.Integer(),
  request: Type.Unknown(),
  response: Type.Unknown(),
  status: Type.Enum([...rpcStatuses]),
  additionalInfo: Type.Unknown(),
});

const listQuery = Type.Object({ ...pageQuery.properties, rpcStatus: Type.Optional(Type.Enum([...rpcStatuses])) });

/** Empty answers when no reply came in time, and when no session was there to take the command. */
interface Failures {
  unanswered: number;
  unreachable: number;
}

const generations: { prefix: string; failures: Failures }[] = [
  { prefix: '/api/rpc', failures: { unanswered: 504, unreachable: 504 } },
  { prefix: '/api/plugins/rpc', failures: { unanswered: 408, unreachable: 409 } },
];

export function rpcRoutes(parts: RpcRoutesParts): Route[] {
  const { postgres, persistentRpcs } = parts;

  async function rpcSeenBy(principal: Principal, id: string): Promise<StoredRpc> {
    const { tenantId } = requireTenant(principal);
    const rpc = await findRpc(postgres, tenantId, uuid(id));
    if (!rpc) throw entityNotFound('Rpc', uuid(id));
    await usableDevice(postgres, principal, rpc.deviceId);
    return rpc;
  }

  const commands = generations.flatMap(({ prefix, failures }) =>
    [true, false].map((oneway) => ({
      ...route({
        method: 'POST',
        pattern: `${prefix}/${oneway ? 'oneway' : 'twoway'}/:deviceId`,
        summary: oneway ? 'A command to a device' : 'A command to a device, and its reply',
        roles: authorities,
        bodyBytesMax: limits.rpcBodyBytesMax,
        handle: async ({ request, principal, params }) =>
          await command(parts, request, principal, params[0]!, oneway, failures),
      }),
      // Read by hand: its numbers keep their digits.
      body: commandBody,
    })),
  );

  return [
    ...commands,
    route({
      method: 'GET',
      pattern: '/api/rpc/persistent/:rpcId',
      summary: 'A persistent command',
      roles: adminAndCustomer,
      answer: rpcShape,
      handle: async ({ principal, params }) => jsonText(rpcJson(await rpcSeenBy(principal, params[0]!))),
    }),
    route({
      method: 'GET',
      pattern: '/api/rpc/persistent/device/:deviceId',
      summary: 'The persistent commands of a device',
      roles: adminAndCustomer,
      query: listQuery,
      handle: async ({ principal, params, query }: Call) => {
        const link = pageLink(query);
        const asked = query.get('rpcStatus') ?? '';
        const status = asked === '' ? undefined : oneOf('rpcStatus', asked, rpcStatuses, 'QUEUED');
        const deviceId = uuid(params[0]!);
        return await plainText(async () => {
          const device = await usableDevice(postgres, principal, deviceId);
          const page = await listRpcs(postgres, device.id, status, link);
          const { totalPages, totalElements, hasNext } = page;
          const rest = JSON.stringify({ totalPages, totalElements, hasNext });
          return jsonText(`{"data":[${page.data.map(rpcJson).join(',')}],${rest.slice(1)}`);
        });
      },
    }),
    route({
      method: 'DELETE',
      pattern: '/api/rpc/persistent/:rpcId',
      summary: 'Withdraws and deletes a persistent command',
      roles: ['TENANT_ADMIN'],
      handle: async ({ principal, params }) => {
        const id = uuid(params[0]!);
        const { tenantId } = requireTenant(principal);
        if (!(await persistentRpcs.delete(tenantId, id))) throw entityNotFound('Rpc', id);
        return empty;
      },
    }),
  ];
}

async function command(
  { postgres, rpc, persistentRpcs, rpcTimeouts, clock }: RpcRoutesParts,
  request: HttpRequest,
  principal: Principal,
  id: string,
  oneway: boolean,
  failures: Failures,
): Promise<HttpResponse> {
  const deviceId = uuid(id);
  const body = commandOf(request);
  let device: DeviceInfo | undefined;
  const refused = await plainText(async () => {
    device = await usableDevice(postgres, principal, deviceId);
    return empty;
  });
  if (!device) return refused;
  const expirationTime = expirationOf(body, rpcTimeouts, clock.now());
  const { method, params } = body;
  const call = { device: device.number, method, params, oneway, expirationTime };
  if (body.persistent) {
    const { retries, additionalInfo } = body;
    const owners = { tenantId: device.tenantId, deviceId };
    return json({ rpcId: await persistentRpcs.create({ ...call, ...owners, retries, additionalInfo }) });
  }
  return outcomeAnswer(await rpc.call(call), failures);
}

function outcomeAnswer(outcome: RpcOutcome, failures: Failures): HttpResponse {
  switch (outcome.kind) {
    case 'delivered':
      return empty;
    case 'replied':
      return jsonText(outcome.text);
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
  checkContentType(request.header('content-type'));
  const body = readBody(request.body);
  const method = body.get('method');
  if (typeof method !== 'string' || method === '') {
    throw badRequest('rpc_method', "The member 'method' must be a text that is not empty.");
  }
  const additionalInfo = body.get('additionalInfo') ?? null;
  const persistent = body.get('persistent') ?? false;
  if (typeof persistent !== 'boolean') throw badRequest('rpc_persistent', "The member 'persistent' must be a boolean.");
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
  if (bytes.length === 0) throw badRequest('body_missing', 'Required request body is missing');
  let json: Json;
  try {
    json = readJson(bytes);
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
    throw badRequest(error.reason, 'Invalid request body');
  }
  if (!(json instanceof Map)) throw badRequest('rpc_body', 'Invalid request body');
  return json;
}

function wholeMember(body: Map<string, Json>, name: string): number | undefined {
  const json = body.get(name) ?? null;
  if (json === null) return undefined;
  const value = json instanceof JsonNumber ? Number(json.literal) : Number.NaN;
  const inRange = name === 'retries' ? value <= 1_000_000 : true;
  if (!Number.isSafeInteger(value) || value < 0 || !inRange) {
    throw badRequest('rpc_number', `The member '${name}' must be a whole number that is not negative.`);
  }
  return value;
}

/** Reply and additional info stay the text that they came as. */
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
