/** The changes that are passed on, and how many times, when the bus or the log fails. */
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { systemClock as clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import { createLog } from '../base/log.ts';
import { systemScheduler } from '../base/scheduler.ts';
import type { Bus, Handler } from '../bus/bus.ts';
import type { Queries } from '../postgres/client.ts';
import { CredentialChanges } from './credential-changes.ts';
import type { LoggedChange } from './sql/credential-log-store.ts';

let settled = 10;
let logged: LoggedChange[] = [];
let receive: Handler;
let passedOn: string[] = [];
let changes: CredentialChanges;
/** Resolves the statement that deletes old changes. */
let deleted: ((count: number) => void)[] = [];

const postgres: Queries = {
  async query<Row>(text: string): Promise<Row[]> {
    if (text.includes('pg_current_snapshot')) return [{ snapshot: `${settled}:${settled}:` }] as Row[];
    if (text.startsWith('with gone')) {
      const count = await new Promise<number>((resolve) => deleted.push(resolve));
      return [{ count }] as Row[];
    }
    // The rows of these tests fit into one page.
    if (text.startsWith('select id')) return logged.map((row) => ({ ...row, transaction: '1' })) as Row[];
    return [];
  },
};
const bus = {
  subscribe: async (_: string, handler: Handler) => {
    receive = handler;
    return () => {};
  },
  publish() {},
} as unknown as Bus;

function change(id: number, device: string): LoggedChange {
  return { id, credentialsId: `token-${device}`, deviceId: device, deviceNumber: 1, deleted: false };
}

function deliver(...list: LoggedChange[]): void {
  receive(Buffer.from(JSON.stringify(list)), 'credentials');
}

beforeEach(async () => {
  vi.useFakeTimers();
  [settled, logged, passedOn, deleted] = [10, [], [], []];
  changes = new CredentialChanges({ postgres, bus, clock, log: createLog('error', 'test') });
  changes.onChange((each) => passedOn.push(each === 'all' ? 'all' : each.deviceId));
  await changes.start();
  passedOn = [];
});

afterEach(async () => {
  await changes.stop();
  vi.useRealTimers();
});

const nextPoll = () => vi.advanceTimersByTimeAsync(limits.credentialPollMs);

it('a change that was passed on at once is not passed on again from the log', async () => {
  changes.publish([change(1, 'ours')]);
  deliver(change(2, 'theirs'));
  logged = [change(1, 'ours'), change(2, 'theirs'), change(3, 'unknown here')];
  await nextPoll();
  await nextPoll();
  expect(passedOn).toEqual(['ours', 'theirs', 'unknown here']);
});

it('a place in the log of another installation hides no change of ours', async () => {
  deliver(change(1, 'stranger'));
  logged = [change(1, 'ours')];
  await nextPoll();
  expect(passedOn).toEqual(['stranger', 'ours']);
});

it('after a store went back in time the places in its log count again', async () => {
  changes.publish([change(1, 'device')]);
  settled = 5;
  await nextPoll();
  changes.publish([change(1, 'device')]);
  expect(passedOn).toEqual(['device', 'all', 'device']);
});

it('the delete of old changes delays no new one, however long it takes', async () => {
  await changes.stop();
  let isDeleted = () => {};
  const slow: Queries = {
    query: async <Row>(text: string, values: unknown[] = []) => {
      if (!text.includes('delete from')) return await postgres.query<Row>(text, values);
      await new Promise<void>((resolve) => {
        isDeleted = resolve;
      });
      return [];
    },
  };
  const late = { now: () => clock.now(), monotonic: () => limits.credentialChangesKeptMs + clock.monotonic() };
  changes = new CredentialChanges({ postgres: slow, bus, clock: late, log: createLog('error', 'test') });
  changes.onChange((each) => passedOn.push(each === 'all' ? 'all' : each.deviceId));
  await changes.start();
  logged = [change(1, 'new')];
  await nextPoll();
  expect(passedOn).toEqual(['all', 'new']);
  isDeleted();
});

it('many devices that must be checked take several turns of the loop', async () => {
  await changes.stop();
  const count = 2.5 * limits.credentialChangesRowsMax;
  let doubted = Array.from({ length: count }, (_, n) => ({ ...change(n, `device ${n}`), deviceNumber: n }));
  const turns: (() => void)[] = [];
  const scheduler = { ...systemScheduler, soon: (run: () => void) => turns.push(run) };
  const onAnswered = () => doubted.splice(0);
  changes = new CredentialChanges({ postgres, bus, clock, scheduler, log: createLog('error', 'test'), onAnswered });
  changes.onChange((each) => passedOn.push(each === 'all' ? 'all' : each.deviceId));
  await changes.start();
  doubted = [];
  const counts = [passedOn.length];
  for (let turn = turns.shift(); turn !== undefined; turn = turns.shift()) {
    turn();
    counts.push(passedOn.length);
  }
  const step = limits.credentialChangesRowsMax;
  expect(counts).toEqual([1 + step, 1 + 2 * step, 1 + count]);
  expect(new Set(passedOn).size).toBe(1 + count);
});

it('a device that must be checked is no change of the log, and a change of the log reaches its own handlers first', async () => {
  await changes.stop();
  const doubted = [{ credentialsId: 'token', deviceId: 'doubted', deviceNumber: 2, deleted: false }];
  changes = new CredentialChanges({ postgres, bus, clock, log: createLog('error', 'test'), onAnswered: () => doubted });
  changes.onChange((each) => passedOn.push(each === 'all' ? 'all' : each.deviceId));
  changes.onLogged(({ deviceId }) => passedOn.push(`logged ${deviceId}`));
  await changes.start();
  passedOn = [];
  deliver(change(1, 'theirs'));
  await nextPoll();
  expect(passedOn).toEqual(['logged theirs', 'theirs', 'doubted']);
});

it('old changes are deleted by one run at a time, which a stop ends after its statement', async () => {
  await vi.advanceTimersByTimeAsync(limits.credentialChangesKeptMs / 4);
  expect(deleted).toHaveLength(1);
  const stopped = changes.stop();
  deleted[0]!(limits.credentialChangesPrunedMax);
  await stopped;
  expect(deleted).toHaveLength(1);
});
