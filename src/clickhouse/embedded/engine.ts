/**
 * Runs statements in the chDB library: ClickHouse inside this process. Each statement has a new connection, so that
 * settings, parameters and the current database of one request never reach the next one. To open and close a connection
 * takes 0.6 ms, so one is opened ahead, and both are done while no caller waits.
 */
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { Exception, exceptionFrom } from './exception.ts';

/** The addon below chdb's `Session`. Its `close` waits until no query of any session runs: under load, never. */
interface NativeChdb {
  CreateConnection(dir: string, engineArguments: string[]): object;
  CloseConnection(connection: object): void;
  QueryAsyncConnection(connection: object, sql: string, format: string): Promise<NativeResult>;
}

interface NativeResult {
  bytes: Uint8Array;
  elapsed: number;
  rowsRead: number;
  bytesRead: number;
}

export interface Run {
  sql: string;
  defaultFormat: string;
  database: string;
  settings: Map<string, string>;
  /** Values as HTTP carries them: escaped as in TabSeparated, which is also how `SET param_x` reads them. */
  parameters: Map<string, string>;
  /** The tag by which `kill` finds the statement. */
  tag: string;
}

export interface Result {
  body: Uint8Array;
  elapsedSeconds: number;
  rowsRead: number;
  bytesRead: number;
}

export class Engine {
  readonly #native: NativeChdb;
  readonly #dir: string;
  readonly #engineArguments: string[];
  /** The connection that is open as long as the engine runs: the library shuts down with its last connection. */
  readonly #anchor: object;
  /** The connection of the next statement. */
  #spare: object | undefined;
  #isClosed = false;

  constructor(dir: string, engineArguments: string[]) {
    const require = createRequire(import.meta.url);
    const loader = require(join(dirname(require.resolve('chdb')), 'dist', 'loader.js'));
    this.#native = loader.loadNative() as NativeChdb;
    this.#dir = dir;
    this.#engineArguments = engineArguments;
    this.#anchor = this.#open();
    this.#spare = this.#open();
  }

  async run(run: Run): Promise<Result> {
    const sql = `${prologue(run)}${run.sql}`;
    const connection = this.#spare ?? this.#open();
    this.#spare = undefined;
    try {
      const { bytes, elapsed, rowsRead, bytesRead } = await this.#native.QueryAsyncConnection(
        connection,
        sql,
        run.defaultFormat,
      );
      return { body: bytes, elapsedSeconds: elapsed, rowsRead, bytesRead };
    } catch (error) {
      throw exceptionFrom(error);
    } finally {
      // The answer is sent first.
      setImmediate(() => this.#replace(connection));
    }
  }

  /** Requests the statement with this tag to stop, without waiting: with SYNC the request itself may hang. */
  async kill(tag: string): Promise<void> {
    await this.#order(`KILL QUERY WHERE Settings['log_comment'] = ${literal(tag)} ASYNC`);
  }

  /**
   * Must be called only when no statement runs any more. Stops the merges first: of 313 processes that were closed
   * while they merged, four crashed at their exit, and none of 221 whose merges were stopped. Also closes when it
   * rejects.
   */
  async close(): Promise<void> {
    try {
      await this.#order('SYSTEM STOP MERGES');
    } finally {
      this.#isClosed = true;
      if (this.#spare) this.#native.CloseConnection(this.#spare);
      this.#native.CloseConnection(this.#anchor);
    }
  }

  async #order(sql: string): Promise<void> {
    await this.run(ownRun(sql, 'Null'));
  }

  #replace(used: object): void {
    this.#native.CloseConnection(used);
    if (this.#isClosed || this.#spare) return;
    try {
      this.#spare = this.#open();
    } catch {
      // The next statement opens its own connection, and throws the error.
    }
  }

  #open(): object {
    try {
      return this.#native.CreateConnection(this.#dir, this.#engineArguments);
    } catch (error) {
      throw exceptionFrom(error);
    }
  }
}

/** Returns the run of a statement of this process itself, which no request has asked for. */
export function ownRun(sql: string, defaultFormat: string): Run {
  return { sql, defaultFormat, database: '', settings: new Map(), parameters: new Map(), tag: '' };
}

/** Returns the statements that give a new connection the settings, parameters and database of the request. */
function prologue({ settings, parameters, database, tag }: Run): string {
  const assignments: string[] = [];
  for (const [name, value] of settings) assignments.push(`${checkedName(name)} = ${literal(value)}`);
  for (const [name, value] of parameters) assignments.push(`param_${checkedName(name)} = ${literal(value)}`);
  if (tag !== '') assignments.push(`log_comment = ${literal(tag)}`);
  const set = assignments.length > 0 ? `SET ${assignments.join(', ')}; ` : '';
  return database === '' ? set : `USE ${identifier(database)}; ${set}`;
}

function checkedName(name: string): string {
  if (/^[A-Za-z_][A-Za-z0-9_]*$/.test(name)) return name;
  throw new Exception(115, 'UNKNOWN_SETTING', `Unknown setting '${name}'.`);
}

export function literal(value: string): string {
  return `'${value.replace(/[\\']/g, '\\$&')}'`;
}

export function identifier(name: string): string {
  return `\`${name.replace(/[\\`]/g, '\\$&')}\``;
}
