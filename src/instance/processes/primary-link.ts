/** Connects a worker to the primary: the beginning, the state of the instance, metrics, the stop. */
import cluster from 'node:cluster';
import { systemClock } from '../../base/clock.ts';
import { limits } from '../../base/limits.ts';
import type { Sample } from '../../base/metrics/metrics.ts';
import { block, type Work } from '../../base/running-work.ts';
import { systemScheduler } from '../../base/scheduler.ts';
import type { JournalCut } from '../../journal/journal.ts';
import type { OnPoll, PollResult } from '../../postgres/shared-poll.ts';
import { type ClockState, unmeasuredClock } from '../clock/clock-offset.ts';
import type { InstanceState } from '../health/state.ts';
import type { JournalReportsOfHost } from '../journals/journal-reports.ts';
import { slightlyMore } from './connection-spread.ts';
import type { Begin, ToPrimary, ToWorker } from './messages.ts';

type Status = Omit<Extract<ToPrimary, { kind: 'status' }>, 'kind'>;

export class PrimaryLink {
  readonly begin: Promise<Begin>;
  state: InstanceState = {
    status: 'starting',
    parts: {},
    reasons: [],
    postgresReady: false,
    leader: undefined,
    fleetWorkers: 1,
    isHomeHost: false,
    blocked: [],
    clock: unmeasuredClock,
  };
  /** True when this process serves. */
  isReady = false;
  readonly #askedJournals = new Map<number, (host: JournalReportsOfHost) => void>();
  #begun: ((begin: Begin) => void) | undefined;
  #lastAsked = 0;
  #collect: () => Sample[] = () => [];
  #journals: (flush: boolean) => Promise<JournalReportsOfHost> = async () => ({ reports: [], isWhole: false });
  #onClock: (clock: ClockState) => void = () => {};
  #drain: () => void = () => process.exit(0);
  #lost: () => void = () => process.exit(0);
  #handOver: (perSecond: number) => Promise<void> = () => Promise.resolve();
  #handOverSome: (count: number, perSecond: number) => void = () => {};
  #leaveToOthers: () => void = () => {};
  #acceptAgain: () => Promise<void> = () => Promise.resolve();
  #reportedConnections = 0;
  #isReportedFull = false;
  #holdJournals: (() => JournalCut[]) | undefined;
  #releaseJournals: () => boolean = () => false;
  #onState: (state: InstanceState) => void = () => {};
  readonly #onPoll: ((result: PollResult) => void)[] = [];

  constructor() {
    this.begin = new Promise((resolve) => {
      this.#begun = resolve;
    });
    process.on('message', (message: ToWorker) => this.#receive(message));
    // Else Node ends a worker at once when the primary is gone, before any listener of this file is called.
    if (cluster.worker) cluster.worker.exitedAfterDisconnect = true;
    process.once('disconnect', () => this.#lost());
    send({ kind: 'hello' });
    // Ctrl-C, and the stop of a service, may reach every process: while there is a primary, it decides.
    process.on('SIGINT', () => {});
    process.on('SIGTERM', () => {
      if (!process.connected) this.#drain();
    });
  }

  onCollect(collect: () => Sample[]): void {
    this.#collect = collect;
  }

  /** Called at once and with each state; the clock of this process follows the measurement already. */
  onClock(handler: (clock: ClockState) => void): void {
    this.#onClock = handler;
    handler(this.state.clock);
  }

  /** Called with each state of the instance; the latest one is given at once. */
  onState(onState: (state: InstanceState) => void): void {
    this.#onState = onState;
    onState(this.state);
  }

  /** Called with each result of the poll of this host. */
  readonly onPoll: OnPoll = (handler) => {
    this.#onPoll.push(handler);
  };

  onDrain(drain: () => void): void {
    let begun = false;
    const drainOnce = () => {
      if (begun) return;
      begun = true;
      drain();
    };
    this.#drain = drainOnce;
  }

  /** `all`: before the host stops; `some`: other hosts have fewer connections. */
  onHandOver(all: (perSecond: number) => Promise<void>, some: (count: number, perSecond: number) => void): void {
    this.#handOver = all;
    this.#handOverSome = some;
  }

  /** `leave`: the other workers of this host are to accept the next MQTT connections; `again`: this one, too. */
  onAheadOfOthers(leave: () => void, again: () => Promise<void>): void {
    this.#leaveToOthers = leave;
    this.#acceptAgain = again;
  }

  /** `release` returns true when every hold lasted until the release. */
  onHoldJournals(hold: () => JournalCut[], release: () => boolean): void {
    this.#holdJournals = hold;
    this.#releaseJournals = release;
  }

  /** `lost` is called once, when the primary is gone. Before this call the process then ends at once. */
  onLost(lost: () => void): void {
    this.#lost = lost;
    if (!process.connected) lost();
  }

  ready(): void {
    this.isReady = true;
    send({ kind: 'ready' });
  }

  /** Resolves when the primary has been sent the reason. */
  failed(error: Error): Promise<void> {
    return send({ kind: 'failed', message: error.message });
  }

  /** Reports a crash. The process must end at once, so bytes that a pipe does not take now are lost. */
  died(error: Error, suspects: Work[]): void {
    void send({ kind: 'died', message: error.message, suspects });
  }

  /** Reports that the worker cannot continue yet and retries. */
  waiting(reason: string): void {
    send({ kind: 'waiting', reason });
  }

  reportStatus(status: () => Status): void {
    const report = () => {
      const current = status();
      this.#reportedConnections = current.mqttConnections;
      this.#isReportedFull = current.isFull;
      void send({ kind: 'status', ...current });
    };
    report();
    systemScheduler.every(limits.statusIntervalMs, report);
  }

  /** Called after each accepted MQTT connection with the number of them: a burst does not wait for the next status. */
  acceptedConnection(count: number, isFull: boolean): void {
    if (count <= slightlyMore(this.#reportedConnections) && isFull === this.#isReportedFull) return;
    this.#reportedConnections = count;
    this.#isReportedFull = isFull;
    void send({ kind: 'mqttConnections', count, isFull });
  }

  /** Reports what the journals keep when this worker stops. Resolves when the report was sent. */
  async kept(bytes: number): Promise<void> {
    await send({ kind: 'keptBytes', bytes });
  }

  onReportJournals(report: (flush: boolean) => Promise<JournalReportsOfHost>): void {
    this.#journals = report;
  }

  /**
   * Requests the state of the journals of all workers of this instance. `flush`: rows that wait for more rows are
   * shipped now.
   */
  askJournals(flush: boolean): Promise<JournalReportsOfHost> {
    this.#lastAsked += 1;
    const id = this.#lastAsked;
    return new Promise((resolve) => {
      const answer = (host: JournalReportsOfHost) => {
        stopTimer();
        this.#askedJournals.delete(id);
        resolve(host);
      };
      const late = () => answer({ reports: [], isWhole: false });
      const stopTimer = systemScheduler.after(2 * limits.journalReportsMsMax, late);
      this.#askedJournals.set(id, answer);
      send({ kind: 'askJournals', id, flush });
    });
  }

  #receive(message: ToWorker): void {
    switch (message.kind) {
      case 'begin':
        follow(message.clock);
        this.#begun?.(message);
        return;
      case 'state':
        this.state = message.state;
        block(message.state.blocked);
        follow(message.state.clock);
        this.#onClock(message.state.clock);
        this.#onState(message.state);
        return;
      case 'collect':
        send({ kind: 'samples', id: message.id, samples: this.#collect() });
        return;
      case 'holdJournals':
        // Ends a hold whose release was lost.
        this.#releaseJournals();
        if (this.#holdJournals)
          send({ kind: 'journalsHeld', id: message.id, cuts: this.#holdJournals(), intact: true });
        return;
      case 'releaseJournals':
        send({ kind: 'journalsHeld', id: message.id, cuts: [], intact: this.#releaseJournals() });
        return;
      case 'reportJournals':
        void this.#journals(message.flush).then((host) => send({ kind: 'journalReports', id: message.id, ...host }));
        return;
      case 'journals':
        this.#askedJournals.get(message.id)?.(message);
        return;
      case 'handOver':
        void this.#handOver(message.perSecond).then(() => send({ kind: 'handedOver' }));
        return;
      case 'handOverSome':
        this.#handOverSome(message.count, message.perSecond);
        return;
      case 'aheadOfOthers':
        if (message.isAhead) this.#leaveToOthers();
        else void this.#acceptAgain().then(() => send({ kind: 'acceptsAgain' }));
        return;
      case 'polled':
        for (const handler of this.#onPoll) handler(message.result);
        return;
      case 'drain':
        this.#drain();
        return;
    }
  }
}

function follow({ line }: ClockState): void {
  if (line !== undefined) systemClock.follow(line);
}

function send(message: ToPrimary): Promise<void> {
  return new Promise((resolve) => {
    if (process.connected) process.send?.(message, () => resolve());
    else resolve();
  });
}
