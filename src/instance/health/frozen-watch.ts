/**
 * Logs workers that live and do not serve, as a process that is stopped by a signal or hangs: `worker_frozen` once, and
 * `worker_runs_again` with the length. A frozen worker says nothing itself, and only an operator ends it. The primary
 * passes its workers once a second.
 */
import type { Log } from '../../base/log.ts';

export interface WorkerSilence {
  worker: number;
  /** Time without a report; 0 while that is not worth a reason. */
  silentMs: number;
  /** What is wrong and what to do. */
  reason: string;
}

export class FrozenWatch {
  readonly #log: Log;
  readonly #now: () => number;
  /** The last report of each frozen worker, in monotonic milliseconds. */
  readonly #since = new Map<number, number>();

  /** `now`: a monotonic clock in milliseconds. */
  constructor(log: Log, now: () => number = () => performance.now()) {
    this.#log = log;
    this.#now = now;
  }

  /** `workers`: all workers whose process lives. The supervisor logs the death of a process and its return. */
  check(workers: readonly WorkerSilence[]): void {
    for (const { worker, silentMs, reason } of workers) {
      const since = this.#since.get(worker);
      if (silentMs > 0 && since === undefined) {
        this.#since.set(worker, this.#now() - silentMs);
        this.#log.error('worker_frozen', { worker, reason });
      } else if (silentMs === 0 && since !== undefined) {
        this.#since.delete(worker);
        this.#log.info('worker_runs_again', { worker, awayMs: Math.round(this.#now() - since) });
      }
    }
    const alive = new Set(workers.map(({ worker }) => worker));
    for (const worker of this.#since.keys()) if (!alive.has(worker)) this.#since.delete(worker);
  }
}
