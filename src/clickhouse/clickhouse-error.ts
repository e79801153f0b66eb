/** What went wrong between us and ClickHouse, sorted by what the caller can do about it (reliability.md 2.2). */
import { ClickHouseError as ServerError } from '@clickhouse/client';
import { messageOf } from '../base/errors.ts';

/**
 * transient: the same again, later. size: the same in halves. poison: some row of it is refused for its content.
 * unknown: it may be either; what comes again and again is its content.
 */
export type ClickHouseErrorKind = 'transient' | 'size' | 'poison' | 'unknown';

export class ClickHouseError extends Error {
  /** ClickHouse's number; 0 when no server answered. */
  readonly code: number;
  readonly kind: ClickHouseErrorKind;
  /** The socket broke before an answer came: the statement may have run or not. */
  readonly connectionLost: boolean;

  constructor(code: number, kind: ClickHouseErrorKind, message: string, connectionLost = false) {
    super(message);
    this.name = 'ClickHouseError';
    this.code = code;
    this.kind = kind;
    this.connectionLost = connectionLost;
  }

  get transient(): boolean {
    return this.kind === 'transient';
  }
}

/** Memory of one statement, size of one body. */
const sizeCodes = new Set([229, 241, 307]);
/** Values that cannot be parsed or converted. */
const poisonCodes = new Set([6, 25, 26, 27, 33, 38, 41, 53, 69, 70, 72, 117, 321]);
/** Time, load, space, replicas, rights, a schema that is not there yet: the operator's or the store's, never the rows'. */
const transientCodes = new Set([
  60, 74, 75, 76, 81, 159, 160, 164, 173, 192, 193, 194, 202, 203, 209, 210, 236, 242, 243, 279, 285, 286, 319, 394,
  425, 439, 497, 516, 999,
]);
const tooManyParts = 252;
const resetCodes = new Set(['ECONNRESET', 'EPIPE', 'ECONNABORTED', 'UND_ERR_SOCKET']);

export function toClickHouseError(error: unknown): ClickHouseError {
  if (error instanceof ClickHouseError) return error;
  if (!(error instanceof ServerError)) {
    const { code } = error as { code?: string };
    const message = messageOf(error);
    return new ClickHouseError(0, 'transient', message, resetCodes.has(code ?? '') || message === 'socket hang up');
  }
  const code = Number(error.code);
  return new ClickHouseError(code, kindOf(code, error.message), `ClickHouse error ${code}: ${error.message}`);
}

function kindOf(code: number, message: string): ClickHouseErrorKind {
  if (sizeCodes.has(code)) return 'size';
  if (poisonCodes.has(code)) return 'poison';
  // Too many partitions in one block is about these rows, too many parts about the table's load.
  if (code === tooManyParts) return /partitions for single INSERT block/.test(message) ? 'poison' : 'transient';
  return transientCodes.has(code) ? 'transient' : 'unknown';
}
