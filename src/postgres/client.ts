/**
 * The connections of this process to PostgreSQL. Every wait has a deadline and every queue a cap; an unavailable server
 * is a Fault 503 (`postgres_away`), never a crash. int8 columns come as JS numbers: one beyond 2^53 is a bug of the
 * query, which must cast it to text.
 */
import type { Pool as PgPool, PoolClient, QueryConfig, QueryResult } from 'pg';
import { assert, Fault, messageOf, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Metrics } from '../base/metrics/metrics.ts';
import { systemScheduler } from '../base/scheduler.ts';
import { StoreOutage } from '../base/store-outage.ts';
import { CopyValue } from './copy.ts';
import { Pool, types } from './driver.ts';
import {
  codeOf,
  isAway,
  isLostRace,
  isOrdinary,
  isReadOnly,
  isSilent,
  isSlow,
  lostCommit,
  postgresAway,
  queryReadTimeout,
  raceLost,
} from './postgres-error.ts';
import { addressOf, Servers } from './servers.ts';

export interface PostgresDeps {
  /** One server, or several of which one is writable (`servers.ts`). */
  url: string;
  poolMax: number;
  /** True: the URL is that of a pooler, which gives each transaction another connection. */
  behindPooler?: boolean;
  log: Log;
  /** True while the primary of this process reaches the server, and so reports its outages. */
  isUp?: () => boolean;
  metrics?: Metrics;
}

interface QueryOptions {
  timeoutMs?: number;
  /** True: parsed and planned once for each connection, for constant statements that run often. */
  prepared?: boolean;
}

interface SnapshotOptions {
  /** The time of all statements together. */
  timeoutMs?: number;
}

interface TransactionOptions extends QueryOptions {
  /**
   * True: `work` runs again when PostgreSQL ended it because of a deadlock. `work` must have no effect but statements.
   */
  again?: boolean;
}

/** The methods of both the pool and a transaction. */
export interface Queries {
  query<Row>(text: string, values?: unknown[], options?: QueryOptions): Promise<Row[]>;
}

/** The methods of the pool for readers that need several statements for one answer. */
export interface SnapshotQueries extends Queries {
  /** All statements of `work` read the data of one moment, on one connection, and share the deadline. */
  snapshot<Result>(work: (queries: Queries) => Promise<Result>, options?: SnapshotOptions): Promise<Result>;
}

export function openPostgres(deps: PostgresDeps): Postgres {
  return new Postgres(deps);
}

export class Postgres implements SnapshotQueries {
  /** Host and port, for messages; no user, no password. */
  readonly address: string;
  readonly #servers: Servers;
  readonly #behindPooler: boolean;
  readonly #outage: StoreOutage;
  readonly #poolMax: number;
  #waits = 0;
  #waitSeconds = 0;
  #closing = false;
  #held = false;
  /** Callers that wait for a connection. */
  readonly #connecting = new Set<() => void>();
  #endWatch = () => {};

  constructor({ url, poolMax, behindPooler = false, log, isUp = () => true, metrics }: PostgresDeps) {
    this.#outage = new StoreOutage({ store: 'postgres', log, isUp });
    this.address = addressOf(url);
    this.#poolMax = poolMax;
    this.#behindPooler = behindPooler;
    const open = (connectionString: string): PgPool =>
      new Pool({
        connectionString,
        max: poolMax,
        application_name: 'millrace',
        connectionTimeoutMillis: limits.postgresConnectMsMax,
        idleTimeoutMillis: 60_000,
        keepAlive: true,
        // A pooler refuses it; the timer of each query remains, and the timeout of each transaction.
        ...(!behindPooler && { statement_timeout: limits.postgresStatementMsMax }),
        types: { getTypeParser: typeParser as typeof types.getTypeParser },
      });
    const onError = (error: Error) => {
      if (!this.#closing) this.#outage.failed({ reason: error.message });
    };
    this.#servers = new Servers({ url, open, onError });
    if (this.#servers.areSeveral) {
      this.#endWatch = systemScheduler.every(limits.postgresPingMs, () => {
        void this.#watch().catch(() => {});
      });
    }
    if (metrics) this.#observe(metrics);
  }

  /**
   * Refuses every call as if the server did not answer, until `release`: the schema may be one that this version's
   * statements do not know yet. Calls that wait for the server are refused, too.
   */
  hold(): void {
    this.#held = true;
    this.#servers.cut();
    for (const refuse of this.#connecting) refuse();
  }

  release(): void {
    this.#held = false;
  }

  /** Returns the rows of the last statement in `text`. */
  async query<Row>(text: string, values?: unknown[], options: QueryOptions = {}): Promise<Row[]> {
    return await this.#onConnection((client) => this.#run<Row>(client, text, values, options));
  }

  /**
   * Returns the one `bytea` of a `select`, without a conversion to a string; undefined without a row. Takes no
   * parameters.
   */
  async bytes(select: string, options: QueryOptions = {}): Promise<Buffer | undefined> {
    const timeoutMs = options.timeoutMs ?? limits.postgresStatementMsMax;
    return await this.#onConnection(
      (client) =>
        new Promise((resolve, reject) => {
          client.query(new CopyValue(select, timeoutMs, (error, bytes) => (error ? reject(error) : resolve(bytes))));
        }),
    );
  }

  /**
   * Commits when `work` resolves, rolls back when `work` throws. `timeoutMs` applies to each statement. When the
   * connection is lost during the commit, the commit may have happened: `isLostCommit` is true of the 503.
   */
  async transaction<Result>(
    work: (queries: Queries) => Promise<Result>,
    { again = false, ...options }: TransactionOptions = {},
  ): Promise<Result> {
    for (let tries = 1; ; tries += 1) {
      try {
        return await this.#transactOnce(work, options);
      } catch (error) {
        if (!again || !isLostRace(error)) throw error;
        if (tries === lostRacesMax) throw raceLost();
      }
    }
  }

  async snapshot<Result>(
    work: (queries: Queries) => Promise<Result>,
    { timeoutMs = limits.postgresStatementMsMax }: SnapshotOptions = {},
  ): Promise<Result> {
    const begin = 'begin isolation level repeatable read read only';
    return await this.#transactOnce((queries) => work(withDeadline(queries, timeoutMs)), { timeoutMs }, begin);
  }

  /** Runs one statement. The connection is closed after an error that may have broken it. */
  async #onConnection<Result>(statement: (client: PoolClient) => Promise<Result>): Promise<Result> {
    const client = await this.#connect();
    let broken = false;
    try {
      return await statement(client);
    } catch (error) {
      broken = !isOrdinary(error);
      throw this.#translate(error);
    } finally {
      client.release(broken);
    }
  }

  async #transactOnce<Result>(
    work: (queries: Queries) => Promise<Result>,
    options: QueryOptions,
    begin = 'begin',
  ): Promise<Result> {
    const timeoutMs: number = options.timeoutMs ?? limits.postgresStatementMsMax;
    const client = await this.#connect();
    let broken = true;
    let isCommitting = false;
    try {
      await this.#run(client, `${begin}; set local statement_timeout = ${Math.ceil(timeoutMs)}`, undefined, {
        timeoutMs,
      });
      const result = await work({
        query: (text, values, each = {}) => this.#run(client, text, values, { timeoutMs, ...each }),
      });
      isCommitting = begin === 'begin';
      const { command } = (await ask(client, { text: 'commit' }, timeoutMs)) as QueryResult;
      // An error of a statement that `work` caught turns the commit into a rollback.
      assert(command === 'COMMIT', 'no statement of a committed transaction has failed');
      broken = false;
      return result;
    } catch (error) {
      const isLost = isAway(error) && !isOrdinary(error);
      broken = isLost || !(await rolledBack(client));
      const translated = this.#translate(error);
      throw isLost && isCommitting ? lostCommit(error) : translated;
    } finally {
      client.release(broken);
    }
  }

  /** Throws the 503 when the server does not answer; a connection may have to be made before `timeoutMs` begins. */
  async ping(timeoutMs = 2_000): Promise<void> {
    try {
      await this.query('select 1', [], { timeoutMs });
    } catch (error) {
      const cause = error instanceof Error ? error.cause : undefined;
      if (error instanceof Fault && isSilent(cause)) error.cause = new Error(`no answer within ${timeoutMs / 1000} s`);
      throw error;
    }
  }

  /**
   * Asks the server in use for an answer. A frozen server would otherwise be noticed only at the deadline of a
   * statement. A former primary that has become read-only would be noticed only by a write, and a process that only
   * reads would return old rows.
   */
  async #watch(): Promise<void> {
    const [row] = await this.query<{ isReadOnly: boolean }>(
      `select current_setting('transaction_read_only') = 'on' as "isReadOnly"`,
      [],
      { timeoutMs: limits.postgresServerAskMsMax },
    );
    if (row!.isReadOnly) this.#servers.readOnly();
  }

  /** Waits for running statements; they have deadlines. */
  async close(): Promise<void> {
    this.#closing = true;
    this.#endWatch();
    await this.#servers.close();
  }

  async #connect(): Promise<PoolClient> {
    if (this.#held) throw postgresAway();
    if (this.#servers.waiting >= limits.postgresWaitersMax) {
      throw unavailable('postgres_busy', 'Too many requests wait for the database. Try again later.');
    }
    try {
      await this.#servers.ready();
      if (this.#held) throw postgresAway();
      const client = await this.#take(this.#servers.pool);
      this.#outage.answered();
      return client;
    } catch (error) {
      throw this.#translate(error);
    }
  }

  async #take(pool: PgPool): Promise<PoolClient> {
    if (pool.idleCount > pool.waitingCount) return await pool.connect();
    if (pool.totalCount < this.#poolMax) return await this.#connected(pool);
    const since = performance.now();
    try {
      return await this.#connected(pool);
    } finally {
      this.#waits += 1;
      this.#waitSeconds += (performance.now() - since) / 1000;
    }
  }

  /** Rejects when `hold` is called first. A connection that comes later is given back. */
  #connected(pool: PgPool): Promise<PoolClient> {
    return new Promise((resolve, reject) => {
      let isRefused = false;
      const refuse = () => {
        isRefused = true;
        reject(postgresAway());
      };
      this.#connecting.add(refuse);
      try {
        pool.connect((error, client, release) => {
          this.#connecting.delete(refuse);
          if (client === undefined) reject(error);
          else if (isRefused) release();
          else resolve(client);
        });
      } catch (error) {
        this.#connecting.delete(refuse);
        reject(error);
      }
    });
  }

  async #run<Row>(
    client: PoolClient,
    text: string,
    values: unknown[] | undefined,
    { timeoutMs = limits.postgresStatementMsMax, prepared = false }: QueryOptions,
  ): Promise<Row[]> {
    const name = prepared && !this.#behindPooler ? { name: statementName(text) } : {};
    const result = await ask(client, { text, ...(values && values.length > 0 && { values }), ...name }, timeoutMs);
    return (Array.isArray(result) ? (result.at(-1)?.rows ?? []) : result.rows) as Row[];
  }

  #observe(metrics: Metrics): void {
    const pool = () => this.#servers.pool;
    metrics.observed('postgres_pool_connections_max', 'Connections that the pools may have.', () => this.#poolMax);
    metrics.observed('postgres_pool_connections', 'Open connections to PostgreSQL.', () => pool().totalCount);
    metrics.observed('postgres_pool_idle', 'Connections that no statement uses.', () => pool().idleCount);
    metrics.observed('postgres_pool_waiting', 'Statements that wait for a connection.', () => this.#servers.waiting);
    metrics.counted('postgres_pool_waits_total', 'Statements that found no free connection.', () => this.#waits);
    const help = 'Time that statements waited for a free connection.';
    metrics.counted('postgres_pool_wait_seconds_total', help, () => this.#waitSeconds);
  }

  #translate(error: unknown): unknown {
    if (error instanceof Fault || !isAway(error)) return error;
    const fields = { address: this.address, reason: messageOf(error), code: codeOf(error) };
    if (isReadOnly(error)) this.#servers.readOnly();
    else if (!isSlow(error) || isSilent(error)) this.#servers.failed();
    if (isSlow(error)) this.#outage.slow(fields);
    else this.#outage.failed(fields);
    const fault = postgresAway();
    fault.cause = error;
    return fault;
  }
}

/** The cap of prepared statements: far more than exist, far fewer than a server can hold. */
const preparedMax = 100;
/** Tries of a transaction that loses races. */
const lostRacesMax = 5;

async function rolledBack(client: PoolClient): Promise<boolean> {
  try {
    await ask(client, { text: 'rollback' }, limits.postgresConnectMsMax);
    return true;
  } catch {
    return false;
  }
}

const statementNames = new Map<string, string>();

function statementName(text: string): string {
  let name = statementNames.get(text);
  if (name === undefined) {
    name = `millrace_${statementNames.size}`;
    assert(statementNames.size < preparedMax, 'a prepared statement has a constant text');
    statementNames.set(text, name);
  }
  return name;
}

/**
 * Sends one statement, and ends the wait for its answer after the time; the server has a timeout of its own. With the
 * promise and the `query_timeout` of the driver V8 kept the objects of many answered queries until it collected old
 * memory: a process that reads devices on a pool collected its young memory in 4.2 ms each instead of 0.5. Several
 * statements have an array of results.
 */
async function ask(client: PoolClient, query: QueryConfig, timeoutMs: number): Promise<QueryResult | QueryResult[]> {
  try {
    return await new Promise((resolve, reject) => {
      const stopTimer = systemScheduler.after(timeoutMs, () => reject(new Error(queryReadTimeout)));
      client.query(query, (error: Error | undefined, result: QueryResult) => {
        stopTimer();
        if (error) reject(error);
        else resolve(result);
      });
    });
  } catch (error) {
    // The driver's own stack ends at its socket.
    if (error instanceof Error) Error.captureStackTrace(error);
    throw error;
  }
}

/** A statement may run so much longer in the server than its caller waits for it. */
const serverLagMs = 1_000;

/** The statements have `timeoutMs` from now on together; the server ends each of them about when its caller does. */
function withDeadline({ query }: Queries, timeoutMs: number): Queries {
  const deadline = performance.now() + timeoutMs;
  let serverMs = timeoutMs;
  return {
    async query<Row>(text: string, values?: unknown[], options?: QueryOptions): Promise<Row[]> {
      const leftMs = () => Math.max(1, deadline - performance.now());
      if (serverMs - leftMs() > serverLagMs) {
        serverMs = Math.ceil(leftMs());
        await query(`set local statement_timeout = ${serverMs}`, [], { timeoutMs: leftMs() });
      }
      return await query<Row>(text, values, { ...options, timeoutMs: leftMs() });
    },
  };
}

const int8 = 20;
const int8Array = 1016;

function typeParser(type: number, format?: 'text' | 'binary'): (text: string) => unknown {
  const parse = types.getTypeParser(type, format as 'text') as (text: string) => unknown;
  if (type === int8) return safeInteger;
  if (type === int8Array) return (text) => (parse(text) as (string | null)[]).map((n) => n && safeInteger(n));
  return parse;
}

function safeInteger(text: string): number {
  const value = Number(text);
  assert(Number.isSafeInteger(value), 'an int8 column beyond 2^53 must be selected as text');
  return value;
}
