/**
 * Slows down guessing of passwords. After some wrong passwords each further try must wait twice as long as the previous
 * one. Counted are tries of one network for one account, of one network for any account, and, for a short time, of all
 * networks for one account. The last two rules do not apply to a network from which the user signed in before, so a
 * stranger cannot lock a user out. Each worker counts separately. An account that does not exist is treated like an
 * existing one.
 */
import type { Clock } from '../base/clock.ts';
import { Fault } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import type { Asker } from './password.ts';

interface Tries {
  failed: number;
  lastAt: number;
  /** Monotonic milliseconds. */
  waitsUntil: number;
}

interface Rule {
  name: string;
  freeTries: number;
  waitMsMax: number;
}

export class FailedSignIns {
  readonly #clock: Clock;
  readonly #tries = new FifoMap<string, Tries>(limits.failedSignInsMax);

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Throws 429 while the caller has to wait. */
  admit(email: string, { network, isKnown }: Asker): void {
    const now = this.#clock.monotonic();
    const [ofBoth, ...ofStrangers] = rulesFor(email, network);
    for (const { name } of isKnown ? [ofBoth] : [ofBoth, ...ofStrangers]) {
      const waitMs = (this.#tries.get(name)?.waitsUntil ?? 0) - now;
      if (waitMs <= 0) continue;
      const message = 'Too many failed sign-ins; wait before the next try.';
      throw new Fault('sign_in_guessing', message, Math.ceil(waitMs / 1000));
    }
  }

  failed(email: string, network: string): void {
    const now = this.#clock.monotonic();
    for (const { name, freeTries, waitMsMax } of rulesFor(email, network)) {
      const known = this.#tries.get(name);
      const before = known && now - known.lastAt < limits.failedSignInsForgottenMs ? known.failed : 0;
      const failed = before + 1;
      const waitMs = failed < freeTries ? 0 : Math.min(waitMsMax, 1000 * 2 ** Math.min(failed - freeTries, 30));
      this.#tries.delete(name);
      this.#tries.set(name, { failed, lastAt: now, waitsUntil: now + waitMs });
    }
  }

  /** Keeps the count of the network over all accounts: a sign-in to an own account gives a guesser no new tries. */
  succeeded(email: string, network: string): void {
    const [ofBoth, , ofAccount] = rulesFor(email, network);
    this.#tries.delete(ofBoth.name);
    this.#tries.delete(ofAccount.name);
  }
}

/** Returns the rules for the account in the network, for the network, and for the account. */
function rulesFor(email: string, network: string): [Rule, Rule, Rule] {
  const account = email.toLowerCase().slice(0, 255);
  const { failedSignInsFree: freeTries, failedSignInWaitMsMax: waitMsMax } = limits;
  return [
    { name: `both ${network} ${account}`, freeTries, waitMsMax },
    { name: `network ${network}`, freeTries: 10 * freeTries, waitMsMax },
    { name: `account ${account}`, freeTries: 10 * freeTries, waitMsMax: 2_000 },
  ];
}
