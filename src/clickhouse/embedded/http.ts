/**
 * Serves ClickHouse's HTTP interface in front of the engine: one request, one statement, one answer. Every refusal is a
 * ClickHouse exception with its code. When the client disconnects, its statement is killed.
 */
import { readFileSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import { gzipSync } from 'node:zlib';
import { messageOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { JoinedInserts, readMark } from '../inserts/joined-inserts.ts';
import { type BodyFile, type BodyFiles, readStatementBody } from './body.ts';
import type { Engine, Result } from './engine.ts';
import { Exception, httpStatusOf } from './exception.ts';
import { niceOf, slotOf } from './priority.ts';
import { ownerOfComment } from './read-owner.ts';
import { type Asked, authenticate, readRequest } from './request.ts';
import { type EmbeddedServerSettings, serverLimits } from './settings.ts';
import type { Slots } from './slots.ts';
import { readStatement, type Statement } from './statement.ts';
import { type WriteCheck, writesTables } from './write-check.ts';

interface HttpDeps {
  engine: Engine;
  slots: Slots;
  files: BodyFiles;
  settings: EmbeddedServerSettings;
  log: Log;
  writeCheck: WriteCheck;
}

/** What every request uses. */
interface Collaborators extends HttpDeps {
  inserts: JoinedInserts<BodyFile, Result>;
}

const killAgainMs = 100;
/** Milliseconds in which inserts join the first one: workers begin their inserts together while senders wait. */
const joinMs = 5;
const joinedBytesMax = 256 * 1024;

interface Ready {
  statement: Statement;
  sql: string;
  inserted: Inserted | undefined;
}

interface Inserted {
  rows: BodyFile;
  /** Returns the statement with its rows read from a file. */
  sqlOf(path: string): string;
}

export function createHttpServer(deps: HttpDeps): Server {
  const inserts = new JoinedInserts<BodyFile, Result>({
    bytesMax: joinedBytesMax,
    windowMs: joinMs,
    join: joinFiles(deps.files),
  });
  const all = { ...deps, inserts };
  const server = createServer(
    { keepAliveTimeout: serverLimits.keepAliveMs, maxHeaderSize: serverLimits.urlBytesMax, noDelay: true },
    (request, response) => void answer(all, request, response),
  );
  server.maxConnections = serverLimits.connectionsMax;
  return server;
}

async function answer(deps: Collaborators, request: IncomingMessage, response: ServerResponse): Promise<void> {
  const gone = new AbortController();
  response.on('close', () => {
    if (!response.writableFinished) gone.abort();
  });
  response.on('error', () => gone.abort());
  try {
    const url = new URL(request.url ?? '/', 'http://localhost');
    if (url.pathname === '/ping' || url.pathname === '/replicas_status') return sendOk(response);
    authenticate(request, url, deps.settings.user, deps.settings.password);
    if (url.pathname !== '/') return sendNotFound(response, url.pathname);
    if (request.method !== 'GET' && request.method !== 'POST') {
      throw new Exception(48, 'NOT_IMPLEMENTED', `Method ${request.method} is not supported: use GET or POST.`);
    }
    if (request.method === 'GET' && !url.searchParams.has('query')) return sendOk(response);
    const asked = readRequest(request, url);
    // A GET changes nothing, as in ClickHouse.
    if (request.method === 'GET' && !asked.settings.has('readonly')) asked.settings.set('readonly', '2');
    response.setHeader('X-ClickHouse-Query-Id', headerText(asked.queryId));
    await execute(deps, asked, request, response, gone.signal);
  } catch (error) {
    sendException(deps.log, request, response, error);
  }
}

async function execute(
  deps: Collaborators,
  asked: Asked,
  request: IncomingMessage,
  response: ServerResponse,
  gone: AbortSignal,
): Promise<void> {
  const { sql, statement, inserted } = await receive(deps.files, asked, request);
  const { verb } = statement;
  const { mark, isJoinable } = readMark(asked.logComment);
  try {
    let result: Result;
    if (inserted && isJoinable) {
      const { rows, sqlOf } = inserted;
      const same = JSON.stringify([sqlOf(''), asked.database, [...asked.settings], [...asked.parameters]]);
      const kind = { same, pace: same };
      result = await deps.inserts.insert(kind, { mark, rows, gone }, ({ rows: all, ...joined }) =>
        run(deps, asked, { verb, sql: sqlOf(all.path), isAwaited: true, ...joined }),
      );
    } else {
      result = await run(deps, asked, { verb, sql, isAwaited: false, marks: [mark], anyGone: gone, gone });
    }
    sendResult(response, asked, statement, result);
  } finally {
    inserted?.rows.remove();
  }
}

function joinFiles(files: BodyFiles) {
  return (all: readonly BodyFile[]) => {
    const rows = files.create();
    try {
      for (const { path } of all) rows.append(readFileSync(path));
    } catch (error) {
      rows.remove();
      throw error;
    }
    rows.end();
    return { rows, remove: () => rows.remove() };
  };
}

/** A statement, and the clients that wait for its result. */
interface Execution {
  sql: string;
  verb: string;
  /** True: senders of telemetry wait for this insert. */
  isAwaited: boolean;
  /** The marks of the clients, by which they find their statements. */
  marks: readonly string[];
  /** The statement does not begin after the first of its clients has left. */
  anyGone: AbortSignal;
  /** The statement is killed when all of its clients have left. */
  gone: AbortSignal;
}

async function run(deps: Collaborators, asked: Asked, execution: Execution): Promise<Result> {
  const { sql, verb, isAwaited, marks, anyGone, gone } = execution;
  const { engine, slots, log, writeCheck } = deps;
  // The engine assigns the ids of queries itself, so this unique mark identifies the query.
  const tag = `${marks.join(' ')} ${crypto.randomUUID()}`;
  let settled = false;
  const killUntilSettled = async (): Promise<void> => {
    // A statement that has just begun is not yet in the list of processes, so the kill is repeated until it has ended.
    while (!settled) {
      await engine.kill(tag).catch((error) => log.warn('clickhouse_kill_failed', { reason: messageOf(error) }));
      await new Promise((resolve) => setTimeout(resolve, killAgainMs));
    }
  };
  const onGone = (): void => void killUntilSettled();
  if (anyGone.aborted) throw clientLeft();
  const giveBack = await slots.take(slotOf(verb, asked.settings), anyGone, ownerOfComment(asked.logComment));
  try {
    if (anyGone.aborted) throw clientLeft();
    gone.addEventListener('abort', onGone);
    const { database, defaultFormat, parameters } = asked;
    const threadsNice = String(niceOf(verb, asked.settings, deps.settings.nice, isAwaited));
    const settings = new Map([['os_threads_nice_value_query', threadsNice], ...asked.settings]);
    const result = await engine.run({
      ...{ sql, defaultFormat, database, settings, parameters, tag },
      isSelect: verb === 'SELECT',
    });
    if (writesTables(verb) && !(await writeCheck.isIntact())) {
      throw new Exception(243, 'NOT_ENOUGH_SPACE', 'A file could not be written, so nothing of the statement counts.');
    }
    return result;
  } finally {
    settled = true;
    gone.removeEventListener('abort', onGone);
    giveBack();
  }
}

function clientLeft(): Exception {
  return new Exception(394, 'QUERY_WAS_CANCELLED', 'The client left before the statement began.');
}

/** Receives the statement, which may be in the URL, in the body, or begin in the URL and end in the body. */
async function receive(files: BodyFiles, asked: Asked, request: IncomingMessage): Promise<Ready> {
  if (asked.query !== '') {
    const statement = readStatement(asked.query);
    const { rows } = statement;
    if (rows && request.method === 'POST') {
      const inUrl = asked.query.slice(rows.offset).trim();
      const file = await files.receive(request, Buffer.from(inUrl));
      return { sql: rows.fromFile(file.path), statement, inserted: { rows: file, sqlOf: rows.fromFile } };
    }
  }
  const body = await readStatementBody(request, serverLimits.statementBytesMax);
  // One character per byte: rows after the statement may be binary, and offsets stay the same.
  const head = asked.query === '' ? '' : `${asked.query}\n`;
  const bytes = head === '' ? body : Buffer.concat([Buffer.from(head), body]);
  const text = bytes.toString('latin1');
  if (text.trim() === '') throw new Exception(62, 'SYNTAX_ERROR', 'Syntax error: Empty query.');
  const statement = readStatement(text);
  if (!statement.rows) return { sql: bytes.toString('utf8'), statement, inserted: undefined };
  const file = files.create();
  try {
    file.append(bytes.subarray(statement.rows.offset));
    file.end();
  } catch (error) {
    file.remove();
    throw error;
  }
  const { fromFile } = statement.rows;
  const sqlOf = (path: string): string => Buffer.from(fromFile(path), 'latin1').toString('utf8');
  return { sql: sqlOf(file.path), statement, inserted: { rows: file, sqlOf } };
}

function sendResult(response: ServerResponse, asked: Asked, statement: Statement, result: Result): void {
  if (response.destroyed) return;
  const format = statement.resultFormat ?? asked.defaultFormat;
  const { rowsRead, bytesRead, elapsedSeconds } = result;
  response.setHeader('X-ClickHouse-Format', headerText(format));
  response.setHeader(
    'X-ClickHouse-Summary',
    JSON.stringify({
      read_rows: String(rowsRead),
      read_bytes: String(bytesRead),
      written_rows: String(statement.rows ? rowsRead : 0),
      written_bytes: String(statement.rows ? bytesRead : 0),
      total_rows_to_read: '0',
      result_rows: '0',
      result_bytes: String(result.body.length),
      elapsed_ns: String(Math.round(elapsedSeconds * 1e9)),
    }),
  );
  response.setHeader('Content-Type', contentType(format));
  let body = result.body;
  if (asked.compressResult && body.length > 1024) {
    body = gzipSync(body, { level: 1 });
    response.setHeader('Content-Encoding', 'gzip');
  }
  response.setHeader('Content-Length', body.length);
  response.end(body);
}

function contentType(format: string): string {
  if (/^(JSON|JSONCompact|JSONStrings|JSONColumns.*|JSONCompactColumns)$/.test(format)) {
    return 'application/json; charset=UTF-8';
  }
  if (/EachRow/.test(format)) return 'application/x-ndjson; charset=UTF-8';
  if (/^CSV/.test(format)) return 'text/csv; charset=UTF-8';
  if (/^(TSV|TabSeparated)/.test(format)) return 'text/tab-separated-values; charset=UTF-8';
  if (/^(Native|RowBinary|Parquet|Arrow|ORC|Avro)/.test(format)) return 'application/octet-stream';
  return 'text/plain; charset=UTF-8';
}

function sendOk(response: ServerResponse): void {
  response.writeHead(200, { 'Content-Type': 'text/html; charset=UTF-8', 'Content-Length': 4 }).end('Ok.\n');
}

function sendNotFound(response: ServerResponse, path: string): void {
  response.writeHead(404, { 'Content-Type': 'text/plain' }).end(`There is no handle ${path}\n`);
}

function sendException(log: Log, request: IncomingMessage, response: ServerResponse, error: unknown): void {
  const exception = error instanceof Exception ? error : new Exception(1001, 'STD_EXCEPTION', messageOf(error));
  if (!(error instanceof Exception)) log.error('clickhouse_request_failed', { reason: messageOf(error) });
  if (response.destroyed || response.headersSent) return void response.destroy();
  const status = httpStatusOf(exception.code);
  response.setHeader('X-ClickHouse-Exception-Code', exception.code);
  response.setHeader('Content-Type', 'text/plain; charset=UTF-8');
  if (status === 401) response.setHeader('WWW-Authenticate', 'Basic realm="ClickHouse"');
  // No other request can follow an unread body on this socket.
  if (!request.complete) response.setHeader('Connection', 'close');
  response.writeHead(status).end(`${exception.message}\n`);
}

function headerText(text: string): string {
  return text.replace(/[^\x20-\x7e]/g, '_').slice(0, 256);
}
