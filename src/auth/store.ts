/** SQL of user accounts, and of sessions that were signed out. */

import { byPlace } from '../base/gathered-reads.ts';
import { limits } from '../base/limits.ts';
import { isUniqueViolation, type Queries } from '../postgres/client.ts';
import { contains, containsPattern, type Page, type PageLink, readPage } from '../postgres/page.ts';
import type { Authority } from './roles.ts';
import type { Account, Activation, User, UserAccount } from './user.ts';

/** Columns of an `Account`, of the table that the statement calls `table`. */
export function accountColumns(table: string): string {
  const t = table;
  return `${t}.id, ${t}.created_time as "createdTime", ${t}.tenant_id as "tenantId", ${t}.customer_id as "customerId",
    ${t}.authority, ${t}.email, ${t}.first_name as "firstName", ${t}.last_name as "lastName", ${t}.phone,
    ${t}.version, ${t}.password_hash as "passwordHash", ${t}.enabled,
    ${t}.last_login_time as "lastLoginTime", ${t}.tokens_outdated_time as "tokensOutdatedTime", ${t}.session_epoch as "sessionEpoch"`;
}

const columns = accountColumns('user_account');
const userColumns = `${columns}, additional_info as "additionalInfo"`;

export async function findAccountByEmail(queries: Queries, email: string): Promise<Account | undefined> {
  const [account] = await queries.query<Account>(`select ${columns} from user_account where lower(email) = lower($1)`, [
    email,
  ]);
  return account;
}

/** Returns about when the user last signed in from the network; undefined when never or long ago. */
export async function findSignInNetwork(
  queries: Queries,
  userId: string,
  network: string,
): Promise<{ lastTime: number } | undefined> {
  const [row] = await queries.query<{ lastTime: number }>(
    'select last_time as "lastTime" from sign_in_network where user_id = $1 and network = $2',
    [userId, network],
  );
  return row;
}

/** Records a network, of which each user keeps the latest `networksMax`. Does nothing for a deleted user. */
export async function rememberSignInNetwork(
  queries: Queries,
  userId: string,
  network: string,
  now: number,
  networksMax: number,
): Promise<void> {
  await queries.query(
    `insert into sign_in_network (user_id, network, last_time) select id, $2, $3 from user_account where id = $1
     on conflict (user_id, network) do update set last_time = excluded.last_time`,
    [userId, network, now],
  );
  await queries.query(
    `delete from sign_in_network where user_id = $1 and network in (
       select network from sign_in_network where user_id = $1 order by last_time desc offset $2)`,
    [userId, networksMax],
  );
}

/** Locks the row until the transaction ends when `lock` is 'lock'. */
export async function findAccount(
  queries: Queries,
  id: string,
  lock: 'lock' | 'read' = 'read',
): Promise<UserAccount | undefined> {
  const [account] = await queries.query<UserAccount>(
    `select ${userColumns} from user_account where id = $1 ${lock === 'lock' ? 'for update' : ''}`,
    [id],
  );
  return account;
}

interface UserFilter {
  tenantId: string;
  customerId?: string | undefined;
  authority?: Authority | undefined;
  ids?: string[];
}

const sortColumns = new Map([
  ['id', 'id'],
  ['createdTime', 'created_time'],
  ['email', 'email'],
  ['name', 'email'],
  ['firstName', 'first_name'],
  ['lastName', 'last_name'],
  ['authority', 'authority'],
]);

export async function listUsers(queries: Queries, filter: UserFilter, link: PageLink): Promise<Page<User>> {
  const values: unknown[] = [filter.tenantId];
  const conditions = ['tenant_id = $1'];
  if (filter.customerId) conditions.push(`customer_id = $${values.push(filter.customerId)}`);
  if (filter.authority) conditions.push(`authority = $${values.push(filter.authority)}`);
  if (filter.ids) conditions.push(`id = any($${values.push(filter.ids)})`);
  if (link.textSearch) conditions.push(contains('email', `$${values.push(containsPattern(link.textSearch))}`));
  const documents = { columns: ['additional_info'], rowBytesMax: limits.documentBytesMax };
  const list = { columns: userColumns, from: 'user_account', where: conditions.join(' and '), values, documents };
  return await readPage<User>(queries, { ...list, sortColumns, idColumn: 'id' }, link);
}

export interface SessionKey {
  userId: string;
  sessionId: string;
}

export type StoredSession = Account & { sessionOutdated: boolean };

/** Returns the accounts of sessions, and whether each session was signed out, by the places of their keys. */
export async function findSessions(queries: Queries, keys: SessionKey[]): Promise<Map<number, StoredSession>> {
  const rows = await queries.query<StoredSession & { place: number }>(
    `select ${accountColumns('u')}, k.place,
            exists (select 1 from outdated_session o where o.session_id = k.session_id) as "sessionOutdated"
       from unnest($1::uuid[], $2::uuid[]) with ordinality as k (user_id, session_id, place)
       join user_account u on u.id = k.user_id`,
    [keys.map(({ userId }) => userId), keys.map(({ sessionId }) => sessionId)],
    { prepared: true },
  );
  return byPlace(rows);
}

export interface GuestKey {
  customerId: string;
  /** Null at the sign-in. */
  sessionId: string | null;
}

export interface StoredGuest {
  tenantId: string;
  createdTime: number;
  sessionOutdated: boolean;
}

/** Returns the public customers with which guests sign in, and whether each session was signed out, by place. */
export async function findGuests(queries: Queries, keys: GuestKey[]): Promise<Map<number, StoredGuest>> {
  const rows = await queries.query<StoredGuest & { place: number }>(
    `select c.tenant_id as "tenantId", c.created_time as "createdTime", k.place,
            exists (select 1 from outdated_session o where o.session_id = k.session_id) as "sessionOutdated"
       from unnest($1::uuid[], $2::uuid[]) with ordinality as k (customer_id, session_id, place)
       join customer c on c.id = k.customer_id where c.is_public`,
    [keys.map(({ customerId }) => customerId), keys.map(({ sessionId }) => sessionId)],
    { prepared: true },
  );
  return byPlace(rows);
}

type NewUser = User & { passwordHash: string | null };

/** Returns false when the email is taken. */
export async function insertUser(queries: Queries, user: NewUser): Promise<boolean> {
  const rows = await queries.query(
    `insert into user_account (id, created_time, tenant_id, customer_id, authority, email, first_name, last_name, phone,
                               additional_info, password_hash)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) on conflict (lower(email)) do nothing returning 1`,
    [
      user.id,
      user.createdTime,
      user.tenantId,
      user.customerId,
      user.authority,
      user.email,
      user.firstName,
      user.lastName,
      user.phone,
      user.additionalInfo === null ? null : JSON.stringify(user.additionalInfo),
      user.passwordHash,
    ],
  );
  return rows.length === 1;
}

/** True when a user of another tenant, or of none, has the email. */
export async function isOthersEmail(queries: Queries, tenantId: string, email: string): Promise<boolean> {
  const rows = await queries.query(
    'select 1 from user_account where lower(email) = lower($1) and tenant_id is distinct from $2',
    [email, tenantId],
  );
  return rows.length > 0;
}

/** Replaces the members that a user may change. Returns false when the email is taken. */
export async function updateUser(queries: Queries, user: User): Promise<boolean> {
  try {
    await queries.query(
      `update user_account set email = $2, first_name = $3, last_name = $4, phone = $5, additional_info = $6,
              version = version + 1
        where id = $1`,
      [
        user.id,
        user.email,
        user.firstName,
        user.lastName,
        user.phone,
        user.additionalInfo === null ? null : JSON.stringify(user.additionalInfo),
      ],
    );
    return true;
  } catch (error) {
    if (isUniqueViolation(error, 'user_account_email_unique')) return false;
    throw error;
  }
}

export async function deleteUserRow(queries: Queries, id: string): Promise<void> {
  await queries.query('delete from user_account where id = $1', [id]);
}

/** Locks the administrators until the transaction ends, so that two of them cannot delete each other. */
export async function lockAdmins(
  queries: Queries,
  authority: 'SYS_ADMIN' | 'TENANT_ADMIN',
  tenantId: string | null,
): Promise<{ id: string; canSignIn: boolean }[]> {
  return await queries.query<{ id: string; canSignIn: boolean }>(
    `select id, enabled and password_hash is not null as "canSignIn" from user_account
      where authority = $1 and tenant_id is not distinct from $2 order by id for update`,
    [authority, tenantId],
  );
}

/** Disabling ends every token of the user for good: an old token stays invalid after the user is enabled again. */
export async function setUserEnabled(
  queries: Queries,
  id: string,
  enabled: boolean,
  tokensOutdatedTime: number,
): Promise<void> {
  await queries.query(
    `update user_account set enabled = $2, failed_logins = 0,
            tokens_outdated_time = case when $2 then tokens_outdated_time else $3 end,
            session_epoch = session_epoch + case when $2 then 0 else 1 end
      where id = $1`,
    [id, enabled, tokensOutdatedTime],
  );
}

export async function findActivation(queries: Queries, userId: string): Promise<Activation | undefined> {
  const [activation] = await queries.query<Activation>(
    `select activate_token as token, activate_token_expires_time as "expiresTime"
       from user_account where id = $1 and activate_token is not null`,
    [userId],
  );
  return activation;
}

export async function setActivation(queries: Queries, userId: string, activation: Activation): Promise<void> {
  await queries.query(
    `update user_account set activate_token = $2, activate_token_expires_time = $3
      where id = $1 and password_hash is null`,
    [userId, activation.token, activation.expiresTime],
  );
}

export async function isActivationKnown(queries: Queries, token: string, now: number): Promise<boolean> {
  const rows = await queries.query(
    'select 1 from user_account where activate_token = $1 and activate_token_expires_time > $2',
    [token, now],
  );
  return rows.length === 1;
}

/** Returns the account of the token, which is valid once. */
export async function activateAccount(
  queries: Queries,
  token: string,
  hash: string,
  now: number,
): Promise<Account | undefined> {
  const [account] = await queries.query<Account>(
    `update user_account set password_hash = $2, activate_token = null, activate_token_expires_time = null
      where activate_token = $1 and activate_token_expires_time > $3 and password_hash is null
      returning ${columns}`,
    [token, hash, now],
  );
  return account;
}

/** The token allows its holder to choose a new password once. */
export async function setResetToken(
  queries: Queries,
  userId: string,
  tokenSha256: Buffer,
  expiresTime: number,
): Promise<void> {
  await queries.query('update user_account set reset_token_sha256 = $2, reset_token_expires_time = $3 where id = $1', [
    userId,
    tokenSha256,
    expiresTime,
  ]);
}

export async function isResetTokenKnown(queries: Queries, tokenSha256: Buffer, now: number): Promise<boolean> {
  const rows = await queries.query(
    'select 1 from user_account where reset_token_sha256 = $1 and reset_token_expires_time > $2',
    [tokenSha256, now],
  );
  return rows.length === 1;
}

/** Returns the account whose password was changed by the token, which is valid once. */
export async function resetPassword(
  queries: Queries,
  tokenSha256: Buffer,
  hash: string,
  now: number,
  tokensOutdatedTime: number,
): Promise<Account | undefined> {
  const [account] = await queries.query<Account>(
    `update user_account set password_hash = $2, reset_token_sha256 = null, reset_token_expires_time = null,
            failed_logins = 0, tokens_outdated_time = $4, session_epoch = session_epoch + 1
      where reset_token_sha256 = $1 and reset_token_expires_time > $3 and password_hash is not null
      returning ${columns}`,
    [tokenSha256, hash, now, tokensOutdatedTime],
  );
  return account;
}

/** Does not wait for the disk: losing this write in a crash does no harm. */
export async function recordSignIn(queries: Queries, userId: string, now: number): Promise<void> {
  await queries.query(
    `update user_account set failed_logins = 0, last_login_time = $2
       from (select set_config('synchronous_commit', 'off', true)) as relaxed where id = $1`,
    [userId, now],
  );
}

/**
 * Returns true when this wrong password locks the account. 0 = never locked. A system administrator is not locked while
 * no other one can sign in, because no user could unlock the account. Runs inside a transaction.
 */
export async function recordFailedSignIn(
  queries: Queries,
  { id, authority }: Pick<Account, 'id' | 'authority'>,
  failedMax: number,
): Promise<boolean> {
  const admins = authority === 'SYS_ADMIN' ? await lockAdmins(queries, authority, null) : [];
  const mayLock = authority !== 'SYS_ADMIN' || admins.some((admin) => admin.id !== id && admin.canSignIn);
  const [account] = await queries.query<{ enabled: boolean }>(
    `update user_account set failed_logins = failed_logins + 1,
            enabled = enabled and ($2 = 0 or failed_logins + 1 <= $2 or not $3)
      where id = $1 returning enabled`,
    [id, failedMax, mayLock],
  );
  return account?.enabled === false;
}

/**
 * Changes the password and ends every earlier token and reset link. Returns undefined when the password is no longer
 * the one of `hashBefore`.
 */
export async function changePassword(
  queries: Queries,
  userId: string,
  hashBefore: string,
  hash: string,
  tokensOutdatedTime: number,
): Promise<Account | undefined> {
  const [account] = await queries.query<Account>(
    `update user_account set password_hash = $3, tokens_outdated_time = $4, session_epoch = session_epoch + 1,
            reset_token_sha256 = null, reset_token_expires_time = null
      where id = $1 and password_hash = $2 returning ${columns}`,
    [userId, hashBefore, hash, tokensOutdatedTime],
  );
  return account;
}

/** A session of a user, or of a guest, whose `ownerId` is the public customer. */
export interface SessionOf {
  sessionId: string;
  ownerId: string;
}

/** Also deletes rows whose last token has expired. */
export async function outdateSession(
  queries: Queries,
  { sessionId, ownerId }: SessionOf,
  expiresTime: number,
  now: number,
): Promise<void> {
  await queries.query(
    `insert into outdated_session (session_id, owner_id, expires_time) values ($1, $2, $3)
     on conflict (session_id) do nothing`,
    [sessionId, ownerId, expiresTime],
  );
  await queries.query('delete from outdated_session where expires_time < $1', [now]);
}

/**
 * Accepts the refresh token with the number `renewal`; the next token has the number after it. Returns false when the
 * token was accepted earlier, except within the last `graceMs`. The clock is that of the database, so the rule holds
 * for all hosts.
 */
export async function renewSession(
  queries: Queries,
  { sessionId, ownerId }: SessionOf,
  renewal: number,
  times: { expiresTime: number; graceMs: number; now: number },
): Promise<boolean> {
  const taken = await queries.query(
    `insert into session_renewal as r (session_id, user_id, renewal, renewed_at, expires_time)
     values ($1, $2, $3 + 1, clock_timestamp(), $4)
     on conflict (session_id) do update set renewal = excluded.renewal, renewed_at = excluded.renewed_at,
            expires_time = excluded.expires_time
      where r.renewal = $3 returning 1`,
    [sessionId, ownerId, renewal, times.expiresTime],
  );
  await queries.query('delete from session_renewal where expires_time < $1', [times.now]);
  if (taken.length === 1) return true;
  const again = await queries.query(
    `select 1 from session_renewal where session_id = $1 and renewal = $2 + 1
        and renewed_at > clock_timestamp() - $3 * interval '1 millisecond'`,
    [sessionId, renewal, times.graceMs],
  );
  return again.length === 1;
}

/** Counts the stored sessions of the owner, at most `countMax`. */
export async function countSessions(queries: Queries, ownerId: string, countMax: number): Promise<number> {
  const [row] = await queries.query<{ count: number }>(
    `select count(*) from (
       (select from outdated_session where owner_id = $1 limit $2)
       union all (select from session_renewal where user_id = $1 limit $2)) as remembered`,
    [ownerId, countMax],
  );
  return row!.count;
}

/** Ends all sessions of a user and deletes their rows. For a guest only the rows are deleted. */
export async function endSessions(queries: Queries, ownerId: string, tokensOutdatedTime: number): Promise<void> {
  await queries.query(
    `update user_account set session_epoch = session_epoch + 1, tokens_outdated_time = $2 where id = $1`,
    [ownerId, tokensOutdatedTime],
  );
  await queries.query('delete from session_renewal where user_id = $1', [ownerId]);
  await queries.query('delete from outdated_session where owner_id = $1', [ownerId]);
}
