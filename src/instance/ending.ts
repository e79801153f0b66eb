/** Ends the instance: SIGTERM and SIGINT drain, a second signal stops at once, a crash loop names its reason. */
import type { Log } from '../base/log.ts';
import { endProcess, liveProcess } from '../base/process-file.ts';
import { systemScheduler } from '../base/scheduler.ts';
import type { Config } from '../base/settings/config.ts';
import { sizeText } from '../base/size-text.ts';
import type { DataDirectory } from './host/data-directory.ts';
import type { Started } from './lifecycle/started.ts';
import { StopSteps } from './lifecycle/stop-steps.ts';
import { printProgress } from './operators/banner.ts';
import type { AnalyticsProcess } from './processes/analytics-process.ts';
import type { WorkerPool } from './processes/worker-pool.ts';

/** Time for the end of a store that was killed. */
const leftoverMsMax = 500;

/** `npm start` passes on a signal that its whole process group got: the second of two within this time is the first. */
const sameSignalMs = 1_000;

export class Ending {
  readonly #running: Started;
  readonly #data: DataDirectory;
  readonly #shutdown: Config['shutdown'];
  readonly #msMax: number;
  readonly #log: Log;
  #isLeaving = false;
  #signalledAt = 0;
  pool: WorkerPool | undefined;
  analytics: AnalyticsProcess | undefined;
  begun = false;

  constructor(running: Started, data: DataDirectory, shutdown: Config['shutdown'], log: Log) {
    this.#running = running;
    this.#data = data;
    this.#shutdown = shutdown;
    this.#msMax = shutdown.drainMsMax + shutdown.storesMsMax;
    this.#log = log;
    for (const signal of ['SIGTERM', 'SIGINT'] as const) process.on(signal, () => this.#signalled(signal));
  }

  kill(): void {
    this.pool?.kill();
    this.analytics?.kill();
  }

  crashLoop(reason: string): void {
    this.#log.error('crash_loop', { reason });
    void this.#end(1, `stopped: ${reason}`);
  }

  /** Called when the database is of another installation than the one whose channels the workers use. */
  otherInstallation(): void {
    this.#log.error('other_installation', {});
    void this.#end(1, 'stopped: the database is of another installation than at the last start; start again.');
  }

  #signalled(signal: string): void {
    const now = performance.now();
    if (this.#isLeaving && now - this.#signalledAt < sameSignalMs) return;
    this.#signalledAt = now;
    if (this.begun || this.#isLeaving) {
      printProgress(`${signal} again: stopping at once.`);
      this.kill();
      process.exit(1);
    }
    this.#isLeaving = true;
    void this.#leave(signal).then(() => this.#drain(signal));
  }

  /** Serves until balancers have noticed the stop, then closes MQTT connections at a rate. */
  async #leave(signal: string): Promise<void> {
    const { pool } = this;
    const { delayMs, evictPerSecond, evictMsMax } = this.#shutdown;
    if (!pool || (delayMs === 0 && evictPerSecond === 0)) return;
    pool.leave();
    if (delayMs > 0) printProgress(`${signal}: /readyz answers 503; this host still serves for ${delayMs / 1000} s.`);
    await systemScheduler.sleep(delayMs);
    if (evictPerSecond === 0) return;
    printProgress(`closing ${evictPerSecond} MQTT connections a second, for at most ${evictMsMax / 1000} s.`);
    await pool.handOver(evictPerSecond, evictMsMax);
  }

  #drain(signal: string): void {
    if (this.begun) return;
    printProgress(`${signal}: finishing open requests and shipping the journal.`);
    void this.#end(0, 'stopped; everything acknowledged is durable.');
  }

  /**
   * Ends the stores when the time is over. A store recovers at its next start; journals and their positions are on
   * disk.
   */
  async #endLeftovers(): Promise<void> {
    this.kill();
    const left = ['postgres', 'clickhouse', 'inserts'].flatMap((role) => {
      const pid = liveProcess(this.#data.processFile(role));
      return pid === undefined ? [] : [{ role, pid }];
    });
    // PostgreSQL ends its own children at SIGQUIT.
    await Promise.all(
      left.map(async ({ role, pid }) => {
        const signal = role === 'postgres' ? 'SIGQUIT' : 'SIGKILL';
        if (!(await endProcess(pid, signal, leftoverMsMax))) await endProcess(pid, 'SIGKILL', leftoverMsMax);
      }),
    );
    await this.#data.release();
  }

  /** Says what an operator must not delete. */
  #kept(): string {
    const bytes = this.pool?.keptBytes ?? 0;
    if (bytes === 0) return '';
    return (
      ` ClickHouse does not have all of it: ${sizeText(bytes)} wait in the journals of DATA_DIR. Keep this directory, ` +
      'and start again; before the host is removed for good, run `npm run journal -- drain`.'
    );
  }

  async #end(exitCode: number, last: string): Promise<void> {
    if (this.begun) return;
    this.begun = true;
    const steps = new StopSteps({ msMax: this.#msMax, log: this.#log });
    await this.#running.stop(steps);
    if (steps.unfinished) await this.#endLeftovers();
    const waits = steps.waits === '' ? '' : ` It took ${steps.seconds.toFixed(1)} s: ${steps.waits}.`;
    printProgress(`${last}${this.#kept()}${waits}`);
    process.exit(exitCode);
  }
}
