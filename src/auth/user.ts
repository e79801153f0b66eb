/** Types of users and their accounts, and the rule on who may sign in. */
import type { Authority } from './roles.ts';

export interface UserNames {
  id: string;
  createdTime: number;
  /** Null only for a system administrator. */
  tenantId: string | null;
  customerId: string | null;
  authority: Authority;
  email: string;
  firstName: string | null;
  lastName: string | null;
  phone: string | null;
  version: number;
}

/** A user as the API returns it. */
export interface User extends UserNames {
  additionalInfo: unknown;
}

/** The columns that a sign-in and each request read; none of them is long. */
export interface Account extends UserNames {
  /** Null until the user is activated. */
  passwordHash: string | null;
  enabled: boolean;
  lastLoginTime: number | null;
  /** Tokens of an earlier second are void. */
  tokensOutdatedTime: number;
  /** The number of times that all sessions of the user were ended: tokens of an earlier epoch are void. */
  sessionEpoch: number;
}

export function canSignIn({ enabled, passwordHash }: Account): boolean {
  return enabled && passwordHash !== null;
}

export type UserAccount = User & Account;

/** The link with which a new user chooses a password. */
export interface Activation {
  token: string;
  expiresTime: number;
}
