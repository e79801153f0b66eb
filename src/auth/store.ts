/** SQL of user accounts, sessions that were signed out, and the secrets that all hosts share. */
import type { Queries } from '../postgres/client.ts';
import type { User, UserAccount } from './user.ts';

const columns = `id, created_time as "createdTime", tenant_id as "tenantId", customer_id as "customerId", authority, email,
  first_name as "firstName", last_name as "lastName", phone, additional_info as "additionalInfo", version,
  password_hash as "passwordHash", enabled, last_login_time as "lastLoginTime",
  tokens_outdated_time as "tokensOutdatedTime"`;

export async function findAccountByEmail(queries: Queries, email: string): Promise<UserAccount | undefined> {
  const [account] = await queries.query<UserAccount>(
    `select ${columns} from user_account where lower(email) = lower($1)`,
    [email],
  );
  return account;
}

/** The account of a session, and whether that session was signed out: one round trip for each request. */
export async function findSession(
  queries: Queries,
  userId: string,
  sessionId: string,
): Promise<(UserAccount & { sessionOutdated: boolean }) | undefined> {
  const [session] = await queries.query<UserAccount & { sessionOutdated: boolean }>(
    `select ${columns}, exists (select 1 from outdated_session where session_id = $2) as "sessionOutdated"
       from user_account where id = $1`,
    [userId, sessionId],
  );
  return session;
}

export type NewUser = User & { passwordHash: string | null };

/** False when the email is taken. */
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

export async function recordSignIn(queries: Queries, userId: string, now: number): Promise<void> {
  await queries.query('update user_account set failed_logins = 0, last_login_time = $2 where id = $1', [userId, now]);
}

/** True when this wrong password was one too many and the account is now locked. 0 = never. */
export async function recordFailedSignIn(queries: Queries, userId: string, failedMax: number): Promise<boolean> {
  const [account] = await queries.query<{ enabled: boolean }>(
    `update user_account set failed_logins = failed_logins + 1,
            enabled = enabled and ($2 = 0 or failed_logins + 1 <= $2)
      where id = $1 returning enabled`,
    [userId, failedMax],
  );
  return account?.enabled === false;
}

/** Tokens issued in a second before that of `now` are void from here on. */
export async function changePassword(queries: Queries, userId: string, hash: string, now: number): Promise<void> {
  await queries.query('update user_account set password_hash = $2, tokens_outdated_time = $3 where id = $1', [
    userId,
    hash,
    now,
  ]);
}

/** Rows whose last token has expired by itself go on this occasion. */
export async function outdateSession(
  queries: Queries,
  sessionId: string,
  expiresTime: number,
  now: number,
): Promise<void> {
  await queries.query(
    `insert into outdated_session (session_id, expires_time) values ($1, $2) on conflict (session_id) do nothing`,
    [sessionId, expiresTime],
  );
  await queries.query('delete from outdated_session where expires_time < $1', [now]);
}

/** The setting `name`; the first caller of all hosts sets it to `value`. */
export async function findOrInsertSetting(queries: Queries, name: string, value: string): Promise<string> {
  await queries.query('insert into setting (name, value) values ($1, $2) on conflict (name) do nothing', [name, value]);
  const [row] = await queries.query<{ value: string }>('select value from setting where name = $1', [name]);
  return row!.value;
}
