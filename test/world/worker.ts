/**
 * A worker of a world: the real journal, ingest and shipping, over a simulated disk, store and time, and the rooms that
 * meet over the bus (`rooms.ts`). With several stores the worker follows the map of shards and reports its journal.
 */
import { Fault } from '../../src/base/errors.ts';
import { limits } from '../../src/base/limits.ts';
import type { Log } from '../../src/base/log.ts';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import type { ClickHouse } from '../../src/clickhouse/client.ts';
import { type ShardMap, Shards } from '../../src/clickhouse/shards.ts';
import { type AckLevel, Ingest } from '../../src/ingest/accept.ts';
import { reportOf } from '../../src/ingest/journal-report.ts';
import { writeJournals } from '../../src/ingest/journal-store.ts';
import { OrderClock } from '../../src/ingest/order-number.ts';
import { ShardMapFollower } from '../../src/instance/stores/shard-map-follower.ts';
import type { Journal } from '../../src/journal/journal.ts';
import { openJournal } from '../../src/journal/open-journal.ts';
import { Shipper } from '../../src/ship/ship.ts';
import { decodeTelemetry } from '../../src/telemetry/decode.ts';
import type { Rows } from '../../src/telemetry/rows.ts';
import { SimDisk } from '../crash/sim-disk.ts';
import type { Random } from '../harness/random.ts';
import type { Database } from './database.ts';
import { Rooms, type Wire } from './rooms.ts';
import type { Store } from './store.ts';
import { ProcessTime, type VirtualTime } from './virtual-time.ts';

export interface WorldDevice {
  readonly id: string;
  readonly number: number;
  readonly tenantId: string;
  readonly customerId: null;
}

export type Outcome = 'acknowledged' | 'refused' | 'no answer';

interface WorkerDeps {
  time: VirtualTime;
  random: Random;
  stores: readonly Store[];
  database: Database;
  wire: Wire;
  writer: number;
  skewMs: number;
  ack: AckLevel;
  log: (line: string) => void;
  /** The workers of all hosts. */
  workers: number;
  /** True for a worker of the host that started first; `leads`: the worker acts for its host. */
  isFirst: boolean;
  leads: boolean;
}

/** The time in which a host that has just started does not know the other hosts, and counts as the first. */
const unawareMsMax = 2_000;

const dir = '/journal/worker';
const segmentBytes = 64 * 1024;
const restartMs = 200;
const decoding = {
  castNumericStrings: true,
  lenientJson: false,
  pointsPerMessageMax: 200_000,
  pastMsMax: 8e12,
  fastPastMsMax: 8e12,
  convertsUnits: false,
  futureMsMax: 8e12,
};
const decode = (body: Uint8Array, device: WorldDevice, now: number, rows: Rows): number =>
  decodeTelemetry(body, device, now, rows, decoding);

export class Worker {
  readonly #deps: WorkerDeps;
  disk = new SimDisk();
  #process: ProcessTime | undefined;
  #journal: Journal | undefined;
  #shards: Shards | undefined;
  #ingest: Ingest | undefined;
  #isStarting = false;
  /** The rooms of the process that runs. */
  #rooms: Rooms | undefined;
  #areRoomsOpen = false;
  #starts = 0;
  /** Senders without an answer. They get no answer when the process ends. */
  readonly #unanswered = new Set<(outcome: Outcome) => void>();

  constructor(deps: WorkerDeps) {
    this.#deps = deps;
  }

  get name(): string {
    return `worker ${this.#deps.writer}`;
  }

  get isServing(): boolean {
    return this.#ingest !== undefined;
  }

  /** True when every accepted row is in the store or in quarantine. */
  get isEmpty(): boolean {
    const { empty, suspects, shardBacklog } = this.#journal ?? {};
    return empty === true && suspects!.rows === 0 && shardBacklog!.shards().length === 0;
  }

  /** The map of shards by which the process reads; undefined before it knows one. */
  get shardMap(): ShardMap | undefined {
    return this.#shards?.map;
  }

  get quarantined(): number {
    return this.#journal?.quarantine.entries ?? 0;
  }

  /** The rooms that meet over the bus, when they serve. */
  get rooms(): Rooms | undefined {
    return this.#areRoomsOpen ? this.#rooms : undefined;
  }

  /** Ends the rooms that meet over the bus; the process goes on. */
  endRooms(): void {
    this.#areRoomsOpen = false;
    this.#rooms?.process.end();
    this.#rooms = undefined;
  }

  /** Stops the process for a time: nothing of it runs, and what arrives waits. */
  stall(ms: number): void {
    this.#process?.stall(ms);
    this.#rooms?.process.stall(ms);
  }

  start(): void {
    if (this.#isStarting || this.isServing) return;
    this.#isStarting = true;
    void this.#start().catch((error: unknown) => this.#deps.time.after(0, () => fail(error)));
  }

  async #start(): Promise<void> {
    const { time, stores, writer, skewMs, ack, log } = this.#deps;
    const process = new ProcessTime(time, skewMs);
    this.#process = process;
    const shards = new Shards(stores.map((store) => store.clientOf(process) as unknown as ClickHouse));
    if (shards.isDivided) this.#follow(process, shards);
    const { disk } = this;
    disk.sleep = process.sleep;
    let journal: Journal;
    try {
      const shared = { clock: process, scheduler: process, log: logTo(log, this.name), locked: true };
      journal = await openJournal({ dir, disk, segmentBytes, sparesMax: 1, ...shared });
    } catch (error) {
      log(`${this.name}: cannot open its journal: ${String(error)}`);
      this.#isStarting = false;
      if (!process.isOver) this.#restart();
      return;
    }
    if (process.isOver) return;
    if (shards.isDivided) await this.#report(process, shards, journal);
    const metrics = new Metrics();
    const shipper: Shipper = new Shipper({
      journal,
      shards,
      clock: process,
      sleep: process.sleep,
      log: logTo(log, this.name),
      metrics,
      intervalMsMin: 250,
      intervalMsMax: 1000,
      rowsMax: 400_000,
      lateSecondsMax: 5,
      timeoutMs: 60_000,
      latestAheadMsMax: 0,
      callersWait: ack === 'store',
      onSuspects: (lane, orders) => ingest.notices.suspected(lane, orders),
      onDelayed: (lane, orders, waits) => ingest.notices.delayed(lane, orders, waits),
      onFramesStored: (lane, orders) => ingest.notices.stored(lane, orders),
      onShipped: () => ingest.notices.shipped(),
    });
    const ingest: Ingest = new Ingest({
      journal,
      orders: new OrderClock(process, writer, journal.orderMax),
      clock: process,
      scheduler: process,
      log: logTo(log, this.name),
      metrics,
      ack,
      storeAckMsMax: 5_000,
      backlogBytesMax: 1e9,
      freeDiskBytesMin: 2 * segmentBytes,
      lingerMsMax: 1,
      unsyncedBytesMax: 32e6,
      unsyncedMsMax: 2_000,
      onCommitted: () => shipper.wake(),
      onFailed: (reason) => {
        log(`${this.name}: ends, ${reason}`);
        this.kill();
      },
    });
    this.#journal = journal;
    this.#ingest = ingest;
    this.#shards = shards;
    this.#isStarting = false;
    shipper.start();
    await this.#openRooms(process);
  }

  #follow(process: ProcessTime, shards: Shards): void {
    const { database, log } = this.#deps;
    const time = { clock: process, scheduler: process, log: logTo(log, this.name) };
    void new ShardMapFollower({ ...time, postgres: database.queriesOf(process), shards }).start();
  }

  /** Reports the journal, as one worker of a host does. A new journal has its row before it has rows. */
  async #report(process: ProcessTime, shards: Shards, journal: Journal): Promise<void> {
    const { database, writer } = this.#deps;
    const postgres = database.queriesOf(process);
    const report = async (version: number): Promise<boolean> => {
      const own = { ...reportOf(journal, writer, process, version), settled: 0 };
      return await writeJournals(postgres, this.name, [own]).then(
        () => true,
        () => false,
      );
    };
    while (!database.tables.journals.has(writer) && !(await report(0))) await process.sleep(1_000);
    let [reported, at] = [-1, 0];
    const again = async (): Promise<void> => {
      const version = shards.versionInUse;
      const isDue = process.monotonic() - at >= limits.journalReportMs;
      if ((isDue || version !== reported) && (await report(version))) [reported, at] = [version, process.monotonic()];
      process.after(1_000, () => void again());
    };
    process.after(1_000, () => void again());
  }

  async #openRooms(process: ProcessTime): Promise<void> {
    const { time, random, database, wire, skewMs, log, workers, isFirst, leads } = this.#deps;
    this.#starts += 1;
    const knowsAt = time.passed + random.below(unawareMsMax);
    const isHome = (): boolean => leads && (isFirst || time.passed < knowsAt);
    const own = new ProcessTime(time, skewMs);
    const node = `${this.#deps.writer}-${this.#starts}`;
    const shared = { database, wire, workers, isHome, log: logTo(log, this.name) };
    const rooms = new Rooms({ node, process: own, ...shared });
    this.#rooms = rooms;
    await rooms.start();
    if (!process.isOver && this.#rooms === rooms) this.#areRoomsOpen = true;
  }

  /** Sends one message and resolves with its answer, or with `no answer` when the process ends first. */
  send(body: string, device: WorldDevice): Promise<Outcome> {
    const ingest = this.#ingest;
    if (!ingest) return Promise.resolve('refused');
    return new Promise((resolve) => {
      const settle = (outcome: Outcome): void => {
        this.#unanswered.delete(settle);
        resolve(outcome);
      };
      this.#unanswered.add(settle);
      const waiter = { acknowledge: () => settle('acknowledged'), refuse: () => settle('refused') };
      try {
        ingest.accept(decode, Buffer.from(body), device, waiter, undefined, device);
      } catch (error) {
        if (!(error instanceof Fault)) throw error;
        settle('refused');
      }
    });
  }

  /** Ends the process as `kill -9` does: its writes are on the disk. The process starts again after a moment. */
  kill(): void {
    this.#end(undefined);
  }

  /** Cuts the power: the seed decides which unsynced sectors are kept, lost or torn. */
  cutPower(): void {
    this.#end(this.#deps.random);
  }

  #end(random: Random | undefined): void {
    this.#process?.end();
    const rooms = this.#rooms;
    this.endRooms();
    rooms?.lost();
    const before = this.disk;
    this.disk = before.crash(random);
    // No operation of the ended process ends.
    before.crashAt = before.operations;
    this.#ingest = undefined;
    this.#journal = undefined;
    this.#shards = undefined;
    this.#isStarting = false;
    for (const settle of [...this.#unanswered]) settle('no answer');
    this.#restart();
  }

  #restart(): void {
    this.#deps.time.after(restartMs, () => this.start());
  }
}

function fail(error: unknown): void {
  throw error;
}

function logTo(log: (line: string) => void, name: string): Log {
  const write = (level: string) => (event: string, fields?: object) =>
    log(
      `${name}: ${level} ${event} ${fields ? JSON.stringify(fields, (_, value) => (typeof value === 'bigint' ? String(value) : value)) : ''}`,
    );
  return { debug() {}, info() {}, warn: write('warn'), error: write('error') };
}
