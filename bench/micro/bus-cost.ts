/**
 * What an event of a device costs the bus, as the number of workers grows: the sessions and the downlink of many
 * workers in one process, on a bus in memory that counts. Every device is connected and listens for commands and
 * attributes, as over MQTT.
 */
import { setTimeout as sleep, setImmediate as turn } from 'node:timers/promises';
import { systemClock as clock } from '../../src/base/clock.ts';
import { limits } from '../../src/base/limits.ts';
import { createLog } from '../../src/base/log.ts';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import type { Bus, Handler } from '../../src/bus/bus.ts';
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
  readonly #handlers = new Map<string, Set<Handler>>();

  get channels(): number {
    let sum = 0;
    for (const handlers of this.#handlers.values()) sum += handlers.size;
    return sum;
  }

  /** The bus of one worker. */
  member(): Bus {
    return {
      connected: true,
      spansHosts: true,
      publish: (channel, payload) => setImmediate(() => this.#deliver(channel, Buffer.from(payload))),
      subscribe: async (channel, handler) => {
        const own: Handler = (payload, name) => handler(payload, name);
        const handlers = this.#handlers.get(channel) ?? new Set();
        this.#handlers.set(channel, handlers.add(own));
        return () => void handlers.delete(own);
      },
      onReconnect() {},
      close: async () => {},
    };
  }

  #deliver(channel: string, payload: Buffer): void {
    for (const handler of this.#handlers.get(channel) ?? []) {
      this.delivered += 1;
      handler(payload, channel);
    }
  }
}

interface Worker {
  sessions: Sessions;
  downlink: Downlink;
}

export async function benchBusCost(workers: number, devices = 10_000): Promise<BusCost> {
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

async function openWorker(bus: Bus): Promise<Worker> {
  const log = createLog('fatal', 'bench');
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
  await sleep(10 * limits.busGatherMs);
}

async function settled(): Promise<void> {
  for (let n = 0; n < 12; n += 1) await turn();
}
