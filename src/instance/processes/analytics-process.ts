/**
 * Controls the analytics process for the primary: forks and restarts the process, sends it the state, collects its
 * metrics.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import type { Log } from '../../base/log.ts';
import type { Sample } from '../../base/metrics/metrics.ts';
import type { Config } from '../../base/settings/config.ts';
import type { ClockState } from '../clock/clock-offset.ts';
import type { InstanceState, PartState } from '../health/state.ts';
import type { DataDirectory } from '../host/data-directory.ts';
import type { Engines } from '../stores/engines.ts';
import type { Begin } from './messages.ts';
import { SupervisedChild } from './supervised-child.ts';

interface AnalyticsProcessDeps {
  config: Config;
  engines: Engines;
  installation: () => string;
  data: DataDirectory;
  log: Log;
  clock: () => ClockState;
  /** Called with a new child before its first message: connects the child to the bus. */
  onForked: (child: ChildProcess) => void;
  /** True when PostgreSQL has the tables of this version. */
  isPostgresReady: () => boolean;
}

const entry = fileURLToPath(new URL('../../analytics.js', import.meta.url));

export class AnalyticsProcess {
  readonly #deps: AnalyticsProcessDeps;
  readonly #child: SupervisedChild;
  #onReady: (() => void) | undefined;

  constructor(deps: AnalyticsProcessDeps) {
    const { data, log, onForked } = deps;
    this.#deps = deps;
    this.#child = new SupervisedChild({
      name: 'analytics',
      processFile: data.processFile('analytics'),
      log,
      fork: () => fork(entry, [], { execArgv: [], stdio: ['ignore', 'inherit', 'inherit', 'ipc'] }),
      onForked,
      begin: () => [this.#begin()],
      onChange: () => this.#onReady?.(),
    });
  }

  get state(): PartState {
    return this.#child.isReady ? 'up' : 'starting';
  }

  /**
   * The reason why the process does not run; undefined while it runs. Reports are then refused, and the service
   * continues.
   */
  get failure(): string | undefined {
    return this.#child.failure ?? (this.#child.isReady ? undefined : 'their process is starting');
  }

  /**
   * Resolves when the process listens or has died. A process that died is started again as long as the service runs.
   */
  start(): Promise<void> {
    return new Promise((resolve) => {
      this.#onReady = resolve;
      this.#child.start();
    });
  }

  send(state: InstanceState): void {
    this.#child.send({ kind: 'state', state });
  }

  /** Returns the metrics of the process; empty when it does not answer in time. */
  collect(): Promise<Sample[]> {
    return this.#child.collect();
  }

  /** Lets running reports end; kills the process after `timeMsMax`. */
  stop(timeMsMax: number): Promise<void> {
    return this.#child.drain(timeMsMax);
  }

  kill(): void {
    this.#child.kill();
  }

  #begin(): Begin {
    const { config, engines, installation, isPostgresReady, clock } = this.#deps;
    const none = { slot: 0, workers: 1, rules: [], orphanJournals: [] };
    const known = { installation: installation(), postgresReady: isPostgresReady(), clock: clock() };
    return { kind: 'begin', ...none, config, engines, ...known };
  }
}
