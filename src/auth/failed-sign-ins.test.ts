/** How long a guesser waits, and who does not have to. */
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
function wait(email = 'a@b.c', address = '10.0.0.1'): number {
  try {
    tries.admit(email, address);
    return 0;
  } catch (error) {
    if (error instanceof Fault && error.status === 429) return error.retryAfterSeconds;
    throw error;
  }
}

function fail(times: number, address = '10.0.0.1'): void {
  for (let i = 0; i < times; i += 1) tries.failed('a@b.c', address);
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

test('neighbours of an address count as one, other networks and other accounts do not', () => {
  fail(limits.failedSignInsFree);
  expect(wait('A@B.C', '10.0.0.77')).toBe(1);
  expect(wait('a@b.c', '10.0.1.1')).toBe(0);
  expect(wait('z@b.c')).toBe(0);
});

test('who is tried from everywhere waits for two seconds at most', () => {
  for (let i = 0; i < 30 * limits.failedSignInsFree; i += 1) fail(1, `10.0.${i % 256}.1`);
  expect(wait('a@b.c', '192.168.0.1')).toBe(2);
});

test('a success, or a quarter of an hour, forgets', () => {
  fail(limits.failedSignInsFree + 3);
  tries.succeeded('a@b.c', '10.0.0.1');
  expect(wait()).toBe(0);
  fail(limits.failedSignInsFree - 1);
  now += limits.failedSignInsForgottenMs + 1;
  fail(1);
  expect(wait()).toBe(0);
});
