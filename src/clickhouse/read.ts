/**
 * Rows of a query, asked over ClickHouse's HTTP interface on kept-alive sockets. By hand, because it is the way of every
 * read that somebody waits for: of 8 ms for the latest values of a device the client spent 2.4 (config of each call,
 * a stream of parsed rows); this spends none. Failures are those of the client: `toClickHouseError` sorts both.
 */
import { Agent, type ClientRequest, type IncomingMessage, request } from 'node:http';
import { Agent as TlsAgent, request as tlsRequest } from 'node:https';
import { type ClickHouseSettings, parseError } from '@clickhouse/client';
import { ClickHouseError } from './clickhouse-error.ts';

/** Bound to a statement by name; an array becomes an array of texts or numbers. */
export type Parameters = Record<string, string | number | bigint | string[] | number[]>;

export interface ReaderOptions {
  url: string;
  user: string;
  password: string;
  database: string;
  socketsMax: number;
  idleSocketMs: number;
}

export class Reader {
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

  async rows<T>(
    sql: string,
    parameters: Parameters,
    settings: ClickHouseSettings,
    abortSignal: AbortSignal,
  ): Promise<T[]> {
    const { status, text } = await this.#ask(sql, this.#query(parameters, settings), abortSignal);
    if (status !== 200) throw parseError(text);
    return parseRows<T>(text);
  }

  close(): void {
    this.#agent.destroy();
  }

  get #isTls(): boolean {
    return this.#base.protocol === 'https:';
  }

  #query(parameters: Parameters, settings: ClickHouseSettings): string {
    const query = new URLSearchParams({
      database: this.#database,
      default_format: 'JSONEachRow',
      // The status of an answer tells whether the whole of it is good.
      wait_end_of_query: '1',
    });
    for (const [name, value] of Object.entries(settings)) query.set(name, String(value));
    for (const [name, value] of Object.entries(parameters)) query.set(`param_${name}`, parameterText(value));
    return query.toString();
  }

  #ask(sql: string, query: string, signal: AbortSignal): Promise<{ status: number; text: string }> {
    const body = Buffer.from(sql);
    const { hostname, port, pathname } = this.#base;
    const options = {
      agent: this.#agent,
      host: hostname.replace(/^\[|\]$/g, ''),
      port,
      path: `${pathname}?${query}`,
      method: 'POST',
      headers: { authorization: this.#authorization, 'content-length': body.length },
      signal,
    };
    return new Promise((resolve, reject) => {
      const receive = (answer: IncomingMessage): void => {
        const pieces: Buffer[] = [];
        answer.on('data', (piece: Buffer) => pieces.push(piece));
        answer.on('error', reject);
        answer.on('end', () =>
          resolve({ status: answer.statusCode ?? 0, text: Buffer.concat(pieces).toString('utf8') }),
        );
      };
      const asked: ClientRequest = this.#isTls ? tlsRequest(options, receive) : request(options, receive);
      asked.on('error', reject);
      asked.end(body);
    });
  }
}

function parseRows<T>(text: string): T[] {
  try {
    return text
      .split('\n')
      .filter((line) => line !== '')
      .map((line) => JSON.parse(line) as T);
  } catch {
    throw new ClickHouseError(0, 'transient', 'The answer of ClickHouse broke off.');
  }
}

/** As the interface carries values: escaped as in TabSeparated. */
export function parameterText(value: Parameters[string]): string {
  if (!Array.isArray(value)) return typeof value === 'string' ? escaped(value) : String(value);
  return `[${value.map((item) => (typeof item === 'string' ? `'${escaped(item).replaceAll("'", "\\'")}'` : item)).join(',')}]`;
}

const escapes: Record<string, string> = { '\\': '\\\\', '\t': '\\t', '\n': '\\n', '\r': '\\r', '\0': '\\0' };

function escaped(text: string): string {
  return text.replace(/[\\\t\n\r\0]/g, (character) => escapes[character]!);
}
