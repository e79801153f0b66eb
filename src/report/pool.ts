/**
 * The pool of report threads and its queue. The settings give the number of threads and of waiting reports; one more
 * report is refused with 429. Tenants take turns, and so do the customers of a tenant. One further thread and one
 * further place in the queue are reserved for a tenant that runs no report. Piscina runs the threads; its own queue
 * stays empty because it does not count tasks that can be cancelled. A report whose client disconnects, or that times
 * out, loses its thread at once. A thread that dies fails only its own report.
 */
import { randomUUID } from 'node:crypto';
import { Piscina } from 'piscina';
import { Fault, messageOf, unavailable } from '../base/errors.ts';
import { FairQueue, type ItemOwner } from '../base/fair-queue.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { type Counter, coarseBounds, type Histogram, type Metrics } from '../base/metrics/metrics.ts';
import { statusOf } from '../base/reasons.ts';
import type { EncodedReport } from './encode.ts';
import { createPermits, givePermitBack } from './query-slots.ts';
import type { ReportOutcome, ReportTask, ThreadData } from './thread.ts';

interface ReportPoolDeps {
  threads: number;
  queue: number;
  queriesMax: number;
  /** The parameters of a thread, without the query permits. */
  thread: Omit<ThreadData, 'permits'>;
  /** Ends the query of a report whose caller has disconnected. */
  onAbandoned: (queryId: string) => void;
  log: Log;
  metrics: Metrics;
  entry?: URL;
}

export type ReportOrder = Omit<ReportTask, 'ticket' | 'queryId' | 'isFirst'>;

interface Waiting {
  readonly owner: ItemOwner;
  admit(): void;
  refuse(fault: Fault): void;
}

const retryAfterSeconds = 2;
const idleThreadMs = 60_000;
/** A ticket is a 32-bit integer, never 0. */
const ticketMax = 2 ** 31 - 1;

export class ReportPool {
  readonly #deps: ReportPoolDeps;
  readonly #piscina: Piscina<ReportTask, ReportOutcome>;
  readonly #permits: SharedArrayBuffer;
  readonly #waiting: FairQueue<Waiting>;
  readonly #runningOf = new Map<string, number>();
  readonly #runningOfCustomer = new Map<string, number>();
  readonly #refused: Counter;
  readonly #seconds: Histogram;
  readonly #waitSeconds: Histogram;
  #running = 0;
  #ticket = 0;

  constructor(deps: ReportPoolDeps) {
    this.#deps = deps;
    const { threads, metrics, thread } = deps;
    this.#waiting = new FairQueue(deps.queue);
    this.#permits = createPermits(deps.queriesMax);
    this.#piscina = new Piscina({
      filename: (deps.entry ?? new URL('./thread.js', import.meta.url)).href,
      minThreads: 0,
      maxThreads: threads + 1,
      idleTimeout: idleThreadMs,
      maxQueue: Number.POSITIVE_INFINITY,
      // A thread that blocks between tasks would not notice that its sockets are closed.
      atomics: 'disabled',
      resourceLimits: { maxOldGenerationSizeMb: limits.reportHeapMegabytesMax },
      workerData: { ...thread, permits: this.#permits } satisfies ThreadData,
    });
    this.#piscina.on('error', (error: Error) => deps.log.error('report_thread', { reason: messageOf(error) }));
    metrics.observed('report_running', 'Reports being made.', () => this.#running);
    metrics.observed('report_waiting', 'Reports that wait for a thread.', () => this.#waiting.length);
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
    return this.#running;
  }

  get waiting(): number {
    return this.#waiting.length;
  }

  /** `customerId`: the customer of the caller, null for an administrator. Rejects with a Fault. */
  async run(order: ReportOrder, customerId: string | null, gone: AbortSignal): Promise<EncodedReport> {
    const owner = { tenant: order.tenantId, caller: customerId ?? '' };
    const askedAt = performance.now();
    if (this.#mayRun(owner)) this.#count(owner, 1);
    else await this.#turn(owner, gone);
    const isFirst = this.#runningOf.get(owner.tenant) === 1;
    const begunAt = performance.now();
    this.#waitSeconds.observe((begunAt - askedAt) / 1000);
    try {
      return await this.#make({ ...order, isFirst }, gone);
    } finally {
      this.#seconds.observe((performance.now() - begunAt) / 1000);
      this.#count(owner, -1);
      this.#next();
    }
  }

  async close(): Promise<void> {
    await this.#piscina.destroy();
  }

  /** A customer leaves a quarter of the threads to the other customers of its tenant. */
  #mayRun({ tenant, caller }: ItemOwner): boolean {
    const { threads } = this.#deps;
    const ofCustomer = caller === '' ? 0 : (this.#runningOfCustomer.get(caller) ?? 0);
    if (ofCustomer > 0 && ofCustomer >= Math.floor(threads * 0.75)) return false;
    return this.#running < threads || (this.#running === threads && !this.#runningOf.has(tenant));
  }

  #count({ tenant, caller }: ItemOwner, change: 1 | -1): void {
    this.#running += change;
    add(this.#runningOf, tenant, change);
    if (caller !== '') add(this.#runningOfCustomer, caller, change);
  }

  /** A report that ends passes its place on in the same turn, so that no new report takes it. */
  #next(): void {
    for (;;) {
      const next = this.#waiting.shift((owner) => this.#mayRun(owner));
      if (!next) return;
      this.#count(next.owner, 1);
      next.admit();
    }
  }

  #turn(owner: ItemOwner, gone: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const leave = () => {
        this.#waiting.remove(owner, waiting);
        reject(abandoned());
      };
      const waiting: Waiting = {
        owner,
        admit() {
          gone.removeEventListener('abort', leave);
          resolve();
        },
        refuse(fault) {
          gone.removeEventListener('abort', leave);
          reject(fault);
        },
      };
      if (gone.aborted) return leave();
      gone.addEventListener('abort', leave, { once: true });
      const refused = this.#waiting.push(owner, waiting);
      if (!refused) return;
      const { threads, queue } = this.#deps;
      this.#refused.add(1);
      refused.refuse(refused === waiting ? full(threads, queue) : displaced());
    });
  }

  async #make(order: ReportOrder & { isFirst: boolean }, gone: AbortSignal): Promise<EncodedReport> {
    const { thread, onAbandoned, log } = this.#deps;
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

function add(counts: Map<string, number>, name: string, change: 1 | -1): void {
  const count = (counts.get(name) ?? 0) + change;
  if (count > 0) counts.set(name, count);
  else counts.delete(name);
}

/** The refusal of a report whose client has disconnected. */
function abandoned(): Fault {
  return new Fault('report_abandoned', 'The client has gone.');
}

function tooLate(timeoutMs: number): Fault {
  return new Fault('report_timeout', `The report took longer than ${timeoutMs / 1000} s (REPORT_TIMEOUT_MS).`);
}
