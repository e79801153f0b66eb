import { afterEach, expect, test } from 'vitest';
import { exchangeOf } from '../../test/harness/exchange.ts';
import { Fault } from '../base/errors.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { busCounters } from '../bus/bus.ts';
import type { HomeExchange } from '../bus/home-exchange.ts';
import { IpcBus } from '../bus/ipc.ts';
import { BusHub } from '../bus/ipc-primary.ts';
import { portPair } from '../bus/port.ts';
import { readLimits } from './profile-limits.ts';
import { RequestLimits } from './request-limits.ts';

let nowMs = 0;
const clock = { now: () => nowMs, monotonic: () => nowMs };
const opened: HomeExchange[] = [];

/** Opens one of two workers: the first one is the home. */
async function open(hub: BusHub, tenant: string, customer = '', commands = ''): Promise<RequestLimits> {
  const [ours, theirs] = portPair();
  hub.attach(theirs);
  const bus = new IpcBus(ours, busCounters(new Metrics()));
  const exchange = exchangeOf(bus, 2, opened.length === 0);
  const requestLimits = new RequestLimits({ settings: { tenant, customer, commands }, exchange, clock });
  await exchange.start();
  opened.push(exchange);
  return requestLimits;
}

function refusal(act: () => void): Fault | undefined {
  try {
    act();
    return undefined;
  } catch (error) {
    if (error instanceof Fault) return error;
    throw error;
  }
}

afterEach(() => {
  for (const exchange of opened.splice(0)) exchange.stop();
});

test('without a limit every request is served', async () => {
  const requests = await open(new BusHub(new Metrics()), '');
  for (let n = 0; n < 1000; n += 1) requests.take('mill', 'miller');
});

test('a refused request of a customer takes nothing from its tenant, and names the owner of the limit', async () => {
  const requests = await open(new BusHub(new Metrics()), '4:60', '1:60');
  requests.take('mill', 'miller');
  for (let n = 0; n < 3; n += 1) {
    const fault = refusal(() => requests.take('mill', 'miller'));
    expect(fault).toMatchObject({ status: 429, reason: 'request_limit_customer', retryAfterSeconds: 60 });
  }
  for (let n = 0; n < 3; n += 1) requests.take('mill', null);
  expect(refusal(() => requests.take('mill', null))).toMatchObject({
    reason: 'request_limit_tenant',
    retryAfterSeconds: 15,
    message: 'Too many requests for current tenant!',
  });
  nowMs += 15_000;
  requests.take('mill', null);
});

test('workers share a bucket', async () => {
  const hub = new BusHub(new Metrics());
  const [here, there] = [await open(hub, '50:3600'), await open(hub, '50:3600')];
  for (let n = 0; n < 50; n += 1) here.take('mill', null);
  await expect.poll(() => refusal(() => there.take('mill', null))?.reason).toBe('request_limit_tenant');
});

test('workers share a bucket of a profile, and what a customer took counts there only', async () => {
  const hub = new BusHub(new Metrics());
  const [here, there] = [await open(hub, '', '9:3600'), await open(hub, '', '9:3600')];
  const gold = {
    id: 'g',
    name: 'Gold',
    limits: { ...readLimits({}), requests: { tenant: '', customer: '5:3600', commands: '' } },
  };
  for (const requests of [here, there]) requests.useProfiles([{ ...gold, tenantIds: ['mill'] }]);
  for (let n = 0; n < 5; n += 1) here.take('mill', 'miller');
  await expect.poll(() => refusal(() => there.take('mill', 'miller'))?.reason).toBe('request_limit_customer');
  // The tenant leaves the profile: the bucket of the settings is full.
  there.useProfiles([]);
  for (let n = 0; n < 9; n += 1) there.take('mill', 'miller');
  expect(refusal(() => there.take('mill', 'miller'))?.reason).toBe('request_limit_customer');
});

test('commands have a bucket of their own for each tenant', async () => {
  const requests = await open(new BusHub(new Metrics()), '1:60', '', '3:60');
  for (let n = 0; n < 3; n += 1) requests.takeCommand('mill');
  expect(refusal(() => requests.takeCommand('mill'))).toMatchObject({
    reason: 'request_limit_commands',
    retryAfterSeconds: 20,
    message: 'Too many commands to the devices of this tenant!',
  });
  requests.takeCommand('bakery');
  requests.take('mill', null);
});
