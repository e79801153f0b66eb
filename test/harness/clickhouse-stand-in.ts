/**
 * A ClickHouse for faults that a real one cannot be made to show: it takes inserts of blocks, keeps their rows as
 * `ReplacingMergeTree` would, and answers as the test says.
 */

import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { dayMs } from '../../src/base/durations.ts';
import { type BlockRow, readBlock } from '../../src/telemetry/read-block.ts';

export interface Insert {
  table: 'telemetry' | 'latest';
  rows: BlockRow[];
  /** performance.now() of its arrival. */
  at: number;
  body: Buffer;
  /** Whether other inserts go first. */
  isPatient: boolean;
}

/**
 * 200, a code of ClickHouse, no answer at all, the death of the server for some milliseconds, no answer and rows
 * that are stored some time later, 200 with a body and no row stored, or 200 after some time.
 */
type Answer = 'ok' | number | 'none' | { deadMs: number } | { lateMs: number } | { body: string } | { okMs: number };

export class StandIn {
  readonly inserts: Insert[] = [];
  pings = 0;
  /** Inserts that are stored late and have not ended. */
  running = 0;
  deaths = 0;
  behave: (insert: Insert) => Answer = () => 'ok';
  readonly #stored = { telemetry: new Map<string, BlockRow>(), latest: new Map<string, BlockRow>() };
  #server!: Server;
  #port = 0;
  #closed = false;

  static async start(): Promise<StandIn> {
    const self = new StandIn();
    await self.#listen();
    return self;
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}`;
  }

  /** Rows that were accepted, one for each (device, key, ts); the row of the control is none of them. */
  stored(table: Insert['table'] = 'telemetry'): BlockRow[] {
    return [...this.#stored[table].values()].filter(({ device }) => device !== 0);
  }

  async stop(): Promise<void> {
    this.#closed = true;
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  /** Breaks all connections. */
  cut(): void {
    this.#server.closeAllConnections();
  }

  async #listen(): Promise<void> {
    this.#server = createServer((request, response) => void this.#answer(request, response));
    await new Promise<void>((resolve) => this.#server.listen(this.#port, '127.0.0.1', resolve));
    this.#port = (this.#server.address() as AddressInfo).port;
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const chunks: Buffer[] = [];
    for await (const chunk of request) chunks.push(chunk as Buffer);
    const url = new URL(request.url!, 'http://stand-in');
    if (url.pathname === '/ping') {
      this.pings += 1;
      return void response.end('Ok.\n');
    }
    const sql = url.searchParams.get('query') ?? Buffer.concat(chunks).toString();
    if (sql.includes('system.processes')) return void response.end(`{"count":"${this.running}"}\n`);
    if (sql.startsWith('KILL QUERY')) return void response.end('');
    const from = Number(url.searchParams.get('param_fromTs') ?? Number.NEGATIVE_INFINITY);
    const to = Number(url.searchParams.get('param_toTs') ?? Number.POSITIVE_INFINITY);
    const body = Buffer.concat(chunks);
    const rows = rowsOf(body).filter(({ ts }) => ts >= from && ts < to);
    const table = /INSERT INTO (telemetry|latest)/.exec(sql)?.[1] as Insert['table'];
    const isPatient = url.searchParams.get('priority') === '1';
    const insert: Insert = { table, rows, at: performance.now(), body, isPatient };
    this.inserts.push(insert);
    const answer = this.behave(insert);
    if (answer === 'none') return;
    if (typeof answer === 'object' && 'okMs' in answer) {
      await new Promise((resolve) => setTimeout(resolve, answer.okMs));
      this.#keep(insert);
      return void response.end('');
    }
    if (answer === 'ok') {
      this.#keep(insert);
      return void response.end('');
    }
    if (typeof answer === 'object' && 'lateMs' in answer) return this.#keepLate(insert, answer.lateMs);
    if (typeof answer === 'object' && 'body' in answer) return void response.end(answer.body);
    if (typeof answer === 'object') return this.#die(answer.deadMs);
    response.writeHead(500, { 'X-ClickHouse-Exception-Code': answer });
    response.end(`Code: ${answer}. DB::Exception: The test says so. (SOME_NAME)\n`);
  }

  async #keepLate(insert: Insert, lateMs: number): Promise<void> {
    this.running += 1;
    await new Promise((resolve) => setTimeout(resolve, lateMs));
    this.running -= 1;
    this.#keep(insert);
  }

  #keep({ table, rows }: Insert): void {
    for (const row of rows) {
      const name = table === 'telemetry' ? `${row.device} ${row.key} ${row.ts}` : `${row.device} ${row.key}`;
      const known = this.#stored[table].get(name);
      const newer = !known || row.ts > known.ts || (row.ts === known.ts && row.version >= known.version);
      if (newer) this.#stored[table].set(name, row);
    }
  }

  /** Acts as a killed process: every socket breaks, connections are refused, then it starts again. */
  async #die(deadMs: number): Promise<void> {
    this.deaths += 1;
    const server = this.#server;
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
    await new Promise((resolve) => setTimeout(resolve, deadMs));
    if (!this.#closed) await this.#listen();
  }
}

/** Returns no rows for bytes that are no blocks. */
function rowsOf(body: Buffer): BlockRow[] {
  try {
    return readBlock(body);
  } catch {
    return [];
  }
}

export function daysOf(rows: readonly BlockRow[]): number {
  return new Set(rows.map(({ ts }) => Math.floor(ts / dayMs))).size;
}
