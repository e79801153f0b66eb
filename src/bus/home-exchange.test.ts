import { afterEach, expect, test } from 'vitest';
import { steadySleep, useSteadyClock } from '../../test/harness/steady-clock.ts';
import { limits } from '../base/limits.ts';
import type { Bus, Handler } from './bus.ts';
import { type HomeEntry, HomeExchange, type HomeTopic } from './home-exchange.ts';
import { UnreadMessage } from './messages.ts';

useSteadyClock();

/** Delivers at once, also to the sender. */
class TestBus implements Bus {
  connected = true;
  readonly handlers = new Map<string, Set<Handler>>();
  readonly published: [channel: string, message: { topics: Record<string, unknown> }][] = [];

  publish(channel: string, payload: Buffer | string): void {
    if (!this.connected) return;
    this.published.push([channel, JSON.parse(payload.toString())]);
    for (const handler of this.handlers.get(channel) ?? []) handler(Buffer.from(payload), channel);
  }

  async subscribe(channel: string, handler: Handler): Promise<() => void> {
    const handlers = this.handlers.get(channel) ?? new Set();
    this.handlers.set(channel, handlers.add(handler));
    return () => void handlers.delete(handler);
  }

  onReconnect(): void {}
  async close(): Promise<void> {}

  reports(): Record<string, unknown>[] {
    return this.published.filter(([channel]) => channel === 'home-reports').map(([, { topics }]) => topics);
  }
}

/** Counts whole numbers. */
class Numbers implements HomeTopic {
  counted: number[] = [];
  /** At the home. */
  sum = 0;
  learnt: [sum: number, isConfirming: boolean][] = [];
  losses: boolean[] = [];
  confirmations = 0;
  #changed = false;

  isReport = ([number]: HomeEntry) => Number.isInteger(number);
  isSum = this.isReport;
  collect = () => this.counted.splice(0).map((number) => [number]);
  confirmed = () => void (this.confirmations += 1);
  lost = (isFirst: boolean) => void this.losses.push(isFirst);
  count = ([number]: HomeEntry) => {
    this.sum += number as number;
    this.#changed = true;
  };
  sums = () => {
    const sums = this.#changed ? [[this.sum]] : [];
    this.#changed = false;
    return sums;
  };
  learn = ([sum]: HomeEntry, isConfirming: boolean) => void this.learnt.push([sum as number, isConfirming]);
}

const opened: HomeExchange[] = [];

async function open(bus: Bus, isHome: boolean | (() => boolean), workers = 2) {
  const fleet = { workers: () => workers, isHome: typeof isHome === 'boolean' ? () => isHome : isHome };
  const exchange = new HomeExchange({ bus, fleet });
  const numbers = new Numbers();
  exchange.add('numbers', numbers);
  await exchange.start();
  opened.push(exchange);
  const send = (number: number) => {
    numbers.counted.push(number);
    exchange.wake();
  };
  return { exchange, numbers, send };
}

afterEach(() => {
  for (const exchange of opened.splice(0)) exchange.stop();
});

test('the home adds up what all workers counted, announces the sum to each, and confirms the reports', async () => {
  const bus = new TestBus();
  const [home, other] = [await open(bus, true), await open(bus, false)];
  other.send(3);
  await expect
    .poll(() => [home.numbers.learnt.at(-1), other.numbers.learnt.at(-1)])
    .toEqual([
      [3, false],
      [3, true],
    ]);
  home.send(4);
  await expect
    .poll(() => [home.numbers.learnt.at(-1), other.numbers.learnt.at(-1)])
    .toEqual([
      [7, true],
      [7, false],
    ]);
  expect([home.numbers.confirmations, other.numbers.confirmations, other.exchange.isSilent]).toEqual([1, 1, false]);
  // The counts of the home take no way over the bus.
  expect(bus.reports()).toEqual([{ numbers: [[3]] }]);
});

test('a worker that has counted nothing sends nothing', async () => {
  const bus = new TestBus();
  const [home, other] = [await open(bus, true), await open(bus, false)];
  other.exchange.wake();
  home.exchange.wake();
  await steadySleep(50);
  expect(bus.published).toEqual([]);
});

test('the first counts after a quiet time go at once, further ones together, the later the more workers there are', async () => {
  const bus = new TestBus();
  await open(bus, true, 7);
  const other = await open(bus, false, 7);
  const until = performance.now() + 700;
  let sent = 0;
  while (performance.now() < until) {
    other.send(1);
    sent += 1;
    await new Promise((resolve) => setImmediate(resolve));
  }
  const reports = bus.reports().length;
  expect(sent).toBeGreaterThan(100);
  // One for each 196 ms, and the first ones.
  expect(reports).toBeGreaterThanOrEqual(2);
  expect(reports).toBeLessThanOrEqual(limits.homeMessagesAtOnce + 4);
});

test('a report that no home confirms is lost, and the home is silent until one confirms', async () => {
  const bus = new TestBus();
  let isHome = false;
  const later = await open(bus, () => isHome);
  const other = await open(bus, false);
  other.send(1);
  await expect.poll(() => other.exchange.isSilent).toBe(true);
  expect(other.numbers.losses).toEqual([true]);
  isHome = true;
  await expect.poll(() => bus.handlers.get('home-reports')?.size).toBe(1);
  other.send(2);
  await expect.poll(() => other.exchange.isSilent).toBe(false);
  expect(later.numbers.sum).toBe(2);
});

test('a home that follows another home reports to that one', async () => {
  const bus = new TestBus();
  let isHome = false;
  const [first, later] = [await open(bus, true), await open(bus, () => isHome)];
  first.send(1);
  await expect.poll(() => later.numbers.learnt).toEqual([[1, false]]);
  isHome = true;
  await expect.poll(() => bus.handlers.get('home-reports')?.size).toBe(2);
  first.send(2);
  await expect.poll(() => later.numbers.learnt.at(-1)).toEqual([3, false]);
  later.send(4);
  await expect.poll(() => later.numbers.confirmations).toBe(1);
  expect([first.numbers.sum, later.numbers.losses]).toEqual([7, []]);
});

test('the home of 500 workers confirms each report in time', async () => {
  const bus = new TestBus();
  await open(bus, true, 500);
  const others = [await open(bus, false, 500), await open(bus, false, 500)];
  for (let n = 1; n <= limits.homeMessagesAtOnce; n += 1) {
    others[0]!.send(n);
    await expect.poll(() => others[0]!.numbers.confirmations).toBe(n);
  }
  others[1]!.send(1);
  await expect.poll(() => others[1]!.numbers.confirmations).toBe(1);
  expect(others[1]!.numbers.losses).toEqual([]);
});

test('a worker that is the home again while its first subscription is slow counts each report once', async () => {
  const bus = new TestBus();
  const subscribe = bus.subscribe.bind(bus);
  let checks = 0;
  const confirmations: (() => void)[] = [];
  bus.subscribe = async (channel, handler) => {
    const unsubscribe = await subscribe(channel, handler);
    if (channel === 'home-reports') await new Promise<void>((resolve) => confirmations.push(resolve));
    return unsubscribe;
  };
  // The home at all checks but the second one. Its start waits for the bus.
  const opening = open(bus, () => (checks += 1) !== 2);
  await expect.poll(() => checks).toBeGreaterThan(4);
  for (const confirm of confirmations) confirm();
  const home = await opening;
  const other = await open(bus, false);
  other.send(1);
  await expect.poll(() => other.numbers.confirmations).toBe(1);
  expect(home.numbers.sum).toBe(1);
});

test('a stopped worker sends no more reports', async () => {
  const bus = new TestBus();
  const other = await open(bus, false);
  other.exchange.stop();
  other.send(1);
  for (let n = 0; n < 5; n += 1) await new Promise((resolve) => setImmediate(resolve));
  expect(bus.published).toEqual([]);
});

test('a home that stops while its subscription is slow receives no report', async () => {
  const bus = new TestBus();
  const subscribe = bus.subscribe.bind(bus);
  let confirm: (() => void) | undefined;
  bus.subscribe = async (channel, handler) => {
    const unsubscribe = await subscribe(channel, handler);
    if (channel === 'home-reports') await new Promise<void>((resolve) => (confirm = resolve));
    return unsubscribe;
  };
  let isHome = false;
  const { exchange } = await open(bus, () => isHome);
  isHome = true;
  await expect.poll(() => confirm).toBeDefined();
  exchange.stop();
  confirm!();
  await expect.poll(() => bus.handlers.get('home-reports')!.size).toBe(0);
});

test('a topic that only a newer version knows is left out', async () => {
  const bus = new TestBus();
  const home = await open(bus, true);
  const topics = { colours: [['red']], numbers: [[5]] };
  bus.publish('home-reports', JSON.stringify({ from: 'newer', number: 1, topics, more: {} }));
  expect(home.numbers.sum).toBe(5);
});

test('a message of another shape is not read, and none of its entries is used', async () => {
  const bus = new TestBus();
  const home = await open(bus, true);
  const handlers = ['home-reports', 'home-sums'].map((channel) => [...bus.handlers.get(channel)!][0]!);
  const [report, sum] = [
    { from: 'x', number: 1 },
    { from: 'x', confirmed: [] },
  ];
  for (const bad of [[['a']], [[1], 7], [[1.5]], {}, 7, null]) {
    for (const [handler, message] of [
      [handlers[0]!, report],
      [handlers[1]!, sum],
    ] as const) {
      const payload = Buffer.from(JSON.stringify({ ...message, topics: { numbers: bad } }));
      expect(() => handler(payload, 'x'), JSON.stringify(bad)).toThrow(UnreadMessage);
    }
  }
  for (const bad of [{ number: -1 }, { number: 'a' }, { number: undefined }]) {
    const payload = Buffer.from(JSON.stringify({ ...report, topics: { numbers: [[1]] }, ...bad }));
    expect(() => handlers[0]!(payload, 'x')).toThrow(UnreadMessage);
  }
  expect([home.numbers.sum, home.numbers.learnt]).toEqual([0, []]);
});
