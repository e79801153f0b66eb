/** The messages that each bucket counts, when it refuses, and that several workers share a bucket. */
import { afterEach, expect, test } from 'vitest';
import { aloneExchange, exchangeOf } from '../../test/harness/exchange.ts';
import { steadySleep, useSteadyClock } from '../../test/harness/steady-clock.ts';
import type { Clock } from '../base/clock.ts';
import { Fault, StartError } from '../base/errors.ts';
import { environmentNames, loadConfig } from '../base/settings/config.ts';
import type { Bus, Handler } from '../bus/bus.ts';
import type { HomeExchange } from '../bus/home-exchange.ts';
import { readLimits } from './profile-limits.ts';
import type { RateLimitSettings } from './rate-kinds.ts';
import { parseRateLimits, RateLimits } from './rate-limits.ts';

useSteadyClock();

class TestClock implements Clock {
  ms = 1_000_000;
  now = () => this.ms;
  monotonic = () => this.ms;
}

/** Delivers at once, also to the sender. */
class TestBus implements Bus {
  readonly connected = true;
  readonly #handlers: [channel: string, handler: Handler][] = [];
  published = 0;

  publish(channel: string, payload: Buffer | string): void {
    this.published += 1;
    for (const [name, handler] of this.#handlers) if (name === channel) handler(Buffer.from(payload), channel);
  }

  async subscribe(channel: string, handler: Handler): Promise<() => void> {
    this.#handlers.push([channel, handler]);
    return () => {};
  }

  onReconnect(): void {}
  async close(): Promise<void> {}
}

const none = { messages: '', telemetryMessages: '', telemetryDataPoints: '' };
const pump = { number: 1, tenantId: 'mill' };
const lamp = { number: 2, tenantId: 'mill' };

function settings(
  device: Partial<typeof none>,
  tenant: Partial<typeof none> = {},
  gateway: Partial<typeof none> = {},
  gatewayDevice: Partial<typeof none> = {},
): RateLimitSettings {
  return {
    device: { ...none, ...device },
    gatewayDevice: { ...none, ...gatewayDevice },
    gateway: { ...none, ...gateway },
    tenant: { ...none, ...tenant },
  };
}

/** A profile without limits but those on messages. */
const unlimited = readLimits({});

function open(of: RateLimitSettings, clock = new TestClock()): RateLimits {
  return new RateLimits({ settings: of, exchange: aloneExchange(), clock });
}

const opened: HomeExchange[] = [];

/** Returns the limits of two workers; the first one is the home. */
async function openTwo(of: RateLimitSettings, bus = new TestBus()): Promise<[RateLimits, RateLimits]> {
  const clock = new TestClock();
  const both = [true, false].map((isHome) => {
    const exchange = exchangeOf(bus, 2, isHome);
    opened.push(exchange);
    return new RateLimits({ settings: of, exchange, clock });
  });
  await Promise.all(opened.map((exchange) => exchange.start()));
  return both as [RateLimits, RateLimits];
}

afterEach(() => {
  for (const exchange of opened.splice(0)) exchange.stop();
});

function refusal(act: () => void): Fault {
  try {
    act();
  } catch (error) {
    if (error instanceof Fault) return error;
    throw error;
  }
  throw new Error('not refused');
}

test('without a limit no message is counted', async () => {
  const bus = new TestBus();
  const [rateLimits] = await openTwo(settings({}), bus);
  expect(rateLimits.isActive).toBe(false);
  for (let n = 0; n < 1000; n += 1) rateLimits.message(pump);
  await steadySleep(20);
  expect(bus.published).toBe(0);
});

test('a malformed limit is one line that names it', () => {
  for (const text of ['10', '10:0', '0:10', '10:1;20:2', 'a:b', '-1:1', '10:1,']) {
    expect(() => parseRateLimits(settings({}, { messages: text }))).toThrow(StartError);
    expect(() => parseRateLimits(settings({}, { messages: text }))).toThrow(/rateLimits\.tenant\.messages/);
  }
  expect(parseRateLimits(settings({ messages: '10:1, 20:60' })).device).toHaveLength(2);
});

test('a malformed limit is named as its variable of the environment, too', () => {
  const variables = [...environmentNames()].filter(
    (name) => name.startsWith('RATE_LIMITS_') && !/_REST_|_FILE$/.test(name),
  );
  expect(variables.length).toBeGreaterThan(10);
  for (const name of variables) {
    const { rateLimits } = loadConfig({ [name]: 'ten' });
    expect(() => parseRateLimits(rateLimits)).toThrow(`(${name}) is "ten"`);
  }
});

test('a bucket gives what it holds, refuses by name with the time to wait, and fills again', async () => {
  const clock = new TestClock();
  const limits = open(settings({ messages: '3:60' }), clock);
  for (let n = 0; n < 3; n += 1) limits.message(pump);
  const fault = refusal(() => limits.message(pump));
  expect(fault).toMatchObject({ status: 429, errorCode: 33, retryAfterSeconds: 20, reason: 'rate_limit_device' });
  expect(fault.message).toMatch(/^Too many requests for current device! .*3 messages in 60 s/);
  clock.ms += 19_000;
  expect(refusal(() => limits.message(pump)).retryAfterSeconds).toBe(1);
  clock.ms += 1_001;
  limits.message(pump);
  expect(() => limits.message(pump)).toThrow(Fault);
  clock.ms += 3_600_000;
  for (let n = 0; n < 3; n += 1) limits.message(pump);
  expect(() => limits.message(pump)).toThrow(Fault);
});

test('all buckets of a kind must pass', async () => {
  const clock = new TestClock();
  const limits = open(settings({ messages: '2:1,3:100' }), clock);
  limits.message(pump);
  limits.message(pump);
  expect(refusal(() => limits.message(pump)).message).toContain('2 messages in 1 s');
  clock.ms += 1_000;
  limits.message(pump);
  expect(refusal(() => limits.message(pump)).message).toContain('3 messages in 100 s');
});

test('a post with points is a telemetry message and its points, one without is a message', async () => {
  const limits = open(settings({ messages: '1:60', telemetryMessages: '2:60', telemetryDataPoints: '10:60' }));
  limits.points(pump, 4);
  limits.points(pump, 4);
  expect(refusal(() => limits.admit(pump)).message).toContain('telemetry messages');
  limits.points(pump, 0);
  expect(refusal(() => limits.points(pump, 0)).message).toContain('1 messages in 60 s');
});

test('a refused post takes nothing, and one beyond the whole bucket must come in parts', async () => {
  const limits = open(settings({ telemetryDataPoints: '10:60', telemetryMessages: '2:60' }));
  expect(refusal(() => limits.points(pump, 11)).message).toContain('has 11: send it in parts');
  limits.points(pump, 5);
  expect(refusal(() => limits.points(pump, 6)).message).toContain('10 telemetry data points in 60 s');
  limits.points(pump, 5);
});

test('devices have buckets of their own, and share that of their tenant', async () => {
  const limits = open(settings({ messages: '2:60' }, { messages: '3:60' }));
  limits.message(pump);
  limits.message(pump);
  expect(() => limits.message(pump)).toThrow('current device');
  limits.message(lamp);
  expect(refusal(() => limits.message(lamp)).message).toMatch(/current tenant!.*rateLimits\.tenant\.messages/);
  limits.message({ number: 3, tenantId: 'other' });
});

test('children of a gateway share its limits, and what it sends for itself has others', async () => {
  const of = settings(
    { messages: '1:60' },
    {},
    { messages: '2:60', telemetryDataPoints: '10:60' },
    { messages: '3:60' },
  );
  const limits = open(of);
  const hub = { number: 3, tenantId: 'mill', isGateway: true };
  const other = { ...hub, number: 4 };
  limits.childMessage(hub);
  limits.childMessage(hub);
  expect(refusal(() => limits.childMessage(hub)).reason).toBe('rate_limit_gateway');
  limits.childMessage(other);
  limits.childPoints(hub, 10);
  expect(refusal(() => limits.childPoints(hub, 1)).message).toContain('rateLimits.gateway.telemetryDataPoints');
  for (let n = 0; n < 3; n += 1) limits.message(hub);
  expect(refusal(() => limits.message(hub)).reason).toBe('rate_limit_gatewayDevice');
  limits.points(hub, 1000);
  limits.message(pump);
  expect(refusal(() => limits.message(pump)).reason).toBe('rate_limit_device');
});

test('workers share a bucket: what one took the others know soon', async () => {
  const of = settings({ messages: '4:60', telemetryDataPoints: '10:60' }, { messages: '100:1' }, { messages: '2:60' });
  const [here, there] = await openTwo(of);
  here.message(pump);
  here.message(pump);
  here.points(pump, 7);
  const left = () => there.levels(pump).map((level) => level.left);
  await expect.poll(left).toEqual([2, 3, 100]);
  there.message(pump);
  there.message(pump);
  expect(() => there.message(pump)).toThrow(Fault);
  expect(() => there.points(pump, 4)).toThrow(Fault);
  there.points(pump, 3);
  here.childMessage(pump);
  here.childMessage(pump);
  await expect.poll(() => refusal(() => there.childMessage(pump)).reason).toBe('rate_limit_gateway');
});

test('under load the others are notified every few milliseconds, not of each message', async () => {
  const bus = new TestBus();
  const [limits] = await openTwo(settings({ messages: '900000000:1' }), bus);
  const until = Date.now() + 200;
  while (Date.now() < until) {
    for (let n = 0; n < 100; n += 1) limits.message(pump);
    await new Promise((resolve) => setImmediate(resolve));
  }
  expect(bus.published).toBeLessThan(80);
});

test('a profile limits its tenants in place of the settings, member by member, and is named in the refusal', async () => {
  const limits = open(settings({ messages: '9:60', telemetryMessages: '2:60' }));
  const rates = settings({ messages: '1:60' }, { telemetryDataPoints: '5:60' });
  const gold = { id: 'g', name: 'Gold', limits: { ...unlimited, rates }, tenantIds: ['mill'] };
  const loaf = { number: 7, tenantId: 'bakery' };
  limits.useProfiles([gold]);
  limits.message(pump);
  expect(refusal(() => limits.message(pump)).message).toContain(
    '1 messages in 60 s (transportDeviceMsgRateLimit of tenant profile "Gold")',
  );
  for (let n = 0; n < 9; n += 1) limits.message(loaf);
  expect(refusal(() => limits.message(loaf)).message).toContain('(rateLimits.device.messages)');
  // A member that the profile does not set is that of the settings.
  limits.points(lamp, 1);
  limits.points(lamp, 1);
  expect(refusal(() => limits.points(lamp, 1)).message).toContain('(rateLimits.device.telemetryMessages)');
  expect(refusal(() => limits.points(pump, 4)).message).toContain('transportTenantTelemetryDataPointsRateLimit');
  expect(limits.settingsOf('mill').device).toEqual({
    messages: '1:60',
    telemetryMessages: '2:60',
    telemetryDataPoints: '',
  });

  // The same limits again keep their tokens; a tenant without the profile has those of the settings.
  limits.useProfiles([gold]);
  expect(() => limits.message(pump)).toThrow(Fault);
  limits.useProfiles([]);
  limits.message(pump);
});

test('workers share the buckets of a profile', async () => {
  const [here, there] = await openTwo(settings({}));
  const rates = settings({ messages: '4:60' }, { messages: '6:60' });
  const profiles = [{ id: 'g', name: 'Gold', limits: { ...unlimited, rates }, tenantIds: ['mill'] }];
  expect(here.isActive).toBe(false);
  for (const limits of [here, there]) limits.useProfiles(profiles);
  expect(here.isActive).toBe(true);
  const left = (limits: RateLimits, device: typeof pump) => limits.levels(device).map((level) => level.left);
  for (let n = 0; n < 4; n += 1) here.message(pump);
  await expect.poll(() => left(there, pump)).toEqual([0, 2]);
  expect(refusal(() => there.message(pump)).reason).toBe('rate_limit_device');
  for (let n = 0; n < 2; n += 1) there.message(lamp);
  await expect.poll(() => left(here, lamp)).toEqual([2, 0]);
  expect(refusal(() => here.message(lamp)).reason).toBe('rate_limit_tenant');
});

test('what a device took counts in the limits of its own profile only, on all workers', async () => {
  const [here, there] = await openTwo(settings({}));
  const limitsOf = (capacity: number) => ({ ...unlimited, rates: settings({ messages: `${capacity}:60` }) });
  const gold = { id: 'g', name: 'Gold', limits: limitsOf(9), tenantIds: ['mill'] };
  const iron = { id: 'i', name: 'Iron', limits: limitsOf(3), tenantIds: ['bakery'] };
  for (const limits of [here, there]) limits.useProfiles([gold, iron]);
  for (let n = 0; n < 5; n += 1) here.message(pump);
  const left = (tenantId: string) => there.levels({ ...pump, tenantId }).map((level) => level.left);
  await expect.poll(() => left('mill')).toEqual([4]);
  expect(left('bakery')).toEqual([3]);
});
