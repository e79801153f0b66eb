/**
 * Reads the rows of a query over ClickHouse's HTTP interface on kept-alive sockets. The official client is not used,
 * because callers wait for these reads: of 8 ms for the latest values of a device the client spent 2.4 ms
 * (configuration of each call, a stream of parsed rows). Rows are parsed piece by piece as they come, an answer that is
 * too long is cut off, and every failure rejects the promise of its read. `toClickHouseError` sorts the failures.
 */
import { Agent, type ClientRequest, type IncomingMessage, request } from 'node:http';
import { Agent as TlsAgent, request as tlsRequest } from 'node:https';
import { type ClickHouseSettings, parseError } from '@clickhouse/client';
import type { Deadline } from '../base/deadline.ts';
import { systemScheduler } from '../base/scheduler.ts';
import { ClickHouseError } from './errors/clickhouse-error.ts';
import { type BinaryRow, BinaryRows } from './row-binary.ts';
import { escaped, stringLiteral } from './sql/literals.ts';

/** Values that are bound to a statement by name; an array becomes an array of strings or numbers. */
export type Parameters = Record<string, string | number | bigint | string[] | number[]>;

/** One statement that reads, and the cap of its answer. */
interface Query {
  sql: string;
  parameters: Parameters;
  settings: ClickHouseSettings;
  bytesMax: number;
}

/** Receives the pieces of an answer. Both functions throw what ends the read. */
interface Receiver {
  add(piece: Buffer): void;
  end(): void;
}

interface ReaderOptions {
  url: string;
  user: string;
  password: string;
  database: string;
  socketsMax: number;
  idleSocketMs: number;
}

/** A longer error message is truncated. */
const errorBytesMax = 64 * 1024;
/** Bytes of an answer that are parsed in one turn of the loop. */
const turnBytes = 128 * 1024;

export class ClickHouseReader {
  readonly #base: URL;
  readonly #authorization: string;
  readonly #database: string;
  readonly #agent: Agent;

  constructor({ url, user, password, database, socketsMax, idleSocketMs }: ReaderOptions) {
    this.#base = new URL(url);
    this.#authorization = `Basic ${Buffer.from(`${user}:${password}`).toString('base64')}`;
    this.#database = database;
    const agent = { keepAlive: true, maxSockets: socketsMax, timeout: idleSocketMs };
    this.#agent = this.#isTls ? new TlsAgent(agent) : new Agent(agent);
  }

  /** Calls `take` for each row; an error of `take` ends the read and is thrown here. */
  async each<T>(query: Query, deadline: Deadline, take: (row: T) => void): Promise<void> {
    await this.#read(query, 'JSONEachRow', deadline, new Lines((line) => take(parseRow<T>(line))));
  }

  /** Like `each`, in RowBinary. `take` decodes a row, as the one of `BinaryRows`. */
  async eachBinary(query: Query, deadline: Deadline, take: (row: BinaryRow) => void): Promise<void> {
    const rows = new BinaryRows(take);
    const add = (piece: Buffer) => rows.add(piece);
    const end = () => {
      if (!rows.isWhole) throw brokenOff();
    };
    await this.#read(query, 'RowBinary', deadline, { add, end });
  }

  async #read(query: Query, format: string, deadline: Deadline, rows: Receiver): Promise<void> {
    const body = Buffer.from(query.sql);
    const { hostname, port, pathname } = this.#base;
    const options = {
      agent: this.#agent,
      host: hostname.replace(/^\[|\]$/g, ''),
      port,
      path: `${pathname}?${this.#query(query, format)}`,
      method: 'POST',
      headers: { authorization: this.#authorization, 'content-length': body.length },
    };
    await new Promise<void>((resolve, reject) => {
      const receive = (answer: IncomingMessage): void => {
        const whole = answer.statusCode === 200 ? readRows(answer, query.bytesMax, rows) : readError(answer);
        whole.then(resolve, reject);
      };
      const asked: ClientRequest = this.#isTls ? tlsRequest(options, receive) : request(options, receive);
      asked.on('error', reject);
      deadline.onAbort((reason) => {
        // A destroyed request has its error only when a socket becomes free for it.
        reject(reason);
        asked.destroy(reason);
      });
      asked.end(body);
    });
  }

  close(): void {
    this.#agent.destroy();
  }

  get #isTls(): boolean {
    return this.#base.protocol === 'https:';
  }

  #query({ parameters, settings }: Query, format: string): string {
    const query = new URLSearchParams({
      database: this.#database,
      default_format: format,
      // The status of an answer says whether the whole answer is valid.
      wait_end_of_query: '1',
    });
    for (const [name, value] of Object.entries(settings)) query.set(name, String(value));
    for (const [name, value] of Object.entries(parameters)) query.set(`param_${name}`, parameterText(value));
    return query.toString();
  }
}

function readRows(answer: IncomingMessage, bytesMax: number, rows: Receiver): Promise<void> {
  let bytes = 0;
  let turnEnd = turnBytes;
  return eachPiece(
    answer,
    (piece) => {
      bytes += piece.length;
      if (bytes > bytesMax) throw answerTooLong(bytesMax);
      rows.add(piece);
      if (bytes < turnEnd) return;
      // Lets the event loop run before the rest of a long answer is parsed.
      turnEnd = bytes + turnBytes;
      answer.pause();
      systemScheduler.soon(() => answer.resume());
    },
    () => rows.end(),
  );
}

function readError(answer: IncomingMessage): Promise<never> {
  const pieces: Buffer[] = [];
  let bytes = 0;
  return eachPiece(
    answer,
    (piece) => {
      if (bytes < errorBytesMax) pieces.push(piece);
      bytes += piece.length;
    },
    () => {
      throw parseError(Buffer.concat(pieces).toString('utf8', 0, errorBytesMax));
    },
  ) as Promise<never>;
}

/**
 * Adds listeners to an answer. Rejects when a listener throws, and ends the answer; otherwise such an error would end
 * the process.
 */
function eachPiece(answer: IncomingMessage, take: (piece: Buffer) => void, end: () => void): Promise<void> {
  return new Promise((resolve, reject) => {
    const fail = (error: unknown): void => {
      reject(error);
      answer.destroy();
    };
    answer.on('error', reject);
    answer.on('data', (piece: Buffer) => {
      if (answer.destroyed) return;
      try {
        take(piece);
      } catch (error) {
        fail(error);
      }
    });
    answer.on('end', () => {
      try {
        end();
        resolve();
      } catch (error) {
        fail(error);
      }
    });
  });
}

/** Cuts pieces into lines, also inside a character; a line is one string only once it is whole. */
class Lines {
  readonly #take: (line: string) => void;
  #rest: Buffer[] = [];

  constructor(take: (line: string) => void) {
    this.#take = take;
  }

  add(piece: Buffer): void {
    const last = piece.lastIndexOf(lineEnd);
    if (last < 0) {
      this.#rest.push(piece);
      return;
    }
    this.#rest.push(piece.subarray(0, last));
    const text = Buffer.concat(this.#rest).toString('utf8');
    this.#rest = last + 1 < piece.length ? [piece.subarray(last + 1)] : [];
    for (const line of text.split('\n')) if (line !== '') this.#take(line);
  }

  end(): void {
    if (this.#rest.length > 0) this.#take(Buffer.concat(this.#rest).toString('utf8'));
  }
}

const lineEnd = 0x0a;

function parseRow<T>(line: string): T {
  try {
    return JSON.parse(line) as T;
  } catch {
    throw brokenOff();
  }
}

function brokenOff(): ClickHouseError {
  return new ClickHouseError(0, 'transient', 'The answer of ClickHouse broke off.');
}

function answerTooLong(bytesMax: number): ClickHouseError {
  const message = `The answer of ClickHouse has more than ${bytesMax} bytes.`;
  return new ClickHouseError(0, 'size', message, { answerTooLarge: true });
}

/** Escapes a value as in TabSeparated, the form of parameters in the HTTP interface. */
function parameterText(value: Parameters[string]): string {
  if (!Array.isArray(value)) return typeof value === 'string' ? escaped(value) : String(value);
  return `[${value.map((item) => (typeof item === 'string' ? stringLiteral(item) : item)).join(',')}]`;
}
