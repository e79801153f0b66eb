/** The errors between Millrace and ClickHouse, sorted by what the caller can do. */
import { ClickHouseError as ServerError } from '@clickhouse/client';
import { messageOf } from '../../base/errors.ts';
import { serverCodes } from './server-codes.ts';

/**
 * What the caller can do. transient: send the same again, later; no row can be the cause. size: send the same in
 * smaller pieces. content: a value of some row may be the cause. unknown: send the same again, later; a row may be the
 * cause.
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
  /** The answer has more rows or bytes than its reader takes: only another query helps. */
  readonly answerTooLarge: boolean;

  constructor(code: number, kind: ClickHouseErrorKind, message: string, noAnswer: NoAnswer = {}) {
    super(message);
    this.name = 'ClickHouseError';
    this.code = code;
    this.kind = kind;
    this.connectionLost = noAnswer.connectionLost ?? false;
    this.timedOut = noAnswer.timedOut ?? false;
    this.answerTooLarge = noAnswer.answerTooLarge ?? code === serverCodes.tooManyRowsOrBytes;
  }

  get transient(): boolean {
    return this.kind === 'transient';
  }
}

/** True when no server answered, or none in time: the next call may fail as well, and the client reports the outage. */
export function isUnanswered(error: unknown): boolean {
  return error instanceof ClickHouseError && error.code === 0;
}

/** True before the primary has made the tables, which it does as soon as ClickHouse takes writes. */
export function isWithoutTables(error: unknown): boolean {
  return error instanceof ClickHouseError && error.code === serverCodes.unknownTable;
}

export function isWithoutDatabase(error: unknown): boolean {
  return error instanceof ClickHouseError && error.code === serverCodes.unknownDatabase;
}

/** Codes of a statement that takes too much time, memory or rows, or of a body that is too large. */
const sizeCodes = new Set<number>([
  serverCodes.tooManyRows,
  serverCodes.timeoutExceeded,
  serverCodes.socketTimeout,
  serverCodes.queryIsTooLarge,
  serverCodes.memoryLimitExceeded,
  serverCodes.tooManyBytes,
  serverCodes.tooManyRowsOrBytes,
]);
/** Codes of values that cannot be parsed, converted or kept. */
const contentCodes = new Set([6, 25, 26, 27, 33, 38, 41, 53, 69, 70, 72, 117, 131, 321, 349, 469]);
/**
 * Codes of load, space, replicas, Keeper, network, files, rights and a schema that does not exist yet: the store or its
 * operator has the cause. These errors never make a row a suspect. A code in no list is unknown.
 */
const transientCodes = new Set([
  16, 32, 47, 57, 60, 74, 75, 76, 81, 87, 107, 160, 164, 173, 192, 193, 194, 198, 201, 202, 203, 210, 218, 219, 225,
  236, 242, 243, 244, 254, 265, 279, 285, 286, 289, 305, 319, 341, 342, 364, 369, 373, 394, 415, 424, 425, 439, 452,
  473, 479, 497, 499, 516, 519, 571, 585, 594, 600, 649, 659, 665, 668, 689, 693, 722, 733, 745, 999, 1000, 1002,
]);
const resetCodes = new Set(['ECONNRESET', 'EPIPE', 'ECONNABORTED', 'UND_ERR_SOCKET']);

export function toClickHouseError(error: unknown): ClickHouseError {
  if (error instanceof ClickHouseError) return error;
  if (!(error instanceof ServerError)) {
    const { code } = error as { code?: string };
    const message = messageOf(error);
    // The client knows no error of the server whose text quotes bytes, or was cut: it has no name at its end then.
    const answered = errorInAnswer(message);
    if (answered) return answered;
    const connectionLost = resetCodes.has(code ?? '') || message === 'socket hang up';
    return new ClickHouseError(0, 'transient', message, { connectionLost });
  }
  const code = Number(error.code);
  return new ClickHouseError(code, kindOf(code, error.message), messageFor(code, error.message));
}

/** Like `errorInAnswer`, for a statement whose successful answer has no body: any other answer is an error. */
export function errorInEmptyAnswer(body: string): ClickHouseError | undefined {
  const error = errorInAnswer(body);
  if (error || body.trim() === '') return error;
  return new ClickHouseError(0, 'transient', `an unexpected answer: ${body.slice(0, 200)}`);
}

/**
 * Returns the error in an answer with status 200: a server that sends progress in headers has sent its status before
 * the statement fails. Undefined: there is no error.
 */
export function errorInAnswer(text: string): ClickHouseError | undefined {
  const match = /Code: (\d+)\. DB::.*Exception/.exec(text);
  if (!match) return undefined;
  const code = Number(match[1]);
  return new ClickHouseError(code, kindOf(code, text), messageFor(code, text.slice(match.index, 2_000)));
}

/** Returns the error with the fact that an earlier attempt of the statement lost its connection. */
export function afterLostConnection({ code, kind, message }: ClickHouseError): ClickHouseError {
  return new ClickHouseError(code, kind, message, { connectionLost: true });
}

/** The sentence of a full disk says what to change: the text of ClickHouse names settings that are not the cause. */
function messageFor(code: number, text: string): string {
  const said =
    code === serverCodes.notEnoughSpace ? 'its disk is too full for writes: free space on it, or enlarge it.' : text;
  return `ClickHouse error ${code}: ${said}`;
}

function kindOf(code: number, message: string): ClickHouseErrorKind {
  if (sizeCodes.has(code)) return 'size';
  if (contentCodes.has(code)) return 'content';
  // Too many partitions in one block is about these rows, too many parts about the table's load.
  if (code === serverCodes.tooManyParts)
    return /partitions for single INSERT block/.test(message) ? 'size' : 'transient';
  return transientCodes.has(code) ? 'transient' : 'unknown';
}
