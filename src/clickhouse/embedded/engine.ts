/**
 * Runs statements in the chDB library: ClickHouse inside this process. Settings, parameters and the current database of
 * one request never reach another one, so a statement has a new connection. To open and close a connection takes
 * 0.6 ms, so one is opened ahead, and both are done while no caller waits. A SELECT changes nothing of its connection:
 * that connection is kept for the next SELECT with the same database, settings and names of parameters.
 */
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { identifier, stringLiteral } from '../sql/literals.ts';
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
  /** The statement is one SELECT. */
  isSelect: boolean;
}

/** A connection that ran SELECTs alone. */
interface Kept {
  connection: object;
  /** The database, the settings and the names of the parameters that the connection has. */
  session: string;
  statements: number;
}

/** Most reads of Millrace are of a few kinds, and each kind has one session. */
const keptMax = 4;
/** A connection that has run so many statements is closed, so that what the library keeps of them has a bound. */
const keptStatementsMax = 1_000;

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
  /** The connection that was kept last is the last one. */
  readonly #kept: Kept[] = [];
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
    const session = run.isSelect ? sessionOf(run) : undefined;
    const kept = this.#takeKept(session);
    const tag = isTaggedByComment(run) ? comment(run.tag) : '';
    const sql = `${kept ? assignmentsOf(run, []) : prologue(run)}${tag}${run.sql}`;
    const connection = kept?.connection ?? this.#takeSpare();
    let isWhole = false;
    try {
      const { bytes, elapsed, rowsRead, bytesRead } = await this.#native.QueryAsyncConnection(
        connection,
        sql,
        run.defaultFormat,
      );
      isWhole = true;
      return { body: bytes, elapsedSeconds: elapsed, rowsRead, bytesRead };
    } catch (error) {
      throw exceptionFrom(error);
    } finally {
      const statements = (kept?.statements ?? 0) + 1;
      const isKept = isWhole && session !== undefined && statements < keptStatementsMax && !this.#isClosed;
      if (isKept) this.#kept.push({ connection, session, statements });
      // The answer is sent first.
      setImmediate(() => this.#tidy(isKept ? undefined : connection));
    }
  }

  #takeKept(session: string | undefined): Kept | undefined {
    if (session === undefined) return undefined;
    const at = this.#kept.findLastIndex((kept) => kept.session === session);
    return at < 0 ? undefined : this.#kept.splice(at, 1)[0];
  }

  #takeSpare(): object {
    const connection = this.#spare ?? this.#open();
    this.#spare = undefined;
    return connection;
  }

  /** Requests the statement with this tag to stop, without waiting: with SYNC the request itself may hang. */
  async kill(tag: string): Promise<void> {
    const isTagged = `Settings['log_comment'] = ${stringLiteral(tag)} OR startsWith(query, ${stringLiteral(comment(tag))})`;
    await this.#order(`KILL QUERY WHERE ${isTagged} ASYNC`);
  }

  /**
   * Must be called only when no statement runs any more. Stops the merges first: of 313 processes that were closed
   * while they merged, four crashed at their exit, and none of 221 whose merges were stopped. Also closes when it
   * rejects.
   */
  async close(): Promise<void> {
    try {
      await this.stopMerges();
    } finally {
      this.#isClosed = true;
      if (this.#spare) this.#native.CloseConnection(this.#spare);
      for (const { connection } of this.#kept.splice(0)) this.#native.CloseConnection(connection);
      this.#native.CloseConnection(this.#anchor);
    }
  }

  /** Also ends the merges that run. */
  async stopMerges(): Promise<void> {
    await this.#order('SYSTEM STOP MERGES');
  }

  async #order(sql: string): Promise<void> {
    await this.run(ownRun(sql, 'Null'));
  }

  /** Closes connections that are kept no longer, and opens the next spare one. */
  #tidy(used: object | undefined): void {
    if (used !== undefined) this.#native.CloseConnection(used);
    while (this.#kept.length > keptMax) this.#native.CloseConnection(this.#kept.shift()!.connection);
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
  return { sql, defaultFormat, database: '', settings: new Map(), parameters: new Map(), tag: '', isSelect: false };
}

function sessionOf({ database, settings, parameters }: Run): string {
  return JSON.stringify([database, [...settings], [...parameters.keys()]]);
}

/** Returns the statements that give a new connection the settings, parameters and database of the request. */
function prologue(run: Run): string {
  const { settings, database } = run;
  const ofSettings = [...settings].map(([name, value]) => `${checkedName(name)} = ${stringLiteral(value)}`);
  const set = assignmentsOf(run, ofSettings);
  return database === '' ? set : `USE ${identifier(database)}; ${set}`;
}

/**
 * True when a comment carries the tag of the run. To set the tag is a statement of its own, which takes 0.2 ms; with
 * parameters there is that statement in any case. The library removes the comments of a statement with parameters.
 * Statements that change something always set the tag, because callers look for the marks of their inserts there.
 */
function isTaggedByComment({ tag, isSelect, parameters }: Run): boolean {
  return isSelect && tag !== '' && parameters.size === 0;
}

/** `tag` has no end of a comment: it is made of marks (`readMark`) and a UUID. */
function comment(tag: string): string {
  return `/* ${tag} */ `;
}

/** Returns the statement that sets the parameters of a run, and its tag unless a comment carries it, after `others`. */
function assignmentsOf(run: Run, others: string[]): string {
  const { parameters, tag } = run;
  const assignments = [...others];
  for (const [name, value] of parameters) assignments.push(`param_${checkedName(name)} = ${stringLiteral(value)}`);
  if (tag !== '' && !isTaggedByComment(run)) assignments.push(`log_comment = ${stringLiteral(tag)}`);
  return assignments.length > 0 ? `SET ${assignments.join(', ')}; ` : '';
}

function checkedName(name: string): string {
  if (/^[A-Za-z_][A-Za-z0-9_]*$/.test(name)) return name;
  throw new Exception(115, 'UNKNOWN_SETTING', `Unknown setting '${name}'.`);
}
