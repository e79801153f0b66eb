/**
 * The errors of Millrace. A fault carries a stable code, an HTTP status and a sentence that says what the user has to
 * change; doors only translate it. A broken invariant is a bug and ends the process: `assert`.
 */

import { type Reason, type ReasonOf, type Status, statusOf } from './reasons.ts';
import { type Work, workKey } from './running-work.ts';

/** `errorCode` of the wire (docs/rest.md#errors). */
export const ErrorCode = {
  general: 2,
  authentication: 10,
  tokenExpired: 11,
  permissionDenied: 20,
  badRequest: 31,
  notFound: 32,
  tooManyRequests: 33,
  versionConflict: 35,
  entitiesLimit: 41,
} as const;

export type ErrorCode = (typeof ErrorCode)[keyof typeof ErrorCode];

/** Codes of reasons that differ from the usual code of their status. */
const ownCodes: { [Each in Reason]?: ErrorCode } = {
  token_expired: ErrorCode.tokenExpired,
  device_keys: ErrorCode.entitiesLimit,
  device_limit: ErrorCode.entitiesLimit,
  user_limit: ErrorCode.entitiesLimit,
  customer_limit: ErrorCode.entitiesLimit,
  gateway_children: ErrorCode.entitiesLimit,
};

const codes: Record<Status, ErrorCode> = {
  400: ErrorCode.badRequest,
  401: ErrorCode.authentication,
  403: ErrorCode.permissionDenied,
  404: ErrorCode.notFound,
  405: ErrorCode.badRequest,
  408: ErrorCode.general,
  409: ErrorCode.versionConflict,
  413: ErrorCode.badRequest,
  415: ErrorCode.badRequest,
  426: ErrorCode.badRequest,
  429: ErrorCode.tooManyRequests,
  431: ErrorCode.badRequest,
  500: ErrorCode.general,
  503: ErrorCode.general,
  504: ErrorCode.general,
};

export function errorCodeOf(reason: Reason): ErrorCode {
  return ownCodes[reason] ?? codes[statusOf(reason)];
}

/** An expected failure, ready for the wire. `reason` is the metric label; status and error code follow from it. */
export class Fault extends Error {
  readonly status: Status;
  readonly errorCode: ErrorCode;
  readonly reason: Reason;
  /** Seconds for `Retry-After`; 0 = no header. */
  readonly retryAfterSeconds: number;
  /** Further members of the error body, which a few codes have (docs/rest.md#errors). */
  members: Record<string, string | number> | undefined = undefined;

  /** `status`: for a door whose protocol answers this reason with another status. */
  constructor(reason: Reason, message: string, retryAfterSeconds = 0, status: Status = statusOf(reason)) {
    super(message);
    this.name = 'Fault';
    this.status = status;
    this.errorCode = errorCodeOf(reason);
    this.reason = reason;
    this.retryAfterSeconds = retryAfterSeconds;
  }
}

/** A fault as it passes from one thread to another. */
export type PlainFault = Pick<Fault, 'reason' | 'message' | 'retryAfterSeconds'>;

export function badRequest(reason: ReasonOf<400>, message: string): Fault {
  return new Fault(reason, message);
}

export function notFound(message: string): Fault {
  return new Fault('not_found', message);
}

export function tooLarge(reason: ReasonOf<413>, message: string): Fault {
  return new Fault(reason, message);
}

/** Returns the fault of a part that is unavailable or full; the caller should retry. */
export function unavailable(reason: ReasonOf<503>, message: string, retryAfterSeconds = 1): Fault {
  return new Fault(reason, message, retryAfterSeconds);
}

/** The refusal of a start: `message` is the one line that the operator reads; the process exits with `exitCode`. */
export class StartError extends Error {
  readonly exitCode: number;

  constructor(message: string, exitCode = 1) {
    super(message);
    this.name = 'StartError';
    this.exitCode = exitCode;
  }
}

/** A broken invariant. `work` is the work whose state is broken, as far as the assertion knows it. */
export class Bug extends Error {
  readonly work: Work | undefined;

  constructor(message: string, work: Work | undefined) {
    super(work === undefined ? `BUG: ${message}` : `BUG: ${message} (${workKey(work)})`);
    this.name = 'Bug';
    this.work = work;
  }
}

/** An object with a state of its own that can name itself, such as a connection. */
export interface Subject {
  work(): Work;
}

/**
 * A broken invariant is a bug: ends the process with a marked message instead of continuing with a wrong state.
 * `subject` is the object whose state is asserted: the message and the log of the death name that object.
 */
export function assert(condition: unknown, message: string, subject?: Subject): asserts condition {
  if (!condition) throw new Bug(message, subject?.work());
}

/**
 * Returns a fault unchanged. Any other error is a bug of one operation: it ends with this answer, the caller logs its
 * `cause`, and other operations continue. A bug that may leave shared state inconsistent must end the process instead.
 */
export function asFault(error: unknown): Fault {
  if (error instanceof Fault) return error;
  const fault = new Fault('bug', 'Internal error; the log of the server has the details.');
  fault.cause = error;
  return fault;
}

/** Returns a fault unchanged. Throws any other error, which is a bug. */
export function faultOrThrow(error: unknown): Fault {
  if (error instanceof Fault) return error;
  throw error;
}

export function isBug({ reason }: Fault): boolean {
  return reason === 'bug';
}

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

/** Returns the message of the cause of an error, which says more than the error; without a cause that of the error. */
export function causeMessageOf(error: unknown): string {
  return messageOf((error instanceof Error ? error.cause : undefined) ?? error);
}
