/**
 * Recognises failures of a store that show a wrong setting: a refused login, an unknown database, a missing right, a
 * schema that this version cannot use. A start ends with one line for them. Every other failure may be temporary.
 */
import { messageOf, StartError } from '../../base/errors.ts';
import { ClickHouseError } from '../../clickhouse/client.ts';
import { sqlStateOf } from '../../postgres/postgres-error.ts';

/** UNKNOWN_USER, WRONG_PASSWORD, REQUIRED_PASSWORD, ACCESS_DENIED, AUTHENTICATION_FAILED. */
const refusedLogins = new Set([192, 193, 194, 497, 516]);

export function clickHouseRefusal(error: unknown, title: string, user: string): StartError | undefined {
  if (error instanceof StartError) return error;
  if (!(error instanceof ClickHouseError) || !refusedLogins.has(error.code)) return undefined;
  return new StartError(
    `${title} refuses the user "${user}": check CLICKHOUSE_USER, CLICKHOUSE_PASSWORD and the rights of that user (error ${error.code}).`,
  );
}

export function postgresRefusal(error: unknown, title: string): StartError | undefined {
  if (error instanceof StartError) return error;
  const state = sqlStateOf(error);
  // 28: login refused. 3D000: no such database. 42501: a right is missing.
  if (state === undefined || !(state.startsWith('28') || state === '3D000' || state === '42501')) return undefined;
  return new StartError(`${title} refuses: ${messageOf(error)}. Check DATABASE_URL and the rights of that user.`);
}

/** Host and port of a URL: no user, no password. */
export function hostOf(url: string): string {
  return URL.parse?.(url)?.host ?? url.replace(/\/\/[^@/]*@/, '//');
}
