/**
 * Connects the other rooms to ClickHouse: queries with parameters, statements, and inserts of ready-made blocks. Each
 * call has a deadline and fails with a typed `ClickHouseError`. The client does not know whether it talks to an
 * embedded engine, a server or a cluster.
 */
import { addAbortSignal, pipeline, type Readable, Transform } from 'node:stream';
import { type ClickHouseClient, ClickHouseLogLevel, type ClickHouseSettings, createClient } from '@clickhouse/client';
import { Deadline } from '../base/deadline.ts';
import { Fault, messageOf } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import { StoreOutage } from '../base/store-outage.ts';
import { readOwner } from './embedded/read-owner.ts';
import {
  afterLostConnection,
  ClickHouseError,
  errorInAnswer,
  errorInEmptyAnswer,
  toClickHouseError,
} from './errors/clickhouse-error.ts';
import { joinableComment } from './inserts/joined-inserts.ts';
import { RelayWatch } from './inserts/relay-watch.ts';
import { ClickHouseReader, type Parameters } from './read.ts';
import type { BinaryRow } from './row-binary.ts';
import { runningInserts, stopInserts } from './statements.ts';

export { ClickHouseError, isUnanswered, isWithoutTables } from './errors/clickhouse-error.ts';
export type { Parameters } from './read.ts';

interface ClickHouseDeps {
  url: string;
  user: string;
  password: string;
  database: string;
  log: Log;
  /** The number of this server among several shards; undefined: the only one. */
  shard?: number | undefined;
  /** Name of the cluster, '' without one. */
  cluster?: string;
  /** Replicas that an insert into a cluster waits for, `auto` = a majority; undefined without a cluster. */
  insertQuorum?: string | undefined;
  /** The relay of this host, which joins small inserts of its workers; undefined: none. */
  relayUrl?: string | undefined;
  /** True while the primary of this process reaches the server, and so reports its outages. */
  isUp?: () => boolean;
}

export interface QueryOptions {
  timeoutMs?: number;
  settings?: ClickHouseSettings;
  abortSignal?: AbortSignal;
}

export interface ReadOptions extends QueryOptions {
  /** Bytes of an answer, as sent here and as columns in the store; a longer answer is an error of the kind `size`. */
  answerBytesMax?: number;
}

interface CopyOptions extends QueryOptions {
  /** Settings of the query alone, in addition to `settings`. */
  selectSettings?: ClickHouseSettings;
  /** Called for each piece before it is inserted. An error ends the copy and is thrown. */
  onBytes?: (bytes: number) => void;
}

/** Reads whose owner is known (`ClickHouse.readsOf`). */
export type Reads = Pick<ClickHouse, 'rows' | 'binaryRows' | 'eachRow' | 'eachBinaryRow'> & {
  /** As in `ClickHouseDeps`. */
  shard?: number | undefined;
};

interface ExecOptions extends QueryOptions {
  /** True for statements that run before the database exists. */
  withoutDatabase?: boolean;
}

interface InsertOptions extends QueryOptions {
  parameters?: Parameters;
  /** Letters, digits and dashes that `endInserts` finds the insert by. */
  mark?: string;
  /** True: the rows may be inserted together with rows of other requests, by the embedded engine or the relay. */
  joinable?: boolean;
}

const insertPattern = /^\s*INSERT\b/i;
const queryTimeoutMs = 30_000;
/** The cap of a read that names no cap. */
const readBytesMax = 256 * 1024 * 1024;
const statementTimeoutMs = 120_000;
const pingTimeoutMs = 2_000;
/** The deadline of the client's sockets is above the deadline of every call; the deadlines of calls are signals. */
const socketTimeoutMs = 2 ** 31 - 1;
/**
 * Shorter than the keep-alive of every ClickHouse (3 s in old versions), so that no socket is used while it is being
 * closed.
 */
const idleSocketMs = 2_500;
const socketsMax = 32;
/** Characters of an answer without rows in which an error is searched. */
const answerCharsMax = 1_000_000;

const always = () => true;
const never = () => false;

export function openClickHouse(deps: ClickHouseDeps): ClickHouse {
  return new ClickHouse(deps);
}

export class ClickHouse {
  readonly database: string;
  /** As in `ClickHouseDeps`. */
  readonly shard: number | undefined;
  readonly #reader: ClickHouseReader;
  readonly #client: ClickHouseClient;
  readonly #clientWithoutDatabase: ClickHouseClient;
  readonly #relay: { client: ClickHouseClient; watch: RelayWatch } | undefined;
  readonly #log: Log;
  readonly #outage: StoreOutage;
  readonly #cluster: string;
  readonly #insertQuorum: string | undefined;

  constructor(deps: ClickHouseDeps) {
    const { url, user, password, database, log, shard, cluster = '', insertQuorum, relayUrl, isUp = always } = deps;
    this.database = database;
    this.shard = shard;
    this.#log = log;
    this.#outage = new StoreOutage({ store: 'clickhouse', log, isUp });
    this.#cluster = cluster;
    this.#insertQuorum = insertQuorum;
    const common = {
      url,
      username: user,
      password,
      request_timeout: socketTimeoutMs,
      max_open_connections: socketsMax,
      keep_alive: { enabled: true, idle_socket_ttl: idleSocketMs },
      // Errors reach the caller; the client's own log would repeat them.
      log: { level: ClickHouseLogLevel.OFF },
    };
    this.#reader = new ClickHouseReader({ url, user, password, database, socketsMax, idleSocketMs });
    this.#client = createClient({ ...common, database });
    this.#clientWithoutDatabase = createClient(common);
    if (relayUrl !== undefined) {
      const client = createClient({ ...common, url: atRelay(url, relayUrl), database });
      this.#relay = { client, watch: new RelayWatch(relayUrl, log) };
    }
  }

  /** Returns rows as objects. Whole numbers of 64 bits are strings, so that no digit is lost. */
  async rows<T>(sql: string, parameters: Parameters = {}, options: ReadOptions = {}): Promise<T[]> {
    const { timeoutMs, ...bounds } = readSettings(options);
    return await this.#attempt(always, timeoutMs, options.abortSignal, async (deadline) => {
      const rows: T[] = [];
      await this.#reader.each<T>({ sql, parameters, ...bounds }, deadline, (row) => rows.push(row));
      return rows;
    });
  }

  /**
   * Like `rows`, but in RowBinary, which has any bytes and costs less CPU. `decode` reads each column of a row. It is
   * called again for a row that was not whole.
   */
  async binaryRows<T>(
    sql: string,
    parameters: Parameters,
    options: ReadOptions,
    decode: (row: BinaryRow) => T,
  ): Promise<T[]> {
    const { timeoutMs, ...bounds } = readSettings(options);
    return await this.#attempt(always, timeoutMs, options.abortSignal, async (deadline) => {
      const rows: T[] = [];
      await this.#reader.eachBinary({ sql, parameters, ...bounds }, deadline, (row) => rows.push(decode(row)));
      return rows;
    });
  }

  /** Like `rows`, but passes on each row as it arrives. An error of `take` ends the read and is thrown. */
  async eachRow<T>(sql: string, parameters: Parameters, options: ReadOptions, take: (row: T) => void): Promise<void> {
    const { timeoutMs, ...bounds } = readSettings(options);
    await this.#attemptEach<T>(timeoutMs, options.abortSignal, take, (deadline, counted) =>
      this.#reader.each<T>({ sql, parameters, ...bounds }, deadline, counted),
    );
  }

  /** Like `eachRow`, for rows that `decode` decodes, as for `binaryRows`. */
  async eachBinaryRow<T>(
    sql: string,
    parameters: Parameters,
    options: ReadOptions,
    decode: (row: BinaryRow) => T,
    take: (row: T) => void,
  ): Promise<void> {
    const { timeoutMs, ...bounds } = readSettings(options);
    await this.#attemptEach<T>(timeoutMs, options.abortSignal, take, (deadline, counted) =>
      this.#reader.eachBinary({ sql, parameters, ...bounds }, deadline, (row) => counted(decode(row))),
    );
  }

  /** Returns the reads of a tenant, which take turns with those of other tenants; null = the system administrators. */
  readsOf(tenantId: string | null): Reads {
    const owned = (options: ReadOptions = {}): ReadOptions => {
      return { ...options, settings: { log_comment: readOwner(tenantId), ...options.settings } };
    };
    return {
      shard: this.shard,
      rows: (sql, parameters, options) => this.rows(sql, parameters, owned(options)),
      binaryRows: (sql, parameters, options, decode) => this.binaryRows(sql, parameters, owned(options), decode),
      eachRow: (sql, parameters, options, take) => this.eachRow(sql, parameters, owned(options), take),
      eachBinaryRow: (sql, parameters, options, decode, take) =>
        this.eachBinaryRow(sql, parameters, owned(options), decode, take),
    };
  }

  /**
   * Runs a statement without a result. The statement is not repeated: only the caller knows whether a repetition is
   * safe.
   */
  async exec(sql: string, parameters: Parameters = {}, options: ExecOptions = {}): Promise<void> {
    const { timeoutMs = statementTimeoutMs, settings = {}, withoutDatabase = false } = options;
    const client = withoutDatabase ? this.#clientWithoutDatabase : this.#client;
    await this.#attempt(never, timeoutMs, options.abortSignal, async ({ signal: abortSignal }) => {
      const { stream } = await client.exec({
        query: sql,
        query_params: parameters,
        clickhouse_settings: insertPattern.test(sql) ? { ...this.#clusterSettings(timeoutMs), ...settings } : settings,
        abort_signal: abortSignal,
      });
      // A statement ON CLUSTER answers with a row for each server.
      const error = errorInAnswer(await readAnswer(stream, abortSignal));
      if (error) throw error;
    });
  }

  /**
   * Inserts rows that are encoded already, in the format that `sql` names. The rows must be idempotent, because a reset
   * connection is tried again. `repeated` is true after a second try: the server may still carry out the first one.
   */
  async insertBlocks(sql: string, body: Buffer, options: InsertOptions = {}): Promise<{ repeated: boolean }> {
    const { timeoutMs = statementTimeoutMs, settings = {}, parameters = {}, mark, joinable = false } = options;
    let tries = 0;
    const insert = async (client: ClickHouseClient, abortSignal: AbortSignal): Promise<void> => {
      tries += 1;
      const { stream } = await client.exec({
        query: sql,
        // The client wraps a buffer into a stream of one chunk, without a copy; only its type requires a stream.
        values: body as never,
        query_params: parameters,
        clickhouse_settings: {
          ...this.#clusterSettings(timeoutMs),
          async_insert: 0,
          // Rows of devices with wrong clocks are accepted, for any days.
          max_partitions_per_insert_block: '0',
          // A profile with this setting would answer 200 before the insert has ended.
          send_progress_in_http_headers: 0,
          max_execution_time: Math.ceil(timeoutMs / 1000),
          ...(mark !== undefined && { log_comment: joinable ? joinableComment(mark) : mark }),
          ...settings,
        },
        abort_signal: abortSignal,
      });
      await readEmptyAnswer(stream, abortSignal);
    };
    await this.#attempt(always, timeoutMs, options.abortSignal, async ({ signal: abortSignal }) => {
      const relay = joinable && tries === 0 ? this.#relay : undefined;
      const isRelayed = await relay?.watch.answers();
      // The client does not look whether a signal is aborted already.
      abortSignal.throwIfAborted();
      if (relay && isRelayed) {
        try {
          return await insert(relay.client, abortSignal);
        } catch (error) {
          // Without an answer of the server, the relay may be the cause.
          if (abortSignal.aborted) relay.watch.noAnswer();
          if (abortSignal.aborted || toClickHouseError(error).code !== 0) throw error;
        }
      }
      await insert(this.#client, abortSignal);
    });
    return { repeated: tries > 1 };
  }

  /**
   * Inserts the rows of a query into a table of another server, as they come. The rows must be idempotent: after a
   * failure some of them may be there.
   */
  async copyTo(
    target: ClickHouse,
    { select, insert }: { select: string; insert: string },
    parameters: Parameters,
    options: CopyOptions = {},
  ): Promise<void> {
    const { timeoutMs = statementTimeoutMs, settings = {}, selectSettings = {}, onBytes } = options;
    let refusal: Error | undefined;
    const counted = new Transform({
      transform(piece: Buffer, _, done) {
        try {
          onBytes?.(piece.length);
          done(null, piece);
        } catch (error) {
          refusal = error as Error;
          done(refusal);
        }
      },
    });
    await this.#attempt(never, timeoutMs, options.abortSignal, async ({ signal: abortSignal }) => {
      const query = {
        query: select,
        query_params: parameters,
        clickhouse_settings: { ...settings, ...selectSettings },
        abort_signal: abortSignal,
      };
      const { stream: rows } = await this.#client.exec(query);
      const { stream } = await target.#client.exec({
        query: insert,
        values: onBytes ? pipeline(rows, counted, () => {}) : rows,
        clickhouse_settings: {
          ...target.#clusterSettings(timeoutMs),
          async_insert: 0,
          max_partitions_per_insert_block: '0',
          send_progress_in_http_headers: 0,
          ...settings,
        },
        abort_signal: abortSignal,
      });
      await readEmptyAnswer(stream, abortSignal);
    }).catch((error: unknown) => {
      throw refusal ?? error;
    });
  }

  /**
   * Returns true when no insert with this mark runs. Otherwise requests the running ones to stop; the caller repeats
   * the call.
   */
  async endInserts(mark: string, options: QueryOptions = {}): Promise<boolean> {
    const [row] = await this.rows<{ count: string }>(runningInserts(this.#cluster), { mark }, options);
    if (row!.count === '0') return true;
    await this.exec(stopInserts(mark), {}, options);
    return false;
  }

  async ping(): Promise<boolean> {
    return (await this.unavailability()) === undefined;
  }

  /** Returns the reason why the server does not answer; undefined when the server answers. */
  async unavailability(): Promise<string | undefined> {
    const signal = AbortSignal.timeout(pingTimeoutMs);
    const result = await this.#client.ping({ select: false, abort_signal: signal });
    if (result.success) {
      this.#outage.answered();
      return undefined;
    }
    return signal.aborted ? `no answer within ${pingTimeoutMs / 1000} s` : messageOf(result.error);
  }

  async close(): Promise<void> {
    this.#reader.close();
    await Promise.all([this.#client.close(), this.#clientWithoutDatabase.close(), this.#relay?.client.close()]);
  }

  /**
   * An insert into a cluster is answered when a quorum of replicas of every shard has its rows. Without these settings
   * the answer means only an unsynced file in the spool of one server.
   */
  #clusterSettings(timeoutMs: number): ClickHouseSettings {
    if (this.#insertQuorum === undefined) return {};
    return {
      distributed_foreground_insert: 1,
      // Rows are idempotent. A block that Keeper remembers may no longer be stored: after a delete, or after a restore.
      insert_deduplicate: 0,
      insert_quorum: this.#insertQuorum,
      insert_quorum_parallel: 1,
      // Shorter than the caller's own timeout, so that the answer names a missing replica.
      insert_quorum_timeout: Math.ceil(timeoutMs * 0.8),
    };
  }

  /** A row that was passed on must not be repeated. */
  async #attemptEach<T>(
    timeoutMs: number,
    abortSignal: AbortSignal | undefined,
    take: (row: T) => void,
    call: (deadline: Deadline, take: (row: T) => void) => Promise<void>,
  ): Promise<void> {
    let taken = 0;
    const counted = (row: T) => {
      taken += 1;
      take(row);
    };
    const mayRepeat = () => taken === 0;
    await this.#attempt(mayRepeat, timeoutMs, abortSignal, (deadline) => call(deadline, counted));
  }

  async #attempt<T>(
    mayRepeat: () => boolean,
    timeoutMs: number,
    abortSignal: AbortSignal | undefined,
    call: (deadline: Deadline) => Promise<T>,
  ): Promise<T> {
    const deadline = new Deadline(timeoutMs, abortSignal);
    try {
      return await this.#attemptUntil(deadline, mayRepeat, timeoutMs, call);
    } finally {
      deadline.end();
    }
  }

  async #attemptUntil<T>(
    deadline: Deadline,
    mayRepeat: () => boolean,
    timeoutMs: number,
    call: (deadline: Deadline) => Promise<T>,
  ): Promise<T> {
    for (let attempt = 1; ; attempt += 1) {
      try {
        deadline.throwIfAborted();
        const result = await call(deadline);
        this.#outage.answered();
        return result;
      } catch (error) {
        if (deadline.isOver) {
          const message = `ClickHouse did not answer in ${timeoutMs} ms`;
          this.#outage.slow({ reason: message });
          throw new ClickHouseError(0, 'transient', message, { timedOut: true });
        }
        if (error instanceof Fault) throw error;
        const typed = toClickHouseError(error);
        if (typed.code === 0 && !deadline.isAborted) this.#outage.failed({ reason: typed.message });
        // A store that died of this statement refuses the second connection: the error of the first attempt counts.
        if (attempt > 1 && typed.code === 0) throw afterLostConnection(typed);
        if (!typed.connectionLost || attempt > 1 || deadline.isAborted || !mayRepeat()) throw typed;
        this.#log.debug('clickhouse_reset_retried', { reason: typed.message });
      }
    }
  }
}

/** Returns the URL of the server with the address of the relay: the relay keeps the path, and the user of the URL. */
function atRelay(url: string, relayUrl: string): string {
  const { username, password, pathname, search } = new URL(url);
  return Object.assign(new URL(relayUrl), { username, password, pathname, search }).href;
}

/** Reads an answer to its end, which frees the socket, and returns its beginning. */
async function readAnswer(stream: Readable, signal: AbortSignal): Promise<string> {
  let body = '';
  // The client looks at the signal until the head of the answer is there.
  for await (const chunk of addAbortSignal(signal, stream)) if (body.length < answerCharsMax) body += chunk.toString();
  return body;
}

/** Throws the error that the answer contains, and for any other answer than an empty one. */
async function readEmptyAnswer(stream: Readable, signal: AbortSignal): Promise<void> {
  const error = errorInEmptyAnswer(await readAnswer(stream, signal));
  if (error) throw error;
}

function readSettings({ timeoutMs = queryTimeoutMs, answerBytesMax: bytesMax = readBytesMax, settings }: ReadOptions) {
  return {
    timeoutMs,
    bytesMax,
    settings: {
      output_format_json_quote_64bit_integers: 1 as const,
      output_format_json_escape_forward_slashes: 0 as const,
      max_execution_time: Math.ceil(timeoutMs / 1000),
      max_result_bytes: String(bytesMax),
      result_overflow_mode: 'throw' as const,
      ...settings,
    },
  };
}
