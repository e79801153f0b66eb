/**
 * Devices that keep sending with a `ts` of their own while the engine dies around them: one request in flight on each
 * socket, a new socket when one breaks. Only a whole answer 200 makes the records of a message acknowledged.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { Connection, telemetryRequest } from './connection.ts';
import { Fate, type Ledger, type RecordId } from './ledger.ts';

const reconnectMs = 20;

interface CrashLoadOptions {
  port: number;
  tokens: string[];
  sockets: number;
  /** Requests/s offered over all sockets. */
  rate: number;
  /** Records of one message. */
  records: number;
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
    const { sockets, tokens, rate, records, ledger, port } = this.#options;
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
      const message = ledger.take(device, records);
      if (message.length === 0) break;
      await this.#send(connection, tokens[device]!, message);
      await sleep(Math.max(0, pauseMs - (performance.now() - startedAt)));
    }
    connection.close();
  }

  async #send(connection: Connection, token: string, message: RecordId[]): Promise<void> {
    const { ledger } = this.#options;
    const status = await connection.ask(telemetryRequest(token, ledger.bodyOf(message)));
    this.answers[status] = (this.answers[status] ?? 0) + 1;
    if (status === 200) ledger.settle(message, Fate.acknowledged);
    else if (status !== 0) ledger.settle(message, Fate.refused);
  }
}
