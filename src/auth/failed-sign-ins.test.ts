/** The time that a guesser has to wait, and the callers who never wait. */
import { beforeEach, expect, test } from 'vitest';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { FailedSignIns } from './failed-sign-ins.ts';

let now = 0;
const clock = { now: () => now, monotonic: () => now };
let tries: FailedSignIns;

beforeEach(() => {
  now = 1_000;
  tries = new FailedSignIns(clock);
});

/** Seconds to wait; 0 = admitted. */
function wait(email = 'a@b.c', network = '10.0.0', isKnown = false): number {
  try {
    tries.admit(email, { network, isKnown });
    return 0;
  } catch (error) {
    if (error instanceof Fault && error.status === 429) return error.retryAfterSeconds;
    throw error;
  }
}

function fail(times: number, network = '10.0.0', email = 'a@b.c'): void {
  for (let i = 0; i < times; i += 1) tries.failed(email, network);
}

test('the first tries are free, then each wait is twice as long, up to a minute', () => {
  fail(limits.failedSignInsFree - 1);
  expect(wait()).toBe(0);
  fail(1);
  expect(wait()).toBe(1);
  fail(1);
  expect(wait()).toBe(2);
  fail(20);
  expect(wait()).toBe(60);
  now += 60_000;
  expect(wait()).toBe(0);
});

test('other networks and other accounts do not wait', () => {
  fail(limits.failedSignInsFree);
  expect(wait('A@B.C')).toBe(1);
  expect(wait('a@b.c', '10.0.1')).toBe(0);
  expect(wait('z@b.c')).toBe(0);
});

test('an account that is tried from everywhere waits for two seconds at most, its known networks not at all', () => {
  for (let i = 0; i < 30 * limits.failedSignInsFree; i += 1) fail(1, `10.0.${i % 256}`);
  expect(wait('a@b.c', '192.168.0')).toBe(2);
  expect(wait('a@b.c', '192.168.0', true)).toBe(0);
});

test('a network that tries one password on many accounts waits, but for users that signed in from it', () => {
  for (let i = 0; i < 10 * limits.failedSignInsFree + 3; i += 1) fail(1, '10.0.0', `user-${i}@b.c`);
  expect(wait('other@b.c')).toBe(8);
  expect(wait('other@b.c', '10.0.0', true)).toBe(0);
  expect(wait('other@b.c', '10.0.1')).toBe(0);
  tries.succeeded('own@b.c', '10.0.0');
  expect(wait('other@b.c')).toBe(8);
});

test('a success, or a quarter of an hour, forgets', () => {
  fail(limits.failedSignInsFree + 3);
  tries.succeeded('a@b.c', '10.0.0');
  expect(wait()).toBe(0);
  fail(limits.failedSignInsFree - 1);
  now += limits.failedSignInsForgottenMs + 1;
  fail(1);
  expect(wait()).toBe(0);
});
