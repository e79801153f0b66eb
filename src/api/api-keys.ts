/** API keys (docs/rest.md#api-keys). */

import {
  type ApiKeyDeps,
  type ApiKeyInput,
  apiKeysOf,
  createApiKey,
  deleteApiKey,
  describeApiKey,
  enableApiKey,
  saveApiKey,
} from '../admin/api-keys.ts';
import { type ApiKey, isExpired } from '../auth/api-key.ts';
import { users } from '../auth/roles.ts';
import { badRequest } from '../base/errors.ts';
import * as Type from '../base/schema.ts';
import { flag, parseJson, reference, text } from '../rest/body.ts';
import { entityUuid, pageLink, pageQuery } from '../rest/parameters.ts';
import { empty, json, type Route, route } from '../rest/route.ts';
import { closed, milliseconds, nullable, pageJson, pageShape } from '../rest/shapes.ts';
import type { HttpRequest } from '../uws/request.ts';
import { entityId, idJson } from './shapes.ts';

const apiKeyBody = Type.Object({
  id: reference,
  userId: reference,
  description: text,
  enabled: flag,
  expirationTime: Type.Optional(
    Type.Union([Type.Integer({ minimum: 0, description: 'Epoch milliseconds; 0 = never' }), Type.Null()]),
  ),
});

const infoMembers = {
  id: entityId,
  createdTime: milliseconds,
  tenantId: entityId,
  userId: entityId,
  expirationTime: Type.Integer({ description: 'Epoch milliseconds; 0 = never' }),
  description: Type.String(),
  enabled: Type.Boolean(),
  expired: Type.Boolean(),
};
const infoShape = closed(infoMembers, 'ApiKeyInfo');
const keyShape = closed(
  { ...infoMembers, value: nullable(Type.String({ description: 'Shown once, when the key is made' })) },
  'ApiKey',
);

export function apiKeyRoutes(deps: ApiKeyDeps): Route[] {
  const infoJson = (key: ApiKey): Type.Static<typeof infoShape> => ({
    id: idJson('API_KEY', key.id),
    createdTime: key.createdTime,
    tenantId: idJson('TENANT', key.tenantId),
    userId: idJson('USER', key.userId),
    expirationTime: key.expirationTime,
    description: key.description,
    enabled: key.enabled,
    expired: isExpired(key, deps.clock.now()),
  });

  return [
    route({
      method: 'POST',
      pattern: '/api/apiKey',
      summary: 'Create an API key, whose value is shown this one time, or save the one with the given id',
      roles: users,
      body: apiKeyBody,
      answer: keyShape,
      async handle({ principal, account, body }) {
        const id = entityUuid(body.id);
        const input: ApiKeyInput = {
          userId: entityUuid(body.userId),
          description: body.description ?? '',
          enabled: body.enabled ?? false,
          expirationTime: body.expirationTime ?? undefined,
        };
        if (id !== null) return json({ ...infoJson(await saveApiKey(deps, principal, id, input)), value: null });
        const { key, value } = await createApiKey(deps, principal, account.sessionEpoch, input);
        return json({ ...infoJson(key), value });
      },
    }),
    route({
      method: 'GET',
      pattern: '/api/apiKeys/:userId',
      summary: 'The API keys of a user, without their values',
      roles: users,
      query: pageQuery,
      answer: pageShape(infoShape),
      handle: async ({ principal, params, query }) =>
        json(pageJson(await apiKeysOf(deps, principal, params.userId, pageLink(query)), infoJson)),
    }),
    route({
      method: 'PUT',
      pattern: '/api/apiKey/:apiKeyId/description',
      summary: 'Describe an API key: the text itself, or a JSON string',
      roles: users,
      ownBody: { shape: { contentType: 'text/plain', schema: Type.String({ minLength: 1, maxLength: 255 }) } },
      answer: infoShape,
      handle: async ({ request, principal, params }) =>
        json(infoJson(await describeApiKey(deps, principal, params.apiKeyId, descriptionOf(request)))),
    }),
    route({
      method: 'PUT',
      pattern: '/api/apiKey/:apiKeyId/enabled/:enabled',
      summary: 'Let an API key be used, or not',
      roles: users,
      answer: infoShape,
      handle: async ({ principal, params: { apiKeyId, enabled } }) =>
        json(infoJson(await enableApiKey(deps, principal, apiKeyId, enabled))),
    }),
    route({
      method: 'DELETE',
      pattern: '/api/apiKey/:apiKeyId',
      summary: 'Revoke an API key, and with `withMadeKeys` every key that was made with it',
      roles: users,
      query: Type.Object({ withMadeKeys: Type.Optional(Type.Boolean()) }),
      async handle({ principal, params, query }) {
        await deleteApiKey(deps, principal, params.apiKeyId, query.withMadeKeys ?? false);
        return empty;
      },
    }),
  ];
}

/** Reads a string of any content type; a JSON string is decoded. */
function descriptionOf({ body }: HttpRequest): string {
  const raw = body.toString('utf8');
  if (raw.includes('\uFFFD')) throw badRequest('description', 'Validation error: description is not valid UTF-8');
  if (!/^\s*".*"\s*$/s.test(raw)) return raw;
  const description = parseJson(body);
  return typeof description === 'string' ? description : raw;
}
