/** Attributes by scope (docs/rest.md#attributes). These paths answer their own errors as plain text. */

import { claimKeys } from '../admin/claim-rules.ts';
import { type AttributeRow, type Attributes, type Scope, scopes } from '../attributes/attributes.ts';
import { attributesOf } from '../attributes/decode.ts';
import { EntityAttributes } from '../attributes/entity-attributes.ts';
import { everyone, type Principal, permissionDenied, users } from '../auth/roles.ts';
import type { Clock } from '../base/clock.ts';
import { badRequest, Fault } from '../base/errors.ts';
import * as Type from '../base/schema.ts';
import { provisionStateKey } from '../onboarding/provision.ts';
import type { Postgres } from '../postgres/client.ts';
import { type Call, empty, json, type Route, route } from '../rest/route.ts';
import { anyJson, closed, milliseconds } from '../rest/shapes.ts';
import type { HttpResponse } from '../uws/server.ts';
import { type Json, readJson } from '../value/json.ts';
import type { ReadBody } from '../value/lenient.ts';
import { strictForm, type TypedValue } from '../value/typed.ts';
import type { LongAnswers } from './long-answer.ts';
import { deviceTarget, isOtherKind, plainText, seriesNumber, type Target, withNumber } from './plain-text.ts';
import { keyList, keysQuery } from './queries.ts';

export interface AttributesDeps {
  postgres: Postgres;
  clock: Clock;
  attributes: Attributes;
  longAnswers: LongAnswers;
}

const prefix = '/api/plugins/telemetry';
const values = Type.Array(closed({ lastUpdateTs: milliseconds, key: Type.String(), value: anyJson }, 'AttributeValue'));
const claims = Object.values(claimKeys);
const attributesBody = { shape: Type.Record(Type.Unknown()) };

export function attributesRoutes(deps: AttributesDeps, readBody: ReadBody, castNumericStrings: boolean): Route[] {
  const { postgres, attributes, clock, longAnswers } = deps;
  const others = new EntityAttributes(postgres, clock);
  const rowsOf = (target: Target) => (isOtherKind(target) ? others : attributes);

  const keys = async (principal: Principal, target: Target, wanted: readonly Scope[]): Promise<HttpResponse> =>
    await plainText(async () =>
      json(await rowsOf(target).keys(await seriesNumber(postgres, principal, target, 'read'), wanted)),
    );

  const read = async (
    principal: Principal,
    target: Target,
    wanted: readonly Scope[],
    listed: string[],
  ): Promise<HttpResponse> =>
    await plainText(async () => {
      const number = await seriesNumber(postgres, principal, target, 'read');
      const rows = await rowsOf(target).readScopes(number, wanted, listed.length > 0 ? listed : null);
      return await longAnswers.json(principal, (text) => text.addAll(valueTexts(rows)));
    });

  const write = async ({ principal, request }: Call, target: Target, scope: Scope): Promise<HttpResponse> =>
    await plainText(async () => {
      const readEntries = () => {
        if (scope === 'CLIENT_SCOPE') throw badRequest('scope', 'Invalid scope: CLIENT_SCOPE');
        return entriesOf(request.body, readBody, castNumericStrings);
      };
      if (isOtherKind(target)) {
        const now = clock.now();
        await withNumber(postgres, principal, target, (queries, number) =>
          others.save(queries, number, scope, readEntries(), now),
        );
        return empty;
      }
      const device = await seriesNumber(postgres, principal, target, 'write');
      const entries = readEntries();
      if (scope === 'SERVER_SCOPE') requireAdmin(principal, [...claims, provisionStateKey], [...entries.keys()]);
      await attributes.save(device, scope, entries, principal.tenantId ?? undefined);
      return empty;
    });

  const remove = async (principal: Principal, target: Target, scope: Scope, listed: string[]): Promise<HttpResponse> =>
    await plainText(async () => {
      if (listed.length === 0) throw badRequest('keys', 'Empty keys: []');
      const number = await seriesNumber(postgres, principal, target, 'write');
      if (isOtherKind(target)) {
        await others.remove(number, scope, listed);
        return empty;
      }
      if (scope === 'SERVER_SCOPE') requireAdmin(principal, [provisionStateKey], listed);
      await attributes.remove(number, scope, listed, principal.tenantId ?? undefined);
      return empty;
    });

  return [
    route({
      method: 'GET',
      pattern: `${prefix}/:entityType/:entityId/keys/attributes`,
      summary: 'Keys of the attributes',
      roles: everyone,
      answer: Type.Array(Type.String()),
      plainTextErrors: true,
      handle: ({ principal, params }) => keys(principal, params, scopes),
    }),
    route({
      method: 'GET',
      pattern: `${prefix}/:entityType/:entityId/keys/attributes/:scope`,
      summary: 'Keys of the attributes of a scope',
      roles: everyone,
      answer: Type.Array(Type.String()),
      plainTextErrors: true,
      handle: ({ principal, params }) => keys(principal, params, [params.scope]),
    }),
    route({
      method: 'GET',
      pattern: `${prefix}/:entityType/:entityId/values/attributes`,
      summary: 'Attributes of all scopes',
      roles: everyone,
      query: keysQuery,
      answer: values,
      plainTextErrors: true,
      handle: ({ principal, params, query }) => read(principal, params, scopes, keyList(query)),
    }),
    route({
      method: 'GET',
      pattern: `${prefix}/:entityType/:entityId/values/attributes/:scope`,
      summary: 'Attributes of a scope',
      roles: everyone,
      query: keysQuery,
      answer: values,
      plainTextErrors: true,
      handle: ({ principal, params, query }) => read(principal, params, [params.scope], keyList(query)),
    }),
    route({
      method: 'POST',
      pattern: `${prefix}/:deviceId/:scope`,
      summary: 'Write attributes of a device',
      roles: users,
      ownBody: attributesBody,
      plainTextErrors: true,
      handle: (call) => write(call, deviceTarget(call.params.deviceId), call.params.scope),
    }),
    ...([`${prefix}/:entityType/:entityId/:scope`, `${prefix}/:entityType/:entityId/attributes/:scope`] as const).map(
      (pattern) =>
        route({
          method: 'POST',
          pattern,
          summary: 'Write attributes of an entity',
          roles: users,
          ownBody: attributesBody,
          plainTextErrors: true,
          handle: (call) => write(call, call.params, call.params.scope),
        }),
    ),
    route({
      method: 'DELETE',
      pattern: `${prefix}/:deviceId/:scope`,
      summary: 'Delete attributes of a device',
      roles: users,
      query: keysQuery,
      plainTextErrors: true,
      handle: ({ principal, params, query }) =>
        remove(principal, deviceTarget(params.deviceId), params.scope, keyList(query)),
    }),
    route({
      method: 'DELETE',
      pattern: `${prefix}/:entityType/:entityId/:scope`,
      summary: 'Delete attributes of an entity',
      roles: users,
      query: keysQuery,
      plainTextErrors: true,
      handle: ({ principal, params, query }) => remove(principal, params, params.scope, keyList(query)),
    }),
  ];
}

/** Throws 403 when a user of a customer names an attribute that only administrators change. */
function requireAdmin({ authority }: Principal, reserved: readonly string[], named: readonly string[]): void {
  if (authority === 'CUSTOMER_USER' && named.some((key) => reserved.includes(key))) throw permissionDenied();
}

function* valueTexts(rows: AttributeRow[]): Generator<string> {
  let separator = '[';
  for (const { key, value, lastUpdateTs } of rows) {
    yield `${separator}{"lastUpdateTs":${lastUpdateTs},"key":${JSON.stringify(key)},"value":${strictForm(value)}}`;
    separator = ',';
  }
  yield rows.length === 0 ? '[]' : ']';
}

function entriesOf(body: Buffer, readBody: ReadBody, castNumericStrings: boolean): Map<string, TypedValue> {
  let tree: Json;
  try {
    tree = readBody(body, readJson);
  } catch (error) {
    const isMalformed = error instanceof Fault && error.reason === 'malformed_json';
    throw isMalformed ? badRequest('malformed_json', 'Invalid JSON') : error;
  }
  if (!(tree instanceof Map)) throw badRequest('wrong_shape', 'Request is not a JSON object');
  if ([...tree.keys()].some((key) => key.trim() === '')) throw badRequest('bad_key', 'Key cannot be blank');
  const entries = attributesOf(tree, castNumericStrings);
  if (entries.size === 0) throw badRequest('no_attributes', 'No attributes data found in request body!');
  return entries;
}
