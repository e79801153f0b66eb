import { afterEach, beforeEach, expect, it } from 'vitest';
import { exchangeOf } from '../../test/harness/exchange.ts';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { busCounters } from '../bus/bus.ts';
import { IpcBus } from '../bus/ipc.ts';
import { BusHub } from '../bus/ipc-primary.ts';
import { portPair } from '../bus/port.ts';
import { RightCredentials } from './right-credentials.ts';
import { credentialsName, WrongCredentials } from './wrong-credentials.ts';

let nowMs = 0;
let hub: BusHub;
const opened: { stop(): void }[] = [];

async function open(): Promise<WrongCredentials> {
  const [ours, theirs] = portPair();
  hub.attach(theirs);
  const bus = new IpcBus(ours, busCounters(new Metrics()));
  // The first of two workers is the home.
  const exchange = exchangeOf(bus, 2, opened.length === 0);
  const wrong = new WrongCredentials({
    bus,
    exchange,
    wrongMax: 3,
    isTrustedProxy: (address) => address === '10.0.0.7',
    clock: { now: () => nowMs, monotonic: () => nowMs },
    metrics: new Metrics(),
  });
  await wrong.start();
  await exchange.start();
  opened.push(wrong, exchange);
  return wrong;
}

function refusal(wrong: WrongCredentials, address: string, credentials = 'x'): Fault | undefined {
  try {
    wrong.check(address, credentials);
    return undefined;
  } catch (error) {
    if (!(error instanceof Fault)) throw error;
    return error;
  }
}

beforeEach(() => {
  nowMs = 0;
  hub = new BusHub(new Metrics());
});
afterEach(() => {
  for (const wrong of opened.splice(0)) wrong.stop();
});

it('refuses an address after so many wrong ones in a minute, for a minute, and no other address', async () => {
  const wrong = await open();
  expect(wrong.isCalm).toBe(true);
  wrong.wrong('192.0.2.1');
  wrong.wrong('192.0.2.1');
  nowMs = 60_000;
  // The minute is over, so this wrong attempt counts as the first one again.
  wrong.wrong('192.0.2.1');
  wrong.wrong('192.0.2.1');
  expect([wrong.isCalm, refusal(wrong, '192.0.2.1')]).toEqual([false, undefined]);
  wrong.wrong('::ffff:192.0.2.1');
  expect(refusal(wrong, '192.0.2.1')).toMatchObject({ status: 429, retryAfterSeconds: 60 });
  expect(refusal(wrong, '192.0.2.2')).toBeUndefined();
  nowMs = 119_999;
  expect(refusal(wrong, '192.0.2.1')).toMatchObject({ retryAfterSeconds: 1 });
  nowMs = 120_000;
  expect(refusal(wrong, '192.0.2.1')).toBeUndefined();
});

it('serves what was right from a refused address, and nothing that was right elsewhere', async () => {
  const wrong = await open();
  wrong.right('192.0.2.1', 'token');
  wrong.right('192.0.2.2', 'other');
  wrong.wrong('192.0.2.1');
  expect(wrong.mayUse('192.0.2.1', 'cached')).toBe(true);
  wrong.wrong('192.0.2.1');
  wrong.wrong('192.0.2.1');
  expect(['token', 'cached', 'other'].map((name) => refusal(wrong, '192.0.2.1', name)?.status)).toEqual([
    undefined,
    undefined,
    429,
  ]);
  expect([wrong.mayUse('192.0.2.1', 'cached'), wrong.mayUse('192.0.2.1', 'other')]).toEqual([true, false]);
});

it('counts for all workers, and each has what was right at the others', async () => {
  const [here, there] = [await open(), await open()];
  here.right('192.0.2.1', 'token');
  here.wrong('192.0.2.1');
  here.wrong('192.0.2.1');
  there.wrong('192.0.2.1');
  const statuses = () => [here, there].map((wrong) => refusal(wrong, '192.0.2.1')?.status);
  await expect.poll(statuses).toEqual([429, 429]);
  await expect.poll(() => refusal(there, '192.0.2.1', 'token')).toBeUndefined();
});

it('never refuses a trusted proxy', async () => {
  const wrong = await open();
  for (let n = 0; n < 9; n += 1) wrong.wrong('10.0.0.7');
  expect([wrong.isCalm, refusal(wrong, '10.0.0.7')]).toEqual([true, undefined]);
});

it('keeps so many right credentials: the oldest make room, and other networks are not walked through', () => {
  const right = new RightCredentials();
  for (let n = 0; n <= limits.rightCredentialsMax; n += 1) right.add(`10.0.${n % 100}`, `token ${n}`);
  expect([right.has('10.0.0', 'token 0'), right.has('10.0.1', 'token 1')]).toEqual([false, true]);
  expect(right.digests('10.0.0')).toHaveLength(limits.rightCredentialsMax / 100);
  expect(right.digests('10.1.0')).toEqual([]);
  const others = new RightCredentials();
  others.learn('10.0.1', right.digests('10.0.1'));
  expect([others.has('10.0.1', 'token 1'), others.has('10.0.2', 'token 1')]).toEqual([true, false]);
});

it('names credentials of several parts so that no two are the same', () => {
  expect(credentialsName('a', 'bc')).toBe(credentialsName('a', 'bc'));
  expect(credentialsName('a', 'bc')).not.toBe(credentialsName('ab', 'c'));
  expect(credentialsName('a', 'b', Buffer.from('c'))).toBe(credentialsName('a', 'b', 'c'));
});
