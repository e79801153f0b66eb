/**
 * The errors of Millrace. A fault carries a stable code, an HTTP status and a sentence that tells the user what to
 * change; doors only translate it. A broken invariant is a bug and ends the process: `assert`.
 */

/** `errorCode` of the wire (docs/rest.md#errors). */
export const ErrorCode = {
  general: 2,
  authentication: 10,
  tokenExpired: 11,
  credentialsExpired: 15,
  permissionDenied: 20,
  invalidArguments: 30,
  badRequest: 31,
  notFound: 32,
  tooManyRequests: 33,
  tooManyUpdates: 34,
  versionConflict: 35,
  subscriptionViolation: 40,
  entitiesLimit: 41,
  passwordViolation: 45,
  database: 46,
} as const;

export type ErrorCode = (typeof ErrorCode)[keyof typeof ErrorCode];

/** An expected failure, ready for the wire. `reason` is the metric label: short, stable, without any user data. */
export class Fault extends Error {
  readonly status: number;
  readonly errorCode: ErrorCode;
  readonly reason: string;
  /** Seconds for `Retry-After`; 0 = no header. */
  readonly retryAfterSeconds: number;
  /** What the error body has beside its four members; a few codes have more (docs/rest.md#errors). */
  members: Record<string, string | number> | undefined = undefined;

  constructor(status: number, errorCode: ErrorCode, reason: string, message: string, retryAfterSeconds = 0) {
    super(message);
    this.name = 'Fault';
    this.status = status;
    this.errorCode = errorCode;
    this.reason = reason;
    this.retryAfterSeconds = retryAfterSeconds;
  }
}

export function badRequest(reason: string, message: string): Fault {
  return new Fault(400, ErrorCode.badRequest, reason, message);
}

export function notFound(message: string): Fault {
  return new Fault(404, ErrorCode.notFound, 'not_found', message);
}

export function tooLarge(reason: string, message: string): Fault {
  return new Fault(413, ErrorCode.badRequest, reason, message);
}

/** A part that Millrace needs is away or full; the caller should come back. */
export function unavailable(reason: string, message: string, retryAfterSeconds = 1): Fault {
  return new Fault(503, ErrorCode.general, reason, message, retryAfterSeconds);
}

/** The start-up refused: `message` is the one line the operator reads; the process exits with `exitCode`. */
export class StartError extends Error {
  readonly exitCode: number;

  constructor(message: string, exitCode = 1) {
    super(message);
    this.name = 'StartError';
    this.exitCode = exitCode;
  }
}

/** A broken invariant is a bug: crash with a marked message rather than go on with a wrong state. */
export function assert(condition: unknown, message: string): asserts condition {
  if (!condition) throw new Error(`BUG: ${message}`);
}

/**
 * A fault as it is. Anything else is a bug in one operation, which must not take the others down: the operation ends with
 * this answer, and whoever gives it logs its `cause`. Where others share what was half done, a bug ends the process.
 */
export function asFault(error: unknown): Fault {
  if (error instanceof Fault) return error;
  const fault = new Fault(500, ErrorCode.general, bugReason, 'Internal error; the log of the server has the details.');
  fault.cause = error;
  return fault;
}

export function isBug({ reason }: Fault): boolean {
  return reason === bugReason;
}

const bugReason = 'bug';

export function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
