/** SQL of the sessions of users and guests. A session has a row only when it was signed out or renewed. */

import { byPlace } from '../base/gathered-statements.ts';
import type { Queries } from '../postgres/client.ts';
import { accountColumns } from './store.ts';
import type { Account } from './user.ts';

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

/** A session of a user, or of a guest, whose `ownerId` is the public customer. */
export interface OwnedSession {
  sessionId: string;
  ownerId: string;
}

/** Signs a session out until its last token expires at `expiresTime`. Also deletes the rows of expired sessions. */
export async function outdateSession(
  queries: Queries,
  { sessionId, ownerId }: OwnedSession,
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
 * Accepts the refresh token with the number `renewal`; the next token has the next number. Returns false when the token
 * was accepted before, except within the last `graceMs`. The database measures this time, so all hosts agree.
 */
export async function renewSession(
  queries: Queries,
  { sessionId, ownerId }: OwnedSession,
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
