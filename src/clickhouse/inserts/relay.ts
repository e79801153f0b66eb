/**
 * Relays inserts of the workers of one host to a ClickHouse server: small inserts of several workers become one, and
 * the inserts of a statement start no more often than the pace. So parts do not grow with the number of workers. Takes
 * inserts of ClickHouse's HTTP interface whose `log_comment` says that they may be joined, with the credentials of
 * their senders, and gives every sender the answer of the server.
 */
import { once } from 'node:events';
import {
  Agent,
  createServer,
  type IncomingHttpHeaders,
  type IncomingMessage,
  type OutgoingHttpHeaders,
  request as requestHttp,
  type Server,
  type ServerResponse,
} from 'node:http';
import { request as requestHttps, Agent as SecureAgent } from 'node:https';
import { messageOf } from '../../base/errors.ts';
import { type Joined, JoinedInserts, readMark } from './joined-inserts.ts';

interface RelayDeps {
  /** The URL of the ClickHouse server. */
  url: string;
  /** The least milliseconds between two inserts of one statement. */
  everyMs: () => number;
  /** Bytes of all inserts that are held at once; what finds no room is inserted without the relay. */
  heldBytesMax?: number;
}

/** The body of one insert or of several, in the chunks in which it came. */
interface Body {
  chunks: readonly Buffer[];
  bytes: number;
}

interface Answer {
  status: number;
  headers: OutgoingHttpHeaders;
  body: Buffer;
}

/** A unit of a lane is smaller (`ship/lane.ts`). */
const bodyBytesMax = 64 * 1024 * 1024;
/** Rows of more bytes are worth a part of their own: about 200 000 numbers. */
const joinedBytesMax = 8 * 1024 * 1024;
const joinMs = 5;
export const heldBytesMaxDefault = 512 * 1024 * 1024;
const connectionsMax = 1_024;
const answerBytesMax = 1024 * 1024;
const urlBytesMax = 256 * 1024;
/** Shorter than the keep-alive of every ClickHouse, as in `client.ts`. */
const idleSocketMs = 2_500;
/** Headers that belong to one connection, or to one body. */
const ownHeaders = new Set(['connection', 'content-length', 'host', 'keep-alive', 'transfer-encoding', 'expect']);

/** An answer that is no success: it is about the rows of all joined inserts, so each insert is repeated alone. */
class Refused extends Error {
  readonly answer: Answer;

  constructor(answer: Answer) {
    super(`status ${answer.status}`);
    this.answer = answer;
  }
}

export function createRelay(deps: RelayDeps): Server {
  const relay = new Relay(deps);
  const server = createServer(
    { keepAliveTimeout: 2 * idleSocketMs, maxHeaderSize: urlBytesMax, noDelay: true },
    (request, response) => void relay.answer(request, response),
  );
  server.maxConnections = connectionsMax;
  server.on('close', () => relay.close());
  return server;
}

class Relay {
  readonly #url: URL;
  readonly #agent: Agent;
  readonly #request: typeof requestHttp;
  readonly #heldBytesMax: number;
  readonly #inserts: JoinedInserts<Body, Answer>;
  #heldBytes = 0;

  constructor({ url, everyMs, heldBytesMax = heldBytesMaxDefault }: RelayDeps) {
    this.#url = new URL(url);
    const isSecure = this.#url.protocol === 'https:';
    const agentOptions = { keepAlive: true, timeout: idleSocketMs };
    this.#agent = isSecure ? new SecureAgent(agentOptions) : new Agent(agentOptions);
    this.#request = isSecure ? requestHttps : requestHttp;
    this.#heldBytesMax = heldBytesMax;
    this.#inserts = new JoinedInserts({
      ...{ bytesMax: joinedBytesMax, windowMs: joinMs, everyMs },
      join: (all) => ({
        rows: { chunks: all.flatMap(({ chunks }) => chunks), bytes: all.reduce((sum, { bytes }) => sum + bytes, 0) },
      }),
    });
  }

  close(): void {
    this.#agent.destroy();
  }

  async answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const gone = new AbortController();
    response.on('close', () => {
      if (!response.writableFinished) gone.abort();
    });
    response.on('error', () => gone.abort());
    let ownBytes = 0;
    const hold = (bytes: number): void => {
      if (this.#heldBytes + bytes > this.#heldBytesMax) throw new Error('the relay holds too many bytes');
      this.#heldBytes += bytes;
      ownBytes += bytes;
    };
    try {
      const asked = new URL(request.url ?? '/', 'http://relay');
      const { mark, isJoinable } = readMark(asked.searchParams.get('log_comment') ?? '');
      if (request.method !== 'POST' || !isJoinable) return void response.writeHead(404).end();
      const rows = await readBody(request, bodyBytesMax, hold);
      const insert = (joined: Joined<Body>) => this.#send(asked, request.headers, joined);
      const kind = { same: sameOf(asked, request.headers), pace: paceOf(asked) };
      const { status, headers, body } = await this.#inserts.insert(kind, { mark, rows, gone: gone.signal }, insert);
      response.writeHead(status, headers).end(body);
    } catch (error) {
      if (!response.destroyed) answerFailure(response, error);
    } finally {
      this.#heldBytes -= ownBytes;
    }
  }

  /** Sends joined inserts as one, with the settings and credentials that all of them have. */
  async #send(asked: URL, headers: IncomingHttpHeaders, { rows, marks, anyGone, gone }: Joined<Body>): Promise<Answer> {
    if (anyGone.aborted) throw new Error('the client has left');
    const search = new URLSearchParams(asked.search);
    search.set('log_comment', marks.join(' '));
    const sent = this.#request(new URL(`?${search}`, this.#url), {
      ...{ agent: this.#agent, method: 'POST', signal: gone },
      headers: { ...withoutOwn(headers), 'content-length': rows.bytes },
    });
    // The wait for the answer reports a failure; one that follows the answer has no other listener.
    sent.on('error', () => {});
    for (const chunk of rows.chunks) sent.write(chunk);
    sent.end();
    const [response] = (await once(sent, 'response')) as [IncomingMessage];
    const body = await readBody(response, answerBytesMax);
    const { statusCode: status = 502, headers: given } = response;
    const answer = { status, headers: withoutOwn(given), body: Buffer.concat(body.chunks) };
    // A successful insert has no answer: a body with status 200 is the exception of an insert that failed later.
    if (status !== 200 || answer.body.length > 0) throw new Refused(answer);
    return answer;
  }
}

function answerFailure(response: ServerResponse, error: unknown): void {
  if (error instanceof Refused) {
    const { status, headers, body } = error.answer;
    response.writeHead(status, headers).end(body);
    return;
  }
  // An answer without a code of ClickHouse: the worker inserts without the relay then (`client.ts`).
  response.writeHead(502, { connection: 'close' }).end(`The relay has no answer of the server: ${messageOf(error)}\n`);
}

/** Equal for inserts with the same statement, settings, parameters and sender. */
function sameOf(asked: URL, { authorization, ...headers }: IncomingHttpHeaders): string {
  const search = new URLSearchParams(asked.search);
  for (const name of ['log_comment', 'query_id', 'session_id']) search.delete(name);
  const sender = [
    authorization,
    headers['x-clickhouse-user'],
    headers['x-clickhouse-key'],
    headers['content-encoding'],
  ];
  return JSON.stringify([search.toString(), ...sender]);
}

/** Late rows, whose inserts have a priority, do not hold up live ones. */
function paceOf({ searchParams }: URL): string {
  return `${searchParams.get('priority') ?? ''} ${searchParams.get('query')}`;
}

function withoutOwn(headers: IncomingHttpHeaders): OutgoingHttpHeaders {
  return Object.fromEntries(Object.entries(headers).filter(([name]) => !ownHeaders.has(name)));
}

async function readBody(message: IncomingMessage, bytesMax: number, hold?: (bytes: number) => void): Promise<Body> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of message) {
    bytes += (chunk as Buffer).length;
    if (bytes > bytesMax) throw new Error(`a body of more than ${bytesMax} bytes`);
    hold?.((chunk as Buffer).length);
    chunks.push(chunk as Buffer);
  }
  return { chunks, bytes };
}
