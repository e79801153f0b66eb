/**
 * Makes deletes of telemetry final. One worker of each host reports the journals of its host to PostgreSQL. One host at
 * a time (by a lease) carries out the tombstones that every journal has settled. A host that stops reporting delays
 * deletes for a bounded time; rows that its journals ship later are deleted again. A finished delete costs nothing.
 */
import { randomUUID } from 'node:crypto';
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import { type Scheduler, systemScheduler } from '../base/scheduler.ts';
import { isUnanswered } from '../clickhouse/client.ts';
import type { Shards } from '../clickhouse/shards.ts';
import type { JournalReport } from '../ingest/journal-report.ts';
import {
  expireStoredOrders,
  forgetJournal,
  forgetOldJournals,
  type JournalRow,
  keepStoredOrders,
  type OwnJournal,
  readFence,
  readJournals,
  registerRuns,
  writeJournals,
} from '../ingest/journal-store.ts';
import type { Postgres } from '../postgres/client.ts';
import { giveBackLease, takeLease } from '../postgres/lease.ts';
import { isAway } from '../postgres/postgres-error.ts';
import { Settling } from './delete-settling.ts';
import { storedDeletes } from './deletes-store.ts';
import { eraseDevices, eraseSeries } from './erase-in-clickhouse.ts';
import type { SteadyClock } from './steady-clock.ts';
import {
  expireTombstones,
  fenceDevices,
  listBytesOf,
  markApplied,
  readMissing,
  readWaiting,
  type Tombstone,
} from './tombstone-store.ts';

interface EraserDeps {
  /** The name by which operators know this host. */
  host: string;
  postgres: Postgres;
  shards: Shards;
  /** Name of the ClickHouse cluster, '' without a cluster. */
  cluster: string;
  /** As in `CarryOutDeps`. */
  latestAheadMsMax?: number;
  clock: Clock;
  scheduler?: Scheduler;
  steadyClock: SteadyClock;
  log: Log;
  metrics: Metrics;
  /** Returns true while this worker acts for its host. */
  isLeader: () => boolean;
  /** Returns reports of the journals of this host, except those of a worker that does not answer. */
  journals: () => Promise<{ reports: JournalReport[] }>;
  tombstonesKeptDays: number;
}

const leaseName = 'deletes';

export class Eraser {
  readonly #deps: EraserDeps;
  readonly #holder = randomUUID();
  readonly #settling = new Settling();
  /** Failed deletes by tombstone: not tried again before `at`. */
  readonly #retries = new Map<number, { at: number; waitMs: number }>();
  #devicesMax: number = limits.eraseDevicesMax;
  #rangesMax: number = limits.eraseRangesMax;
  #reported: OwnJournal[] = [];
  /** Writers of removed journals whose removal is stored. */
  readonly #forgotten = new Set<number>();
  #reportedAt = Number.NEGATIVE_INFINITY;
  #lookedAt = Number.NEGATIVE_INFINITY;
  #expiredAt = Number.NEGATIVE_INFINITY;
  #waiting = 0;
  readonly #scheduler: Scheduler;
  /** Stops the timer of the next round. */
  #stopTimer = () => {};
  #running: Promise<void> = Promise.resolve();
  /** The deletes that are being carried out. */
  #erasing: Promise<void> | undefined;
  /** Ends the statements of this round. */
  #abort = new AbortController();
  /** True after a stop began: no further delete is carried out, and reports continue until `end`. */
  #stopping = false;
  #stopped = false;

  constructor(deps: EraserDeps) {
    this.#deps = deps;
    this.#scheduler = deps.scheduler ?? systemScheduler;
    deps.metrics.observed('deletes_waiting', 'Deletes of telemetry that are not carried out.', () => this.#waiting);
  }

  start(): void {
    this.#stopTimer = this.#scheduler.after(limits.erasePollMs, () => {
      this.#running = this.#begin().finally(() => {
        if (!this.#stopped) this.start();
      });
    });
  }

  /**
   * Starts no further delete, and resolves when none runs. A statement that waits in ClickHouse for long merges is
   * ended: the next leader repeats its delete. Reports continue, because rows are still shipped.
   */
  async stopErasing(): Promise<void> {
    this.#stopping = true;
    const stopTimer = this.#scheduler.after(limits.eraseStopMsMax, () => this.#abort.abort());
    await this.#running;
    await this.#erasing;
    stopTimer();
  }

  /**
   * Writes the last report, for the journals of this process only, after the last row was accepted and shipped. Without
   * this report, deletes would not know what a host that never returns shipped last. Gives up when PostgreSQL is slow.
   */
  async end(reports: () => JournalReport[]): Promise<void> {
    this.#stopping = true;
    this.#stopped = true;
    this.#stopTimer();
    const reported = new AbortController();
    const late = this.#scheduler.sleep(limits.journalLastReportMsMax, reported.signal);
    await Promise.race([this.#running.then(() => this.#reportLast(reports)), late]);
    reported.abort();
  }

  async #reportLast(reports: () => JournalReport[]): Promise<void> {
    const { host, postgres, log } = this.#deps;
    try {
      const { fence } = await readFence(postgres);
      const own = reports().filter(({ gone }) => gone !== true);
      if (own.some((report) => !this.#settling.knows(report))) await registerRuns(postgres, host, own);
      await writeJournals(postgres, host, this.#settling.note(fence, own));
    } catch (error) {
      if (!isAway(error)) log.warn('erase_failed', { reason: messageOf(error) });
    }
  }

  /** Runs one round over both stores, to its end. Called by tests. */
  async round(): Promise<void> {
    await this.#begin();
    await this.#erasing;
  }

  /**
   * Reports, and begins to carry out deletes unless that goes on since an earlier round. Many deletes take minutes, and
   * without a report the deletes of all hosts would soon continue as if the journals of this host were gone.
   */
  async #begin(): Promise<void> {
    if (!this.#deps.isLeader()) {
      this.#waiting = 0;
      return;
    }
    try {
      const { fence, isWaiting } = await readFence(this.#deps.postgres);
      await this.#report(fence);
      if (this.#stopping || this.#erasing) return;
      this.#abort = new AbortController();
      this.#erasing = this.#erase(isWaiting)
        .catch((error) => this.#failed(error))
        .finally(() => {
          this.#erasing = undefined;
        });
    } catch (error) {
      this.#failed(error);
    }
  }

  /** Both stores may be unavailable; the tombstones stay. */
  #failed(error: unknown): void {
    if (!isAway(error) && !isUnanswered(error)) this.#deps.log.warn('erase_failed', { reason: messageOf(error) });
  }

  /** Runs at most one statement: when a value that other hosts need has changed, or as a heartbeat. */
  async #report(fence: number): Promise<void> {
    const { host, postgres, clock, steadyClock, journals } = this.#deps;
    const { reports: all } = await journals();
    const gone = all.filter((report) => report.gone === true && !this.#forgotten.has(report.writer));
    const reports = all.filter((report) => report.gone !== true);
    if (reports.some((report) => !this.#settling.knows(report))) await registerRuns(postgres, host, reports);
    const own = this.#settling.note(fence, reports);
    const isDue = clock.monotonic() - this.#reportedAt >= limits.journalReportMs;
    if (!isDue && gone.length === 0 && !own.some((journal) => this.#isChanged(journal))) return;
    await writeJournals(postgres, host, own);
    // A late report of the removed journal may have added the journal again.
    for (const journal of gone) {
      await forgetJournal(postgres, journal);
      this.#forgotten.add(journal.writer);
    }
    if (isDue) await keepStoredOrders(postgres, own);
    if (isDue && (await steadyClock.time()) !== undefined)
      await forgetOldJournals(postgres, this.#deps.tombstonesKeptDays);
    this.#reported = own;
    this.#reportedAt = clock.monotonic();
  }

  /**
   * True when other hosts need the new values. They need `orderHigh` only when it is ahead of the clock, which every
   * delete uses.
   */
  #isChanged(journal: OwnJournal): boolean {
    const before = this.#reported.find(({ writer }) => writer === journal.writer);
    if (before?.run !== journal.run) return true;
    if (before.mapVersion !== journal.mapVersion) return true;
    if (before.settled !== journal.settled || before.orderHeld !== journal.orderHeld) return true;
    return journal.isAhead && before.orderHigh !== journal.orderHigh;
  }

  async #erase(isWaiting: boolean): Promise<void> {
    const { postgres, clock } = this.#deps;
    if (!isWaiting) this.#waiting = 0;
    if (!isWaiting && clock.monotonic() - this.#lookedAt < limits.eraseCheckMs) return;
    this.#lookedAt = clock.monotonic();
    const journals = await readJournals(postgres);
    const live = journals.filter(({ isLive }) => isLive);
    const again = await readMissing(
      postgres,
      live.map(({ writer }) => writer),
      limits.eraseTombstonesMax,
    );
    const mayExpire = clock.monotonic() - this.#expiredAt > limits.tombstonesExpireMs;
    if (!isWaiting && again.length === 0 && !mayExpire) return;
    if (!(await takeLease(postgres, leaseName, this.#holder, limits.eraseLeaseMs))) {
      // The host that has the lease counts the deletes.
      this.#waiting = 0;
      return;
    }
    try {
      if (mayExpire) await this.#expire();
      await this.#eraseAll(journals, live, again);
    } finally {
      await giveBackLease(postgres, leaseName, this.#holder);
    }
  }

  async #eraseAll(journals: JournalRow[], live: JournalRow[], again: Tombstone[]): Promise<void> {
    const { postgres, shards } = this.#deps;
    if (shards.isDivided && shards.map === undefined) return;
    await fenceDevices(postgres);
    for (let after = 0; !this.#stopping; ) {
      const waiting = await readWaiting(postgres, after, limits.eraseTombstonesMax);
      this.#waiting = (after === 0 ? 0 : this.#waiting) + waiting.length;
      if (waiting.length === 0) break;
      after = waiting.at(-1)!.id;
      const due = waiting.filter(({ fence }) => fence !== null && live.every(({ settled }) => settled >= fence));
      if (!(await this.#carryOut(due, journals))) return;
    }
    // Spends at most a few seconds of each round: new deletes do not wait until many old ones are repeated.
    await this.#carryOut(again, journals, limits.eraseAgainMsMax);
  }

  /**
   * Continues after a delete that failed, and with the other shards after one that does not answer. Returns false when
   * no shard answers or the lease is lost.
   */
  async #carryOut(tombstones: Tombstone[], journals: JournalRow[], msMax = Number.POSITIVE_INFINITY): Promise<boolean> {
    const { postgres, shards, clock } = this.#deps;
    const now = clock.monotonic();
    const ready = tombstones.filter(({ id }) => (this.#retries.get(id)?.at ?? 0) <= now);
    const groups = shards.byReader(ready, ({ device }) => device);
    let away = 0;
    for (const { clickhouse, items } of groups) {
      for (const batch of this.#batches(items)) {
        if (clock.monotonic() - now > msMax) return true;
        if (this.#stopping || !(await takeLease(postgres, leaseName, this.#holder, limits.eraseLeaseMs))) return false;
        const error = await this.#carryOutBatch(batch, journals);
        if (!isUnanswered(error) || (await clickhouse.ping())) continue;
        away += 1;
        break;
      }
    }
    return away === 0 || away < groups.length;
  }

  /** Returns the error of a delete that failed. While a bucket moves, both of its shards delete. */
  async #carryOutBatch(batch: Tombstone[], journals: JournalRow[]): Promise<unknown> {
    const { postgres, shards, cluster, latestAheadMsMax = 0, clock, log } = this.#deps;
    const until = clock.monotonic() + limits.eraseBatchMsMax;
    const msLeft = () => until - clock.monotonic();
    const deletes = storedDeletes(postgres);
    const end = shards.begin();
    try {
      for (const { clickhouse, items } of shards.byHolder(batch, ({ device }) => device)) {
        const abortSignal = this.#abort.signal;
        const deps = { clickhouse, cluster, latestAheadMsMax, msLeft, abortSignal, deletes, mayHaveBegun: true };
        if (items[0]!.orderNumber !== null) await eraseSeries(deps, items);
        else {
          await eraseDevices(
            deps,
            items.map(({ device }) => device),
          );
        }
      }
      const finished = await markApplied(postgres, [{ tombstones: batch, seen: journals, settledBy: [] }]);
      for (const { id } of batch) this.#retries.delete(id);
      this.#waiting = Math.max(0, this.#waiting - finished.size);
      this.#devicesMax = Math.min(limits.eraseDevicesMax, this.#devicesMax * 2);
      this.#rangesMax = Math.min(limits.eraseRangesMax, this.#rangesMax * 2);
      return undefined;
    } catch (error) {
      if (isAway(error)) throw error;
      const fields = { tombstones: batch.length, first: batch[0]!.id, reason: messageOf(error).slice(0, 500) };
      log[isUnanswered(error) ? 'debug' : 'warn']('erase_failed', fields);
      for (const { id } of batch) this.#fail(id);
      this.#devicesMax = Math.max(1, this.#devicesMax >> 1);
      this.#rangesMax = Math.max(1, this.#rangesMax >> 1);
      return error;
    } finally {
      end();
    }
  }

  /** Deleted devices share a batch, and so do ranges of series, as long as their keys are few. */
  #batches(tombstones: Tombstone[]): Tombstone[][] {
    const batches: Tombstone[][] = [];
    let devices: Tombstone[] = [];
    let ranges: Tombstone[] = [];
    let listBytes = 0;
    for (const tombstone of tombstones) {
      if (tombstone.orderNumber === null) {
        if (devices.length === 0 || devices.length >= this.#devicesMax) batches.push((devices = []));
        devices.push(tombstone);
        continue;
      }
      const bytes = listBytesOf(tombstone);
      const isFull = ranges.length >= this.#rangesMax || listBytes + bytes > limits.eraseListBytesMax;
      if (ranges.length === 0 || isFull) {
        batches.push((ranges = []));
        listBytes = 0;
      }
      ranges.push(tombstone);
      listBytes += bytes;
    }
    return batches;
  }

  #fail(id: number): void {
    const { eraseRetryMsMin, eraseRetryMsMax } = limits;
    const waitMs = Math.min(eraseRetryMsMax, (this.#retries.get(id)?.waitMs ?? eraseRetryMsMin / 2) * 2);
    this.#retries.set(id, { at: this.#deps.clock.monotonic() + waitMs, waitMs });
  }

  async #expire(): Promise<void> {
    const { postgres, clock, steadyClock, log, tombstonesKeptDays } = this.#deps;
    await expireStoredOrders(postgres);
    if ((await steadyClock.time()) !== undefined) {
      const count = await expireTombstones(postgres, tombstonesKeptDays);
      if (count > 0) log.info('tombstones_expired', { count });
    }
    this.#expiredAt = clock.monotonic();
    for (const [id, { at }] of this.#retries)
      if (at < clock.monotonic() - limits.eraseRetryMsMax) this.#retries.delete(id);
  }
}
