/** Opens what serves users and their programs: sign-in, passwords, sessions, and the callers of requests. */
import { type PasswordChangeDeps, PasswordChanges } from './password-changes.ts';
import { type RequestCallerDeps, RequestCallers } from './request-callers.ts';
import { type UserSessionDeps, UserSessions } from './user-sessions.ts';
import { UserSignIn, type UserSignInDeps } from './user-sign-in.ts';

export interface AuthDeps extends UserSessionDeps, UserSignInDeps, PasswordChangeDeps, RequestCallerDeps {}

export interface Auth {
  callers: RequestCallers;
  sessions: UserSessions;
  signIn: UserSignIn;
  passwords: PasswordChanges;
}

export function openAuth(deps: AuthDeps): Auth {
  const sessions = new UserSessions(deps);
  const signIn = new UserSignIn(deps, sessions);
  const passwords = new PasswordChanges(deps, signIn);
  return { callers: new RequestCallers(deps, sessions), sessions, signIn, passwords };
}
