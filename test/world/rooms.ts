/**
 * The rooms of a worker that meet over the bus: sessions, commands, shared attributes, changes of credentials and rate
 * limits. They are the real classes, over a simulated bus and database.
 */
import { AttributeUpdates } from '../../src/attributes/followers.ts';
import { notifyShared } from '../../src/attributes/notify.ts';
import { AttributeWriter } from '../../src/attributes/writer.ts';
import { RateLimits } from '../../src/auth/rate-limits.ts';
import type { Log } from '../../src/base/log.ts';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { type Bus, type BusCounters, busCounters } from '../../src/bus/bus.ts';
import { HomeExchange } from '../../src/bus/home-exchange.ts';
import { IpcBus } from '../../src/bus/ipc.ts';
import { channelNames, RedisBus } from '../../src/bus/redis.ts';
import { CredentialChanges } from '../../src/device/credential-changes.ts';
import { LocalDevices } from '../../src/device/local-devices.ts';
import { lookUpDevices } from '../../src/device/sql/look-up-store.ts';
import { openChannels } from '../../src/downlink/device-channels.ts';
import { Downlink } from '../../src/downlink/downlink.ts';
import { Sessions } from '../../src/downlink/sessions.ts';
import { AttributeStream } from '../../src/mqtt/topics/attributes.ts';
import { RpcStream } from '../../src/mqtt/topics/rpc.ts';
import type { Queries } from '../../src/postgres/client.ts';
import { RpcNumbers } from '../../src/rpc/numbers.ts';
import { PersistentRpcs } from '../../src/rpc/persistent.ts';
import { Rpc } from '../../src/rpc/send.ts';
import { RpcSessions } from '../../src/rpc/sessions.ts';
import type { Connection } from './connection.ts';
import type { Database } from './database.ts';
import type { ProcessTime } from './virtual-time.ts';
import { type Host, Link, type Redis } from './wires.ts';

/** How the workers of a world reach each other: over a Redis, or as processes of one host. */
export type Wire = { redis: Redis } | { host: Host };

interface RoomsDeps {
  /** Names the worker in messages; new at each start. */
  node: string;
  process: ProcessTime;
  database: Database;
  wire: Wire;
  log: Log;
  /** The workers of all hosts. */
  workers: number;
  /** True while this worker adds up the counts of all workers. */
  isHome: () => boolean;
}

/** Messages of a device in a second, over all workers. */
export const messagesPerSecond = 20;
const unlimited = { messages: '', telemetryMessages: '', telemetryDataPoints: '' };
const ofDevice = { ...unlimited, messages: `${messagesPerSecond}:1` };
const settings = { device: ofDevice, gatewayDevice: unlimited, gateway: unlimited, tenant: unlimited };

/** The channel of messages that only fill queues. */
export const floodChannel = 'flood';

/** Deliveries of a persistent command that may stay without a confirmation. */
const retriesMax = 20;

export class Rooms {
  readonly node: string;
  readonly process: ProcessTime;
  readonly postgres: Queries;
  readonly metrics = new Metrics();
  readonly bus: Bus;
  /** The connections to the Redis; undefined on a bus of one host. */
  readonly link: Link | undefined;
  readonly sessions: Sessions;
  readonly changes: CredentialChanges;
  readonly writer: AttributeWriter;
  readonly rateLimits: RateLimits;
  readonly rpc: Rpc;
  readonly persistentRpcs: PersistentRpcs;
  readonly rpcStream: RpcStream;
  readonly attributeStream: AttributeStream;
  /** Every connection that is open here. */
  readonly connections = new Set<Connection>();
  readonly #leaveBus: () => void;
  readonly #downlink: Downlink;
  readonly #updates: AttributeUpdates;
  readonly #exchange: HomeExchange;

  constructor({ node, process, database, wire, log, workers, isHome }: RoomsDeps) {
    const { metrics } = this;
    const time = { clock: process, scheduler: process };
    this.node = node;
    this.process = process;
    const postgres = database.queriesOf(process);
    this.postgres = postgres;
    const { bus, link, leave } = openBus(wire, process, busCounters(metrics, log), log);
    this.bus = bus;
    this.link = link;
    this.#leaveBus = leave;
    this.#exchange = new HomeExchange({ ...time, bus, fleet: { workers: () => workers, isHome } });
    this.rateLimits = new RateLimits({ settings, exchange: this.#exchange, clock: process });
    const channels = openChannels(bus, time, node);
    const shared = { ...time, postgres, log, metrics };
    this.#downlink = new Downlink({ ...time, bus, channels, log, metrics });
    const downlink = this.#downlink;
    this.changes = new CredentialChanges({ ...shared, bus });
    this.sessions = new Sessions({
      ...shared,
      bus,
      channels: channels.sessions,
      devices: new LocalDevices(),
      lookUp: (numbers) => lookUpDevices(postgres, numbers),
      onConnected() {},
      onDisconnected() {},
    });
    this.changes.onChange((change) => this.sessions.changed(change));
    const { sleep } = process;
    this.writer = new AttributeWriter({ ...shared, sleep, onShared: (change) => notifyShared(downlink, change) });
    this.#updates = new AttributeUpdates({ ...shared, downlink, lossFree: true });
    const numbers = new RpcNumbers(postgres);
    this.rpc = new Rpc({ ...shared, downlink, bus, numbers });
    const keeping = { retriesMax, keptDays: 0, expiryTime: async () => undefined };
    this.persistentRpcs = new PersistentRpcs({ ...shared, ...keeping, rpc: this.rpc, numbers, downlink });
    this.rpcStream = new RpcStream(new RpcSessions(downlink, process));
    this.attributeStream = new AttributeStream({ updates: this.#updates, log, scheduler: process });
  }

  async start(): Promise<void> {
    // Over a Redis a worker that does not read is disconnected, so there the queue of the sender is filled.
    if (!this.link) await this.bus.subscribe(floodChannel, () => {});
    await this.#exchange.start();
    await this.#downlink.start();
    await this.changes.start();
    this.#updates.start();
    this.persistentRpcs.start();
  }

  /** Called when the process has ended. */
  lost(): void {
    this.#leaveBus();
    for (const connection of [...this.connections]) connection.lost();
    this.connections.clear();
  }

  /** Bugs that the rooms caught. */
  get bugs(): number {
    return this.metrics.valueOf('bus_bugs_total') + this.metrics.valueOf('downlink_bugs_total');
  }

  /** Messages that could not be read, which are bugs when all workers have one version. */
  get unread(): number {
    return this.metrics.valueOf('bus_unread_total');
  }
}

function openBus(wire: Wire, process: ProcessTime, counters: BusCounters, log: Log) {
  if ('host' in wire) {
    const { port, close } = wire.host.attach(process);
    return { bus: new IpcBus(port, counters, process), link: undefined, leave: close };
  }
  const link = new Link(wire.redis, process);
  const bus = new RedisBus((owner) => link.open(owner), counters, log, channelNames('world'), {
    clock: process,
    scheduler: process,
  });
  return { bus, link, leave: () => link.close() };
}
