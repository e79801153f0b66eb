/** What an error of PostgreSQL means: an unavailable server, a lost race, or a refusal of the statement. */
import { Fault, messageOf, unavailable } from '../base/errors.ts';
import { readOnlyState } from './servers.ts';

const awayReason = 'postgres_away';
const retryAfterSeconds = 1;

/**
 * Classes of SQLSTATE of a server that is unavailable: 08 connection, 53 resources (connections, disk), 57 shut down or
 * cancelled by a timeout, 58 an error of its system, such as a library that cannot be loaded for lack of memory.
 */
const awayClasses = new Set(['08', '53', '57', '58']);
/**
 * Codes of Node itself, which stand for a wrong call: a bug of ours. Other codes that are no SQLSTATE come from
 * sockets, the name service and TLS.
 */
const bugCode = /^ERR_(?!TLS_|SSL_|SOCKET_|STREAM_)/;
/** The message of a query that had no answer in time, here and in `pg`. */
export const queryReadTimeout = 'Query read timeout';
/** Messages of `pg` and `pg-pool` errors without a code. */
const awayMessage =
  /^(Connection terminated|Query read timeout|timeout expired|timeout exceeded when trying to connect|Client has encountered a connection error)/;

export function postgresAway(): Fault {
  return unavailable(awayReason, 'The database cannot be reached at the moment. Try again later.');
}

/** The refusal of a caller whose commit got no answer: the changes may have been made. */
class LostCommit extends Fault {
  constructor() {
    const message =
      'The connection to the database was lost during this change, which may have been made: check before you send it again.';
    super(awayReason, message, retryAfterSeconds);
  }
}

export function lostCommit(cause: unknown): Fault {
  const fault = new LostCommit();
  fault.cause = cause;
  return fault;
}

/** True when it is unknown whether the transaction was committed. */
export function isLostCommit(error: unknown): boolean {
  return error instanceof LostCommit;
}

/** True when the error means that the server is unavailable or overloaded, not that the statement is wrong. */
export function isAway(error: unknown): boolean {
  if (error instanceof Fault) return error.reason === awayReason;
  if (error instanceof AggregateError) return error.errors.length > 0 && error.errors.every(isAway);
  if (!(error instanceof Error)) return false;
  const code = codeOf(error);
  if (code === undefined) return awayMessage.test(error.message);
  return isSqlState(code) ? awayClasses.has(code.slice(0, 2)) || isReadOnly(error) : !bugCode.test(code);
}

/** True when the server accepts no writes: after a switchover another one does. */
export function isReadOnly(error: unknown): boolean {
  return codeOf(error) === readOnlyState;
}

/** True when a server that runs refused for its load, or a statement met its deadline. */
export function isSlow(error: unknown): boolean {
  const code = codeOf(error);
  if (code === undefined) return isSilent(error);
  return code === '57014' || (isSqlState(code) && code.startsWith('53'));
}

/**
 * True when a statement had no answer at its deadline: the server may be slow, or gone without closing its connections.
 */
export function isSilent(error: unknown): boolean {
  return codeOf(error) === undefined && messageOf(error).startsWith(queryReadTimeout);
}

/** True for a serialization failure or a deadlock: a repetition may succeed. */
export function isLostRace(error: unknown): boolean {
  const code = codeOf(error);
  return code === '40001' || code === '40P01';
}

/** The refusal of a caller whose work lost a race. */
export function raceLost(): Fault {
  return unavailable('postgres_contended', 'The same data was changed by others at the same moment. Try again.');
}

/** True when a unique index refused the row; `constraint` names one index. */
export function isUniqueViolation(error: unknown, constraint?: string): boolean {
  if (codeOf(error) !== '23505') return false;
  return constraint === undefined || (error as { constraint?: string }).constraint === constraint;
}

/** True when a row is referenced by others, or refers to one that is gone; `constraint` names some references. */
export function isForeignKeyViolation(error: unknown, constraint?: string | RegExp): boolean {
  if (codeOf(error) !== '23503') return false;
  const { constraint: violated = '' } = error as { constraint?: string };
  if (constraint instanceof RegExp) return constraint.test(violated);
  return constraint === undefined || violated === constraint;
}

/** Returns the SQLSTATE of a refusal, as `23503`. */
export function sqlStateOf(error: unknown): string | undefined {
  const code = codeOf(error);
  return code !== undefined && isSqlState(code) ? code : undefined;
}

export function codeOf(error: unknown): string | undefined {
  const code = (error as { code?: unknown } | null | undefined)?.code;
  return typeof code === 'string' ? code : undefined;
}

/** No class of PostgreSQL begins with E, as the codes of the operating system do. */
function isSqlState(code: string): boolean {
  return /^[0-9A-DF-Z][0-9A-Z]{4}$/.test(code);
}

/** True for a refusal by a healthy server, after which the connection can be used again. */
export function isOrdinary(error: unknown): boolean {
  return (error as { severity?: unknown } | null)?.severity === 'ERROR' && !isReadOnly(error);
}
