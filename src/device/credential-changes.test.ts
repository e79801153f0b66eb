/** The changes that are passed on, and how many times, when the bus or the log fails. */
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { systemClock as clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import { createLog } from '../base/log.ts';
import type { Bus, Handler } from '../bus/bus.ts';
import type { Queries } from '../postgres/client.ts';
import { CredentialChanges } from './credential-changes.ts';
import type { LoggedChange } from './sql/credential-log-store.ts';

let settled = 10;
let logged: LoggedChange[] = [];
let receive: Handler;
let passedOn: string[] = [];
let changes: CredentialChanges;

const postgres: Queries = {
  async query<Row>(text: string, values: unknown[] = []): Promise<Row[]> {
    if (text.includes('pg_snapshot_xmin')) return [{ settled: String(settled) }] as Row[];
    if (text.startsWith('select id')) return logged.filter(({ id }) => id > Number(values[1])) as Row[];
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
  [settled, logged, passedOn] = [10, [], []];
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
