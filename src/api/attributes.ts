/** Attributes by scope (rest.md 3.5). These paths answer their own errors as plain text. */
import Type from 'typebox';
import { type Attributes, type Scope, scopes } from '../attributes/attributes.ts';
import { attributesOf } from '../attributes/decode.ts';
import { authorities, type Principal, permissionDenied } from '../auth/roles.ts';
import { badRequest } from '../base/errors.ts';
import type { Queries } from '../postgres/client.ts';
import type { HttpResponse } from '../uws/server.ts';
import { type Json, readJson } from '../value/json.ts';
import { strictForm, type TypedValue } from '../value/typed.ts';
import { entityTarget, keyList, oneOf, uuid } from './parameters.ts';
import { plainText, usableDevice } from './plain-text.ts';
import { type Call, empty, json, jsonText, type Route, route } from './route.ts';

export interface AttributesParts {
  postgres: Queries;
  attributes: Attributes;
}

const prefix = '/api/plugins/telemetry';
const keysQuery = Type.Object({ keys: Type.Optional(Type.String()) });
const values = Type.Array(Type.Object({ lastUpdateTs: Type.Integer(), key: Type.String(), value: Type.Unknown() }));

export function attributesRoutes(parts: AttributesParts, castNumericStrings: boolean): Route[] {
  const { postgres, attributes } = parts;

  /** The number of the device that the path names, if the caller may use it. */
  const deviceOf = async (principal: Principal, target: { type: string; id: string }): Promise<number> =>
    (await usableDevice(postgres, principal, target.type === 'DEVICE' ? target.id : undefined)).number;

  const keys = async ({ principal, params }: Call): Promise<HttpResponse> => {
    const target = entityTarget(params);
    const wanted = wantedScopes(params[2]);
    return await plainText(async () => json(await attributes.keys(await deviceOf(principal, target), wanted)));
  };

  const read = async ({ principal, params, query }: Call): Promise<HttpResponse> => {
    const target = entityTarget(params);
    const wanted = wantedScopes(params[2]);
    const listed = keyList(query);
    return await plainText(async () => {
      const device = await deviceOf(principal, target);
      const rows = await attributes.readScopes(device, wanted, listed.length > 0 ? listed : null);
      const texts = rows.map(({ key, value, lastUpdateTs }) => {
        return `{"lastUpdateTs":${lastUpdateTs},"key":${JSON.stringify(key)},"value":${strictForm(value)}}`;
      });
      return jsonText(`[${texts.join(',')}]`);
    });
  };

  const write = async (call: Call, target: { type: string; id: string }, scopeName: string): Promise<HttpResponse> => {
    const scope = oneOf('scope', scopeName, scopes, 'SERVER_SCOPE');
    const { body } = call.request;
    return await plainText(async () => {
      requireWriter(call.principal);
      const device = await deviceOf(call.principal, target);
      if (scope === 'CLIENT_SCOPE') throw badRequest('scope', 'Invalid scope: CLIENT_SCOPE');
      await attributes.save(device, scope, entriesOf(body, castNumericStrings));
      return empty;
    });
  };

  const remove = async (call: Call, target: { type: string; id: string }, scopeName: string): Promise<HttpResponse> => {
    const scope = oneOf('scope', scopeName, scopes, 'SERVER_SCOPE');
    const listed = keyList(call.query);
    return await plainText(async () => {
      requireWriter(call.principal);
      if (listed.length === 0) throw badRequest('keys', 'Empty keys: []');
      await attributes.remove(await deviceOf(call.principal, target), scope, listed);
      return empty;
    });
  };

  const deviceTarget = (params: string[]) => ({ type: 'DEVICE', id: uuid(params[0]!) });

  return [
    ...['', '/:scope'].flatMap((scope) => [
      route({
        method: 'GET',
        pattern: `${prefix}/:entityType/:entityId/keys/attributes${scope}`,
        summary: scope === '' ? 'Keys of the attributes' : 'Keys of the attributes of a scope',
        roles: authorities,
        answer: Type.Array(Type.String()),
        handle: keys,
      }),
      route({
        method: 'GET',
        pattern: `${prefix}/:entityType/:entityId/values/attributes${scope}`,
        summary: scope === '' ? 'Attributes of all scopes' : 'Attributes of a scope',
        roles: authorities,
        query: keysQuery,
        answer: values,
        handle: read,
      }),
    ]),
    route({
      method: 'POST',
      pattern: `${prefix}/:deviceId/:scope`,
      summary: 'Write attributes of a device',
      roles: authorities,
      handle: (call) => write(call, deviceTarget(call.params), call.params[1]!),
    }),
    ...['/:scope', '/attributes/:scope'].map((scope) =>
      route({
        method: 'POST',
        pattern: `${prefix}/:entityType/:entityId${scope}`,
        summary: 'Write attributes of an entity',
        roles: authorities,
        handle: (call) => write(call, entityTarget(call.params), call.params[2]!),
      }),
    ),
    route({
      method: 'DELETE',
      pattern: `${prefix}/:deviceId/:scope`,
      summary: 'Delete attributes of a device',
      roles: authorities,
      query: keysQuery,
      handle: (call) => remove(call, deviceTarget(call.params), call.params[1]!),
    }),
    route({
      method: 'DELETE',
      pattern: `${prefix}/:entityType/:entityId/:scope`,
      summary: 'Delete attributes of an entity',
      roles: authorities,
      query: keysQuery,
      handle: (call) => remove(call, entityTarget(call.params), call.params[2]!),
    }),
  ];
}

function wantedScopes(name: string | undefined): readonly Scope[] {
  return name === undefined ? scopes : [oneOf('scope', name, scopes, 'SERVER_SCOPE')];
}

/** The guest of a public dashboard only looks. */
function requireWriter(principal: Principal): void {
  if (principal.isPublic) throw permissionDenied();
}

function entriesOf(body: Buffer, castNumericStrings: boolean): Map<string, TypedValue> {
  let tree: Json;
  try {
    tree = readJson(body);
  } catch {
    throw badRequest('malformed_json', 'Invalid JSON');
  }
  if (!(tree instanceof Map)) throw badRequest('wrong_shape', 'Request is not a JSON object');
  if ([...tree.keys()].some((key) => key.trim() === '')) throw badRequest('bad_key', 'Key cannot be blank');
  const entries = attributesOf(tree, castNumericStrings);
  if (entries.size === 0) throw badRequest('no_attributes', 'No attributes data found in request body!');
  return entries;
}
