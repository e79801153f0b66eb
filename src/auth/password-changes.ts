/**
 * Sets passwords (docs/rest.md#passwords): the first one by the token of an activation link, a new one by the token of
 * a reset link or by the current password. Each change signs the user in. A new password ends every earlier session
 * and, if wanted, revokes the API keys in the same transaction.
 */
import type { Clock } from '../base/clock.ts';
import { badRequest } from '../base/errors.ts';
import { subnetOf } from '../base/network.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { sha256 } from './api-key.ts';
import { deleteKeysOfUser } from './api-key-store.ts';
import type { ApiKeys } from './api-keys.ts';
import { type Jwt, type TokenPair, tokensOutdatedTimeAt } from './jwt.ts';
import type { PasswordHasher } from './password.ts';
import { checkPassword } from './password-policy.ts';
import type { Principal } from './roles.ts';
import { activateAccount, changePassword, isActivationKnown, isResetTokenKnown, resetPassword } from './store.ts';
import { notActive } from './unauthorized.ts';
import type { Account } from './user.ts';
import { lookUp, type UserSignIn, type UserSignInDeps, wrongCurrentPassword } from './user-sign-in.ts';

export interface PasswordChangeDeps extends Pick<UserSignInDeps, 'lookUps'> {
  postgres: Postgres;
  passwords: PasswordHasher;
  jwt: Jwt;
  clock: Clock;
  apiKeys: ApiKeys;
}

export class PasswordChanges {
  readonly #deps: PasswordChangeDeps;
  readonly #signIn: UserSignIn;

  constructor(deps: PasswordChangeDeps, signIn: UserSignIn) {
    this.#deps = deps;
    this.#signIn = signIn;
  }

  /** Sets the first password of a user and signs the user in. A token is valid once. */
  async activate(activateToken: string, password: string, remoteAddress: string): Promise<TokenPair> {
    const { postgres, jwt, clock } = this.#deps;
    const unknown = () => {
      const shown = activateToken.slice(0, 100);
      return badRequest('activate_token', `Unable to find user credentials by activateToken [${shown}]`);
    };
    if (activateToken.includes('\0')) throw unknown();
    const isKnown = () => isActivationKnown(postgres, activateToken, clock.now());
    if (!(await lookUp(this.#deps, remoteAddress, isKnown))) throw unknown();
    const hash = await this.#hashForLink(password, remoteAddress);
    const account = await activateAccount(postgres, activateToken, hash, clock.now());
    if (!account) throw unknown();
    return await jwt.issue(account);
  }

  /** Sets a new password by the token of a reset link and signs the user in; every other session ends. */
  async reset(resetToken: string, password: string, remoteAddress: string, revokesKeys: boolean): Promise<TokenPair> {
    const { postgres, jwt, clock } = this.#deps;
    const unknown = () => badRequest('reset_token', 'Invalid reset token!');
    const tokenSha256 = sha256(resetToken);
    const isKnown = () => isResetTokenKnown(postgres, tokenSha256, clock.now());
    if (!(await lookUp(this.#deps, remoteAddress, isKnown))) throw unknown();
    const hash = await this.#hashForLink(password, remoteAddress);
    const now = clock.now();
    const account = await this.#revoking(revokesKeys, (queries) =>
      resetPassword(queries, tokenSha256, hash, now, tokensOutdatedTimeAt(now)),
    );
    if (!account) throw unknown();
    if (!account.enabled) throw notActive();
    return await jwt.issue(account);
  }

  /** Changes the password and ends every other session of the user; the answer has tokens of a new session. */
  async change(
    principal: Principal,
    change: { current: string; next: string; revokesKeys: boolean },
    remoteAddress: string,
  ): Promise<TokenPair> {
    const { passwords, jwt, clock } = this.#deps;
    const { account, passwordHash, asker } = await this.#signIn.proveCaller(principal, change.current, remoteAddress);
    if (change.next === change.current) {
      throw badRequest('same_password', 'New password should be different from existing!');
    }
    checkPassword(change.next);
    const next = await passwords.hash(change.next, asker);
    const outdatedTime = tokensOutdatedTimeAt(clock.now());
    const changed = await this.#revoking(change.revokesKeys, (queries) =>
      changePassword(queries, account.id, passwordHash, next, outdatedTime),
    );
    // Another call changed the password at this moment.
    if (!changed) throw wrongCurrentPassword();
    return await jwt.issue(changed);
  }

  /**
   * Returns the hash of a password that the holder of a link has chosen. Called after the token was found, because a
   * hash is costly and callers without credentials send tokens.
   */
  async #hashForLink(password: string, remoteAddress: string): Promise<string> {
    checkPassword(password);
    return await this.#deps.passwords.hash(password, { network: subnetOf(remoteAddress), isKnown: true });
  }

  /** Runs `change` of an account and, if wanted, revokes the API keys of the account in the same transaction. */
  async #revoking(
    revokesKeys: boolean,
    change: (queries: Queries) => Promise<Account | undefined>,
  ): Promise<Account | undefined> {
    const { postgres, apiKeys } = this.#deps;
    const { account, revoked } = await postgres.transaction(async (queries) => {
      const account = await change(queries);
      return { account, revoked: account && revokesKeys ? await deleteKeysOfUser(queries, account.id) : [] };
    });
    for (const hash of revoked) apiKeys.changed(hash);
    return account;
  }
}
