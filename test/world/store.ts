/**
 * A ClickHouse of a world: keeps rows as `ReplacingMergeTree` does, takes its time, and fails as its mood says. An
 * insert may end after its client has given up, and a killed insert may have stored some of its days.
 */

import { ClickHouseError as ServerError } from '@clickhouse/client';
import { dayMs } from '../../src/base/durations.ts';
import { type ClickHouse, ClickHouseError, type Parameters } from '../../src/clickhouse/client.ts';
import { toClickHouseError } from '../../src/clickhouse/errors/clickhouse-error.ts';
import { bucketCount } from '../../src/clickhouse/shards.ts';
import { type BlockRow, readBlock } from '../../src/telemetry/read-block.ts';
import type { Random } from '../harness/random.ts';
import { LatestTable, type RowOfLatest, rowsOfLatest } from './latest-table.ts';
import type { ProcessTime, VirtualTime } from './virtual-time.ts';

/**
 * `well`; `down`: connections are refused; `refuses`: answers a code, after some days were stored when `inPart`;
 * `hangs`: takes longer than every client waits; `dies`: ends with the insert, and is back after a while; `lies`: says
 * that rows are stored, and forgets them, as no ClickHouse does: a world must notice it.
 */
export type Mood =
  | { kind: 'well' | 'down' | 'hangs' | 'lies' }
  | { kind: 'refuses'; code: number; inPart: boolean }
  | { kind: 'slow'; ms: number }
  | { kind: 'dies'; deadMs: number };

type Table = 'telemetry' | 'latest';
type ShippedTo = Pick<ClickHouse, 'insertBlocks' | 'endInserts' | 'ping'>;
type MovedBetween = Pick<ClickHouse, 'rows' | 'exec' | 'copyTo'>;

interface Running {
  mark: string;
  isKilled: boolean;
  /** Called when the server has died. */
  onDied: () => void;
}

/** No insert with a row of this text is accepted. */
export const badText = 'no store takes this';

export class Store {
  mood: Mood = { kind: 'well' };
  readonly telemetry = new Map<string, BlockRow>();
  readonly latest = new LatestTable();
  /** Records that were ever stored, also those that were replaced since. */
  readonly #records = new Set<string>();
  readonly #time: VirtualTime;
  readonly #random: Random;
  readonly #running = new Set<Running>();

  constructor(time: VirtualTime, random: Random) {
    this.#time = time;
    this.#random = random;
  }

  /** The client of one process. A process that has ended gets no answers. */
  clientOf(process: ProcessTime): ShippedTo {
    return {
      insertBlocks: async (sql, body, { timeoutMs = 60_000, parameters = {}, mark = '' } = {}) => {
        const table: Table = sql.includes('INSERT INTO latest') ? 'latest' : 'telemetry';
        const { fromTs = Number.NEGATIVE_INFINITY, toTs = Number.POSITIVE_INFINITY } = parameters;
        const inRange = ({ ts }: BlockRow) => ts >= Number(fromTs) && ts < Number(toTs);
        const rows = (table === 'latest' ? rowsOfLatest(body) : readBlock(body)).filter(inRange);
        const answer = this.#insert(table, rows, mark);
        const late = process.sleep(timeoutMs).then(() => timedOut());
        const outcome = await Promise.race([answer, late]);
        // The answer takes time to reach the client.
        await process.sleep(this.#random.between(0.05, 1));
        if (outcome !== 'stored') throw outcome;
        return { repeated: false };
      },
      endInserts: async (mark) => {
        await process.sleep(this.#random.between(0.5, 5));
        if (this.#isDown) throw noAnswer('connection refused');
        const found = [...this.#running].filter((insert) => insert.mark.includes(mark));
        for (const insert of found) if (this.#random.next() < 0.7) insert.isKilled = true;
        return found.length === 0;
      },
      ping: async () => {
        await process.sleep(this.#random.between(0.1, 2));
        return !this.#isDown;
      },
    };
  }

  /** The client of one process that moves buckets to another store, and of those only. */
  moverOf(process: ProcessTime): MovedBetween {
    const client: MovedBetween = {
      rows: async <T>(sql: string, { buckets } = {} as Parameters): Promise<T[]> => {
        await this.#answer(process);
        const rows = this.#ofBuckets(sql.includes('FROM latest') ? 'latest' : 'telemetry', buckets);
        if (sql.includes('FROM latest')) return [{ count: String(rows.length) }] as T[];
        const counts = new Map<number, number>();
        for (const { ts } of rows) counts.set(dayOf(ts), (counts.get(dayOf(ts)) ?? 0) + 1);
        const days = [...counts].sort(([a], [b]) => a - b);
        return days.map(([day, count]) => ({ day: String(day), count: String(count) })) as T[];
      },
      exec: async (sql, _, { settings = {} } = {}) => {
        const [, table, buckets] = /^ALTER TABLE (telemetry|latest) DELETE WHERE .* IN \((.*)\)$/.exec(sql)!;
        await this.#answer(process);
        const ended = this.#mutate(table as Table, buckets!.split(', ').map(Number));
        if (settings['mutations_sync'] === '1')
          await Promise.race([ended, process.sleep(statementMsMax).then(timeOut)]);
      },
      copyTo: async (target, { select }, { buckets, first, last }) => {
        const table: Table = select.includes('FROM latest') ? 'latest' : 'telemetry';
        await this.#answer(process);
        const days = {
          first: Number(first ?? Number.NEGATIVE_INFINITY),
          last: Number(last ?? Number.POSITIVE_INFINITY),
        };
        const rows = this.#ofBuckets(table, buckets).filter(
          ({ ts }) => dayOf(ts) >= days.first && dayOf(ts) <= days.last,
        );
        // The rows are on their way.
        await process.sleep(this.#random.between(1, 200));
        const to = stores.get(target)!;
        const outcome = await Promise.race([to.#insert(table, rows, ''), process.sleep(statementMsMax).then(timedOut)]);
        if (outcome !== 'stored') throw outcome;
      },
    };
    stores.set(client, this);
    return client;
  }

  /** Rejects as the mood says. */
  async #answer(process: ProcessTime): Promise<void> {
    const { mood } = this;
    const [least, most] = mood.kind === 'slow' ? [1, mood.ms] : mood.kind === 'hangs' ? [1, 100_000] : [0.5, 20];
    await process.sleep(this.#random.between(least, most));
    if (this.#isDown) throw noAnswer('connection refused');
    if (mood.kind === 'refuses') throw refused(mood.code);
  }

  #ofBuckets(table: Table, buckets: unknown): BlockRow[] {
    const wanted = new Set(buckets as number[]);
    return [...this.#rowsOf(table).values()].filter(({ device }) => wanted.has(device % bucketCount));
  }

  #rowsOf(table: Table): Map<string, BlockRow> {
    return table === 'latest' ? (this.latest.rows as Map<string, BlockRow>) : this.telemetry;
  }

  /** Deletes what is there now, a while later. */
  async #mutate(table: Table, buckets: number[]): Promise<void> {
    const doomed = new Set(this.#ofBuckets(table, buckets));
    await this.#time.sleep(this.#random.between(1, 2_000));
    for (const [name, row] of this.#rowsOf(table)) if (doomed.has(row)) this.#rowsOf(table).delete(name);
  }

  /** `n`: the number of a record of this device, which is the value of its row. */
  has(device: number, n: number): boolean {
    return this.#records.has(`${device} ${n}`);
  }

  get #isDown(): boolean {
    return this.mood.kind === 'down';
  }

  async #insert(table: Table, rows: BlockRow[], mark: string): Promise<'stored' | ClickHouseError> {
    const { mood } = this;
    await this.#time.sleep(this.#random.between(0.1, 2));
    if (mood.kind === 'down') return noAnswer('connection refused');
    if (mood.kind === 'dies') return this.#die(table, rows, mood.deadMs);
    const insert: Running = { mark, isKilled: false, onDied: () => {} };
    const died = new Promise<ClickHouseError>((resolve) => {
      insert.onDied = () => resolve(lost());
    });
    this.#running.add(insert);
    try {
      return await Promise.race([died, this.#carryOut(insert, table, rows, mood)]);
    } finally {
      this.#running.delete(insert);
    }
  }

  async #carryOut(insert: Running, table: Table, rows: BlockRow[], mood: Mood): Promise<'stored' | ClickHouseError> {
    const ms = mood.kind === 'slow' ? mood.ms : mood.kind === 'hangs' ? 100_000 : 40;
    const until = this.#time.passed + this.#random.between(ms / 10, ms);
    // A running insert notices that it is killed within a quarter of a second.
    while (this.#time.passed < until && !insert.isKilled) {
      await this.#time.sleep(Math.min(250, until - this.#time.passed));
    }
    if (mood.kind === 'refuses' || insert.isKilled) {
      const inPart = mood.kind === 'refuses' ? mood.inPart : this.#random.next() < 0.5;
      if (inPart) this.#keep(table, this.#someDays(rows));
      return refused(mood.kind === 'refuses' ? mood.code : 394);
    }
    if (rows.some(({ text }) => text === badText)) return refused(27);
    if (mood.kind !== 'lies') this.#keep(table, rows);
    return 'stored';
  }

  /** Every running insert is cut off: what was stored before stays. */
  #die(table: Table, rows: BlockRow[], deadMs: number): ClickHouseError {
    if (this.#random.next() < 0.5) this.#keep(table, this.#someDays(rows));
    for (const insert of this.#running) {
      insert.isKilled = true;
      insert.onDied();
    }
    this.mood = { kind: 'down' };
    this.#time.after(deadMs, () => {
      if (this.#isDown) this.mood = { kind: 'well' };
    });
    return lost();
  }

  /** ClickHouse makes a part for each day. */
  #someDays(rows: BlockRow[]): BlockRow[] {
    const days = new Map<number, boolean>();
    const isKept = (day: number): boolean => {
      if (!days.has(day)) days.set(day, this.#random.next() < 0.5);
      return days.get(day)!;
    };
    return rows.filter((row) => row.text !== badText && isKept(Math.floor(row.ts / dayMs)));
  }

  #keep(table: Table, rows: BlockRow[]): void {
    if (table === 'latest') {
      this.latest.keep(rows as RowOfLatest[]);
      return;
    }
    for (const row of rows) {
      if (row.device === 0) continue;
      this.#records.add(`${row.device} ${row.int}`);
      const name = pointOf(row);
      const known = this.telemetry.get(name);
      if (!known || row.version >= known.version) this.telemetry.set(name, row);
    }
  }
}

/** The store of each client that moves buckets. */
const stores = new WeakMap<object, Store>();
const statementMsMax = 3_600_000;

function dayOf(ts: number): number {
  return Math.floor(ts / dayMs);
}

function timeOut(): never {
  throw timedOut();
}

function pointOf({ device, key, ts, seq, version }: BlockRow): string {
  return `${device} ${key} ${ts} ${seq} ${seq === 0 ? 0n : version}`;
}

function refused(code: number): ClickHouseError {
  return toClickHouseError(new ServerError({ message: 'The seed says so.', code: String(code), type: 'SEED' }));
}

function noAnswer(message: string): ClickHouseError {
  return new ClickHouseError(0, 'transient', message);
}

function lost(): ClickHouseError {
  return new ClickHouseError(0, 'transient', 'socket hang up', { connectionLost: true });
}

function timedOut(): ClickHouseError {
  return new ClickHouseError(0, 'transient', 'no answer in time', { timedOut: true });
}
