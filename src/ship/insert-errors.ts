/** What the error of an insert says: about the store, and about the rows. */
import type { ClickHouseError } from '../clickhouse/client.ts';

/** The likely cause of the failures of a single row; `size` and `unknown` take longer to prove. */
export type Suspicion = 'content' | 'crash' | 'unknown' | 'size';

/** True for an error that shows only that the store is unavailable. */
export function isNoAnswer({ code, timedOut }: ClickHouseError): boolean {
  return code === 0 && !timedOut;
}

/** Returns the one of two errors that says more about the rows. */
export function worstOf(errors: readonly (ClickHouseError | undefined)[]): ClickHouseError | undefined {
  return errors.filter((error) => error !== undefined).sort((a, b) => weightOf(b) - weightOf(a))[0];
}

function weightOf({ connectionLost, kind, timedOut }: ClickHouseError): number {
  if (connectionLost) return 4;
  if (kind === 'content') return 3;
  return kind === 'size' || timedOut ? 2 : 1;
}

/** Returns the word for a failed insert in metrics and in the log. */
export function failureOf({ timedOut, connectionLost, code, kind }: ClickHouseError): string {
  if (timedOut) return 'timeout';
  if (connectionLost) return 'connection_lost';
  return code === 0 ? 'no_answer' : kind;
}

/** Returns the cause that the last error of a refused row suggests. */
export function suspicionOf({ kind, connectionLost }: ClickHouseError): Suspicion {
  if (kind === 'content') return 'content';
  if (connectionLost) return 'crash';
  return kind === 'unknown' ? 'unknown' : 'size';
}
