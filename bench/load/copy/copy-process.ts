/**
 * One generator process of the load on PostgreSQL: sessions that write records by COPY, one COPY in flight on each. A
 * COPY is a transaction: its answer means that the records are committed.
 */
import { type Course, serveOrder } from '../generator-process.ts';
import { MovingRecord, wanderingDigits } from '../moving-record.ts';
import {
  accepted,
  type Conversation,
  InTurn,
  Loop,
  type LoopOrder,
  type Reader,
  type Requests,
} from '../one-in-flight.ts';
import type { ProcessResult } from '../processes.ts';

export interface CopyOrder extends LoopOrder {
  user: string;
  database: string;
  tokens: string[];
  sessions: number;
  /** Devices in each COPY, a record of each. */
  messageDevices: number;
  firstTs: number;
  stepMs: number;
}

const copySql = 'COPY telemetry (device, ts, temperature, humidity, pressure, battery) FROM STDIN';

class CopyRequest implements Requests {
  readonly #bytes: Buffer;
  readonly #records: MovingRecord[];

  constructor(tokens: string[], { firstTs, stepMs }: CopyOrder, seed: number) {
    const rows = tokens.map((token) => `${token}\t${firstTs - stepMs}\t21.50\t48.20\t1013.25\t87\n`);
    // Sent together: the server reads the data after it has begun the COPY.
    const head = Buffer.concat([message('Q', `${copySql}\0`), message('d', rows.join(''))]);
    this.#bytes = Buffer.concat([head, message('c', '')]);
    let at = head.length - rows.join('').length;
    this.#records = rows.map((row, n) => {
      const tsAt = at + row.indexOf('\t') + 1;
      at += row.length;
      return new MovingRecord(this.#bytes, tsAt, stepMs, seed + 7919 * n, wanderingDigits(this.#bytes, tsAt, tsAt, at));
    });
  }

  next(): Buffer {
    for (const record of this.#records) record.move();
    return this.#bytes;
  }
}

const headBytes = 5;
const readyForQuery = 0x5a;
const errorResponse = 0x45;

/** An answer ends where the server is ready for the next query. */
class AnswerReader implements Reader {
  #rest = Buffer.alloc(0);
  #fault = '';

  read(buffer: Buffer, length: number): number | string {
    const bytes = Buffer.concat([this.#rest, buffer.subarray(0, length)]);
    let at = 0;
    let isReady = false;
    while (bytes.length >= at + headBytes) {
      const end = at + 1 + bytes.readInt32BE(at + 1);
      if (bytes.length < end) break;
      if (bytes[at] === errorResponse) this.#fault = codeOf(bytes.toString('latin1', at + headBytes, end));
      if (bytes[at] === readyForQuery) isReady = true;
      at = end;
    }
    this.#rest = bytes.subarray(at);
    if (!isReady) return 0;
    const fault = this.#fault;
    this.#fault = '';
    return fault === '' ? accepted : fault;
  }

  forget(): void {
    this.#rest = Buffer.alloc(0);
    this.#fault = '';
  }
}

/** Returns the code of an error, as in `SQLSTATE 23505`. */
function codeOf(fields: string): string {
  const code = fields.split('\0').find((field) => field.startsWith('C')) ?? 'C?';
  return `SQLSTATE ${code.slice(1)}`;
}

function message(type: string, body: string): Buffer {
  const length = Buffer.alloc(4);
  length.writeInt32BE(4 + Buffer.byteLength(body));
  return Buffer.concat([Buffer.from(type), length, Buffer.from(body)]);
}

/** The server trusts the addresses of this machine. */
function startup({ user, database }: CopyOrder): Buffer {
  const version = '\0\x03\0\0';
  return message('', `${version}user\0${user}\0database\0${database}\0\0`);
}

function run(order: CopyOrder, course: Course): Promise<ProcessResult> {
  const { tokens, messageDevices, sessions } = order;
  const blocks = Array.from({ length: Math.ceil(tokens.length / messageDevices) }, (_, n) => {
    const block = tokens.slice(n * messageDevices, (n + 1) * messageDevices);
    return new CopyRequest(block, order, n * 2_654_435_761);
  });
  const count = Math.min(sessions, blocks.length);
  const conversations = Array.from({ length: count }, (_, n): Conversation => {
    const requests = new InTurn(blocks.filter((__, at) => at % count === n));
    return { greeting: startup(order), requests, reader: new AnswerReader() };
  });
  return new Loop(order, conversations).run(course);
}

serveOrder(run);
