/**
 * Merges all parts of a partition into one while the engine is calm, because a read of one device reads from each part.
 * ClickHouse itself leaves up to four parts of each size. It makes one part of a day only when an hour has passed since
 * the last insert into the day. By measurement (35 million points, 9 parts of one day, which became one in 18 to 21 s):
 * a day of a device p50 13.2 instead of 16.0 to 18.4 ms.
 */
import { messageOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { systemScheduler } from '../../base/scheduler.ts';
import { serverCodes } from '../errors/server-codes.ts';
import { identifier, stringLiteral } from '../sql/literals.ts';
import { type Engine, ownRun } from './engine.ts';
import { Exception } from './exception.ts';

interface CalmMergesDeps {
  engine: Pick<Engine, 'run' | 'stopMerges'>;
  /** The nice value of merges. */
  nice: number;
  /** Free bytes of the disk that no merge may use. */
  freeDiskBytesMin: number;
  log: Log;
  /** Returns milliseconds of CPU that the engine has taken. */
  cpuMs?: () => number;
  monotonic?: () => number;
}

interface Candidate {
  database: string;
  table: string;
  partition: string;
  parts: number;
  mergedRows: number;
}

/** The engine is calm when it took less than this share of a core since the last check. */
const calmShare = 0.1;
const partsMin = 4;
/**
 * Bytes of a partition, without compression. A row of telemetry has 60 bytes, and a merge takes 0.5 to 0.6 us a row.
 * So the merge of a larger partition would take longer than ten minutes. Only a stop of the engine, or a drop of the
 * partition, ends a merge earlier.
 */
const bytesMax = 64 * 1024 ** 3;
/** A partition whose merge failed is left alone for this time. After a failure to find partitions, all are. */
const afterFailureMs = 600_000;
/** Shorter merges are not worth a line of the log. */
const loggedMsMin = 1_000;

/**
 * Returns the query of the partitions to merge; the one with the most parts comes first. The parts beside the largest
 * one must have at least half as many rows as that one. So all calm merges together write at most three rows for each
 * row, however often the engine is calm. ClickHouse itself begins such a merge only when twice the bytes are free.
 */
function candidatesQuery(freeDiskBytesMin: number): string {
  return `
  SELECT database, table, partition_id AS partition, toUInt32(count()) AS parts, toFloat64(sum(rows)) AS mergedRows
    FROM system.parts
   WHERE active AND database != 'system' AND (SELECT count() FROM system.merges) = 0
     AND (database, table) NOT IN (SELECT database, table FROM system.mutations WHERE NOT is_done)
   GROUP BY database, table, partition_id
  HAVING count() >= ${partsMin} AND 2 * sum(rows) >= 3 * max(rows) AND sum(data_uncompressed_bytes) <= ${bytesMax}
     AND 2 * sum(bytes_on_disk) + ${freeDiskBytesMin} <= (SELECT min(unreserved_space) FROM system.disks)
   ORDER BY count() DESC`;
}

export class CalmMerges {
  readonly #engine: Pick<Engine, 'run' | 'stopMerges'>;
  readonly #nice: number;
  readonly #freeDiskBytesMin: number;
  readonly #log: Log;
  readonly #cpuMs: () => number;
  readonly #monotonic: () => number;
  /** The name of a partition whose merge failed → the monotonic time of the failure. */
  readonly #failedAt = new Map<string, number>();
  /** Until this monotonic time no partition is merged. */
  #pausedUntil = Number.NEGATIVE_INFINITY;
  #timer: NodeJS.Timeout | undefined;
  #last: { at: number; cpuMs: number };
  #isStopped = false;
  #running: Promise<void> | undefined;

  constructor(deps: CalmMergesDeps) {
    const { engine, nice, freeDiskBytesMin, log, cpuMs = cpuMsOfProcess, monotonic = () => performance.now() } = deps;
    this.#engine = engine;
    this.#nice = nice;
    this.#freeDiskBytesMin = freeDiskBytesMin;
    this.#log = log;
    this.#cpuMs = cpuMs;
    this.#monotonic = monotonic;
    this.#last = this.#now();
  }

  begin(checkMs: number): void {
    this.#timer = setInterval(() => void this.check(), checkMs);
  }

  /** Begins a merge when the engine was calm since the last check. Resolves at the end of the merge. */
  async check(): Promise<void> {
    const last = this.#last;
    const now = this.#now();
    this.#last = now;
    const isCalm = now.cpuMs - last.cpuMs < calmShare * (now.at - last.at);
    if (!isCalm || this.#isStopped || this.#running || now.at < this.#pausedUntil) return;
    this.#running = this.#mergeOne();
    await this.#running;
    this.#running = undefined;
  }

  /** Begins no further merge. */
  stop(): void {
    clearInterval(this.#timer);
    this.#isStopped = true;
  }

  /**
   * Ends the merge that runs, whose sources stay as they are. Returns false when the merge has not ended within the
   * time.
   */
  async end(waitMsMax: number): Promise<boolean> {
    this.stop();
    const running = this.#running;
    if (!running) return true;
    const late = systemScheduler.sleep(waitMsMax).then(() => false);
    const ended = this.#engine.stopMerges().then(
      () => running.then(() => true),
      () => false,
    );
    return await Promise.race([ended, late]);
  }

  async #mergeOne(): Promise<void> {
    this.#forgetOldFailures();
    try {
      const { body } = await this.#engine.run(ownRun(candidatesQuery(this.#freeDiskBytesMin), 'JSONEachRow'));
      const lines = new TextDecoder().decode(body).split('\n');
      const candidates = lines.filter((line) => line !== '').map((line) => JSON.parse(line) as Candidate);
      const next = candidates.find((candidate) => !this.#failedAt.has(nameOf(candidate)));
      if (next && !this.#isStopped) await this.#merge(next);
    } catch (error) {
      this.#pausedUntil = this.#monotonic() + afterFailureMs;
      this.#log.warn('clickhouse_calm_merges_unread', { reason: messageOf(error) });
    }
  }

  async #merge(candidate: Candidate): Promise<void> {
    const { parts, mergedRows: rows } = candidate;
    const partition = nameOf(candidate);
    const { at } = this.#now();
    try {
      await this.#engine.run({
        ...ownRun(mergeStatement(candidate), 'Null'),
        settings: new Map([
          ['os_threads_nice_value_query', String(this.#nice)],
          // Without this setting a merge that cannot begin is no error.
          ['optimize_throw_if_noop', '1'],
        ]),
      });
    } catch (error) {
      this.#failedAt.set(partition, this.#monotonic());
      const level = error instanceof Exception && error.code === serverCodes.aborted ? 'debug' : 'warn';
      this.#log[level]('clickhouse_calm_merge_failed', { partition, reason: messageOf(error) });
      return;
    }
    const ms = Math.round(this.#monotonic() - at);
    const level = ms < loggedMsMin ? 'debug' : 'info';
    this.#log[level]('clickhouse_calm_merge', { partition, parts, rows, ms });
  }

  /** Forgets failures that are old enough, also those of partitions that were dropped. */
  #forgetOldFailures(): void {
    const newest = this.#monotonic() - afterFailureMs;
    for (const [partition, at] of this.#failedAt) if (at <= newest) this.#failedAt.delete(partition);
  }

  #now(): { at: number; cpuMs: number } {
    return { at: this.#monotonic(), cpuMs: this.#cpuMs() };
  }
}

function nameOf({ database, table, partition }: Candidate): string {
  return `${database}.${table} ${partition}`;
}

function mergeStatement({ database, table, partition }: Candidate): string {
  return `OPTIMIZE TABLE ${identifier(database)}.${identifier(table)} PARTITION ID ${stringLiteral(partition)} FINAL`;
}

function cpuMsOfProcess(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}
