/**
 * The workers of this instance: forks and restarts them, tells them the state of the whole instance, and gathers what
 * they count. The primary itself takes no traffic.
 */
import type { ChildProcess } from 'node:child_process';
import cluster, { type Worker } from 'node:cluster';
import type { Config } from '../base/config.ts';
import type { Log } from '../base/log.ts';
import { type Metrics, renderMetrics, type Sample } from '../base/metrics.ts';
import { writeProcessFile } from '../base/process-file.ts';
import { BusHub } from '../bus/ipc-primary.ts';
import { childPort } from '../bus/port.ts';
import type { RuleText } from '../rules/table.ts';
import { type ClockState, clockSentence } from './clock-offset.ts';
import { type DataDirectory, instanceVariable } from './data-directory.ts';
import { Deaths } from './deaths.ts';
import { JournalHold } from './journal-hold.ts';
import { JournalReports, type JournalReportsOfHost } from './journal-reports.ts';
import {
  type Engines,
  type InstanceState,
  journalName,
  type PartState,
  type ToPrimary,
  type ToWorker,
} from './messages.ts';
import { Supervisor } from './supervisor.ts';

interface Slot {
  number: number;
  worker: Worker | undefined;
  supervisor: Supervisor;
  ready: boolean;
  refusing: boolean;
  /** What the worker reports as reasons to be degraded. */
  degraded: string[];
  /** Why it says it must end. */
  failure: string | undefined;
  /** Why it cannot go on yet. */
  waiting: string | undefined;
}

export interface WorkerPoolOptions {
  workers: number;
  config: Config;
  rules: RuleText[];
  engines: Engines;
  installation: () => string;
  data: DataDirectory;
  log: Log;
  metrics: Metrics;
  clock: () => ClockState;
  /** What the processes count that are not workers. */
  collectOthers: () => Promise<Sample[][]>;
  /** PostgreSQL has the tables of this version. */
  isPostgresReady: () => boolean;
  /** Every worker dies in a loop, for this reason: no traffic can be taken. */
  onCrashLoop: (reason: string) => void;
}

const collectMsMax = 2000;

export class WorkerPool {
  readonly #options: WorkerPoolOptions;
  readonly #slots: Slot[];
  readonly #hub: BusHub;
  /** For a backup of the running instance. */
  readonly journalHold: JournalHold;
  readonly #reports = new JournalReports();
  readonly #deaths = new Deaths();
  readonly #collections = new Map<number, { missing: number; snapshots: Sample[][]; done: () => void }>();
  #parts: Record<string, PartState> = {};
  #reasons: string[] = [];
  #draining = false;
  #lastCollection = 0;
  #onReady: (() => void) | undefined;

  constructor(options: WorkerPoolOptions) {
    this.#options = options;
    this.#hub = new BusHub(options.metrics);
    this.#slots = Array.from({ length: options.workers }, (_, number) => this.#slot(number));
    this.journalHold = new JournalHold(
      options.workers,
      (number, message) => {
        const { worker } = this.#slots[number]!;
        if (worker) send(worker, message);
      },
      () => this.#notReady(),
    );
    const restarts = options.metrics.counter('worker_restarts_total', 'Workers started again after their death.');
    cluster.on('exit', (worker, code, signal) => {
      const slot = this.#slots.find((candidate) => candidate.worker === worker);
      if (!slot) return;
      slot.worker = undefined;
      slot.ready = false;
      this.journalHold.workerEnded();
      if (this.#draining) return;
      restarts.add(1);
      slot.supervisor.died(slot.failure ?? (signal ? `signal ${signal}` : `exit code ${code}`));
      this.#settle();
    });
  }

  /** Resolves when every worker listens, or says why it does not, and at least one listens. */
  start(): Promise<void> {
    // Each worker accepts its MQTT connections itself; handing them out would be all that the primary does in a storm.
    cluster.schedulingPolicy = cluster.SCHED_NONE;
    // A worker keeps the lock of the data directory until it is gone, whatever becomes of the primary.
    const { lockDescriptor } = this.#options.data;
    const inherited = lockDescriptor === undefined ? [] : [lockDescriptor];
    cluster.setupPrimary({ stdio: ['inherit', 'inherit', 'inherit', 'ipc', ...inherited] });
    return new Promise((resolve) => {
      this.#onReady = resolve;
      for (const slot of this.#slots) this.#fork(slot);
    });
  }

  get state(): InstanceState {
    const ready = this.#slots.filter((slot) => slot.ready).length;
    const refusing = this.#slots.some((slot) => slot.refusing);
    const parts: Record<string, PartState> = {
      ...this.#parts,
      workers: ready === this.#slots.length ? 'up' : 'starting',
    };
    const clock = this.#options.clock();
    const ownReasons = this.#slots.flatMap(({ number, supervisor, waiting, degraded }) => {
      const failure = supervisor.failure ?? waiting;
      return failure === undefined ? degraded : [`worker-${number} does not serve: ${failure}`];
    });
    const reasons = [...new Set([...this.#reasons, ...ownReasons])];
    const clockReason = clockSentence(clock);
    if (clockReason !== undefined) reasons.push(clockReason);
    const whole = Object.values(parts).every((part) => part === 'up') && !refusing && reasons.length === 0;
    return {
      status: this.#draining ? 'draining' : ready === 0 ? 'starting' : whole ? 'ready' : 'degraded',
      parts,
      reasons,
      postgresReady: this.#options.isPostgresReady(),
      leader: this.#slots.find((slot) => slot.ready)?.number,
      blocked: this.#deaths.blocked,
      clock,
    };
  }

  /** No worker that serves accepts telemetry. */
  get refusing(): boolean {
    const serving = this.#slots.filter(({ ready }) => ready);
    return serving.every(({ refusing }) => refusing);
  }

  /** A process that is no worker joins the bus. */
  join(child: ChildProcess): void {
    this.#hub.attach(childPort(child));
  }

  /** What the primary knows of the other parts. */
  setParts(parts: Record<string, PartState>, reasons: string[]): void {
    this.#parts = parts;
    this.#reasons = reasons;
    this.broadcast();
  }

  broadcast(): void {
    const message: ToWorker = { kind: 'state', state: this.state };
    for (const { worker } of this.#slots) if (worker) send(worker, message);
  }

  /** The metrics of the whole instance; a worker that does not answer in time is left out. */
  async renderMetrics(): Promise<string> {
    const id = ++this.#lastCollection;
    const others = this.#options.collectOthers();
    const workers = this.#slots.flatMap(({ worker }) => (worker ? [worker] : []));
    const snapshots = await new Promise<Sample[][]>((resolve) => {
      const collection = {
        missing: workers.length,
        snapshots: [] as Sample[][],
        done: () => resolve(collection.snapshots),
      };
      this.#collections.set(id, collection);
      setTimeout(collection.done, collectMsMax).unref();
      if (workers.length === 0) collection.done();
      for (const worker of workers) send(worker, { kind: 'collect', id });
    });
    this.#collections.delete(id);
    return renderMetrics([this.#options.metrics.snapshot(), ...snapshots, ...(await others)]);
  }

  /** No new work, the rest is finished, every worker ends; what does not end in time is killed. */
  async drain(timeMsMax: number): Promise<void> {
    this.#draining = true;
    this.broadcast();
    const ends: Promise<void>[] = [];
    for (const { worker, supervisor } of this.#slots) {
      supervisor.stop();
      if (!worker) continue;
      ends.push(new Promise((resolve) => worker.once('exit', () => resolve())));
      send(worker, { kind: 'drain' });
      setTimeout(() => worker.process.kill('SIGKILL'), timeMsMax).unref();
    }
    await Promise.all(ends);
  }

  kill(): void {
    this.#draining = true;
    for (const { worker, supervisor } of this.#slots) {
      supervisor.stop();
      worker?.process.kill('SIGKILL');
    }
  }

  /** For a backup, which needs every worker: its journal may be the only one that holds a row. */
  #notReady(): string | undefined {
    const slot = this.#slots.find(({ ready }) => !ready);
    if (!slot) return undefined;
    const failure = slot.supervisor.failure ?? slot.waiting;
    if (failure === undefined) return `worker-${slot.number} is starting`;
    return (
      `worker-${slot.number} does not serve (${failure}): repair ${journalName(slot.number)} below ` +
      `${this.#options.data.journalPath}, or stop Millrace and copy the whole data directory`
    );
  }

  #settle(): void {
    const isSettled = ({ ready, waiting, supervisor }: Slot) => ready || (waiting ?? supervisor.failure) !== undefined;
    if (this.#slots.every(isSettled) && this.#slots.some(({ ready }) => ready)) this.#onReady?.();
  }

  #journalReports(flush: boolean): Promise<JournalReportsOfHost> {
    const slots = this.#slots.map(({ number }) => number);
    return this.#reports.gather(slots, (number, id) => {
      const { worker, ready } = this.#slots[number]!;
      if (!worker || !ready) return false;
      send(worker, { kind: 'reportJournals', id, flush });
      return true;
    });
  }

  #slot(number: number): Slot {
    const supervisor = new Supervisor({
      name: `worker-${number}`,
      log: this.#options.log,
      restart: async () => this.#fork(this.#slots[number]!),
      onCrashLoop: (reason) => {
        // One worker that cannot run degrades the service; its share of the traffic goes to the others.
        if (this.#slots.every(({ supervisor }) => supervisor.looping)) this.#options.onCrashLoop(reason);
      },
    });
    return {
      number,
      worker: undefined,
      supervisor,
      ready: false,
      refusing: false,
      degraded: [],
      failure: undefined,
      waiting: undefined,
    };
  }

  #fork(slot: Slot): void {
    const { data } = this.#options;
    // Workers share one listening socket; without this libuv setting the first to wake up would accept all that wait.
    const worker = cluster.fork({
      MILLRACE_SLOT: String(slot.number),
      UV_TCP_SINGLE_ACCEPT: '1',
      [instanceVariable]: data.instance,
    });
    slot.worker = worker;
    slot.ready = false;
    slot.failure = undefined;
    slot.waiting = undefined;
    writeProcessFile(data.processFile(`worker-${slot.number}`), worker.process.pid!);
    this.#hub.attach(childPort(worker));
    worker.on('message', (message: ToPrimary) => this.#receive(slot, worker, message));
    worker.on('error', (error) =>
      this.#options.log.warn('worker_channel', { worker: slot.number, reason: error.message }),
    );
  }

  #receive(slot: Slot, worker: Worker, message: ToPrimary): void {
    switch (message.kind) {
      case 'hello': {
        const { config, rules, engines, installation, workers, data } = this.#options;
        const clock = this.#options.clock();
        const orphanJournals = slot.number === 0 ? data.orphanJournals(workers) : [];
        const postgresReady = this.#options.isPostgresReady();
        const where = { slot: slot.number, installation: installation() };
        const begin = { ...where, config, rules, engines, postgresReady, orphanJournals, clock };
        send(worker, { kind: 'begin', ...begin });
        send(worker, { kind: 'state', state: this.state });
        return;
      }
      case 'ready':
        slot.ready = true;
        slot.waiting = undefined;
        slot.supervisor.up();
        this.broadcast();
        this.#settle();
        return;
      case 'waiting':
        slot.waiting = message.reason;
        this.#settle();
        return;
      case 'status':
        slot.refusing = message.refusing;
        slot.degraded = message.degraded;
        return;
      case 'samples': {
        const collection = this.#collections.get(message.id);
        if (!collection) return;
        collection.snapshots.push(message.samples);
        collection.missing -= 1;
        if (collection.missing === 0) collection.done();
        return;
      }
      case 'journalsHeld':
        this.journalHold.received(slot.number, message);
        return;
      case 'askJournals':
        void this.#journalReports(message.flush).then((host) =>
          send(worker, { kind: 'journals', id: message.id, ...host }),
        );
        return;
      case 'journalReports':
        this.#reports.receive(message.id, slot.number, message);
        return;
      case 'died': {
        const { log } = this.#options;
        slot.failure = `${message.message} (a bug)`;
        for (const work of this.#deaths.add(message.suspects)) log.error('work_blocked', { work });
        return;
      }
      case 'failed':
        this.#options.log.error('worker_failed', { worker: slot.number, reason: message.message });
        slot.failure = message.message;
        return;
    }
  }
}

function send(worker: Worker, message: ToWorker): void {
  if (worker.isConnected()) worker.send(message, () => {});
}
