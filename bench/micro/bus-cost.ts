/**
 * What an event of a device, and the rate limits, cost the bus as the number of workers grows: the sessions, the
 * downlink and the rate limits of many workers in one process, on a bus in memory that counts. Every device is
 * connected and listens for commands and attributes, as over MQTT.
 */
import { setImmediate as turn } from 'node:timers/promises';
import { RateLimits } from '../../src/auth/rate-limits.ts';
import { systemClock as clock } from '../../src/base/clock.ts';
import { limits } from '../../src/base/limits.ts';
import { createLog } from '../../src/base/log.ts';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { systemScheduler } from '../../src/base/scheduler.ts';
import type { Bus, Handler } from '../../src/bus/bus.ts';
import { HomeExchange } from '../../src/bus/home-exchange.ts';
import { LocalDevices } from '../../src/device/local-devices.ts';
import { openChannels } from '../../src/downlink/device-channels.ts';
import { Downlink } from '../../src/downlink/downlink.ts';
import { Sessions } from '../../src/downlink/sessions.ts';

export interface BusCost {
  workers: number;
  /**
   * Messages that the bus hands to subscribers for one event, on average. The event is at another worker than the
   * session of the device.
   */
  connect: number;
  command: number;
  attribute: number;
  /** Channels to which a worker is subscribed. */
  channelsPerWorker: number;
}

const events = 200;

/** Hands each message to all subscribers of its channel, in the order in which messages were published. */
class CountingBus {
  delivered = 0;
  /** Deliveries to each member. */
  readonly deliveredTo = new Map<Bus, number>();
  readonly #handlers = new Map<string, Map<Handler, Bus>>();

  get channels(): number {
    let sum = 0;
    for (const handlers of this.#handlers.values()) sum += handlers.size;
    return sum;
  }

  /** The bus of one worker. */
  member(): Bus {
    const member: Bus = {
      connected: true,
      spansHosts: true,
      publish: (channel, payload) => setImmediate(() => this.#deliver(channel, Buffer.from(payload))),
      subscribe: async (channel, handler) => {
        const own: Handler = (payload, name) => handler(payload, name);
        const handlers = this.#handlers.get(channel) ?? new Map<Handler, Bus>();
        this.#handlers.set(channel, handlers.set(own, member));
        return () => void handlers.delete(own);
      },
      onReconnect() {},
      close: async () => {},
    };
    return member;
  }

  #deliver(channel: string, payload: Buffer): void {
    for (const [handler, member] of this.#handlers.get(channel) ?? []) {
      this.delivered += 1;
      this.deliveredTo.set(member, (this.deliveredTo.get(member) ?? 0) + 1);
      handler(payload, channel);
    }
  }
}

interface Worker {
  sessions: Sessions;
  downlink: Downlink;
}

const devices = 10_000;

export async function benchBusCost(workers: number): Promise<BusCost> {
  const bus = new CountingBus();
  const all: Worker[] = [];
  for (let n = 0; n < workers; n += 1) all.push(await openWorker(bus.member()));
  // Devices are at no worker in particular, as behind a balancer.
  const placeOf = (device: number) => (Math.imul(device, 0x9e3779b1) >>> 8) % workers;
  const holder = (device: number) => all[placeOf(device)]!;
  const other = (device: number) => all[(placeOf(device) + 1) % workers]!;
  for (let device = 1; device <= devices; device += 1) {
    connect(holder(device), device);
    if (device % 500 === 0) await settled();
  }
  await gathered();
  const channelsPerWorker = Math.round(bus.channels / workers);

  const deliveriesOf = async (event: (n: number) => Promise<unknown> | unknown): Promise<number> => {
    await gathered();
    const before = bus.delivered;
    for (let n = 1; n <= events; n += 1) {
      await event(n);
      await settled();
    }
    await gathered();
    return Number(((bus.delivered - before) / events).toFixed(1));
  };
  const spread = (n: number) => 1 + ((n * 7919) % devices);
  const attribute = await deliveriesOf((n) => other(spread(n)).downlink.send(spread(n), 'attributes', { n }));
  const command = await deliveriesOf(async (n) => {
    const device = spread(n);
    const caller = other(device);
    // As for a command over REST: the caller notices a session that opens, and the reply goes to the caller.
    const leave = caller.downlink.onOpened(device, 'rpc', () => {});
    // On a busy machine an answer may come too late, and the offer is repeated.
    while ((await caller.downlink.offer(device, 'rpc', { n })) !== 'taken') await settled();
    holder(device).downlink.send(device, 'rpc-climb', { n });
    await settled();
    leave();
  });
  // A device that connects to the next worker: its session there ends.
  const connected = await deliveriesOf((n) => connect(other(spread(n)), spread(n)));
  for (const { sessions, downlink } of all) {
    downlink.stop();
    await sessions.stop();
  }
  return { workers, connect: connected, command, attribute, channelsPerWorker };
}

/** One for all simulated workers: each output of a log listens for the end of the process. */
const log = createLog('fatal', 'bench');

async function openWorker(bus: Bus): Promise<Worker> {
  const metrics = new Metrics();
  const channels = openChannels(bus);
  const sessions = new Sessions({
    ...{ bus, channels: channels.sessions, clock, log, metrics, devices: new LocalDevices() },
    lookUp: async () => [],
    onConnected() {},
    onDisconnected() {},
  });
  const downlink = new Downlink({ bus, channels, log, metrics });
  await downlink.start();
  return { sessions, downlink };
}

function connect({ sessions, downlink }: Worker, number: number): void {
  const row = { number, id: `id-${number}`, tenantId: 't', customerId: null, profileId: 'p', name: '', version: 1 };
  const listener = { receive: () => true, close() {} };
  const leaves = [downlink.listen(number, 'rpc', listener), downlink.listen(number, 'attributes', listener)];
  const session = sessions.open(row, {
    sessionEnded() {
      for (const leave of leaves) leave();
      session.end();
    },
  });
}

/** Waits longer than announcements do. */
async function gathered(): Promise<void> {
  await systemScheduler.sleep(10 * limits.busGatherMs);
}

async function settled(): Promise<void> {
  for (let n = 0; n < 12; n += 1) await turn();
}

export interface LimitsCost {
  workers: number;
  /** Messages that the bus hands to a worker in a second, on average. */
  idle: number;
  busy: number;
  /** The busiest worker: the home. */
  busyMax: number;
}

const perWorker = { devices: 50, sharedDevices: 5 };

/**
 * Every message of every worker counts in a rate limit of its tenant and of its device. Most devices send to one
 * worker, some to all workers, and two tenants exceed their limits.
 */
export async function benchLimitsCost(workers: number, seconds = 4): Promise<LimitsCost> {
  const bus = new CountingBus();
  const exchanges: HomeExchange[] = [];
  const all: RateLimits[] = [];
  const none = { messages: '', telemetryMessages: '', telemetryDataPoints: '' };
  const ofDevice = { ...none, messages: '20:1' };
  const settings = { device: ofDevice, gatewayDevice: none, gateway: none, tenant: { ...none, messages: '2000:1' } };
  for (let n = 0; n < workers; n += 1) {
    const fleet = { workers: () => workers, isHome: () => n === 0 };
    const exchange = new HomeExchange({ bus: bus.member(), fleet });
    await exchange.start();
    exchanges.push(exchange);
    all.push(new RateLimits({ settings, exchange, clock }));
  }
  const deliveriesPerSecond = async (work: () => void): Promise<{ mean: number; most: number }> => {
    const before = new Map(bus.deliveredTo);
    const startedAt = performance.now();
    while (performance.now() - startedAt < seconds * 1000) {
      work();
      await systemScheduler.sleep(20);
    }
    const elapsed = (performance.now() - startedAt) / 1000;
    const rates = [...bus.deliveredTo].map(([member, count]) => (count - (before.get(member) ?? 0)) / elapsed);
    const sum = rates.reduce((total, rate) => total + rate, 0);
    return { mean: Number((sum / workers).toFixed(1)), most: Number(Math.max(...rates, 0).toFixed(1)) };
  };
  const idle = await deliveriesPerSecond(() => {});
  let turns = 0;
  const work = () => {
    turns += 1;
    all.forEach((limits, n) => {
      for (let i = 0; i < perWorker.devices; i += 1) {
        if ((i + turns) % 10 === 0) send(limits, { number: 1 + n * 1000 + i, tenantId: `t${i % 20}` });
      }
      for (let i = 0; i < perWorker.sharedDevices; i += 1) send(limits, { number: 900_000 + i, tenantId: `t${i}` });
    });
  };
  await deliveriesPerSecond(work);
  const busy = await deliveriesPerSecond(work);
  for (const exchange of exchanges) exchange.stop();
  return { workers, idle: idle.mean, busy: busy.mean, busyMax: busy.most };
}

function send(limits: RateLimits, device: { number: number; tenantId: string }): void {
  try {
    limits.message(device);
  } catch {
    // Above its limit.
  }
}
