/** Says why the servers of the stream cannot be reached, in words that name what to change. */
import { AuthorizationError, PermissionViolationError, UserAuthenticationExpiredError } from '@nats-io/transport-node';
import { messageOf } from '../base/errors.ts';

export const noMajority =
  'no majority of its servers answers: they are unavailable, or have JetStream off, as after a full disk, or the ' +
  'account of STREAM_USER or STREAM_CREDS has no JetStream';

/** Returns why a connection fails, in words that say what to change. */
export function connectReason(error: unknown): string {
  const reason = messageOf(error);
  if (isLogin(error)) {
    return `the login was refused (${reason}): check STREAM_USER, STREAM_PASSWORD and STREAM_CREDS`;
  }
  if (isCertificate(error)) {
    return `the certificate of the servers is not accepted (${reason}): renew it, or check STREAM_TLS_CA`;
  }
  const violation = violationIn(error);
  if (violation !== undefined) return permissionReason(violation);
  if (isWithoutListener(error)) return noMajority;
  if (isWithoutServer(error)) return `no server was found there (${reason}): check STREAM_URL and the servers`;
  return reason;
}

export function permissionReason({ operation, subject }: PermissionViolationError): string {
  const may = operation === 'publish' ? 'publish' : 'subscribe';
  return `the login of STREAM_USER or STREAM_CREDS may not ${may} to "${subject}": change its permissions at the servers`;
}

/** Returns the refusal by the permissions of the login that has caused an error. */
export function violationIn(error: unknown): PermissionViolationError | undefined {
  if (error instanceof PermissionViolationError) return error;
  return error instanceof Error && error.cause !== undefined ? violationIn(error.cause) : undefined;
}

export function isLogin(error: unknown): boolean {
  return error instanceof AuthorizationError || error instanceof UserAuthenticationExpiredError;
}

/** True when no server listens for the stream. A server turns JetStream off when its disk is full. */
function isWithoutListener(error: unknown): boolean {
  return error instanceof Error && error.name === 'JetStreamNotEnabled';
}

/** True when nothing listens at the address, or its name is unknown. */
function isWithoutServer(error: unknown): boolean {
  const { code, cause } = error as { code?: unknown; cause?: unknown };
  if (/ECONNREFUSED|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH/.test(String(code))) return true;
  if (/^(connection refused|getaddrinfo )/.test(messageOf(error))) return true;
  return cause instanceof Error && isWithoutServer(cause);
}

export function isCertificate(error: unknown): boolean {
  const { code, cause } = error as { code?: unknown; cause?: unknown };
  if (/CERT|SIGNATURE|ISSUER/.test(String(code))) return true;
  return cause instanceof Error && isCertificate(cause);
}
