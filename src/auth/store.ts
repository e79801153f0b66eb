/** SQL of user accounts. */

import { limits } from '../base/limits.ts';
import type { Queries } from '../postgres/client.ts';
import { contains, containsPattern, type Page, type PageLink, readPage } from '../postgres/page.ts';
import { isUniqueViolation } from '../postgres/postgres-error.ts';
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
    `insert into sign_in_network (user_id, network, last_time)
     select id, $2, $3 from user_account where id = $1 for key share
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

/** Records a sign-in. Does not wait for the disk: losing this write in a crash does no harm. */
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
