/** The 401 faults of sign-ins and of calls (docs/rest.md#sign-in). Each reveals only what the caller may know. */
import { Fault } from '../base/errors.ts';
import type { ReasonOf } from '../base/reasons.ts';

export function unauthorized(reason: ReasonOf<401>, message: string): Fault {
  return new Fault(reason, message);
}

/** The refusal of a call without a usable credential. */
export function authenticationFailed(message = 'Authentication failed'): Fault {
  return unauthorized('authentication', message);
}

/** The refusal of a wrong user name, password, token or key: the answer does not reveal which users exist. */
export function wrongCredentials(): Fault {
  return unauthorized('credentials', 'Invalid username or password');
}

/** The refusal of a user who is disabled or has not chosen a password. */
export function notActive(): Fault {
  return unauthorized('account_inactive', 'User account is not active');
}

export function tokenExpired(): Fault {
  return unauthorized('token_expired', 'Token has expired');
}

/** The refusal of a refresh token whose session has ended, or which was used before. */
export function tokenOutdated(): Fault {
  return unauthorized('token_outdated', 'Token is outdated');
}
