/** The share of PostgreSQL that callers with and without a sign-in may use. */
import { expect, test } from 'vitest';
import { Fault } from '../base/errors.ts';
import { Turns } from '../base/turns.ts';
import type { Postgres } from '../postgres/client.ts';
import { type AuthDeps, openAuth } from './auth.ts';
import { FailedSignIns } from './failed-sign-ins.ts';
import type { LongRead } from './request-callers.ts';
import type { Principal } from './roles.ts';

function turns(atOnceMax: number): Turns {
  return new Turns({ atOnceMax, waitingMax: 200, refusal: () => new Fault('sign_in_queue', 'full') });
}

test('sign-ins of one address run few statements at once, and leave some to other addresses', async () => {
  let running = 0;
  const postgres = {
    query: () => {
      running += 1;
      return new Promise(() => {});
    },
  } as unknown as Postgres;
  const clock = { now: () => 0, monotonic: () => 0 };
  const failedSignIns = new FailedSignIns(clock);
  const auth = openAuth({ postgres, clock, failedSignIns, lookUps: turns(8) } as unknown as AuthDeps);
  const settled = () => new Promise((resolve) => setImmediate(resolve));
  for (let n = 0; n < 100; n += 1) {
    void auth.signIn.byPassword(`user-${n}@example.com`, 'wrong', '10.0.0.1');
    void auth.passwords.activate(`token-${n}`, 'password', '10.0.0.1');
  }
  await settled();
  expect(running).toBe(7);
  void auth.passwords.reset('token', 'password', '10.0.0.2', false);
  await settled();
  expect(running).toBe(8);
});

test('pages of one tenant wait for each other, and other calls and the pages of other tenants do not', async () => {
  const { callers } = openAuth({ calls: turns(32), pageReads: turns(4) } as unknown as AuthDeps);
  const running: string[] = [];
  const call = (tenantId: string, ...kinds: LongRead[]) => {
    const principal = { tenantId, customerId: null } as unknown as Principal;
    const work = () => {
      running.push(`${kinds[0] ?? 'call'} of ${tenantId}`);
      return new Promise(() => {});
    };
    void callers.inTurn(principal, work, kinds);
  };
  for (let n = 0; n < 100; n += 1) call('first', 'page');
  call('second');
  call('second', 'page');
  await new Promise((resolve) => setImmediate(resolve));
  expect(running.toSorted()).toEqual([
    'call of second',
    ...Array.from({ length: 3 }, () => 'page of first'),
    'page of second',
  ]);
});

test('a call that reads both a page and ClickHouse takes a place of each', async () => {
  for (const [pageReads, telemetryReads] of [
    [turns(3), turns(100)],
    [turns(100), turns(3)],
  ]) {
    const { callers } = openAuth({ calls: turns(100), pageReads, telemetryReads } as unknown as AuthDeps);
    let running = 0;
    const work = () => {
      running += 1;
      return new Promise(() => {});
    };
    for (let n = 0; n < 50; n += 1) {
      const principal = { tenantId: `tenant ${n % 3}`, customerId: null } as unknown as Principal;
      void callers.inTurn(principal, work, ['telemetry', 'page']);
    }
    await new Promise((resolve) => setImmediate(resolve));
    expect(running).toBe(3);
  }
});

test('a page that waits for its turn holds no place of the other calls of its tenant', async () => {
  const deps = { calls: turns(32), pageReads: turns(4), telemetryReads: turns(4) } as unknown as AuthDeps;
  const { callers } = openAuth(deps);
  const principal = { tenantId: 'first', customerId: null } as unknown as Principal;
  let running = 0;
  const work = () => {
    running += 1;
    return new Promise(() => {});
  };
  for (let n = 0; n < 50; n += 1) {
    void callers.inTurn(principal, work, ['page']);
    void callers.inTurn(principal, work, ['telemetry']);
  }
  for (let n = 0; n < 20; n += 1) void callers.inTurn(principal, work);
  await new Promise((resolve) => setImmediate(resolve));
  expect(running).toBe(3 + 3 + 20);
});
