/** A user account, without its password. */
import type { Authority } from './roles.ts';

export interface User {
  id: string;
  createdTime: number;
  /** Null for a system administrator only. */
  tenantId: string | null;
  customerId: string | null;
  authority: Authority;
  email: string;
  firstName: string | null;
  lastName: string | null;
  phone: string | null;
  additionalInfo: unknown;
  version: number;
}

/** What a sign-in needs besides. */
export interface UserAccount extends User {
  /** Null until the user is activated. */
  passwordHash: string | null;
  enabled: boolean;
  lastLoginTime: number | null;
  /** Tokens of an earlier second are void. */
  tokensOutdatedTime: number;
}

/** The way of a new user to a password. */
export interface Activation {
  token: string;
  expiresTime: number;
}
