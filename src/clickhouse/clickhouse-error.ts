/** The errors between Millrace and ClickHouse, sorted by what the caller can do. */
import { ClickHouseError as ServerError } from '@clickhouse/client';
import { messageOf } from '../base/errors.ts';

/**
 * transient: the same again, later; no row can be the cause. size: the same in smaller pieces. content: a value of some
 * row may be the cause. unknown: the same again, later, as for transient; a row as the cause is not ruled out.
 */
type ClickHouseErrorKind = 'transient' | 'size' | 'content' | 'unknown';

interface NoAnswer {
  /** The socket broke before an answer came: the statement may have run or not. */
  connectionLost?: boolean;
  /** The caller's deadline passed: the statement may still run. */
  timedOut?: boolean;
  /** The rest of an answer was not read, because it is too long. */
  answerTooLarge?: boolean;
}

export class ClickHouseError extends Error {
  /** ClickHouse's number; 0 when no server answered. */
  readonly code: number;
  readonly kind: ClickHouseErrorKind;
  readonly connectionLost: boolean;
  readonly timedOut: boolean;
  /** The answer has more rows or bytes than its reader takes: only another question helps. */
  readonly answerTooLarge: boolean;

  constructor(code: number, kind: ClickHouseErrorKind, message: string, noAnswer: NoAnswer = {}) {
    super(message);
    this.name = 'ClickHouseError';
    this.code = code;
    this.kind = kind;
    this.connectionLost = noAnswer.connectionLost ?? false;
    this.timedOut = noAnswer.timedOut ?? false;
    this.answerTooLarge = noAnswer.answerTooLarge ?? code === resultTooLarge;
  }

  get transient(): boolean {
    return this.kind === 'transient';
  }
}

/** True when no server answered in time or at all: the next call may fare no better, and the client reports it. */
export function isUnanswered(error: unknown): boolean {
  return error instanceof ClickHouseError && error.code === 0;
}

/** Time, memory and rows of one statement, size of one body. */
const sizeCodes = new Set([158, 159, 209, 229, 241, 307, 396]);
/** Values that cannot be parsed, converted or kept. */
const contentCodes = new Set([6, 25, 26, 27, 33, 38, 41, 53, 69, 70, 72, 117, 131, 321, 349, 469]);
/**
 * Load, space, replicas, Keeper, network, files, rights, a schema that is not there yet: causes that lie with the store
 * or its operator. The list only says which errors never make a row a suspect; a code that is not in it is unknown.
 */
const transientCodes = new Set([
  16, 32, 47, 57, 60, 74, 75, 76, 81, 87, 107, 160, 164, 173, 192, 193, 194, 198, 201, 202, 203, 210, 218, 219, 225,
  236, 242, 243, 244, 254, 265, 279, 285, 286, 289, 305, 319, 341, 342, 364, 369, 373, 394, 415, 424, 425, 439, 452,
  473, 479, 497, 499, 516, 519, 571, 585, 594, 600, 649, 659, 665, 668, 689, 693, 722, 733, 745, 999, 1000, 1002,
]);
const tooManyParts = 252;
/** A result beyond `max_result_rows` or `max_result_bytes`. */
const resultTooLarge = 396;
const resetCodes = new Set(['ECONNRESET', 'EPIPE', 'ECONNABORTED', 'UND_ERR_SOCKET']);

export function toClickHouseError(error: unknown): ClickHouseError {
  if (error instanceof ClickHouseError) return error;
  if (!(error instanceof ServerError)) {
    const { code } = error as { code?: string };
    const message = messageOf(error);
    const connectionLost = resetCodes.has(code ?? '') || message === 'socket hang up';
    return new ClickHouseError(0, 'transient', message, { connectionLost });
  }
  const code = Number(error.code);
  return new ClickHouseError(code, kindOf(code, error.message), `ClickHouse error ${code}: ${error.message}`);
}

/**
 * Returns the error in an answer with status 200: a server that sends progress in headers has sent its status before
 * the statement fails. `isEmpty`: a successful answer has no body. Undefined: there is no error.
 */
export function errorInAnswer(body: string, isEmpty: boolean): ClickHouseError | undefined {
  const match = /Code: (\d+)\. DB::.*Exception/.exec(body);
  if (!match && (!isEmpty || body.trim() === '')) return undefined;
  if (!match) return new ClickHouseError(0, 'transient', `an unexpected answer: ${body.slice(0, 200)}`);
  const code = Number(match[1]);
  return new ClickHouseError(code, kindOf(code, body), `ClickHouse error ${code}: ${body.slice(match.index, 2_000)}`);
}

/** The same error about a statement of which an earlier attempt lost its connection. */
export function afterLostConnection({ code, kind, message }: ClickHouseError): ClickHouseError {
  return new ClickHouseError(code, kind, message, { connectionLost: true });
}

function kindOf(code: number, message: string): ClickHouseErrorKind {
  if (sizeCodes.has(code)) return 'size';
  if (contentCodes.has(code)) return 'content';
  // Too many partitions in one block is about these rows, too many parts about the table's load.
  if (code === tooManyParts) return /partitions for single INSERT block/.test(message) ? 'size' : 'transient';
  return transientCodes.has(code) ? 'transient' : 'unknown';
}
