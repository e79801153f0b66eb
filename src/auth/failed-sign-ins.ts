/**
 * Guessing passwords is slow: after some wrong ones from one network for one account each further try has to wait, twice
 * as long as the one before; an account that is tried from everywhere has a short wait of its own, so that nobody can
 * lock its user out. Each worker counts for itself. What does not exist is treated like what does.
 */
import type { Clock } from '../base/clock.ts';
import { ErrorCode, Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { AgedMap } from '../device/aged-map.ts';

interface Tries {
  failed: number;
  lastAt: number;
  /** Monotonic milliseconds. */
  waitsUntil: number;
}

interface Rule {
  freeTries: number;
  waitMsMax: number;
}

const ofNetwork: Rule = { freeTries: limits.failedSignInsFree, waitMsMax: limits.failedSignInWaitMsMax };
const ofAccount: Rule = { freeTries: 10 * limits.failedSignInsFree, waitMsMax: 2_000 };

export class FailedSignIns {
  readonly #clock: Clock;
  readonly #tries = new AgedMap<string, Tries>(limits.failedSignInsMax);

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Throws 429 while the caller has to wait. */
  admit(email: string, remoteAddress: string): void {
    const now = this.#clock.monotonic();
    for (const [name] of rulesFor(email, remoteAddress)) {
      const waitMs = (this.#tries.get(name)?.waitsUntil ?? 0) - now;
      if (waitMs <= 0) continue;
      const message = 'Too many failed sign-ins; wait before the next try.';
      throw new Fault(429, ErrorCode.tooManyRequests, 'sign_in_guessing', message, Math.ceil(waitMs / 1000));
    }
  }

  failed(email: string, remoteAddress: string): void {
    const now = this.#clock.monotonic();
    for (const [name, { freeTries, waitMsMax }] of rulesFor(email, remoteAddress)) {
      const known = this.#tries.get(name);
      const before = known && now - known.lastAt < limits.failedSignInsForgottenMs ? known.failed : 0;
      const failed = before + 1;
      const waitMs = failed < freeTries ? 0 : Math.min(waitMsMax, 1000 * 2 ** Math.min(failed - freeTries, 30));
      this.#tries.delete(name);
      this.#tries.set(name, { failed, lastAt: now, waitsUntil: now + waitMs });
    }
  }

  succeeded(email: string, remoteAddress: string): void {
    for (const [name] of rulesFor(email, remoteAddress)) this.#tries.delete(name);
  }
}

function rulesFor(email: string, remoteAddress: string): [string, Rule][] {
  const account = email.toLowerCase().slice(0, 255);
  return [
    [`${account} ${networkOf(remoteAddress)}`, ofNetwork],
    [account, ofAccount],
  ];
}

/** The /24 of an IPv4 address, the /64 of an IPv6 one: whoever has one address there has its neighbours too. */
function networkOf(address: string): string {
  const dot = address.lastIndexOf('.');
  return dot > 0 ? address.slice(0, dot) : address.split(':').slice(0, 4).join(':');
}
