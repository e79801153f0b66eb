/** Attributes by scope (docs/rest.md#attributes). These paths answer their own errors as plain text. */

import { claimKeys } from '../admin/claim-rules.ts';
import type { Attributes } from '../attributes/attributes.ts';
import type { AttributeDecoder } from '../attributes/decode-thread.ts';
import { EntityAttributes } from '../attributes/entity-attributes.ts';
import { type Scope, scopes } from '../attributes/scope.ts';
import type { AttributeRow } from '../attributes/store.ts';
import { everyone, type Principal, permissionDenied, users } from '../auth/roles.ts';
import type { Clock } from '../base/clock.ts';
import { badRequest, Fault } from '../base/errors.ts';
import * as Type from '../base/schema.ts';
import { provisionStateKey } from '../onboarding/provision-mark-store.ts';
import type { Postgres } from '../postgres/client.ts';
import { type Call, empty, json, type Route, route } from '../rest/route.ts';
import { anyJson, closed, milliseconds } from '../rest/shapes.ts';
import type { Answer } from '../uws/exchange.ts';
import { strictForm, type TypedValue } from '../value/typed.ts';
import type { LongAnswers } from './long-answer.ts';
import { deviceTarget, isOtherKind, plainText, seriesNumber, type Target, withNumber } from './plain-text.ts';
import { keyList, keysQuery } from './queries.ts';

export interface AttributesDeps {
  postgres: Postgres;
  clock: Clock;
  attributes: Attributes;
  attributeDecoder: AttributeDecoder;
  longAnswers: LongAnswers;
}

const prefix = '/api/plugins/telemetry';
const values = Type.Array(closed({ lastUpdateTs: milliseconds, key: Type.String(), value: anyJson }, 'AttributeValue'));
const claims = Object.values(claimKeys);
const attributesBody = { shape: Type.Record(Type.Unknown()) };

export function attributesRoutes(deps: AttributesDeps): Route[] {
  const { postgres, attributes, attributeDecoder, clock, longAnswers } = deps;
  const others = new EntityAttributes(postgres, clock);
  const rowsOf = (target: Target) => (isOtherKind(target) ? others : attributes);

  const keys = async (principal: Principal, target: Target, wanted: readonly Scope[]): Promise<Answer> =>
    await plainText(async () =>
      json(await rowsOf(target).keys(await seriesNumber(postgres, principal, target, 'read'), wanted)),
    );

  const read = async (
    principal: Principal,
    target: Target,
    wanted: readonly Scope[],
    listed: string[],
  ): Promise<Answer> =>
    await plainText(async () => {
      const number = await seriesNumber(postgres, principal, target, 'read');
      const rows = await rowsOf(target).readScopes(number, wanted, listed.length > 0 ? listed : null);
      return await longAnswers.json(principal, (text) => text.addAll(valueTexts(rows)));
    });

  const write = async ({ principal, request }: Call, target: Target, scope: Scope): Promise<Answer> =>
    await plainText(async () => {
      // A caller that may not write learns nothing of the body, and nothing of the body is decoded.
      const number = await seriesNumber(postgres, principal, target, 'write');
      if (scope === 'CLIENT_SCOPE') throw badRequest('scope', 'Invalid scope: CLIENT_SCOPE');
      const entries = await entriesOf(attributeDecoder, request.body, { number, tenantId: principal.tenantId ?? '' });
      if (isOtherKind(target)) {
        const now = clock.now();
        await withNumber(postgres, principal, target, (queries, given) =>
          others.save(queries, given, scope, entries, now),
        );
        return empty;
      }
      if (scope === 'SERVER_SCOPE') requireAdmin(principal, [...claims, provisionStateKey], [...entries.keys()]);
      await attributes.save(number, scope, entries, principal.tenantId ?? undefined);
      return empty;
    });

  const remove = async (principal: Principal, target: Target, scope: Scope, listed: string[]): Promise<Answer> =>
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

/** Decodes the attributes that a user writes. The sentences of some refusals are those that clients expect. */
async function entriesOf(
  decoder: AttributeDecoder,
  body: Buffer,
  source: { number: number; tenantId: string },
): Promise<Map<string, TypedValue>> {
  let entries: Map<string, TypedValue>;
  try {
    entries = await decoder.decode(body, source);
  } catch (error) {
    throw error instanceof Fault ? withExpectedSentence(error) : error;
  }
  if (entries.size === 0) throw badRequest('no_attributes', 'No attributes data found in request body!');
  return entries;
}

function withExpectedSentence(fault: Fault): Fault {
  const { reason } = fault;
  if (reason === 'malformed_json') return badRequest(reason, 'Invalid JSON');
  if (reason === 'wrong_shape') return badRequest(reason, 'Request is not a JSON object');
  return reason === 'blank_key' ? badRequest(reason, 'Key cannot be blank') : fault;
}
