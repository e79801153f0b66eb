/**
 * The pool of report threads, and who may wait for one: exactly as many as the settings say, in order; one more is 429.
 * Piscina has the threads, its own queue stays empty (it does not count tasks that can be cancelled). A report whose
 * client goes away, or whose time is up, loses its thread at once; a thread that dies takes its own report with it.
 */
import { randomUUID } from 'node:crypto';
import { Piscina } from 'piscina';
import { ErrorCode, Fault, messageOf, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Counter, Histogram, Metrics } from '../base/metrics.ts';
import type { EncodedReport } from './encode.ts';
import { createPermits, givePermitBack } from './query-slots.ts';
import type { ReportOutcome, ReportTask, ThreadData } from './thread.ts';

export interface ReportPoolOptions {
  threads: number;
  queue: number;
  queriesMax: number;
  /** All that a thread is told but the permits. */
  thread: Omit<ThreadData, 'permits'>;
  /** Ends the query of a report that nobody waits for any more. */
  onAbandoned: (queryId: string) => void;
  log: Log;
  metrics: Metrics;
  entry?: URL;
}

export type ReportOrder = Omit<ReportTask, 'ticket' | 'queryId'>;

const retryAfterSeconds = 2;
const idleThreadMs = 60_000;
/** A ticket is a whole number of 32 bits, never 0. */
const ticketMax = 2 ** 31 - 1;

export class ReportPool {
  readonly #options: ReportPoolOptions;
  readonly #piscina: Piscina<ReportTask, ReportOutcome>;
  readonly #permits: SharedArrayBuffer;
  readonly #waiting = new Set<() => void>();
  readonly #refused: Counter;
  readonly #seconds: Histogram;
  readonly #waitSeconds: Histogram;
  #running = 0;
  #ticket = 0;

  constructor(options: ReportPoolOptions) {
    this.#options = options;
    const { threads, metrics, thread } = options;
    this.#permits = createPermits(options.queriesMax);
    this.#piscina = new Piscina({
      filename: (options.entry ?? new URL('./thread.js', import.meta.url)).href,
      minThreads: 0,
      maxThreads: threads,
      idleTimeout: idleThreadMs,
      maxQueue: Number.POSITIVE_INFINITY,
      // A thread that blocks between tasks would not see its sockets being closed.
      atomics: 'disabled',
      resourceLimits: { maxOldGenerationSizeMb: limits.reportHeapMegabytesMax },
      workerData: { ...thread, permits: this.#permits } satisfies ThreadData,
    });
    this.#piscina.on('error', (error: Error) => options.log.error('report_thread', { reason: messageOf(error) }));
    metrics.observed('report_running', 'Reports being made.', () => this.#running);
    metrics.observed('report_waiting', 'Reports that wait for a thread.', () => this.#waiting.size);
    metrics.observed('report_threads', 'Threads of the report pool.', () => this.#piscina.threads.length);
    this.#refused = metrics.counter(
      'report_refused_total',
      'Reports refused because the pool and its queue were full.',
    );
    this.#seconds = metrics.histogram('report_seconds', 'Time of a report in its thread.');
    this.#waitSeconds = metrics.histogram('report_wait_seconds', 'Time that a report waited for a thread.');
  }

  get running(): number {
    return this.#running;
  }

  get waiting(): number {
    return this.#waiting.size;
  }

  /** Rejects with a Fault; with the reason of `gone` when that is first. */
  async run(order: ReportOrder, gone: AbortSignal): Promise<EncodedReport> {
    const { threads, queue } = this.#options;
    const askedAt = performance.now();
    if (this.#running >= threads) {
      if (this.#waiting.size >= queue) {
        this.#refused.add(1);
        throw full(threads, queue);
      }
      await this.#turn(gone);
    } else {
      this.#running += 1;
    }
    const begunAt = performance.now();
    this.#waitSeconds.observe((begunAt - askedAt) / 1000);
    try {
      return await this.#make(order, gone);
    } finally {
      this.#seconds.observe((performance.now() - begunAt) / 1000);
      this.#running -= 1;
      this.#next();
    }
  }

  async close(): Promise<void> {
    await this.#piscina.destroy();
  }

  /** Whoever ends hands the place on: nobody can slip in between. */
  #next(): void {
    const [first] = this.#waiting;
    if (!first || this.#running >= this.#options.threads) return;
    this.#waiting.delete(first);
    this.#running += 1;
    first();
  }

  #turn(gone: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const leave = () => {
        this.#waiting.delete(admit);
        reject(abandoned());
      };
      const admit = () => {
        gone.removeEventListener('abort', leave);
        resolve();
      };
      if (gone.aborted) return leave();
      gone.addEventListener('abort', leave, { once: true });
      this.#waiting.add(admit);
    });
  }

  async #make(order: ReportOrder, gone: AbortSignal): Promise<EncodedReport> {
    const { thread, onAbandoned, log } = this.#options;
    this.#ticket = (this.#ticket % ticketMax) + 1;
    const ticket = this.#ticket;
    const queryId = `report-${randomUUID()}`;
    const late = AbortSignal.timeout(thread.timeoutMs + limits.reportGraceMsMax);
    let outcome: ReportOutcome;
    try {
      outcome = await this.#piscina.run({ ...order, ticket, queryId }, { signal: AbortSignal.any([gone, late]) });
    } catch (error) {
      onAbandoned(queryId);
      if (gone.aborted) throw abandoned();
      if (late.aborted) throw tooLate(thread.timeoutMs);
      throw this.#threadFault(error as Error & { code?: string });
    } finally {
      givePermitBack(this.#permits, ticket);
    }
    if ('bytes' in outcome) return outcome;
    if ('bug' in outcome) {
      log.error('report_bug', { reason: outcome.bug });
      throw new Error('a report failed for a reason that nobody expected');
    }
    const { status, errorCode, reason, message, retryAfterSeconds } = outcome.fault;
    if (status >= 500) log.warn('report_failed', { reason });
    throw new Fault(status, errorCode, reason, message, retryAfterSeconds);
  }

  #threadFault(error: Error & { code?: string }): Error {
    if (error.code === 'ERR_WORKER_OUT_OF_MEMORY') {
      return new Fault(
        400,
        ErrorCode.badRequest,
        'report_too_large',
        'The report is too large: choose a shorter range or fewer rows.',
      );
    }
    this.#options.log.error('report_thread_failed', { reason: error.message, error });
    return unavailable('report_thread', 'The report could not be finished. Ask for it again.');
  }
}

function full(threads: number, queue: number): Fault {
  return new Fault(
    429,
    ErrorCode.tooManyRequests,
    'report_pool_full',
    `${threads} reports are running (SIMPLE_API_RATE_LIMITER_THREAD_POOL_SIZE) and ${queue} are waiting ` +
      '(SIMPLE_API_RATE_LIMITER_QUEUE_CAPACITY): ask again later, or change these settings.',
    retryAfterSeconds,
  );
}

/** Nobody reads it. */
function abandoned(): Fault {
  return new Fault(408, ErrorCode.general, 'report_abandoned', 'The client has gone.');
}

function tooLate(timeoutMs: number): Fault {
  return new Fault(
    504,
    ErrorCode.general,
    'report_timeout',
    `The report took longer than ${timeoutMs / 1000} s (REPORT_TIMEOUT_MS).`,
  );
}
