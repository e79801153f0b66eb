/**
 * Runs hosts and workers of the real classes in virtual time, with devices that connect and users that send commands,
 * under faults that a seed chooses, and returns the promises that were broken. The same plan gives the same run.
 */
import { limits } from '../../src/base/limits.ts';
import { bucketCount, firstShardMap } from '../../src/clickhouse/shards.ts';
import type { BlockRow } from '../../src/telemetry/read-block.ts';
import { Random } from '../harness/random.ts';
import { BucketMover } from './bucket-mover.ts';
import { Client, clientHabits } from './clients.ts';
import { Database } from './database.ts';
import { grouped, isLater } from './latest-table.ts';
import { LimitedSender } from './limited-sender.ts';
import { floodChannel, type Rooms, type Wire } from './rooms.ts';
import { habits, newFleet, Sender, sendFleet } from './senders.ts';
import { type Mood, Store } from './store.ts';
import { Users } from './users.ts';
import { VirtualTime } from './virtual-time.ts';
import { Host, type Link, Redis } from './wires.ts';
import { Worker } from './worker.ts';

type FaultKind =
  | 'kill'
  | 'power'
  | 'stall'
  | 'store'
  | 'lying store'
  | 'disk error'
  | 'disk full'
  | 'slow disk'
  | 'database'
  | 'bus'
  | 'flood'
  | 'lying bus'
  | 'forgetful bus'
  | 'unordered bus'
  | 'lying database';

/** A fault of a plan. Each has a seed of its own, so that a fault stays the same when others are left out. */
interface PlannedFault {
  at: number;
  kind: FaultKind;
  seed: number;
}

export interface Plan {
  seed: number;
  hosts: number;
  workers: number;
  ack: 'journal' | 'store';
  /** True: all workers meet over a Redis; false: the workers of the only host meet over process channels. */
  hasRedis: boolean;
  /** The longest time of a message to or from the Redis. */
  busMsMax: number;
  /** The largest error of a host's clock. */
  skewMsMax: number;
  sendMs: number;
  /** ClickHouse servers. With several, buckets of devices move between them. */
  shards?: number;
  /** True: a fleet sends as well, which is large enough for latest values that are records. */
  hasFleet?: boolean;
  faults: PlannedFault[];
}

interface WorldResult {
  faults: string[];
  acknowledged: number;
  /** Latest values that were stored as records, each with several points. */
  records: number;
  events: string[];
}

const healMsMax = 4 * 3_600_000;
/** After this time without a fault, each device has one session and its attributes. */
const settledMs = 5_000;
/**
 * After a further time, each persistent command was executed. A worker that dies with an unconfirmed command costs
 * `rpcConfirmMs` and a lease.
 */
const executedMs = 22_000;
/** The time for which devices with waiting commands are not connected. */
const awayMs = 1_500;
/** The time after which such a device has no session any more. */
const leftMs = 300;
/** The time after that, in which nothing happens. */
const quietMs = 3_000;
/** Messages of the bus that workers may exchange in the quiet time. */
const quietMessagesMax = 10;
/** The longest fault of the bus, of the database and of a process. */
const cutMsMax = 2_000;
const eventsMax = 200;
/** Devices that send more than their rate limit after the last fault: to any worker, and to one. */
const limitedDevices = [
  { number: 201, isAnywhere: true },
  { number: 202, isAnywhere: false },
];
const codes = [241, 252, 1000, 1001, 225, 243, 202, 159, 999, 60, 733, 48];

export function planOf(seed: number): Plan {
  const random = new Random(seed);
  const sendMs = 800 + random.below(1_700);
  const kinds: FaultKind[] = [
    'kill',
    'kill',
    'power',
    'store',
    'store',
    'store',
    'disk error',
    'disk full',
    'slow disk',
    'database',
    'database',
    'bus',
    'bus',
    'bus',
    'stall',
  ];
  const faults = Array.from({ length: random.below(16) }, () => ({
    at: random.below(sendMs),
    kind: random.pick(kinds),
    seed: random.below(2 ** 31),
  }));
  const ack = random.next() < 0.25 ? 'store' : 'journal';
  const skewMsMax = random.next() < 0.5 ? 0 : 400;
  const hosts = 1 + random.below(3);
  const workers = 1 + random.below(3);
  const hasRedis = hosts > 1 || random.next() < 0.3;
  const busMsMax = random.pick([0.5, 2, 20]);
  const shards = random.next() < 0.12 ? 2 + random.below(2) : 1;
  const later = new Random(seed ^ 0xf100d);
  if (later.next() < 0.1) faults.push({ at: later.below(sendMs), kind: 'flood', seed: later.below(2 ** 31) });
  const hasFleet = later.next() < 0.15;
  return { seed, hosts, workers, ack, hasRedis, busMsMax, skewMsMax, sendMs, shards, hasFleet, faults };
}

export async function runWorld(plan: Plan): Promise<WorldResult> {
  const random = new Random(plan.seed ^ 0x5eed);
  // Waits after failures draw from `Math.random` (`ship/backoff.ts`).
  const systemRandom = Math.random;
  Math.random = () => random.next();
  try {
    return await new World(plan, random).run();
  } finally {
    Math.random = systemRandom;
  }
}

/** Returns the plan without the faults that the failure does not need. */
export async function shrink(plan: Plan): Promise<Plan> {
  let least = plan;
  for (const fault of plan.faults) {
    const without = { ...least, faults: least.faults.filter((other) => other !== fault) };
    if ((await runWorld(without)).faults.length > 0) least = without;
  }
  return least;
}

class World {
  readonly #plan: Plan;
  readonly #random: Random;
  readonly #time: VirtualTime;
  readonly #stores: readonly Store[];
  readonly #mover: BucketMover | undefined;
  /** The most points of each device that a worker could read at once. */
  readonly #readable = new Map<number, number>();
  readonly #lostReads: string[] = [];
  /** Workers by host. */
  readonly #hosts: Worker[][];
  readonly #senders: Sender[];
  readonly #fleet: Sender[];
  readonly #database: Database;
  readonly #redis: Redis | undefined;
  /** The process channels of the only host, without a Redis. */
  #host: Host | undefined;
  readonly #clients: Client[];
  readonly #users: Users;
  readonly #events: string[] = [];

  constructor(plan: Plan, random: Random) {
    this.#plan = plan;
    this.#random = random;
    this.#time = new VirtualTime(new Random(plan.seed ^ 0x71e));
    const { shards = 1 } = plan;
    this.#stores = Array.from({ length: shards }, () => new Store(this.#time, random));
    this.#database = new Database(this.#time, random);
    this.#redis = plan.hasRedis ? new Redis(this.#time, random, plan.busMsMax) : undefined;
    let writer = 0;
    this.#hosts = Array.from({ length: plan.hosts }, (_, host) => {
      const { ack, workers, skewMsMax } = plan;
      const skewMs = random.between(-skewMsMax, skewMsMax);
      if (!this.#redis) this.#host = new Host(this.#time, random, skewMs);
      const wire: Wire = this.#redis ? { redis: this.#redis } : { host: this.#host! };
      return Array.from({ length: workers }, (__, slot) => {
        writer += 1;
        const log = (line: string) => this.#note(line);
        const stores = { stores: this.#stores, database: this.#database };
        const place = { workers: plan.hosts * workers, isFirst: host === 0, leads: slot === 0 };
        return new Worker({ time: this.#time, random, ...stores, ...place, wire, writer, skewMs, ack, log });
      });
    });
    if (shards > 1) {
      const { tables } = this.#database;
      tables.shardMap = { ...firstShardMap(random.next() < 0.5 ? shards : 1, 'none'), isCopied: false };
      const buckets = habits.map((_, n) => (n + 1) % bucketCount);
      const note = (line: string) => this.#note(line);
      const world = { time: this.#time, random, database: this.#database, stores: this.#stores };
      this.#mover = new BucketMover({ ...world, buckets, note });
    }
    this.#senders = habits.map((habit, n) => new Sender(n + 1, habit));
    this.#fleet = plan.hasFleet ? newFleet() : [];
    this.#clients = clientHabits.map((habit, n) => this.#newClient(101 + n, habit));
    this.#users = new Users({
      time: this.#time,
      random,
      database: this.#database,
      clients: this.#clients,
      serving: () => this.#serving(),
      note: (line) => this.#note(line),
    });
  }

  async run(): Promise<WorldResult> {
    const { sendMs, faults } = this.#plan;
    const workers = this.#hosts.flat();
    // A worker that is added later makes its journal when buckets may move already.
    const added = this.#mover ? workers.at(-1) : undefined;
    for (const worker of workers) {
      if (worker === added && workers.length > 1) this.#time.at(this.#random.below(sendMs), () => worker.start());
      else worker.start();
    }
    void this.#mover?.run(sendMs);
    if (this.#mover) this.#watchReads(workers);
    for (const fault of faults) this.#time.at(fault.at, () => this.#strike(fault));
    this.#time.at(50, () => this.#connectClients(sendMs));
    let sending = this.#senders.length;
    for (const sender of this.#senders) {
      // Hosts promise the order of writes as far as their clocks agree.
      const known = sender.needsOrder && this.#plan.skewMsMax > 0 ? this.#random.pick(this.#hosts) : workers;
      const world = { time: this.#time, random: this.#random, stores: this.#stores, ack: this.#plan.ack };
      void sender.send(world, known, sendMs).then(() => {
        sending -= 1;
      });
    }
    if (this.#fleet.length > 0) {
      sending += 1;
      // Draws of its own: the other devices do the same without the fleet.
      const random = new Random(this.#plan.seed ^ 0xf1ee7);
      const world = { time: this.#time, random, stores: this.#stores, ack: this.#plan.ack };
      void sendFleet(world, this.#fleet, workers, sendMs).then(() => {
        sending -= 1;
      });
    }
    await this.#time.run(() => false, sendMs);
    this.#heal(workers);
    const roomFaults = await this.#checkRooms(workers);
    await this.#time.run(() => sending === 0, sendMs + 60_000);
    const isStored = () => this.#mover?.isDone !== false && workers.every(({ isEmpty }) => isEmpty);
    const isDone = sending === 0 && (await this.#time.run(isStored, this.#time.passed + healMsMax));
    const stored = isDone ? this.#check(workers) : [`senders without an answer: ${sending}; ${this.#stuck(workers)}`];
    const acknowledged = this.#senders.reduce((sum, sender) => sum + sender.acknowledged, 0);
    const records = this.#stores.reduce((sum, { latest }) => sum + latest.records, 0);
    return { faults: [...roomFaults, ...stored], acknowledged, records, events: this.#events.slice(-eventsMax) };
  }

  #stuck(workers: readonly Worker[]): string {
    const names = workers.filter(({ isEmpty }) => !isEmpty).map(({ name }) => name);
    if (this.#mover?.isDone === false) names.push('the move of buckets');
    return `rows are not stored ${healMsMax / 3_600_000} h after the last fault: ${names.join(', ')}`;
  }

  #strike({ kind, seed }: PlannedFault): void {
    const random = new Random(seed);
    const host = random.pick(this.#hosts);
    const worker = random.pick(host);
    this.#note(`fault: ${kind} (${worker.name})`);
    if (kind === 'kill') worker.kill();
    else if (kind === 'power') for (const each of host) each.cutPower();
    else if (kind === 'store') this.#setMood(random.pick(this.#stores), moodOf(random), random.between(50, 30_000));
    else if (kind === 'lying store') this.#setMood(random.pick(this.#stores), { kind: 'lies' }, 1_000);
    else if (kind === 'stall') this.#stall(random.next() < 0.3 ? host : [worker], random.between(50, cutMsMax));
    else if (kind === 'database') this.#spoilDatabase(random);
    else if (kind === 'bus') this.#cutBus(host, worker, random);
    else if (kind === 'lying database') this.#database.tables.liesAboutProcesses = true;
    else if (kind === 'flood') this.#flood(worker, random);
    else if (kind === 'lying bus' && this.#redis) this.#redis.lie = 'alone';
    else if (kind === 'forgetful bus' && this.#redis) this.#redis.lie = 'forgets';
    else if (kind === 'unordered bus' && this.#redis) this.#redis.lie = 'unordered';
    else if (kind === 'disk full') this.#fillDisk(worker, random.between(100, 5_000));
    else this.#spoilDisk(worker, kind === 'slow disk', random);
  }

  #setMood(store: Store, mood: Mood, ms: number): void {
    this.#note(`the store ${this.#stores.indexOf(store)} ${JSON.stringify(mood)} for ${Math.round(ms)} ms`);
    store.mood = mood;
    this.#time.after(ms, () => {
      if (store.mood === mood) store.mood = { kind: 'well' };
    });
  }

  #newClient(number: number, habit: Client['habit']): Client {
    const { tables } = this.#database;
    const [id, name] = [`device-${number}`, `login-${number}`];
    const owners = { tenantId: 'mill', customerId: null, profileId: 'p' };
    tables.devices.set(number, { number, id, name, ...owners, version: 1, credentialsVersion: 1 });
    const note = (line: string) => this.#note(line);
    const world = { time: this.#time, random: this.#random, tables, serving: () => this.#serving(), note };
    return new Client(number, habit, number % 2 === 0 ? 1 : 0, world);
  }

  #serving(): Rooms[] {
    return this.#hosts.flat().flatMap(({ rooms }) => rooms ?? []);
  }

  #connectClients(until: number): void {
    for (const client of this.#clients) {
      void client.live(until, 'connects');
      if (client.habit === 'twin') void client.twin().live(until, 'leaves');
    }
    void this.#users.act(until);
  }

  #stall(workers: readonly Worker[], ms: number): void {
    for (const worker of workers) worker.stall(ms);
  }

  /** Fills the queues of the bus: that of a worker that sends, and that to a worker that does not read. */
  #flood(worker: Worker, random: Random): void {
    const senders = this.#serving().filter((rooms) => rooms !== worker.rooms);
    if (senders.length === 0) return;
    const { bus } = random.pick(senders);
    worker.stall(random.between(50, cutMsMax));
    for (let n = 0; n <= limits.busMessagesInFlightMax; n += 1) bus.publish(floodChannel, '');
  }

  #spoilDatabase(random: Random): void {
    const ms = random.between(50, cutMsMax);
    const draw = random.below(3);
    if (draw === 0) this.#database.goDown(ms);
    else this.#database.turn(draw === 1 ? { kind: 'deaf' } : { kind: 'slow', ms: random.between(100, 1_500) }, ms);
    this.#note(`the database ${JSON.stringify(this.#database.mood)} for ${Math.round(ms)} ms`);
  }

  /** Cuts the connections of a worker, of a host or of all workers. */
  #cutBus(host: readonly Worker[], worker: Worker, random: Random): void {
    const cut = random.pick([[worker], host, this.#hosts.flat()]);
    const which = random.pick(['publisher', 'subscriber', 'both'] as const);
    const links = cut.flatMap(({ rooms }): Link[] => (rooms?.link ? [rooms.link] : []));
    const [unnoticedMs, ms] = [random.between(0, 1_000), random.between(5, cutMsMax)];
    for (const link of links) link.cut(which, unnoticedMs, ms);
    this.#note(
      `the bus (${which}) of ${cut.map(({ name }) => name).join(', ')} for ${Math.round(unnoticedMs + ms)} ms`,
    );
  }

  #fillDisk(worker: Worker, ms: number): void {
    worker.disk.capacityBytes = worker.disk.usedBytes();
    this.#time.after(ms, () => {
      worker.disk.capacityBytes = Number.MAX_SAFE_INTEGER;
    });
  }

  #spoilDisk(worker: Worker, isSlow: boolean, random: Random): void {
    let left = 1 + random.below(3);
    worker.disk.fault = (operation) => {
      const fails = operation === 'write' || operation === 'sync';
      if (!fails || left === 0) return undefined;
      left -= 1;
      return isSlow ? random.between(5, 3_000) : 'EIO';
    };
  }

  #heal(workers: readonly Worker[]): void {
    this.#note('all faults end');
    for (const store of this.#stores) store.mood = { kind: 'well' };
    this.#database.turn({ kind: 'well' }, 0);
    for (const { disk } of workers) {
      disk.fault = () => undefined;
      disk.capacityBytes = Number.MAX_SAFE_INTEGER;
    }
  }

  /** Lets the rooms come to rest, asks each worker for a command, and returns the promises that were broken. */
  async #checkRooms(workers: readonly Worker[]): Promise<string[]> {
    // Cuts that are not noticed yet, and processes that are stalled or start again, end within this time.
    const settled = this.#time.passed + cutMsMax + 1_000 + settledMs;
    await this.#time.run(() => false, settled);
    const faults = this.#clients.flatMap((client) => this.#faultsOfClient(client));
    const limited = limitedDevices.map((device) => new LimitedSender(device, this.#time, this.#random));
    for (const each of limited) void each.send(() => this.#serving());
    const present = this.#clients.filter(({ number }) => this.#database.tables.devices.has(number));
    const probes = this.#serving().map((rooms) => this.#users.call(rooms, this.#random.pick(present), settledMs));
    await this.#time.run(() => false, settled + settledMs);
    faults.push(...limited.flatMap((each) => each.faults()));
    await this.#time.run(() => this.#users.faults().length === 0, settled + executedMs);
    faults.push(...(await this.#checkOrder(present)));
    const published = this.#redis?.published ?? 0;
    await this.#time.run(() => false, this.#time.passed + quietMs);
    const quiet = (this.#redis?.published ?? 0) - published;
    if (quiet > quietMessagesMax) faults.push(`${quiet} messages of the bus in ${quietMs} quiet ms`);
    for (const { n, client, outcome } of probes) {
      const isDone = outcome === 'replied' || outcome === 'delivered';
      if (!isDone) faults.push(`command ${n} of device ${client.number} after all faults: ${outcome}`);
    }
    faults.push(...this.#users.faults(), ...this.#serving().flatMap((rooms) => this.#faultsOfRooms(rooms)));
    const forgotten = this.#host?.forgottenChannels ?? 0;
    if (forgotten !== 0) faults.push(`the hub has ${forgotten} channels more than its workers`);
    for (const worker of workers) worker.endRooms();
    return faults;
  }

  /** Lets commands wait for devices that are not connected. Returns devices that received them in another order. */
  async #checkOrder(present: readonly Client[]): Promise<string[]> {
    // The second client of such a login keeps the device connected.
    const away = present.filter(({ habit }) => habit !== 'twin');
    for (const client of away) client.stayAway(awayMs);
    await this.#time.run(() => false, this.#time.passed + leftMs);
    const queues = away.map((client) => this.#users.queue(client, awayMs + settledMs));
    await this.#time.run(() => false, this.#time.passed + awayMs);
    const faults = async () => (await Promise.all(queues)).flatMap((commands) => this.#users.faultsOfQueue(commands));
    for (let waitedMs = 0; waitedMs < settledMs && (await faults()).length > 0; waitedMs += leftMs) {
      await this.#time.run(() => false, this.#time.passed + leftMs);
    }
    return await faults();
  }

  #faultsOfClient(client: Client): string[] {
    const { tables } = this.#database;
    const { number, habit, connection } = client;
    const device = tables.devices.get(number);
    const say = (text: string) => `device ${number} (${habit}): ${text}`;
    const sessions = this.#serving().flatMap((rooms) => rooms.sessions.get(number) ?? []);
    if (!device) return sessions.length > 0 ? [say('is deleted and has a session')] : [];
    const faults: string[] = [];
    if (sessions.length > 1) faults.push(say(`has ${sessions.length} sessions`));
    if (!connection?.isServing) faults.push(say('is not connected'));
    if (sessions.some(({ credentialsVersion }) => credentialsVersion !== device.credentialsVersion)) {
      faults.push(say('has a session with old credentials'));
    }
    // A message with QoS 0 may be lost with its connection.
    if (client.qos === 1 && habit !== 'twin') faults.push(...client.faultsOfAttributes(tables));
    return faults;
  }

  /** Checks that a worker keeps nothing that it no longer needs. */
  #faultsOfRooms(rooms: Rooms): string[] {
    const faults: string[] = [];
    const say = (text: string) => faults.push(`${rooms.node}: ${text}`);
    if (rooms.bugs + rooms.unread > 0) say(`${rooms.bugs} bugs, ${rooms.unread} unread messages`);
    const open = [...this.#database.tables.rpcs.values()].filter((rpc) => rpc.open);
    if (rooms.rpc.waiting > open.length) say(`owns ${rooms.rpc.waiting} commands, and ${open.length} are open`);
    if ((rooms.bus.inFlight ?? 0) > 0) say(`${rooms.bus.inFlight} messages of the bus have no answer`);
    const here = new Set([...rooms.connections].map(({ client }) => `d${client.number}`));
    for (const { device } of open) here.add(`o${device}`);
    if (!rooms.link) return faults;
    const { channels, subscribed } = rooms.link;
    for (const channel of channels) {
      if (/^[do]\d/.test(channel) && !here.has(channel)) say(`is subscribed to ${channel} without an interest`);
      if (!subscribed.has(channel)) say(`is not subscribed to ${channel} at the Redis`);
    }
    for (const channel of subscribed) if (!channels.has(channel)) say(`is subscribed to ${channel} at the Redis only`);
    for (const { client } of rooms.connections) {
      if (!channels.has(`d${client.number}`)) say(`has a session of device ${client.number} and no channel for it`);
    }
    return faults;
  }

  #check(workers: readonly Worker[]): string[] {
    const rows = this.#stores.flatMap((store) => [...store.telemetry.values()].filter(this.#isReadIn(store)));
    const ofDevices = grouped(rows, ({ device }) => device);
    const senders = [...this.#senders, ...this.#fleet];
    const faults = senders.flatMap((sender) => sender.faults(ofDevices.get(sender.device.number) ?? []));
    const latest = new Map(this.#stores.flatMap((store) => [...store.latest.values(this.#isReadIn(store))]));
    for (const [name, series] of grouped(rows, ({ device, key }) => `${device} ${key}`)) {
      const newest = series.reduce((a, b) => (isLater(b, a) ? b : a));
      const shown = latest.get(name);
      if (newest.int !== shown) faults.push(`the latest value of ${name} is ${shown}, not ${newest.int}`);
      latest.delete(name);
    }
    for (const name of latest.keys()) faults.push(`the latest value of ${name} has no point`);
    faults.push(...this.#lostReads.slice(0, 5));
    const hasBad = this.#senders.some((sender) => sender.habit === 'bad' && sender.hasSentBad);
    const quarantined = workers.reduce((sum, worker) => sum + worker.quarantined, 0);
    if (quarantined > 0 && !hasBad) faults.push(`${quarantined} good rows are in quarantine`);
    return faults;
  }

  /** Returns whether reads of the device of a row go to this store. */
  #isReadIn(store: Store, { shardOf } = this.#database.tables.shardMap): ({ device }: BlockRow) => boolean {
    const shard = this.#stores.indexOf(store);
    return ({ device }) => this.#stores.length === 1 || shardOf[device % bucketCount] === shard;
  }

  /** Checks again and again that the points that a worker could read are read by every worker. */
  #watchReads(workers: readonly Worker[]): void {
    this.#time.after(this.#random.between(50, 1_500), () => {
      const maps = new Map(
        workers.flatMap(({ name, shardMap }) => (shardMap ? [[shardMap.version, { name, shardMap }]] : [])),
      );
      for (const { name, shardMap } of maps.values()) this.#read(name, shardMap);
      if (this.#mover?.isDone === false) this.#watchReads(workers);
    });
  }

  #read(worker: string, map: { version: number; shardOf: Uint8Array }): void {
    const counts = new Map<number, number>();
    for (const store of this.#stores) {
      const isRead = this.#isReadIn(store, { ...this.#database.tables.shardMap, ...map });
      for (const row of store.telemetry.values()) {
        if (isRead(row)) counts.set(row.device, (counts.get(row.device) ?? 0) + 1);
      }
    }
    for (const [device, before] of this.#readable) {
      const count = counts.get(device) ?? 0;
      if (count >= before) continue;
      this.#lostReads.push(`${worker} reads ${count} of ${before} points of device ${device} (map ${map.version})`);
      this.#note(this.#lostReads.at(-1)!);
    }
    for (const [device, count] of counts) this.#readable.set(device, Math.max(count, this.#readable.get(device) ?? 0));
  }

  #note(line: string): void {
    this.#events.push(`${(this.#time.passed / 1000).toFixed(3)} s  ${line}`);
    if (this.#events.length > 4 * eventsMax) this.#events.splice(0, eventsMax);
  }
}

function moodOf(random: Random): Mood {
  const draw = random.below(6);
  if (draw === 0) return { kind: 'down' };
  if (draw === 1) return { kind: 'hangs' };
  if (draw === 2) return { kind: 'slow', ms: random.between(100, 20_000) };
  if (draw === 3) return { kind: 'dies', deadMs: random.between(50, 5_000) };
  return { kind: 'refuses', code: random.pick(codes), inPart: random.next() < 0.5 };
}
