/**
 * Sessions of the same devices that open on several workers at any moment, over a bus whose messages, confirmations and
 * gaps come in an order that a seed chooses: as over Redis, where each worker publishes over one connection and
 * receives over another. Exactly one session of a device stays.
 */
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { deviceRow } from '../../test/harness/device-row.ts';
import { Random } from '../../test/harness/random.ts';
import { createLog } from '../base/log.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import type { Bus, Handler } from '../bus/bus.ts';
import { LocalDevices } from '../device/local-devices.ts';
import { openChannels } from './device-channels.ts';
import { Sessions } from './sessions.ts';

const seeds = 120;
const workersMax = 4;
const devices = [1, 2];
const log = createLog('fatal', 'test');

let nowMs: number;

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setImmediate', 'clearImmediate', 'setTimeout', 'clearTimeout'] });
  nowMs = 1_000_000;
});

afterEach(() => {
  vi.useRealTimers();
  vi.restoreAllMocks();
});

async function pass(ms: number): Promise<void> {
  nowMs += ms;
  await vi.advanceTimersByTimeAsync(ms);
}

/** The server: each step of a connection happens when the world takes it. */
class Server {
  readonly members: Member[] = [];

  deliver(channel: string, payload: string): void {
    for (const member of this.members) {
      if (member.active.has(channel)) member.incoming.push(() => member.receive(channel, payload));
    }
  }
}

/** The connections of one worker. */
class Member {
  readonly #server: Server;
  readonly #handlers = new Map<string, Handler>();
  readonly #onReconnect: (() => void)[] = [];
  /** What the server has not taken, and what the worker has not read. */
  outgoing: (() => void)[] = [];
  requests: (() => void)[] = [];
  incoming: (() => void)[] = [];
  /** Channels to which the server has subscribed this worker. */
  readonly active = new Set<string>();
  connected = true;

  constructor(server: Server) {
    this.#server = server;
    server.members.push(this);
  }

  get bus(): Bus {
    const member = this;
    return {
      spansHosts: true,
      get connected() {
        return member.connected;
      },
      publish: (channel, payload) => {
        if (this.connected) this.outgoing.push(() => this.#server.deliver(channel, String(payload)));
      },
      subscribe: (channel, handler) => this.#subscribe(channel, handler),
      onReconnect: (callback) => void this.#onReconnect.push(callback),
      close: async () => {},
    };
  }

  receive(channel: string, payload: string): void {
    this.#handlers.get(channel)?.(Buffer.from(payload), channel);
  }

  /** Takes one step, if there is one. */
  step(random: Random): void {
    const queue = random.pick([this.outgoing, this.requests, this.incoming]);
    queue.shift()?.();
  }

  get isQuiet(): boolean {
    return this.outgoing.length + this.requests.length + this.incoming.length === 0;
  }

  /** All that is under way is lost. */
  cut(): void {
    this.connected = false;
    this.active.clear();
    this.outgoing = [];
    this.requests = [];
    this.incoming = [];
  }

  connect(): void {
    if (this.connected) return;
    for (const channel of this.#handlers.keys()) this.active.add(channel);
    this.connected = true;
    for (const callback of this.#onReconnect) callback();
  }

  async #subscribe(channel: string, handler: Handler): Promise<() => void> {
    this.#handlers.set(channel, handler);
    if (this.connected) {
      await new Promise<void>((resolve) => {
        // A request that a cut loses ends as one that was answered: the next connect makes the subscription.
        setTimeout(resolve, 1_000);
        this.requests.push(() => {
          this.active.add(channel);
          this.incoming.push(resolve);
        });
      });
    }
    return () => {
      this.#handlers.delete(channel);
      if (this.connected) this.requests.push(() => this.active.delete(channel));
    };
  }
}

interface Worker {
  name: number;
  sessions: Sessions;
  member: Member;
}

class World {
  readonly random: Random;
  readonly workers: Worker[];

  constructor(seed: number, skewMsMax: number) {
    this.random = new Random(seed);
    vi.spyOn(Math, 'random').mockImplementation(() => this.random.next());
    const server = new Server();
    this.workers = Array.from({ length: 2 + this.random.below(workersMax - 1) }, (_, name) => {
      const member = new Member(server);
      const { bus } = member;
      const skewMs = Math.round((this.random.next() - 0.5) * 2 * skewMsMax);
      const sessions = new Sessions({
        ...{ bus, channels: openChannels(bus).sessions, devices: new LocalDevices(), log, metrics: new Metrics() },
        clock: { now: () => nowMs + skewMs, monotonic: () => nowMs },
        lookUp: async () => [],
        onConnected() {},
        onDisconnected() {},
      });
      return { name, sessions, member };
    });
  }

  open(worker: Worker, number: number): void {
    const session = worker.sessions.open(deviceRow(number), { sessionEnded: () => session.end() });
  }

  /** Workers with a session of the device. */
  holders(number: number): number[] {
    return this.workers.filter(({ sessions }) => sessions.get(number)).map(({ name }) => name);
  }

  async step(): Promise<void> {
    this.random.pick(this.workers).member.step(this.random);
    await pass(this.random.below(3));
  }

  async settle(): Promise<void> {
    for (const { member } of this.workers) member.connect();
    // Longer than all announcements after a gap, and those that are repeated because they were lost.
    for (let ms = 0; ms < 6_000; ms += 200) {
      while (!this.workers.every(({ member }) => member.isQuiet)) await this.step();
      await pass(200);
    }
  }

  async stop(): Promise<void> {
    for (const { sessions } of this.workers) await sessions.stop();
  }
}

async function run(seed: number, { skewMsMax, hasGaps }: { skewMsMax: number; hasGaps: boolean }): Promise<void> {
  const world = new World(seed, skewMsMax);
  const { random, workers } = world;
  for (const device of devices) world.open(random.pick(workers), device);
  for (let n = 0; n < 60; n += 1) {
    const draw = random.below(20);
    if (draw === 0) world.open(random.pick(workers), random.pick(devices));
    else if (draw === 1) {
      // Two sessions at the same moment.
      const device = random.pick(devices);
      for (const worker of workers) if (random.next() < 0.7) world.open(worker, device);
    } else if (draw === 2 && hasGaps) random.pick(workers).member.cut();
    else if (draw === 3) random.pick(workers).member.connect();
    // A full bus drops a message.
    else if (draw === 4 && hasGaps) random.pick(workers).member.outgoing.pop();
    else await world.step();
  }
  await world.settle();
  for (const device of devices) expect([seed, device, world.holders(device).length]).toEqual([seed, device, 1]);

  // A session that opens when all is quiet is the newest one.
  const [last, device] = [random.pick(workers), random.pick(devices)];
  world.open(last, device);
  await world.settle();
  expect([seed, world.holders(device)]).toEqual([seed, [last.name]]);
  await world.stop();
}

test('of sessions that open at any moment exactly one stays, whatever the clocks show', {
  timeout: 120_000,
}, async () => {
  for (let seed = 1; seed <= seeds; seed += 1) await run(seed, { skewMsMax: 3_600_000, hasGaps: false });
});

test('so it is when messages are lost, one by one and in gaps of the bus', { timeout: 120_000 }, async () => {
  for (let seed = 1; seed <= seeds; seed += 1) await run(seed, { skewMsMax: 3_600_000, hasGaps: true });
});
