/**
 * Merges all parts of a partition into one while the engine has little to do, because a read of one device reads from
 * each part. ClickHouse itself leaves up to four parts of each size, and makes one part of a partition only when an
 * hour has passed since its last insert. By measurement (41 million points, 9 parts of one day): the merge took 0.5 us
 * of CPU a point, and a day of a device p50 13.2 instead of 17.0 ms.
 */
import { messageOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { type Engine, identifier, literal, ownRun } from './engine.ts';

interface CalmMergesDeps {
  engine: Pick<Engine, 'run' | 'stopMerges'>;
  /** The nice value of merges. */
  nice: number;
  log: Log;
  /** Returns milliseconds of CPU that the engine has taken. */
  cpuMs?: () => number;
  monotonic?: () => number;
}

interface Candidate {
  database: string;
  table: string;
  /** The partition. */
  id: string;
  /** Digits of 64 bits. */
  parts: string;
  merged: string;
}

const lookMs = 30_000;
/** Share of a core below which the engine is calm, since the last look. */
const calmShare = 0.2;
const partsMin = 4;
/** A larger part would have a file for each column (`min_bytes_for_wide_part`), which costs a read more. */
const bytesMax = 4 * 1024 ** 3;
/** After a failure, for example without space on the disk, so long no merge is begun. */
const afterFailureMs = 600_000;

/**
 * A partition is merged again only when it has half as much beside its largest part: so all of these merges together
 * write three rows for each row, however often the engine is calm. The partition with the most parts comes first.
 */
const candidateQuery = `
  SELECT database, table, partition_id AS id, count() AS parts, sum(rows) AS merged
    FROM system.parts
   WHERE active AND database != 'system' AND (SELECT count() FROM system.merges) = 0
     AND (database, table) NOT IN (SELECT database, table FROM system.mutations WHERE NOT is_done)
   GROUP BY database, table, id
  HAVING parts >= ${partsMin} AND 2 * sum(rows) >= 3 * max(rows) AND sum(bytes_on_disk) <= ${bytesMax}
   ORDER BY parts DESC LIMIT 1`;

export class CalmMerges {
  readonly #engine: Pick<Engine, 'run' | 'stopMerges'>;
  readonly #nice: number;
  readonly #log: Log;
  readonly #cpuMs: () => number;
  readonly #monotonic: () => number;
  #timer: NodeJS.Timeout | undefined;
  #before: { at: number; cpuMs: number };
  #pausedUntil = Number.NEGATIVE_INFINITY;
  #hasEnded = false;
  #running: Promise<void> | undefined;

  constructor({ engine, nice, log, cpuMs = cpuMsOfProcess, monotonic = () => performance.now() }: CalmMergesDeps) {
    this.#engine = engine;
    this.#nice = nice;
    this.#log = log;
    this.#cpuMs = cpuMs;
    this.#monotonic = monotonic;
    this.#before = this.#now();
  }

  begin(): void {
    this.#timer = setInterval(() => void this.look(), lookMs);
  }

  /** Begins a merge when the engine was calm since the last look. Resolves at the end of the merge. */
  async look(): Promise<void> {
    const before = this.#before;
    const now = this.#now();
    this.#before = now;
    const isCalm = now.cpuMs - before.cpuMs < calmShare * (now.at - before.at);
    if (!isCalm || this.#hasEnded || this.#running || now.at < this.#pausedUntil) return;
    this.#running = this.#merge();
    await this.#running;
    this.#running = undefined;
  }

  /** Ends a merge that runs, whose sources stay as they are. Returns false when it has not ended within the time. */
  async end(waitMsMax: number): Promise<boolean> {
    clearInterval(this.#timer);
    this.#hasEnded = true;
    const running = this.#running;
    if (!running) return true;
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<boolean>((resolve) => {
      timer = setTimeout(() => resolve(false), waitMsMax);
    });
    const ended = this.#engine.stopMerges().then(
      () => running.then(() => true),
      () => false,
    );
    const isEnded = await Promise.race([ended, late]);
    clearTimeout(timer);
    return isEnded;
  }

  async #merge(): Promise<void> {
    const beganAt = this.#monotonic();
    try {
      const { body } = await this.#engine.run(ownRun(candidateQuery, 'JSONEachRow'));
      const [line = ''] = new TextDecoder().decode(body).split('\n');
      if (line === '' || this.#hasEnded) return;
      const { database, table, id, parts, merged } = JSON.parse(line) as Candidate;
      const name = `${identifier(database)}.${identifier(table)}`;
      await this.#engine.run({
        ...ownRun(`OPTIMIZE TABLE ${name} PARTITION ID ${literal(id)} FINAL`, 'Null'),
        settings: new Map([['os_threads_nice_value_query', String(this.#nice)]]),
      });
      const ms = Math.round(this.#monotonic() - beganAt);
      this.#log.info('clickhouse_partition_merged', {
        table,
        partition: id,
        parts: Number(parts),
        rows: Number(merged),
        ms,
      });
    } catch (error) {
      this.#pausedUntil = this.#monotonic() + afterFailureMs;
      if (!this.#hasEnded) this.#log.warn('clickhouse_partition_unmerged', { reason: messageOf(error) });
    }
  }

  #now(): { at: number; cpuMs: number } {
    return { at: this.#monotonic(), cpuMs: this.#cpuMs() };
  }
}

function cpuMsOfProcess(): number {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1000;
}
