/**
 * Devices that keep sending while the engine dies around them: one request in flight on each socket, a new socket when
 * one breaks. Only a whole answer 200 makes a record acknowledged.
 */
import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { bodyOf, Fate, type Ledger, type RecordId } from './ledger.ts';

const reconnectMs = 20;
const answerMsMax = 10_000;

export interface CrashLoadOptions {
  port: number;
  tokens: string[];
  sockets: number;
  /** Requests/s offered over all sockets. */
  rate: number;
  ledger: Ledger;
}

export class CrashLoad {
  readonly #options: CrashLoadOptions;
  readonly #loops: Promise<void>[];
  #stopping = false;
  /** Answers by status; 0 = the connection broke first. */
  readonly answers: Record<number, number> = {};

  constructor(options: CrashLoadOptions) {
    this.#options = options;
    this.#loops = Array.from({ length: options.sockets }, (_, n) => this.#loop(n));
  }

  async stop(): Promise<void> {
    this.#stopping = true;
    await Promise.all(this.#loops);
  }

  async #loop(n: number): Promise<void> {
    const { sockets, tokens, rate, ledger, port } = this.#options;
    const pauseMs = (sockets * 1000) / rate;
    const connection = new Connection(port);
    let device = n % tokens.length;
    while (!this.#stopping) {
      const startedAt = performance.now();
      if (!(await connection.open())) {
        await sleep(reconnectMs);
        continue;
      }
      device = (device + sockets) % tokens.length;
      const record = ledger.take(device);
      if (!record) break;
      await this.#send(connection, tokens[device]!, record);
      await sleep(Math.max(0, pauseMs - (performance.now() - startedAt)));
    }
    connection.close();
  }

  async #send(connection: Connection, token: string, record: RecordId): Promise<void> {
    const { ledger } = this.#options;
    const body = bodyOf(ledger.firstTs, record);
    const head = `POST /api/v1/${token}/telemetry HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${body.length}\r\n\r\n`;
    const status = await connection.ask(head + body);
    this.answers[status] = (this.answers[status] ?? 0) + 1;
    if (status === 200) ledger.settle(record, Fate.acknowledged);
    else if (status !== 0) ledger.settle(record, Fate.refused);
  }
}

/** A keep-alive connection that may break at any moment. */
class Connection {
  readonly #port: number;
  #socket: Socket | undefined;
  #received = '';
  #answer: (status: number) => void = () => {};

  constructor(port: number) {
    this.#port = port;
  }

  /** True when there is a connection now. */
  open(): Promise<boolean> {
    if (this.#socket) return Promise.resolve(true);
    return new Promise((resolve) => {
      const socket = connect({ port: this.#port, host: '127.0.0.1', noDelay: true });
      socket.setEncoding('latin1');
      socket.on('connect', () => {
        this.#socket = socket;
        this.#received = '';
        resolve(true);
      });
      socket.on('data', (text: string) => this.#take(text));
      socket.on('error', () => {});
      socket.on('close', () => {
        if (this.#socket === socket) this.#socket = undefined;
        this.#answer(0);
        resolve(false);
      });
    });
  }

  /** Sends and resolves with the status, 0 when the connection broke or stayed silent. */
  ask(request: string): Promise<number> {
    return new Promise((resolve) => {
      const timer = setTimeout(() => this.#socket?.destroy(), answerMsMax);
      this.#answer = (status) => {
        clearTimeout(timer);
        resolve(status);
      };
      if (this.#socket) this.#socket.write(request);
      else this.#answer(0);
    });
  }

  close(): void {
    this.#socket?.destroy();
  }

  #take(text: string): void {
    this.#received += text;
    const headEnd = this.#received.indexOf('\r\n\r\n');
    if (headEnd < 0) return;
    const bodyLength = Number(/content-length: (\d+)/i.exec(this.#received)?.[1] ?? 0);
    if (this.#received.length < headEnd + 4 + bodyLength) return;
    const status = Number(this.#received.slice(9, 12));
    const closes = /\r\nconnection: close\r\n/i.test(this.#received);
    this.#received = '';
    if (closes) this.#socket?.destroy();
    this.#answer(status);
  }
}
