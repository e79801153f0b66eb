/**
 * The pool of report threads and its queue. The settings give the number of threads and of waiting reports; one more
 * report is refused with 429. Threads and queries of ClickHouse go to tenants in turn (`tenant-turns.ts`). Piscina runs
 * the threads; its own queue stays empty because it does not count tasks that can be cancelled. A report whose client
 * disconnects, or that times out, loses its thread at once. A thread that dies fails only its own report.
 */
import { randomUUID } from 'node:crypto';
import { MessageChannel } from 'node:worker_threads';
import { Piscina } from 'piscina';
import { systemClock } from '../base/clock.ts';
import { Fault, messageOf, unavailable } from '../base/errors.ts';
import type { ItemOwner } from '../base/fair-queue.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { type Counter, coarseBounds, type Histogram, type Metrics } from '../base/metrics/metrics.ts';
import { statusOf } from '../base/reasons.ts';
import { systemScheduler } from '../base/scheduler.ts';
import type { EncodedReport } from './encode.ts';
import { PacedRefusals } from './paced-refusals.ts';
import { TenantTurns } from './tenant-turns.ts';
import type { ReportOutcome, ReportTask, ThreadData } from './thread.ts';

interface ReportPoolDeps {
  threads: number;
  queue: number;
  queriesMax: number;
  thread: ThreadData;
  /** Ends the query of a report that has lost its thread, and resolves when ClickHouse has no table of it. */
  onAbandoned: (queryId: string) => Promise<void>;
  log: Log;
  metrics: Metrics;
  entry?: URL;
}

export type ReportOrder = Omit<ReportTask, 'queryId' | 'queried' | 'timeoutMs'>;

interface ReportCaller {
  readonly tenantId: string;
  readonly customerId: string | null;
}

const retryAfterSeconds = 2;
const idleThreadMs = 60_000;

export class ReportPool {
  readonly #deps: ReportPoolDeps;
  readonly #piscina: Piscina<ReportTask, ReportOutcome>;
  readonly #threads: TenantTurns;
  readonly #queries: TenantTurns;
  readonly #refusals = new PacedRefusals(systemClock);
  readonly #refused: Counter;
  readonly #seconds: Histogram;
  readonly #waitSeconds: Histogram;

  constructor(deps: ReportPoolDeps) {
    this.#deps = deps;
    const { threads, queue, queriesMax, metrics, thread } = deps;
    const refused = (fault: Fault) => {
      this.#refused.add(1);
      return fault;
    };
    this.#threads = new TenantTurns({
      max: threads,
      waitingMax: queue,
      full: () => refused(full(threads, queue)),
      displaced: () => refused(displaced()),
    });
    // Only reports with a thread wait for a query.
    this.#queries = new TenantTurns({ max: queriesMax, waitingMax: threads + 1, full: displaced, displaced });
    this.#piscina = new Piscina({
      filename: (deps.entry ?? new URL('./thread.js', import.meta.url)).href,
      minThreads: 0,
      maxThreads: threads + 1,
      idleTimeout: idleThreadMs,
      maxQueue: Number.POSITIVE_INFINITY,
      // A thread that blocks between tasks would not notice that its sockets are closed.
      atomics: 'disabled',
      resourceLimits: { maxOldGenerationSizeMb: limits.reportHeapMegabytesMax },
      workerData: thread,
    });
    this.#piscina.on('error', (error: Error) => deps.log.error('report_threads_failed', { reason: messageOf(error) }));
    metrics.observed('report_running', 'Reports being made.', () => this.#threads.held);
    metrics.observed('report_waiting', 'Reports that wait for a thread.', () => this.#threads.waiting);
    metrics.observed('report_threads', 'Threads of the report pool.', () => this.#piscina.threads.length);
    this.#refused = metrics.counter(
      'report_refused_total',
      'Reports refused because the pool and its queue were full.',
    );
    this.#seconds = metrics.histogram('report_seconds', 'Time of a report in its thread.', {}, coarseBounds);
    const waitHelp = 'Time that a report waited for a thread.';
    this.#waitSeconds = metrics.histogram('report_wait_seconds', waitHelp, {}, coarseBounds);
  }

  get running(): number {
    return this.#threads.held;
  }

  get waiting(): number {
    return this.#threads.waiting;
  }

  /**
   * Makes a report when it is the turn of its caller; `customerId` is null for an administrator. `prepare` reads what
   * the report needs. It runs in the place of the report, so a refused report costs no read. While it returns undefined
   * the report waits without a place, and is tried again. Rejects with a Fault.
   */
  async run(
    { tenantId, customerId }: ReportCaller,
    prepare: () => Promise<ReportOrder | undefined>,
    gone: AbortSignal,
  ): Promise<EncodedReport> {
    const owner = { tenant: tenantId, caller: customerId ?? '' };
    for (;;) {
      const askedAt = performance.now();
      await this.#threads.take(owner, gone).catch(async (error: unknown) => {
        if (!gone.aborted) await this.#refusals.wait(customerId ?? tenantId, gone);
        throw gone.aborted ? abandoned() : error;
      });
      const begunAt = performance.now();
      this.#waitSeconds.observe((begunAt - askedAt) / 1000);
      let order: ReportOrder | undefined;
      try {
        order = await prepare();
        if (order) return await this.#make(owner, order, gone);
      } finally {
        if (order) this.#seconds.observe((performance.now() - begunAt) / 1000);
        this.#threads.release(owner);
      }
      await systemScheduler.sleep(limits.reportPreparedAgainMs, gone);
      if (gone.aborted) throw abandoned();
    }
  }

  async close(): Promise<void> {
    await this.#piscina.destroy();
  }

  async #make(owner: ItemOwner, order: ReportOrder, gone: AbortSignal): Promise<EncodedReport> {
    const { thread, onAbandoned, log } = this.#deps;
    const deadline = performance.now() + thread.timeoutMs;
    const queryId = `report-${randomUUID()}`;
    const late = AbortSignal.timeout(thread.timeoutMs + limits.reportGraceMsMax);
    const ended = AbortSignal.any([gone, late]);
    let outcome: ReportOutcome;
    try {
      await this.#queries.take(owner, ended);
      const { port1, port2: queried } = new MessageChannel();
      let isReleased = false;
      const release = () => {
        if (!isReleased) this.#queries.release(owner);
        isReleased = true;
      };
      port1.once('message', release);
      let dropped = Promise.resolve();
      try {
        const timeoutMs = deadline - performance.now();
        const task = { ...order, queryId, queried, timeoutMs };
        outcome = await this.#piscina.run(task, { signal: ended, transferList: [queried] });
      } catch (error) {
        dropped = onAbandoned(queryId);
        throw error;
      } finally {
        // The thread has answered, or ended without an answer: then tables of its report may be there for a while.
        void dropped.finally(() => {
          release();
          port1.close();
        });
      }
    } catch (error) {
      if (gone.aborted) throw abandoned();
      if (late.aborted) throw tooLate(thread.timeoutMs);
      throw this.#threadFault(error as Error & { code?: string });
    }
    if ('bytes' in outcome) return outcome;
    if ('bug' in outcome) {
      log.error('report_bug', { reason: outcome.bug });
      throw new Error('a report failed for an unexpected reason');
    }
    const { reason, message, retryAfterSeconds } = outcome.fault;
    if (statusOf(reason) >= 500) log.warn('report_failed', { reason });
    throw new Fault(reason, message, retryAfterSeconds);
  }

  #threadFault(error: Error & { code?: string }): Error {
    if (error.code === 'ERR_WORKER_OUT_OF_MEMORY') {
      return new Fault('report_too_large', 'The report is too large: choose a shorter range or fewer rows.');
    }
    this.#deps.log.error('report_thread_failed', { reason: error.message, error });
    return unavailable('report_thread', 'The report could not be finished. Ask for it again.');
  }
}

function full(threads: number, queue: number): Fault {
  return new Fault(
    'report_pool_full',
    `${threads} reports are running (SIMPLE_API_RATE_LIMITER_THREAD_POOL_SIZE) and ${queue} are waiting ` +
      '(SIMPLE_API_RATE_LIMITER_QUEUE_CAPACITY): ask again later, or change these settings.',
    retryAfterSeconds,
  );
}

function displaced(): Fault {
  return new Fault(
    'report_pool_share',
    'Your reports took most places in the queue of reports, and other callers wait: ask for fewer reports at once.',
    retryAfterSeconds,
  );
}

/** The refusal of a report whose client has disconnected. */
function abandoned(): Fault {
  return new Fault('report_abandoned', 'The client has gone.');
}

function tooLate(timeoutMs: number): Fault {
  return new Fault('report_timeout', `The report took longer than ${timeoutMs / 1000} s (REPORT_TIMEOUT_MS).`);
}
