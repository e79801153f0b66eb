/**
 * Signs users in by password, guests by the id of a public customer, and users on behalf of administrators
 * (docs/rest.md#sign-in). The time and the words of a refusal do not reveal whether a user exists. Wrong passwords are
 * counted twice: by `failed-sign-ins.ts` for the network of the caller, and in PostgreSQL for the lock of the account.
 */
import type { Clock } from '../base/clock.ts';
import { badRequest, type Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { networkOf, subnetOf } from '../base/network.ts';
import type { Turns } from '../base/turns.ts';
import { nullUuid } from '../base/uuid.ts';
import type { Postgres } from '../postgres/client.ts';
import type { FailedSignIns } from './failed-sign-ins.ts';
import type { Jwt, TokenPair } from './jwt.ts';
import type { Asker, PasswordHasher } from './password.ts';
import type { Principal } from './roles.ts';
import {
  findAccount,
  findAccountByEmail,
  findSignInNetwork,
  recordFailedSignIn,
  recordSignIn,
  rememberSignInNetwork,
} from './store.ts';
import { notActive, unauthorized, wrongCredentials } from './unauthorized.ts';
import { type Account, canSignIn } from './user.ts';
import type { UserSessions } from './user-sessions.ts';

export interface UserSignInDeps {
  postgres: Postgres;
  passwords: PasswordHasher;
  jwt: Jwt;
  clock: Clock;
  /** Consecutive wrong passwords before the account is locked; 0 = never locked. */
  failedLoginsMax: number;
  failedSignIns: FailedSignIns;
  /** Look-ups for callers that have not signed in, by network. Undefined where nothing is bounded. */
  lookUps?: Turns;
}

export class UserSignIn {
  readonly #deps: UserSignInDeps;
  readonly #sessions: UserSessions;

  constructor(deps: UserSignInDeps, sessions: UserSessions) {
    this.#deps = deps;
    this.#sessions = sessions;
  }

  async byPassword(email: string, password: string, remoteAddress: string): Promise<TokenPair> {
    const { postgres, jwt, failedSignIns } = this.#deps;
    const network = subnetOf(remoteAddress);
    // Refuses without a read of the store, where possible.
    failedSignIns.admit(email, { network, isKnown: true });
    const { account, before } = await lookUp(this.#deps, remoteAddress, async () => {
      const account = email.includes('\0') ? undefined : await findAccountByEmail(postgres, email);
      // Runs for an unknown user as well, so that the time of a refusal does not reveal whether the user exists.
      return { account, before: await findSignInNetwork(postgres, account?.id ?? nullUuid, network) };
    });
    const asker = { network, isKnown: before !== undefined };
    failedSignIns.admit(email, asker);
    if (account && !canSignIn(account)) throw notActive();
    const isRight = await this.#isRight(email, password, account?.passwordHash ?? null, asker);
    if (!isRight || !account) throw await this.#wrongPassword(account);
    await this.#record(account, network, before?.lastTime);
    return await jwt.issue(account);
  }

  /** Signs in a guest, who sends the id of a public customer. */
  async byPublicCustomer(publicId: string): Promise<TokenPair> {
    const account = await this.#sessions.guest(publicId.toLowerCase(), null);
    if (!account) throw wrongCredentials();
    return await this.#deps.jwt.issue(account, { isPublic: true });
  }

  /** Signs a user in on behalf of an administrator. */
  async onBehalf(account: Account): Promise<TokenPair> {
    if (!canSignIn(account)) throw notActive();
    return await this.#deps.jwt.issue(account);
  }

  /**
   * Throws 400 unless the password is the caller's own, and 429 after too many wrong ones. Returns the account and its
   * hash.
   */
  async proveCaller(
    { userId, email }: Principal,
    password: string,
    remoteAddress: string,
  ): Promise<{ account: Account; passwordHash: string; asker: Asker }> {
    const { postgres, failedSignIns } = this.#deps;
    const network = subnetOf(remoteAddress);
    // A caller with a session is known, but may guess only as often as at a sign-in.
    const asker = { network, isKnown: true };
    failedSignIns.admit(email, asker);
    const account = await findAccount(postgres, userId);
    const passwordHash = account?.passwordHash ?? null;
    if (!(await this.#isRight(email, password, passwordHash, asker)) || !account || passwordHash === null) {
      throw wrongCurrentPassword();
    }
    return { account, passwordHash, asker };
  }

  /** True when the password matches the hash. Wrong ones are counted, for the account and for the caller's network. */
  async #isRight(email: string, password: string, hash: string | null, asker: Asker): Promise<boolean> {
    const { passwords, failedSignIns } = this.#deps;
    const isRight = await passwords.verify(email, password, hash, asker);
    if (isRight) failedSignIns.succeeded(email, asker.network);
    else failedSignIns.failed(email, asker.network);
    return isRight;
  }

  /** Counts a wrong password of the account, which may lock it. Returns the refusal. */
  async #wrongPassword(account: Account | undefined): Promise<Fault> {
    const { postgres, failedLoginsMax } = this.#deps;
    // Skipped when lockout is off: the extra write would reveal by its timing that the user exists.
    const isLocked =
      account &&
      failedLoginsMax > 0 &&
      (await postgres.transaction((queries) => recordFailedSignIn(queries, account, failedLoginsMax)));
    if (!isLocked) return wrongCredentials();
    return unauthorized('account_locked', 'User account is locked due to security policy');
  }

  /** Records the sign-in, and the network unless that was recorded a short time ago. */
  async #record({ id }: Account, network: string, networkTime: number | undefined): Promise<void> {
    const { postgres, clock } = this.#deps;
    const now = clock.now();
    await recordSignIn(postgres, id, now);
    if (networkTime !== undefined && now - networkTime <= limits.signInNetworkMs) return;
    await rememberSignInNetwork(postgres, id, network, now, limits.signInNetworksMax);
  }
}

/** Runs a look-up for a caller that has not signed in, now or when it is the turn of the caller's network. */
export function lookUp<T>(
  { lookUps }: Pick<UserSignInDeps, 'lookUps'>,
  remoteAddress: string,
  read: () => Promise<T>,
): Promise<T> {
  return lookUps?.run(networkOf(remoteAddress), null, read) ?? read();
}

export function wrongCurrentPassword(): Fault {
  return badRequest('current_password', "Current password doesn't match!");
}
