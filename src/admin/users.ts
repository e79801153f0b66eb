/**
 * Users of a tenant and its customers, as administrators manage them (docs/rest.md#users). This file has every rule on
 * which user may change which other user; a user's own password and sessions are in `auth/`.
 */

import { randomBytes } from 'node:crypto';
import { sha256 } from '../auth/api-key.ts';
import { tokensOutdatedTimeAt } from '../auth/jwt.ts';
import { type Authority, entityNotFound, type Principal, permissionDenied } from '../auth/roles.ts';
import {
  deleteUserRow,
  findAccount,
  findActivation,
  insertUser,
  isOthersEmail,
  lockAdmins,
  setActivation,
  setResetToken,
  setUserEnabled,
  updateUser,
} from '../auth/store.ts';
import type { Activation, User, UserAccount } from '../auth/user.ts';
import { checkVersion } from '../base/check-version.ts';
import type { Clock } from '../base/clock.ts';
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { createUuid } from '../base/uuid.ts';
import { checkDocument, checkText } from '../device/model/device.ts';
import { holdCustomer } from '../device/sql/store.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { checkEmail } from './customer.ts';
import { admitUser, type LimitsOf } from './entity-limits.ts';
import { findTenant } from './store.ts';
import { type CheckAgain, choosing, type TakenNames } from './taken-names.ts';

/** A user as another user saves it; absent members are cleared. */
export interface UserInput {
  email: string;
  authority: Authority | null;
  tenantId: string | null;
  customerId: string | null;
  firstName?: string | null | undefined;
  lastName?: string | null | undefined;
  phone?: string | null | undefined;
  additionalInfo?: unknown;
  version?: number | null | undefined;
}

export interface UserDeps {
  postgres: Postgres;
  clock: Clock;
  /** What a tenant may have. */
  limitsOf: LimitsOf;
  /** Absent where no tenant chooses emails. */
  takenNames?: TakenNames;
}

/** Members of `additionalInfo` that a reader receives and that are not stored. */
const shownInfo = ['userCredentialsEnabled', 'userActivated', 'lastLoginTs'];

/** Throws the refusals of `createUser`, except the one for a taken email. */
export async function checkNewUser(postgres: Postgres, caller: Principal, input: UserInput): Promise<void> {
  await checkOwners(postgres, newUser(caller, input, 0));
}

/** Creates a user, who is not activated yet. */
export async function createUser(deps: UserDeps, caller: Principal, input: UserInput): Promise<User> {
  const { postgres, clock, limitsOf } = deps;
  const now = clock.now();
  const user = newUser(caller, input, now);
  await choosingEmail(deps, caller, user.email, (checkAgain) =>
    postgres.transaction(async (queries) => {
      if (user.tenantId !== null) await admitUser(queries, user.tenantId, limitsOf(user.tenantId).usersMax);
      await checkOwners(queries, user);
      if (!(await insertUser(queries, { ...user, passwordHash: null }))) throw emailTaken(user.email);
      await setActivation(queries, user.id, newActivation(now));
      await checkAgain(queries);
    }),
  );
  return user;
}

async function choosingEmail<T>(
  deps: Pick<UserDeps, 'postgres' | 'takenNames'>,
  { tenantId }: Principal,
  email: string,
  work: (checkAgain: CheckAgain) => Promise<T>,
): Promise<T> {
  const isOthers = () => isOthersEmail(deps.postgres, tenantId!, email);
  return await choosing(deps, tenantId, isOthers, work);
}

function newUser(caller: Principal, input: UserInput, now: number): User {
  const names = checkedNames(input);
  const { authority } = input;
  if (authority === null) throw badRequest('authority', "User authority isn't defined!");
  const { tenantId, customerId } = ownersOf(caller, { ...input, authority });
  return { id: createUuid(now), createdTime: now, tenantId, customerId, authority, ...names, version: 1 };
}

/**
 * Changes name, email and similar members. Tenant, customer and authority of a user never change. The email is the name
 * of the sign-in: only a caller that is `proven` by its own password changes its own email or that of an equal.
 */
export async function saveUser(
  deps: Pick<UserDeps, 'postgres' | 'takenNames'>,
  caller: Principal,
  id: string,
  input: UserInput,
  proven: boolean,
): Promise<User> {
  const save = (checkAgain?: CheckAgain) => saveChecked(deps.postgres, caller, id, input, proven, checkAgain);
  const isChosen = (await findAccount(deps.postgres, id))?.email !== input.email;
  return isChosen ? await choosingEmail(deps, caller, input.email, save) : await save();
}

async function saveChecked(
  postgres: Postgres,
  caller: Principal,
  id: string,
  input: UserInput,
  proven: boolean,
  checkAgain?: CheckAgain,
): Promise<User> {
  return await postgres.transaction(async (queries) => {
    const stored = checkReachable(caller, id, await findAccount(queries, id, 'lock'), 'write');
    checkVersion('User', stored.version, input.version);
    if (input.authority !== null && input.authority !== stored.authority) {
      throw badRequest('authority', "Can't update user authority!");
    }
    if (input.tenantId !== null && input.tenantId !== stored.tenantId) {
      throw badRequest('tenant', "Can't update user tenant id!");
    }
    if (input.customerId !== stored.customerId) throw badRequest('customer', "Can't update user customer id!");
    const user = { ...stored, ...checkedNames(input), version: stored.version + 1 };
    const isOthers = caller.authority !== 'CUSTOMER_USER' && isBelow(caller, stored);
    if (user.email !== stored.email && !proven && !isOthers) {
      throw badRequest('email_password', 'To change this email give your own password as "currentPassword".');
    }
    if (!(await updateUser(queries, user))) throw emailTaken(user.email);
    await checkAgain?.(queries);
    return user;
  });
}

export async function deleteUser(postgres: Postgres, caller: Principal, id: string): Promise<void> {
  await postgres.transaction(async (queries) => {
    const found = checkReachable(caller, id, await findAccount(queries, id), 'administer');
    if (found.authority !== 'CUSTOMER_USER') await keepOneAdmin(queries, found);
    else if (!(await findAccount(queries, id, 'lock'))) throw entityNotFound('User', id);
    await deleteUserRow(queries, id);
  });
}

/** Enables or disables a user. Disabling ends every session for good. */
export async function enableUser(
  { postgres, clock }: Pick<UserDeps, 'postgres' | 'clock'>,
  caller: Principal,
  id: string,
  enabled: boolean,
): Promise<void> {
  const outdatedTime = tokensOutdatedTimeAt(clock.now());
  await postgres.transaction(async (queries) => {
    const found = checkReachable(caller, id, await findAccount(queries, id), 'administer');
    if (!enabled) await keepOneAdmin(queries, found);
    await setUserEnabled(queries, id, enabled, outdatedTime);
  });
}

/** Throws 400 when no other administrator could sign in. Locks the administrators until the transaction ends. */
async function keepOneAdmin(queries: Queries, { id, authority, tenantId }: UserAccount): Promise<void> {
  if (authority === 'CUSTOMER_USER') return;
  const admins = await lockAdmins(queries, authority, tenantId);
  const admin = admins.find((one) => one.id === id);
  if (!admin) throw entityNotFound('User', id);
  if (admins.some((one) => one !== admin && (one.canSignIn || !admin.canSignIn))) return;
  const whose = authority === 'TENANT_ADMIN' ? 'tenant' : 'system';
  throw badRequest('last_admin', `At least one ${whose} administrator must remain!`);
}

export async function reachableUser(queries: Queries, caller: Principal, id: string): Promise<UserAccount> {
  return checkReachable(caller, id, await findAccount(queries, id), 'read');
}

/** Returns the token with which the user chooses a password; a new token when the old one has expired. */
export async function activationOf(
  { postgres, clock }: Pick<UserDeps, 'postgres' | 'clock'>,
  caller: Principal,
  id: string,
): Promise<Activation> {
  return await postgres.transaction(async (queries) => {
    const stored = checkReachable(caller, id, await findAccount(queries, id, 'lock'), 'administer');
    if (stored.passwordHash !== null) throw badRequest('activated', 'User is already activated!');
    const known = await findActivation(queries, id);
    if (known && known.expiresTime > clock.now()) return known;
    const activation = newActivation(clock.now());
    await setActivation(queries, id, activation);
    return activation;
  });
}

/**
 * Returns a token with which a user who forgot the password chooses a new one; earlier tokens become invalid. Allowed
 * only for users below the caller (`accountToSignIn`): a caller who chooses the password of an equal could sign in as
 * that equal.
 */
export async function resetTokenOf(
  { postgres, clock }: Pick<UserDeps, 'postgres' | 'clock'>,
  caller: Principal,
  id: string,
): Promise<string> {
  const account = await accountToSignIn(postgres, caller, id);
  if (account.passwordHash === null) throw badRequest('not_activated', 'User is not activated yet!');
  const token = randomBytes(24).toString('base64url');
  await setResetToken(postgres, id, sha256(token), clock.now() + limits.passwordResetMsMax);
  return token;
}

/** Returns the user for whom the caller may make, see and revoke API keys. */
export async function keyOwner(queries: Queries, caller: Principal, id: string): Promise<UserAccount> {
  const account = checkReachable(caller, id, await findAccount(queries, id), 'read');
  // A tenant administrator may act for all users of the tenant, any other user only for the own account.
  if (caller.authority !== 'TENANT_ADMIN' && account.id !== caller.userId) throw permissionDenied();
  return account;
}

/** Returns an account whose token the caller may request: the account of an administrator below, not of an equal. */
export async function accountToSignIn(queries: Queries, caller: Principal, id: string): Promise<UserAccount> {
  const account = checkReachable(caller, id, await findAccount(queries, id), 'administer');
  if (!isBelow(caller, account)) throw permissionDenied();
  return account;
}

function isBelow(caller: Principal, account: UserAccount): boolean {
  return account.authority === (caller.authority === 'SYS_ADMIN' ? 'TENANT_ADMIN' : 'CUSTOMER_USER');
}

/** A user of another tenant is not found. A user of this tenant that the caller may not touch is refused. */
function checkReachable(
  caller: Principal,
  id: string,
  account: UserAccount | undefined,
  purpose: 'read' | 'write' | 'administer',
): UserAccount {
  if (!account) throw entityNotFound('User', id);
  switch (caller.authority) {
    case 'SYS_ADMIN':
      if (account.authority === 'CUSTOMER_USER') throw permissionDenied();
      return account;
    case 'TENANT_ADMIN':
      if (account.tenantId !== caller.tenantId) throw entityNotFound('User', id);
      return account;
    case 'CUSTOMER_USER':
      if (account.tenantId !== caller.tenantId) throw entityNotFound('User', id);
      if (account.customerId !== caller.customerId) throw permissionDenied();
      if (purpose !== 'read' && (purpose === 'administer' || account.id !== caller.userId)) throw permissionDenied();
      return account;
  }
}

function ownersOf(
  caller: Principal,
  input: UserInput & { authority: Authority },
): { tenantId: string | null; customerId: string | null } {
  const { authority, customerId } = input;
  if (caller.authority === 'CUSTOMER_USER') throw permissionDenied();
  if (caller.authority === 'TENANT_ADMIN') {
    if (authority === 'SYS_ADMIN') throw permissionDenied();
    return { tenantId: caller.tenantId, customerId };
  }
  if (authority === 'CUSTOMER_USER') throw permissionDenied();
  return { tenantId: input.tenantId, customerId };
}

async function checkOwners(queries: Queries, user: User): Promise<void> {
  const { authority, tenantId, customerId } = user;
  const refuse = (message: string) => badRequest('user_owner', message);
  switch (authority) {
    case 'SYS_ADMIN':
      if (tenantId !== null || customerId !== null) {
        throw refuse("System administrator can't be assigned neither to tenant nor to customer!");
      }
      return;
    case 'TENANT_ADMIN':
      if (tenantId === null) throw refuse('Tenant administrator should be assigned to tenant!');
      if (customerId !== null) throw refuse("Tenant administrator can't be assigned to customer!");
      if (!(await findTenant(queries, tenantId))) throw refuse('User is referencing to non-existent tenant!');
      return;
    case 'CUSTOMER_USER':
      if (tenantId === null || customerId === null) throw refuse('Customer user should be assigned to customer!');
      if (!(await holdCustomer(queries, tenantId, customerId))) {
        throw refuse('User is referencing to non-existent customer!');
      }
  }
}

function checkedNames(input: UserInput) {
  const { email } = input;
  if (email.trim() === '') throw badRequest('email', 'User email should be specified!');
  checkEmail(email);
  for (const field of ['firstName', 'lastName', 'phone'] as const) {
    const text = input[field];
    if (text) checkText(field, text);
  }
  const additionalInfo = keptInfo(input.additionalInfo);
  checkDocument('additionalInfo', additionalInfo);
  return {
    email,
    firstName: input.firstName ?? null,
    lastName: input.lastName ?? null,
    phone: input.phone ?? null,
    additionalInfo,
  };
}

function keptInfo(info: unknown): unknown {
  if (typeof info !== 'object' || info === null || Array.isArray(info)) return info ?? null;
  return Object.fromEntries(Object.entries(info).filter(([name]) => !shownInfo.includes(name)));
}

function newActivation(now: number): Activation {
  return { token: randomBytes(24).toString('base64url'), expiresTime: now + limits.activationMsMax };
}

function emailTaken(email: string) {
  return badRequest('email_taken', `The email '${email}' cannot be used: choose another one.`);
}
