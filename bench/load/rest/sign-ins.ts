/** Users with passwords, and their sign-ins, right and wrong ones. */
import type { Api } from '../../../test/harness/api.ts';
import { requestBytes } from '../../../test/harness/raw.ts';
import { makeUser, password } from '../../../test/harness/tenants.ts';
import type { Call } from './calls.ts';

/** Each activation waits for a password hash; more at once would be refused. */
const activationsAtOnce = 8;

/** Creates users over REST and activates them; returns their e-mail addresses. */
export async function createUsers(api: Api, count: number): Promise<string[]> {
  const emails = Array.from({ length: count }, (_, n) => `user-${n}@bench.example`);
  let next = 0;
  const create = async (): Promise<void> => {
    while (next < count) {
      const email = emails[next++];
      await makeUser(api, { email, authority: 'TENANT_ADMIN' });
    }
  };
  await Promise.all(Array.from({ length: activationsAtOnce }, create));
  return emails;
}

/** Sign-ins that were answered as they must be are counted under these names. */
const signInOutcomes = {
  signedIn: '200, signed in',
  wrongPassword: '401, wrong password',
  tooMany: '429, the queue of password checks is full',
  guessing: '429, too many failed sign-ins of this account',
  unavailable: '503',
} as const;
const known: string[] = Object.values(signInOutcomes);

export function isKnownOutcome(outcome: string): boolean {
  return known.includes(outcome);
}

/** The sign-in with number `n`: users take turns, and `wrongPercent` of all sign-ins have a wrong password. */
export function signInCall(emails: string[], wrongPercent: number, n: number): Call {
  // A number without a common divisor spreads the wrong ones evenly.
  const isWrong = (n * 61) % 100 < wrongPercent;
  const body = JSON.stringify({ username: emails[n % emails.length], password: isWrong ? `${password}?` : password });
  const request = requestBytes({ path: '/api/auth/login', headers: { 'content-type': 'application/json' }, body });
  return { request, outcomeOf: (status, answer) => signInOutcome(status, answer, isWrong) };
}

function signInOutcome(status: number, answer: string, isWrong: boolean): string {
  const { token, message = '' } = JSON.parse(answer) as { token?: string; message?: string };
  const { signedIn, wrongPassword, tooMany, guessing, unavailable } = signInOutcomes;
  if (status === 200 && token !== undefined && !isWrong) return signedIn;
  if (status === 401 && isWrong) return wrongPassword;
  if (status === 429) return message.includes('failed sign-ins') ? guessing : tooMany;
  if (status === 503) return unavailable;
  return `NOT EXPECTED: ${status} ${message}`;
}
