/** SQL of API keys. Of a key's value only the SHA-256 is stored. */

import type { Queries } from '../postgres/client.ts';
import { contains, containsPattern, type Page, type PageLink, readPage } from '../postgres/page.ts';
import type { ApiKey } from './api-key.ts';
import { accountColumns } from './store.ts';
import type { Account } from './user.ts';

const columns = `id, created_time as "createdTime", tenant_id as "tenantId", user_id as "userId",
  expiration_time as "expirationTime", description, enabled`;

const sortColumns = new Map([
  ['id', 'id'],
  ['createdTime', 'created_time'],
  ['expirationTime', 'expiration_time'],
  ['description', 'description'],
  ['enabled', 'enabled'],
]);

/** A key and the account for which it acts. */
export interface KeyOwner {
  keyId: string;
  keyEnabled: boolean;
  expirationTime: number;
  account: Account;
}

/** Finds keys by the hashes of their values. Returns the keys and their owners by the places of the hashes. */
export async function findKeyOwners(queries: Queries, valuesSha256: Buffer[]): Promise<Map<number, KeyOwner>> {
  const rows = await queries.query<Account & Omit<KeyOwner, 'account'> & { place: number }>(
    `select ${accountColumns('u')}, v.place,
            k.id as "keyId", k.enabled as "keyEnabled", k.expiration_time as "expirationTime"
       from unnest($1::bytea[]) with ordinality as v (sha256, place)
       join api_key k on k.value_sha256 = v.sha256 join user_account u on u.id = k.user_id`,
    [valuesSha256],
    { prepared: true },
  );
  return new Map(
    rows.map(({ place, keyId, keyEnabled, expirationTime, ...account }) => {
      return [place - 1, { keyId, keyEnabled, expirationTime, account }];
    }),
  );
}

/** `madeBy`: the keys that made this one, the oldest first. */
export async function insertApiKey(
  queries: Queries,
  key: ApiKey,
  valueSha256: Buffer,
  madeBy: string[],
): Promise<void> {
  const { id, createdTime, tenantId, userId, expirationTime, description, enabled } = key;
  await queries.query(
    `insert into api_key (id, created_time, tenant_id, user_id, value_sha256, description, enabled, expiration_time,
                          made_by)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9)`,
    [id, createdTime, tenantId, userId, valueSha256, description, enabled, expirationTime, madeBy],
  );
}

/**
 * Returns the session epochs of the users that exist. Until the transaction ends, on any worker or host, no session of
 * these users is ended, and no other caller of this function makes a key of theirs.
 */
export async function holdAccounts(queries: Queries, userIds: string[]): Promise<Map<string, number>> {
  const rows = await queries.query<{ id: string; epoch: number }>(
    'select id, session_epoch as epoch from user_account where id = any($1) order by id for no key update',
    [userIds],
  );
  return new Map(rows.map(({ id, epoch }) => [id, epoch]));
}

/**
 * Returns the keys that made this key, and the key itself last; undefined when revoked. Locks the key against a delete.
 */
export async function holdMaker(queries: Queries, id: string): Promise<string[] | undefined> {
  const [key] = await queries.query<{ madeBy: string[] }>(
    'select made_by as "madeBy" from api_key where id = $1 and enabled for key share',
    [id],
  );
  return key && [...key.madeBy, id];
}

/** Counts at most `countMax` keys. */
export async function countApiKeys(queries: Queries, userId: string, countMax: number): Promise<number> {
  const [row] = await queries.query<{ count: number }>(
    'select count(*) from (select from api_key where user_id = $1 limit $2) as counted',
    [userId, countMax],
  );
  return row!.count;
}

export async function findApiKey(queries: Queries, id: string): Promise<ApiKey | undefined> {
  const [key] = await queries.query<ApiKey>(`select ${columns} from api_key where id = $1`, [id]);
  return key;
}

/** Returns the key and the hash of its value, which names the key in caches; undefined when the key was deleted. */
export async function updateApiKey(
  queries: Queries,
  id: string,
  change: { description?: string; enabled?: boolean },
): Promise<{ key: ApiKey; valueSha256: Buffer } | undefined> {
  const [row] = await queries.query<ApiKey & { valueSha256: Buffer }>(
    `update api_key set description = coalesce($2, description), enabled = coalesce($3, enabled) where id = $1
     returning ${columns}, value_sha256 as "valueSha256"`,
    [id, change.description ?? null, change.enabled ?? null],
  );
  if (!row) return undefined;
  const { valueSha256, ...key } = row;
  return { key, valueSha256 };
}

/** Deletes a key, with `withMade` also the keys it made. Returns the hashes of their values. Runs in a transaction. */
export async function deleteApiKeyRow(queries: Queries, id: string, withMade: boolean): Promise<Buffer[]> {
  const deleted = await deleteRows(queries, 'id = any($1)', [id]);
  return withMade && deleted.length > 0 ? [...deleted, ...(await deleteMade(queries, [id]))] : deleted;
}

/** Deletes all keys of the user and the keys these made. Returns the hashes of their values. Runs in a transaction. */
export async function deleteKeysOfUser(queries: Queries, userId: string): Promise<Buffer[]> {
  const rows = await queries.query<{ id: string }>('select id from api_key where user_id = $1 for update', [userId]);
  const ids = rows.map(({ id }) => id);
  return [...(await deleteRows(queries, 'id = any($1)', ids)), ...(await deleteMade(queries, ids))];
}

/**
 * Deletes the keys that `makers` made, directly or through other keys. The makers are deleted already and make no more
 * keys. A key that was made meanwhile is found in the next round.
 */
async function deleteMade(queries: Queries, makers: string[]): Promise<Buffer[]> {
  const all: Buffer[] = [];
  for (;;) {
    const deleted = await deleteRows(queries, `made_by <> '{}' and made_by && $1::uuid[]`, makers);
    if (deleted.length === 0) return all;
    all.push(...deleted);
  }
}

async function deleteRows(queries: Queries, condition: string, ids: string[]): Promise<Buffer[]> {
  const rows = await queries.query<{ valueSha256: Buffer }>(
    `delete from api_key where ${condition} returning value_sha256 as "valueSha256"`,
    [ids],
  );
  return rows.map(({ valueSha256 }) => valueSha256);
}

export async function listApiKeys(queries: Queries, userId: string, link: PageLink): Promise<Page<ApiKey>> {
  const values: unknown[] = [userId];
  const search = link.textSearch
    ? `and ${contains('description', `$${values.push(containsPattern(link.textSearch))}`)}`
    : '';
  const list = { columns, from: 'api_key', where: `user_id = $1 ${search}`, values, sortColumns, idColumn: 'id' };
  return await readPage<ApiKey>(queries, list, link);
}

export async function purgeApiKeys(queries: Queries, now: number): Promise<void> {
  await queries.query('delete from api_key where expiration_time > 0 and expiration_time <= $1', [now]);
}
