/**
 * Many workers that share buckets over a bus with delays, in virtual time: what all of them take together, whatever
 * the load and the faults.
 */
import fc from 'fast-check';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { limits } from '../base/limits.ts';
import type { Bus, Handler } from '../bus/bus.ts';
import { HomeExchange } from '../bus/home-exchange.ts';
import type { RateLimitSettings } from './rate-kinds.ts';
import { RateLimits } from './rate-limits.ts';

const none = { messages: '', telemetryMessages: '', telemetryDataPoints: '' };
const device = { number: 1, tenantId: 'mill' };
const stepMs = 10;

function limitOf(messages: string): RateLimitSettings {
  return { device: none, gatewayDevice: none, gateway: none, tenant: { ...none, messages } };
}

interface Worker {
  limits: RateLimits;
  exchange: HomeExchange;
  isHome: boolean;
}

class Fleet {
  readonly workers: Worker[] = [];
  /** Times of the messages that were accepted, in milliseconds. */
  readonly accepted: number[] = [];
  refused = 0;
  isConnected = true;
  /** Part of the messages of the bus that is lost. */
  lossPart = 0;
  ms = 0;
  readonly #handlers = new Map<string, Set<Handler>>();
  readonly #random: () => number;

  constructor(random: () => number) {
    this.#random = random;
  }

  static async open(workers: number, limit: string, random: () => number): Promise<Fleet> {
    const fleet = new Fleet(random);
    for (let n = 0; n < workers; n += 1) await fleet.#add(n, workers, limit);
    return fleet;
  }

  async #add(n: number, workers: number, limit: string): Promise<void> {
    // Each host has a clock of its own, minutes away from the others.
    const skewMs = Math.floor(this.#random() * 600_000);
    const clock = { now: () => Date.now() + skewMs, monotonic: () => performance.now() + skewMs };
    const worker = { isHome: n === 0 } as Worker;
    const fleet = { workers: () => workers, isHome: () => worker.isHome };
    worker.exchange = new HomeExchange({ bus: this.#bus(), fleet });
    worker.limits = new RateLimits({ settings: limitOf(limit), exchange: worker.exchange, clock });
    this.workers.push(worker);
    await worker.exchange.start();
  }

  #bus(): Bus {
    const self = this;
    return {
      get connected() {
        return self.isConnected;
      },
      publish: (channel, payload) => {
        const delayMs = 1 + Math.floor(this.#random() * 20);
        if (!this.isConnected || this.#random() < this.lossPart) return;
        setTimeout(() => {
          for (const handler of this.#handlers.get(channel) ?? []) handler(Buffer.from(payload), channel);
        }, delayMs);
      },
      subscribe: async (channel, handler) => {
        const handlers = this.#handlers.get(channel) ?? new Set();
        this.#handlers.set(channel, handlers.add(handler));
        return () => void handlers.delete(handler);
      },
      onReconnect() {},
      close: async () => {},
    };
  }

  send(n: number): void {
    try {
      this.workers[n]!.limits.message(device);
      this.accepted.push(this.ms);
    } catch {
      this.refused += 1;
    }
  }

  /** Sends in each step what `load` returns for each worker; parts of a message add up. */
  async run(ms: number, load: (n: number, atMs: number) => number): Promise<number> {
    const before = this.accepted.length;
    const owed = this.workers.map(() => 0);
    for (let at = 0; at < ms; at += stepMs) {
      for (let n = 0; n < owed.length; n += 1) {
        owed[n]! += load(n, at);
        for (; owed[n]! >= 1; owed[n]! -= 1) this.send(n);
      }
      await vi.advanceTimersByTimeAsync(stepMs);
      this.ms += stepMs;
    }
    return this.accepted.length - before;
  }

  /** Returns the most messages that were accepted above the rate of the limit, in any time. */
  excess(capacity: number, seconds: number): number {
    let least = 0;
    let most = 0;
    this.accepted.forEach((ms, index) => {
      const expected = (ms / 1000) * (capacity / seconds);
      least = Math.min(least, index - expected);
      most = Math.max(most, index + 1 - expected - least);
    });
    return most;
  }

  stop(): void {
    for (const { exchange } of this.workers) exchange.stop();
  }
}

function seeded(seed: number): () => number {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

let fleet: Fleet | undefined;

beforeEach(() => {
  vi.useFakeTimers({
    toFake: [
      'setTimeout',
      'setInterval',
      'setImmediate',
      'clearTimeout',
      'clearInterval',
      'clearImmediate',
      'performance',
      'Date',
    ],
  });
});
afterEach(() => {
  fleet?.stop();
  vi.useRealTimers();
});

test.each([2, 8, 64])('a steady sender at one of %i workers gets the whole limit, and no more', async (workers) => {
  fleet = await Fleet.open(workers, '50:5', seeded(1));
  await fleet.run(10_000, (n) => (n === 1 ? 0.3 : 0));
  const accepted = await fleet.run(60_000, (n) => (n === 1 ? 0.3 : 0));
  expect(accepted).toBeGreaterThanOrEqual(598);
  expect(accepted).toBeLessThanOrEqual(602);
});

test.each([2, 8, 64])('a sender below the limit at one of %i workers is never refused', async (workers) => {
  fleet = await Fleet.open(workers, '50:5', seeded(1));
  await fleet.run(60_000, (n) => (n === 1 ? 0.095 : 0));
  expect(fleet.refused).toBe(0);
  expect(fleet.accepted.length).toBeGreaterThan(560);
});

test.each([2, 16])('a sender that changes between %i workers gets the whole limit, and no more', async (workers) => {
  fleet = await Fleet.open(workers, '50:5', seeded(1));
  const load = (n: number, atMs: number) => (n === Math.floor(atMs / stepMs) % workers ? 0.3 * workers : 0);
  await fleet.run(20_000, load);
  const accepted = await fleet.run(30_000, load);
  expect(accepted).toBeGreaterThanOrEqual(260);
  expect(accepted).toBeLessThanOrEqual(340);
});

test.each([2, 8, 32])('all of %i workers above the limit get the limit together', async (workers) => {
  fleet = await Fleet.open(workers, '500:5', seeded(1));
  const load = () => 3 / workers;
  await fleet.run(20_000, load);
  const accepted = await fleet.run(30_000, load);
  expect(accepted).toBeGreaterThanOrEqual(2_700);
  expect(accepted).toBeLessThanOrEqual(3_300);
});

test.each([2, 16])('all of %i workers below the limit are hardly ever refused', async (workers) => {
  fleet = await Fleet.open(workers, '500:5', seeded(1));
  const random = seeded(2);
  let sent = 0;
  const accepted = await fleet.run(60_000, () => {
    const count = random() < 0.9 / workers ? 1 : 0;
    sent += count;
    return count;
  });
  expect(accepted / sent).toBeGreaterThan(0.98);
});

test('a heavy sender gets what many light ones leave', async () => {
  fleet = await Fleet.open(16, '500:5', seeded(1));
  const load = (n: number) => (n === 3 ? 3 : 0.01);
  await fleet.run(20_000, load);
  const accepted = await fleet.run(30_000, load);
  expect(accepted).toBeGreaterThanOrEqual(2_700);
  expect(accepted).toBeLessThanOrEqual(3_300);
});

test('without the bus each worker has the whole limit; with the bus again, all have it together', async () => {
  fleet = await Fleet.open(4, '50:5', seeded(1));
  await fleet.run(20_000, () => 0.3);
  fleet.isConnected = false;
  await fleet.run(5_000, () => 0.3);
  const alone = await fleet.run(30_000, () => 0.3);
  expect(alone).toBeGreaterThanOrEqual(4 * 295);
  fleet.isConnected = true;
  await fleet.run(20_000, () => 0.3);
  const together = await fleet.run(60_000, () => 0.3);
  expect(together).toBeGreaterThanOrEqual(540);
  expect(together).toBeLessThanOrEqual(660);
});

test('while the home is silent, all workers have the limit together, and a new home shares it', async () => {
  fleet = await Fleet.open(8, '80:5', seeded(1));
  await fleet.run(20_000, () => 0.3);
  fleet.workers[0]!.isHome = false;
  await fleet.run(10_000, () => 0.3);
  const silent = await fleet.run(30_000, () => 0.3);
  expect(silent).toBeGreaterThanOrEqual(430);
  expect(silent).toBeLessThanOrEqual(530);
  fleet.workers[5]!.isHome = true;
  await fleet.run(10_000, () => 0.3);
  const accepted = await fleet.run(60_000, (n) => (n === 2 ? 0.3 : 0));
  expect(accepted).toBeGreaterThanOrEqual(900);
  expect(accepted).toBeLessThanOrEqual(1_060);
});

test('each worker follows one of two homes', async () => {
  fleet = await Fleet.open(8, '500:5', seeded(1));
  fleet.workers[3]!.isHome = true;
  await fleet.run(20_000, () => 0.3);
  const accepted = await fleet.run(30_000, () => 0.3);
  expect(accepted).toBeGreaterThanOrEqual(2_700);
  expect(accepted).toBeLessThanOrEqual(3_300);
});

/** What each of the workers sends for a while, with a fault of the bus. */
const phase = fc.record({
  seconds: fc.integer({ min: 1, max: 8 }),
  /** Messages of each worker in a step. */
  loads: fc.array(fc.constantFrom(0, 0, 0.01, 0.1, 1, 5), { minLength: 10, maxLength: 10 }),
  fault: fc.constantFrom('none', 'none', 'loss', 'no home', 'other home', 'second home'),
});

test('in any time all workers take at most the limit, one more full bucket for each worker and each home, and what refills until a report', {
  timeout: 120_000,
}, async () => {
  const scenario = fc.record({
    seed: fc.nat(),
    workers: fc.integer({ min: 2, max: 10 }),
    capacity: fc.integer({ min: 1, max: 200 }),
    seconds: fc.integer({ min: 1, max: 20 }),
    phases: fc.array(phase, { minLength: 1, maxLength: 6 }),
  });
  await fc.assert(
    fc.asyncProperty(scenario, async ({ seed, workers, capacity, seconds, phases }) => {
      const tried = await Fleet.open(workers, `${capacity}:${seconds}`, seeded(seed));
      try {
        let homes = 1;
        for (const { seconds: length, loads, fault } of phases) {
          tried.lossPart = fault === 'loss' ? 0.1 : 0;
          if (fault === 'no home') for (const worker of tried.workers) worker.isHome = false;
          if (fault === 'other home') {
            for (const [n, worker] of tried.workers.entries()) worker.isHome = n === homes % workers;
          }
          if (fault === 'second home') tried.workers[homes % workers]!.isHome = true;
          if (fault.endsWith('home')) homes += 1;
          await tried.run(length * 1000, (n) => loads[n]!);
        }
        // A new home learns of what was taken with the next reports.
        const unreported = (capacity / seconds) * (limits.homeMs / 1000);
        const most = (workers + homes) * Math.max(1, capacity) + unreported;
        expect(tried.excess(capacity, seconds)).toBeLessThanOrEqual(most);
      } finally {
        tried.stop();
      }
    }),
    { numRuns: 40 },
  );
});
