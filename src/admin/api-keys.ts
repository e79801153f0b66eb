/** API keys as their owners and administrators manage them (docs/rest.md#api-keys). */

import { type ApiKey, createValue, sha256 } from '../auth/api-key.ts';
import {
  countApiKeys,
  deleteApiKeyRow,
  findApiKey,
  holdAccounts,
  holdMaker,
  insertApiKey,
  listApiKeys,
  updateApiKey,
} from '../auth/api-key-store.ts';
import type { ApiKeys } from '../auth/api-keys.ts';
import { entityNotFound, type Principal } from '../auth/roles.ts';
import { authenticationFailed, tokenExpired } from '../auth/unauthorized.ts';
import type { Clock } from '../base/clock.ts';
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { createUuid } from '../base/uuid.ts';
import { checkText } from '../device/model/device.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import type { Page, PageLink } from '../postgres/page.ts';
import { keyOwner } from './users.ts';

export interface ApiKeyDeps {
  postgres: Postgres;
  clock: Clock;
  apiKeys: ApiKeys;
  /** The beginning of each new key's value. */
  apiKeyPrefix: string;
}

export interface ApiKeyInput {
  userId: string | null;
  description: string;
  enabled: boolean;
  /** Undefined: on creation the key never expires; on a save its expiration stays. */
  expirationTime: number | undefined;
}

/**
 * Returns the key and its value, which no later call returns. A caller whose session or key is revoked at this moment
 * makes no key: either the revocation finds the new key, or this call finds the revocation.
 */
export async function createApiKey(
  deps: ApiKeyDeps,
  caller: Principal,
  sessionEpoch: number,
  input: ApiKeyInput,
): Promise<{ key: ApiKey; value: string }> {
  const { postgres, apiKeys, clock, apiKeyPrefix } = deps;
  const { userId, description, enabled, expirationTime = 0 } = input;
  if (userId === null) throw badRequest('user', 'API key user id should be specified!');
  checkDescription(description);
  if (expirationTime < 0) {
    throw badRequest('expiration', 'Validation error: expirationTime must be epoch milliseconds, or 0 for never');
  }
  const { tenantId } = await keyOwner(postgres, caller, userId);
  const now = clock.now();
  const key = { id: createUuid(now), createdTime: now, tenantId, userId, expirationTime, description, enabled };
  const value = createValue(apiKeyPrefix);
  const hash = sha256(value);
  await postgres.transaction(async (queries) => {
    const epochs = await holdAccounts(queries, [caller.userId, userId]);
    if (!epochs.has(userId)) throw entityNotFound('User', userId);
    // A key has no session: `makersOf` checks the key.
    if (caller.apiKeyId === null && epochs.get(caller.userId) !== sessionEpoch) throw tokenExpired();
    const madeBy = await makersOf(queries, caller);
    if ((await countApiKeys(queries, userId, limits.apiKeysPerUserMax)) >= limits.apiKeysPerUserMax) {
      const message = `A user has at most ${limits.apiKeysPerUserMax} API keys: revoke one that is not needed.`;
      throw badRequest('api_keys', message);
    }
    await insertApiKey(queries, key, hash, madeBy);
  });
  apiKeys.changed(hash);
  return { key, value };
}

/** Changes the description and whether the key is enabled. The user and the expiration of a key never change. */
export async function saveApiKey(deps: ApiKeyDeps, caller: Principal, id: string, input: ApiKeyInput): Promise<ApiKey> {
  const stored = await reachableKey(deps, caller, id);
  const { userId, description, enabled, expirationTime } = input;
  if (userId !== stored.userId) throw badRequest('user', 'Cannot update API key user id!');
  if (expirationTime !== undefined && expirationTime !== stored.expirationTime) {
    throw badRequest('expiration', 'Cannot update API key expiration time!');
  }
  checkDescription(description);
  return await change(deps, id, { description, enabled });
}

export async function describeApiKey(
  deps: ApiKeyDeps,
  caller: Principal,
  id: string,
  description: string,
): Promise<ApiKey> {
  await reachableKey(deps, caller, id);
  checkDescription(description);
  return await change(deps, id, { description });
}

export async function enableApiKey(deps: ApiKeyDeps, caller: Principal, id: string, enabled: boolean): Promise<ApiKey> {
  await reachableKey(deps, caller, id);
  return await change(deps, id, { enabled });
}

/** `withMade`: also deletes all keys that were made with this key, for any user. */
export async function deleteApiKey(deps: ApiKeyDeps, caller: Principal, id: string, withMade: boolean): Promise<void> {
  await reachableKey(deps, caller, id);
  const hashes = await deps.postgres.transaction((queries) => deleteApiKeyRow(queries, id, withMade));
  if (hashes.length === 0) throw keyNotFound(id);
  for (const hash of hashes) deps.apiKeys.changed(hash);
}

/**
 * Returns the chain of keys by which the caller makes another key. A key that was revoked at this moment makes none.
 */
async function makersOf(queries: Queries, { apiKeyId }: Principal): Promise<string[]> {
  if (apiKeyId === null) return [];
  const makers = await holdMaker(queries, apiKeyId);
  if (!makers) throw authenticationFailed();
  if (makers.length <= limits.apiKeyMakersMax) return makers;
  const message = `This API key comes at the end of ${limits.apiKeyMakersMax} keys that made one another: sign in as a user.`;
  throw badRequest('api_key_makers', message);
}

export async function apiKeysOf(
  { postgres }: ApiKeyDeps,
  caller: Principal,
  userId: string,
  link: PageLink,
): Promise<Page<ApiKey>> {
  await keyOwner(postgres, caller, userId);
  return await listApiKeys(postgres, userId, link);
}

/** A key of another tenant is not found. A key of this tenant that the caller may not touch is refused. */
async function reachableKey({ postgres }: ApiKeyDeps, caller: Principal, id: string): Promise<ApiKey> {
  const key = await findApiKey(postgres, id);
  if (!key || (caller.tenantId !== null && key.tenantId !== caller.tenantId)) throw keyNotFound(id);
  await keyOwner(postgres, caller, key.userId);
  return key;
}

async function change(
  { postgres, apiKeys }: ApiKeyDeps,
  id: string,
  changes: { description?: string; enabled?: boolean },
): Promise<ApiKey> {
  const saved = await updateApiKey(postgres, id, changes);
  if (!saved) throw keyNotFound(id);
  apiKeys.changed(saved.valueSha256);
  return saved.key;
}

function checkDescription(description: string): void {
  if (description.trim() === '') throw badRequest('description', 'API key description should be specified!');
  checkText('description', description);
}

function keyNotFound(id: string) {
  return entityNotFound('Api key', id);
}
