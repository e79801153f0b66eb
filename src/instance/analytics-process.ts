/**
 * The analytics process as the primary sees it: forked, started again when it dies, told the state, asked for metrics.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import type { Config } from '../base/config.ts';
import type { Log } from '../base/log.ts';
import type { Sample } from '../base/metrics.ts';
import { writeProcessFile } from '../base/process-file.ts';
import type { ClockState } from './clock-offset.ts';
import type { DataDirectory } from './data-directory.ts';
import type { Engines, InstanceState, PartState, ToPrimary, ToWorker } from './messages.ts';
import { Supervisor } from './supervisor.ts';

export interface AnalyticsProcessOptions {
  config: Config;
  engines: Engines;
  installation: () => string;
  data: DataDirectory;
  log: Log;
  clock: () => ClockState;
  /** A new child, before it says anything: its way to the bus. */
  onForked: (child: ChildProcess) => void;
  /** PostgreSQL has the tables of this version. */
  isPostgresReady: () => boolean;
}

const entry = fileURLToPath(new URL('../analytics.js', import.meta.url));
const collectMsMax = 2_000;

export class AnalyticsProcess {
  readonly #options: AnalyticsProcessOptions;
  readonly #supervisor: Supervisor;
  readonly #collections = new Map<number, (samples: Sample[]) => void>();
  #child: ChildProcess | undefined;
  #ready = false;
  #stopping = false;
  #lastCollection = 0;
  #failure: string | undefined;
  #onReady: (() => void) | undefined;

  constructor(options: AnalyticsProcessOptions) {
    this.#options = options;
    this.#supervisor = new Supervisor({
      name: 'analytics',
      log: options.log,
      restart: async () => this.#fork(),
    });
  }

  get state(): PartState {
    return this.#ready ? 'up' : 'starting';
  }

  /** Why it does not run; undefined while it does. Reports are then refused, and the service goes on. */
  get failure(): string | undefined {
    return this.#supervisor.failure;
  }

  /** Resolves when it listens, or died: then it is started again for as long as the service runs. */
  start(): Promise<void> {
    return new Promise((resolve) => {
      this.#onReady = resolve;
      this.#fork();
    });
  }

  tell(state: InstanceState): void {
    this.#send({ kind: 'state', state });
  }

  /** What it counts; nothing when it does not answer in time. */
  collect(): Promise<Sample[]> {
    const id = ++this.#lastCollection;
    if (!this.#ready) return Promise.resolve([]);
    return new Promise((resolve) => {
      const done = (samples: Sample[]) => {
        clearTimeout(timer);
        this.#collections.delete(id);
        resolve(samples);
      };
      const timer = setTimeout(() => done([]), collectMsMax);
      this.#collections.set(id, done);
      this.#send({ kind: 'collect', id });
    });
  }

  /** Reports that run may end; after `timeMsMax` it is killed. */
  async stop(timeMsMax: number): Promise<void> {
    const child = this.#end();
    if (!child) return;
    const exit = new Promise((resolve) => child.once('exit', resolve));
    this.#send({ kind: 'drain' });
    setTimeout(() => child.kill('SIGKILL'), timeMsMax).unref();
    await exit;
  }

  kill(): void {
    this.#end()?.kill('SIGKILL');
  }

  #end(): ChildProcess | undefined {
    this.#stopping = true;
    this.#supervisor.stop();
    return this.#child;
  }

  #fork(): void {
    const { data, log, onForked } = this.#options;
    const child = fork(entry, [], { execArgv: [], stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
    this.#child = child;
    this.#failure = undefined;
    if (child.pid !== undefined) writeProcessFile(data.processFile('analytics'), child.pid);
    onForked(child);
    child.on('message', (message: ToPrimary) => this.#receive(message));
    child.on('error', (error) => log.warn('analytics_channel', { reason: error.message }));
    child.once('exit', (code, signal) => {
      this.#child = undefined;
      this.#ready = false;
      for (const done of [...this.#collections.values()]) done([]);
      this.#onReady?.();
      if (!this.#stopping) this.#supervisor.died(this.#failure ?? (signal ? `signal ${signal}` : `exit code ${code}`));
    });
  }

  #receive(message: ToPrimary): void {
    switch (message.kind) {
      case 'hello': {
        const { config, engines, installation } = this.#options;
        const clock = this.#options.clock();
        const postgresReady = this.#options.isPostgresReady();
        const none = { slot: 0, rules: [], orphanJournals: [] };
        const begin = { ...none, config, engines, installation: installation(), postgresReady, clock };
        this.#send({ kind: 'begin', ...begin });
        return;
      }
      case 'ready':
        this.#ready = true;
        this.#supervisor.up();
        this.#onReady?.();
        return;
      case 'samples':
        this.#collections.get(message.id)?.(message.samples);
        return;
      case 'failed':
        this.#failure = message.message;
        return;
      case 'waiting':
      case 'died':
      case 'status':
        return;
    }
  }

  #send(message: ToWorker): void {
    if (this.#child?.connected) this.#child.send(message, () => {});
  }
}
