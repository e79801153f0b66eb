/**
 * The workers of this instance: forks and restarts them, sends them the state of the whole instance, and gathers their
 * metrics. The primary itself takes no traffic.
 */
import type { ChildProcess } from 'node:child_process';
import cluster from 'node:cluster';
import type { Log } from '../../base/log.ts';
import type { Counter, Metrics, Sample } from '../../base/metrics/metrics.ts';
import type { Config } from '../../base/settings/config.ts';
import { BusHub } from '../../bus/ipc-primary.ts';
import { childPort } from '../../bus/port.ts';
import type { PollResult } from '../../postgres/shared-poll.ts';
import type { RuleText } from '../../rules/table.ts';
import { type ClockState, clockSentence } from '../clock/clock-offset.ts';
import type { WorkerSilence } from '../health/frozen-watch.ts';
import type { JournalRoom } from '../health/refusal-forecast.ts';
import type { Refusal, WorkerRefusals } from '../health/refusal-watch.ts';
import type { InstanceState, PartState } from '../health/state.ts';
import { type DataDirectory, instanceVariable } from '../host/data-directory.ts';
import { journalName } from '../host/data-files.ts';
import { JournalHold } from '../journals/journal-hold.ts';
import { JournalReports, type JournalReportsOfHost } from '../journals/journal-reports.ts';
import type { Conflict } from '../membership/membership.ts';
import type { Engines } from '../stores/engines.ts';
import { type AcceptingWorker, changesOf } from './connection-spread.ts';
import { CrashingWork } from './crashing-work.ts';
import { HandOver } from './hand-over.ts';
import type { ToPrimary, ToWorker } from './messages.ts';
import { SupervisedChild } from './supervised-child.ts';

interface Slot extends AcceptingWorker {
  readonly number: number;
  readonly worker: SupervisedChild;
  refusal: Refusal | undefined;
  refused: WorkerRefusals['refused'];
  /** Why the worker has no connection to Redis. */
  busFailure: string | undefined;
  room: Omit<JournalRoom, 'worker'> | undefined;
  /** Reasons of the worker to be degraded. */
  degraded: string[];
  /** Bytes that its journals keep for ClickHouse, when it has stopped. */
  keptBytes: number;
}

/** Time without a report after which a worker counts as one that does not serve. It reports every 250 ms. */
const silentMsMax = 10_000;

interface WorkerPoolDeps {
  workers: number;
  config: Config;
  rules: RuleText[];
  engines: Engines;
  installation: () => string;
  data: DataDirectory;
  log: Log;
  metrics: Metrics;
  clock: () => ClockState;
  /** Why this host must not serve beside another one. */
  conflict: () => Conflict | undefined;
  /** The workers of all live hosts. */
  fleetWorkers: () => number;
  isHomeHost: () => boolean;
  /** True when PostgreSQL has the tables of this version. */
  isPostgresReady: () => boolean;
  /** Called when every worker dies in a loop, so that no traffic can be taken. */
  onCrashLoop: (reason: string) => void;
}

export class WorkerPool {
  readonly #deps: WorkerPoolDeps;
  readonly #slots: Slot[];
  readonly #hub: BusHub;
  /** Used by a backup of the running instance. */
  readonly journalHold: JournalHold;
  readonly #reports = new JournalReports();
  readonly #crashing = new CrashingWork();
  readonly #restarts: Counter;
  readonly #handOver: HandOver;
  #parts: Record<string, PartState> = {};
  #reasons: string[] = [];
  /** True when readiness is 503: balancers are to send no new work. */
  #isLeaving = false;
  #draining = false;
  #onReady: (() => void) | undefined;

  constructor(deps: WorkerPoolDeps) {
    this.#deps = deps;
    this.#hub = new BusHub(deps.metrics);
    this.#slots = Array.from({ length: deps.workers }, (_, number) => this.#slot(number));
    this.#handOver = new HandOver(this.#slots, deps.log);
    this.journalHold = new JournalHold(
      deps.workers,
      (number, message) => this.#slots[number]!.worker.send(message),
      () => this.#notReady(),
    );
    this.#restarts = deps.metrics.counter('worker_restarts_total', 'Workers started again after their death.');
  }

  /** Resolves when at least one worker listens, and every other worker listens or has reported a reason. */
  start(): Promise<void> {
    // Each worker accepts its MQTT connections itself, because a primary that distributes them limits a reconnect
    // storm.
    cluster.schedulingPolicy = cluster.SCHED_NONE;
    // A worker keeps the lock of the data directory until it ends, even without a primary.
    const { lockDescriptor } = this.#deps.data;
    const inherited = lockDescriptor === undefined ? [] : [lockDescriptor];
    cluster.setupPrimary({ stdio: ['inherit', 'inherit', 'inherit', 'ipc', ...inherited] });
    return new Promise((resolve) => {
      this.#onReady = resolve;
      for (const { worker } of this.#slots) worker.start();
    });
  }

  get state(): InstanceState {
    const reporting = this.#slots.filter((slot) => slot.worker.isReady && silentMs(slot) === 0);
    const ready = reporting.length;
    const parts: Record<string, PartState> = {
      ...this.#parts,
      workers: ready === this.#slots.length ? 'up' : this.#slots.some(isAway) ? 'away' : 'starting',
    };
    const clock = this.#deps.clock();
    const { refusal } = this;
    const ownReasons = this.#slots.flatMap((slot) => {
      const { number, worker, degraded, refusal: own } = slot;
      const { failure } = worker;
      if (failure !== undefined) return [`worker-${number} does not serve: ${failure}`];
      // At the start of the instance every worker is starting, which `parts` shows.
      if (!worker.isReady) return ready === 0 ? [] : [`worker-${number} is starting`];
      const silent = silentMs(slot);
      if (silent > 0) return [silentSentence(number, silent)];
      if (own === undefined || refusal !== undefined) return degraded;
      return [`worker-${number} refuses telemetry: ${own.message}`, ...degraded];
    });
    const refusing = refusal === undefined ? [] : [refusal.message];
    const reasons = [...new Set([...refusing, ...this.#reasons, ...ownReasons])];
    const clockReason = clockSentence(clock);
    if (clockReason !== undefined && refusal?.reason !== 'clock_wrong') reasons.push(clockReason);
    const whole = Object.values(parts).every((part) => part === 'up') && reasons.length === 0;
    const conflict = this.#deps.conflict();
    if (conflict !== undefined) reasons.unshift(conflict.sentence);
    const serving = refusal !== undefined ? 'refusing' : whole ? 'ready' : 'degraded';
    const up = conflict?.kind ?? serving;
    return {
      status: this.#isLeaving ? 'draining' : ready === 0 ? 'starting' : up,
      parts,
      reasons,
      postgresReady: this.#deps.isPostgresReady(),
      leader: reporting[0]?.number,
      fleetWorkers: this.#deps.fleetWorkers(),
      isHomeHost: this.#deps.isHomeHost(),
      blocked: this.#crashing.blocked,
      clock,
    };
  }

  /** The reason why no worker accepts telemetry; undefined while a worker accepts it, or no worker serves. */
  get refusal(): Refusal | undefined {
    const serving = this.#serving;
    return serving.every(({ refusal }) => refusal !== undefined) ? serving[0]?.refusal : undefined;
  }

  /** What each worker that serves refuses now, and what it refused. */
  get refusals(): WorkerRefusals[] {
    return this.#serving.map(({ number, refusal, refused }) => ({ worker: number, refusal, refused }));
  }

  get silences(): WorkerSilence[] {
    return this.#serving.map((slot) => {
      const silent = silentMs(slot);
      return { worker: slot.number, silentMs: silent, reason: silentSentence(slot.number, silent) };
    });
  }

  /** The room in the journals of the workers that serve. */
  get rooms(): JournalRoom[] {
    return this.#serving.flatMap(({ number, room }) => (room === undefined ? [] : { worker: number, ...room }));
  }

  /** Bytes that the journals of the workers that have stopped keep for ClickHouse. */
  get keptBytes(): number {
    return this.#slots.reduce((sum, { keptBytes }) => sum + keptBytes, 0);
  }

  /** Why a worker that serves has no connection to Redis; undefined when all have one. */
  get busFailure(): string | undefined {
    return this.#serving.find(({ busFailure }) => busFailure !== undefined)?.busFailure;
  }

  /** The MQTT connections of all workers; undefined when this host is about to stop. */
  get mqttConnections(): number | undefined {
    if (this.#isLeaving) return undefined;
    return this.#serving.reduce((sum, { mqttConnections }) => sum + mqttConnections, 0);
  }

  get #serving(): Slot[] {
    return this.#slots.filter(({ worker }) => worker.isReady);
  }

  /** Connects a process that is no worker to the bus. */
  join(child: ChildProcess): void {
    this.#hub.attach(childPort(child));
  }

  /** Sets the state of the other parts, as the primary knows it. */
  setParts(parts: Record<string, PartState>, reasons: string[]): void {
    this.#parts = parts;
    this.#reasons = reasons;
    this.broadcast();
  }

  broadcast(): void {
    const message: ToWorker = { kind: 'state', state: this.state };
    for (const { worker } of this.#slots) worker.send(message);
  }

  polled(result: PollResult): void {
    for (const { worker } of this.#serving) worker.send({ kind: 'polled', result });
  }

  /** Returns the metrics of the workers; one that does not answer in time is left out. */
  collect(): Promise<Sample[][]> {
    return Promise.all(this.#slots.map(({ worker }) => worker.collect()));
  }

  /** Answers readiness with 503, while the workers go on serving. */
  leave(): void {
    this.#isLeaving = true;
    this.broadcast();
  }

  /**
   * Lets the workers close MQTT connections, together at most so many a second. Resolves when none is left, or after
   * `msMax`.
   */
  handOver(perSecond: number, msMax: number): Promise<void> {
    return this.#handOver.all(perSecond, msMax);
  }

  /** Lets the workers close `count` MQTT connections, together so many a second. */
  handOverSome(count: number, perSecond: number): void {
    this.#handOver.some(count, this.mqttConnections ?? 0, perSecond);
  }

  /** Called after each report and each death of a worker: the others accept again when one does not report any more. */
  #spreadConnections(): void {
    for (const slot of changesOf(this.#serving, performance.now())) {
      slot.isAhead = !slot.isAhead;
      slot.accepts = false;
      slot.worker.send({ kind: 'aheadOfOthers', isAhead: slot.isAhead });
    }
  }

  /** Lets every worker refuse new work, finish the rest and end; kills workers that do not end in time. */
  async drain(timeMsMax: number): Promise<void> {
    this.#draining = true;
    this.leave();
    await Promise.all(this.#slots.map(({ worker }) => worker.drain(timeMsMax)));
  }

  kill(): void {
    this.#isLeaving = true;
    this.#draining = true;
    for (const { worker } of this.#slots) worker.kill();
  }

  /** Returns a worker that cannot answer. A backup needs all workers: each row may be in one journal only. */
  #notReady(): string | undefined {
    const slot = this.#slots.find(({ worker }) => !worker.isReady);
    if (!slot) return undefined;
    const { failure } = slot.worker;
    if (failure === undefined) return `worker-${slot.number} is starting`;
    return (
      `worker-${slot.number} does not serve (${failure}): repair ${journalName(slot.number)} below ` +
      `${this.#deps.data.journalPath}, or stop Millrace and copy the whole data directory`
    );
  }

  #settle(): void {
    const isSettled = ({ worker }: Slot) => worker.isReady || worker.failure !== undefined;
    if (this.#slots.every(isSettled) && this.#slots.some(({ worker }) => worker.isReady)) this.#onReady?.();
  }

  #journalReports(flush: boolean): Promise<JournalReportsOfHost> {
    const slots = this.#slots.map(({ number }) => number);
    return this.#reports.gather(slots, (number, id) => {
      const { worker } = this.#slots[number]!;
      if (!worker.isReady) return false;
      worker.send({ kind: 'reportJournals', id, flush });
      return true;
    });
  }

  #slot(number: number): Slot {
    const { data, log, onCrashLoop } = this.#deps;
    const name = `worker-${number}`;
    const worker = new SupervisedChild({
      name,
      processFile: data.processFile(name),
      log,
      fork: () => this.#fork(number),
      onForked: (child) => this.join(child),
      begin: () => this.#begin(number),
      onMessage: (message) => this.#receive(slot, message),
      onDeath: () => this.#restarts.add(1),
      onChange: () => this.#changed(slot),
      onCrashLoop: (reason) => {
        // One worker that cannot run degrades the service; the other workers take its share of the traffic.
        if (this.#slots.every(({ worker }) => worker.isLooping)) onCrashLoop(reason);
      },
    });
    const slot: Slot = {
      number,
      worker,
      refusal: undefined,
      refused: {},
      busFailure: undefined,
      room: undefined,
      mqttConnections: 0,
      isFull: false,
      accepts: true,
      isAhead: false,
      degraded: [],
      keptBytes: 0,
      reportedAt: performance.now(),
    };
    return slot;
  }

  #fork(slot: number): ChildProcess {
    // Workers share one listening socket; without this libuv setting the first to wake up would accept all that wait.
    const worker = cluster.fork({
      MILLRACE_SLOT: String(slot),
      UV_TCP_SINGLE_ACCEPT: '1',
      [instanceVariable]: this.#deps.data.instance,
    });
    // `SupervisedChild` logs the errors of the channel; without a listener here they would end the primary.
    worker.on('error', () => {});
    return worker.process;
  }

  #begin(slot: number): ToWorker[] {
    const { config, rules, engines, installation, workers, data, isPostgresReady, clock } = this.#deps;
    const orphanJournals = slot === 0 ? data.orphanJournals(workers) : [];
    const known = { installation: installation(), postgresReady: isPostgresReady(), clock: clock() };
    return [
      { kind: 'begin', slot, workers, config, rules, engines, orphanJournals, ...known },
      { kind: 'state', state: this.state },
    ];
  }

  #changed(slot: Slot): void {
    const { worker } = slot;
    if (worker.isReady) {
      slot.reportedAt = performance.now();
      // A process that has just started has no connections, and accepts.
      Object.assign(slot, { mqttConnections: 0, isFull: false, accepts: true, isAhead: false, keptBytes: 0 });
      this.broadcast();
      this.#handOver.ready(slot);
    } else if (!worker.isRunning) {
      this.journalHold.workerEnded();
      this.#spreadConnections();
      this.#handOver.done(slot);
    }
    if (!this.#draining) this.#settle();
  }

  #receive(slot: Slot, message: ToPrimary): void {
    const { log } = this.#deps;
    switch (message.kind) {
      case 'status':
        slot.refusal = message.refusal;
        slot.refused = message.refused;
        slot.busFailure = message.busFailure;
        slot.room = message.room;
        slot.mqttConnections = message.mqttConnections;
        slot.isFull = message.isFull;
        slot.degraded = message.degraded;
        slot.reportedAt = performance.now();
        this.#spreadConnections();
        return;
      case 'mqttConnections':
        slot.mqttConnections = message.count;
        slot.isFull = message.isFull;
        this.#spreadConnections();
        return;
      case 'acceptsAgain':
        slot.accepts = true;
        return;
      case 'journalsHeld':
        this.journalHold.received(slot.number, message);
        return;
      case 'askJournals':
        void this.#journalReports(message.flush).then((host) =>
          slot.worker.send({ kind: 'journals', id: message.id, ...host }),
        );
        return;
      case 'journalReports':
        this.#reports.receive(message.id, slot.number, message);
        return;
      case 'keptBytes':
        slot.keptBytes = message.bytes;
        return;
      case 'handedOver':
        this.#handOver.done(slot);
        return;
      case 'died':
        for (const work of this.#crashing.add(message.suspects)) log.error('work_blocked', { work });
        return;
      case 'failed':
        log.error('worker_failed', { worker: slot.number, reason: message.message });
        return;
    }
  }
}

/** True for a worker that does not serve and is not merely starting. */
function isAway(slot: Slot): boolean {
  return slot.worker.failure !== undefined || (slot.worker.isReady && silentMs(slot) > 0);
}

/** Returns how long a worker that should report has not reported; 0 while that is not worth a reason. */
function silentMs({ reportedAt }: Slot): number {
  const silent = performance.now() - reportedAt;
  return silent > silentMsMax ? silent : 0;
}

function silentSentence(number: number, silent: number): string {
  return (
    `worker-${number} does not serve: its process lives and has not reported for ${Math.round(silent / 1000)} s. ` +
    'When it is not stopped by a signal, end it (SIGKILL): Millrace starts it again'
  );
}
