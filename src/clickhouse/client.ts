/**
 * ClickHouse for the other rooms: queries with parameters, statements, and inserts of ready-made blocks. Each call has
 * a deadline and fails with a typed `ClickHouseError`. It cannot tell an embedded engine from a server or a cluster.
 */
import { type ClickHouseClient, ClickHouseLogLevel, type ClickHouseSettings, createClient } from '@clickhouse/client';
import type { Log } from '../base/log.ts';
import { ClickHouseError, toClickHouseError } from './clickhouse-error.ts';
import { type Parameters, Reader } from './read.ts';

export { ClickHouseError } from './clickhouse-error.ts';
export type { Parameters } from './read.ts';

export interface ClickHouseOptions {
  url: string;
  user: string;
  password: string;
  database: string;
  log: Log;
}

export interface QueryOptions {
  timeoutMs?: number;
  settings?: ClickHouseSettings;
  abortSignal?: AbortSignal;
}

export interface ExecOptions extends QueryOptions {
  /** For statements that run before the database exists. */
  withoutDatabase?: boolean;
}

const queryTimeoutMs = 30_000;
const statementTimeoutMs = 120_000;
const pingTimeoutMs = 2_000;
/** A deadline of the client's own above every deadline of a call; the calls' deadlines are signals. */
const socketTimeoutMs = 2 ** 31 - 1;
/** Below the keep-alive of every ClickHouse (3 s in old ones), so that a socket is not used as it is being closed. */
const idleSocketMs = 2_500;
const socketsMax = 32;

export function openClickHouse(options: ClickHouseOptions): ClickHouse {
  return new ClickHouse(options);
}

export class ClickHouse {
  readonly database: string;
  readonly #reader: Reader;
  readonly #client: ClickHouseClient;
  readonly #clientWithoutDatabase: ClickHouseClient;
  readonly #log: Log;

  constructor({ url, user, password, database, log }: ClickHouseOptions) {
    this.database = database;
    this.#log = log;
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
    this.#reader = new Reader({ url, user, password, database, socketsMax, idleSocketMs });
    this.#client = createClient({ ...common, database });
    this.#clientWithoutDatabase = createClient(common);
  }

  /** Rows as objects. 64-bit whole numbers come as strings, so that no digit is lost. */
  async rows<T>(sql: string, parameters: Parameters = {}, options: QueryOptions = {}): Promise<T[]> {
    const { timeoutMs = queryTimeoutMs, settings = {} } = options;
    const readSettings = {
      output_format_json_quote_64bit_integers: 1 as const,
      max_execution_time: Math.ceil(timeoutMs / 1000),
      ...settings,
    };
    return this.#attempt(true, timeoutMs, options.abortSignal, (abortSignal) =>
      this.#reader.rows<T>(sql, parameters, readSettings, abortSignal),
    );
  }

  /** A statement without result. It is not repeated: the caller knows whether that is safe. */
  async exec(sql: string, parameters: Parameters = {}, options: ExecOptions = {}): Promise<void> {
    const { timeoutMs = statementTimeoutMs, settings = {}, withoutDatabase = false } = options;
    const client = withoutDatabase ? this.#clientWithoutDatabase : this.#client;
    await this.#attempt(false, timeoutMs, options.abortSignal, (abortSignal) =>
      client.command({
        query: sql,
        query_params: parameters,
        clickhouse_settings: settings,
        abort_signal: abortSignal,
      }),
    );
  }

  /** Rows that are encoded already, in the format that `sql` names. They must be idempotent: a reset is retried. */
  async insertBlocks(sql: string, body: Buffer, options: QueryOptions = {}): Promise<void> {
    const { timeoutMs = statementTimeoutMs, settings = {} } = options;
    await this.#attempt(true, timeoutMs, options.abortSignal, async (abortSignal) => {
      const { stream } = await this.#client.exec({
        query: sql,
        // The client wraps a buffer into a stream of one chunk, without a copy; only its type asks for a stream.
        values: body as never,
        clickhouse_settings: {
          async_insert: 0,
          // Devices with odd clocks are accepted, whatever days they name.
          max_partitions_per_insert_block: '0',
          max_execution_time: Math.ceil(timeoutMs / 1000),
          ...settings,
        },
        abort_signal: abortSignal,
      });
      for await (const _ of stream) {
        // The socket is free again when the answer is read.
      }
    });
  }

  async ping(): Promise<boolean> {
    const result = await this.#client.ping({ select: false, abort_signal: AbortSignal.timeout(pingTimeoutMs) });
    return result.success;
  }

  async close(): Promise<void> {
    this.#reader.close();
    await Promise.all([this.#client.close(), this.#clientWithoutDatabase.close()]);
  }

  async #attempt<T>(
    idempotent: boolean,
    timeoutMs: number,
    abortSignal: AbortSignal | undefined,
    call: (abortSignal: AbortSignal) => Promise<T>,
  ): Promise<T> {
    const deadline = AbortSignal.timeout(timeoutMs);
    const signal = abortSignal ? AbortSignal.any([abortSignal, deadline]) : deadline;
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await call(signal);
      } catch (error) {
        if (deadline.aborted) throw new ClickHouseError(0, 'transient', `ClickHouse did not answer in ${timeoutMs} ms`);
        const typed = toClickHouseError(error);
        if (!idempotent || !typed.connectionLost || attempt > 1 || signal.aborted) throw typed;
        this.#log.debug('clickhouse_reset_retried', { reason: typed.message });
      }
    }
  }
}
