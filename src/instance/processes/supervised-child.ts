/**
 * Keeps one child process of the primary, a worker or the analytics process: forks and restarts the child, polls its
 * metrics, and stops it in time. `WorkerPool` and `AnalyticsProcess` own their children and supply the first message.
 * Messages that this file does not know are passed to the owner.
 */
import type { ChildProcess } from 'node:child_process';
import { exitReason } from '../../base/child-exit.ts';
import type { Log } from '../../base/log.ts';
import { KeptCounts } from '../../base/metrics/kept-counts.ts';
import type { Sample } from '../../base/metrics/metrics.ts';
import { writeProcessFile } from '../../base/process-file.ts';
import { systemScheduler } from '../../base/scheduler.ts';
import { Supervisor } from '../lifecycle/supervisor.ts';
import type { ToPrimary, ToWorker } from './messages.ts';

interface SupervisedChildDeps {
  /** The name in the log. */
  name: string;
  processFile: string;
  log: Log;
  fork: () => ChildProcess;
  /** Called with each new child before its first message. */
  onForked: (child: ChildProcess) => void;
  /** The answer to the child's first message. */
  begin: () => ToWorker[];
  /** Called with every message of the child, after this object has handled it. */
  onMessage?: (message: ToPrimary) => void;
  /** Called when the child listens, waits for something, or has ended: `isReady` and `failure` show which. */
  onChange: () => void;
  /** Called when the child has ended although it was not stopped; called before `onChange`. */
  onDeath?: () => void;
  /** Called at each death of a child in a crash loop. */
  onCrashLoop?: (reason: string) => void;
}

const collectMsMax = 2_000;

export class SupervisedChild {
  readonly #deps: SupervisedChildDeps;
  readonly #supervisor: Supervisor;
  /** Called with undefined when the child gives no answer. */
  readonly #collections = new Map<number, (samples: Sample[] | undefined) => void>();
  readonly #counts = new KeptCounts();
  #child: ChildProcess | undefined;
  #isReady = false;
  #isStopping = false;
  #lastCollection = 0;
  /** The reason that the child gave for its end. */
  #lastWords: string | undefined;
  /** The reason why the child cannot continue yet. */
  #waiting: string | undefined;

  constructor(deps: SupervisedChildDeps) {
    const { name, log, onCrashLoop } = deps;
    this.#deps = deps;
    const restart = async () => this.start();
    this.#supervisor = new Supervisor({ name, log, restart, ...(onCrashLoop && { onCrashLoop }) });
  }

  get isReady(): boolean {
    return this.#isReady;
  }

  get isRunning(): boolean {
    return this.#child !== undefined;
  }

  /** The reason why the child does not serve: it died, or waits for something. Undefined while it serves or starts. */
  get failure(): string | undefined {
    return this.#supervisor.failure ?? this.#waiting;
  }

  /** True after so many quick deaths that the child will probably die again. */
  get isLooping(): boolean {
    return this.#supervisor.looping;
  }

  start(): void {
    const { fork, processFile, onForked, log, name } = this.#deps;
    this.#lastWords = undefined;
    this.#waiting = undefined;
    const child = fork();
    if (child.pid === undefined) {
      // No process was made: an error follows, and no exit. The system has no file handle or no process left.
      child.once('error', (error) => this.#ended(error.message));
      return;
    }
    this.#child = child;
    child.on('message', (message: ToPrimary) => this.#receive(message));
    child.on('error', (error) => log.warn('child_channel', { child: name, reason: error.message }));
    child.once('exit', (code, signal) => this.#ended(exitReason(code, signal)));
    if (!writeProcessFile(processFile, child.pid)) log.warn('process_file_not_written', { path: processFile });
    onForked(child);
  }

  send(message: ToWorker): void {
    if (this.#child?.connected) this.#child.send(message, () => {});
  }

  /** Returns the metrics of the child; of one that does not answer in time what it and its predecessors had counted. */
  collect(): Promise<Sample[]> {
    if (!this.#isReady) return Promise.resolve(this.#counts.known);
    const id = ++this.#lastCollection;
    return new Promise((resolve) => {
      const done = (samples: Sample[] | undefined) => {
        stopTimer();
        this.#collections.delete(id);
        resolve(samples === undefined ? this.#counts.known : this.#counts.with(samples));
      };
      const stopTimer = systemScheduler.after(collectMsMax, () => done(undefined));
      this.#collections.set(id, done);
      this.send({ kind: 'collect', id });
    });
  }

  /** The child takes no new work, finishes the rest and ends; after `msMax` it is killed. */
  async drain(msMax: number): Promise<void> {
    const child = this.#stop();
    if (!child) return;
    const exit = new Promise((resolve) => child.once('exit', resolve));
    this.send({ kind: 'drain' });
    const stopTimer = systemScheduler.after(msMax, () => child.kill('SIGKILL'));
    await exit;
    stopTimer();
  }

  kill(): void {
    this.#stop()?.kill('SIGKILL');
  }

  #stop(): ChildProcess | undefined {
    this.#isStopping = true;
    this.#supervisor.stop();
    return this.#child;
  }

  #ended(how: string): void {
    const { onDeath, onChange } = this.#deps;
    this.#child = undefined;
    this.#isReady = false;
    this.#counts.ended();
    for (const done of [...this.#collections.values()]) done(undefined);
    if (!this.#isStopping) {
      onDeath?.();
      this.#supervisor.died(this.#lastWords ?? how);
    }
    onChange();
  }

  #receive(message: ToPrimary): void {
    const { begin, onMessage, onChange } = this.#deps;
    switch (message.kind) {
      case 'hello':
        for (const first of begin()) this.send(first);
        break;
      case 'ready':
        this.#isReady = true;
        this.#waiting = undefined;
        this.#supervisor.up();
        break;
      case 'waiting':
        this.#waiting = message.reason;
        break;
      case 'samples':
        this.#collections.get(message.id)?.(message.samples);
        return;
      case 'failed':
        this.#lastWords = message.message;
        break;
      case 'died':
        this.#lastWords = `${message.message} (a bug)`;
        break;
    }
    onMessage?.(message);
    if (message.kind === 'ready' || message.kind === 'waiting') onChange();
  }
}
