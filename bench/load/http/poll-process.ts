/**
 * One process of waiting clients: each device holds a long poll on a separate socket, and polls again after an answer.
 * Reports when all clients are connected, and the time of each answer, on the clock that all processes of the machine
 * share.
 */
import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { AnswerReader } from './answer-reader.ts';

export interface PollOrder {
  host: string;
  port: number;
  tokens: string[];
  /** Own addresses to connect from: one has too few ports for all. */
  localAddresses: string[];
  path: string;
}

export type PollNote =
  | { kind: 'connected' }
  /** A connect failed, or a poll was answered with a refusal; it is tried again. */
  | { kind: 'refused'; reason: string }
  | { kind: 'answered'; token: string; status: number; body: string; atMs: number };

const connectsAtOnce = 100;
const connectTriesMax = 20;
const connectMsMax = 20_000;
const retryMs = 500;

// One for all sockets: an answer is small and read at once.
const received = Buffer.allocUnsafe(16 * 1024);

class Waiter {
  readonly #order: PollOrder;
  readonly #token: string;
  readonly #localAddress: string;
  #socket: Socket | undefined;
  readonly #answer = new AnswerReader();

  constructor(order: PollOrder, n: number) {
    this.#order = order;
    this.#token = order.tokens[n]!;
    this.#localAddress = order.localAddresses[n % order.localAddresses.length]!;
  }

  /** A client that is refused each time does not poll. */
  async connect(): Promise<void> {
    for (let tries = 0; tries < connectTriesMax; tries += 1) {
      const fault = await this.#attempt();
      if (fault === '') return;
      tell({ kind: 'refused', reason: fault });
      await sleep(retryMs * (0.5 + Math.random()));
    }
  }

  /** Resolves with '' when connected, else with the reason. */
  #attempt(): Promise<string> {
    const { host, port } = this.#order;
    return new Promise((resolve) => {
      const onread = {
        buffer: received,
        callback: (length: number) => {
          this.#receive(length);
          return true;
        },
      };
      const socket = connect({ host, port, localAddress: this.#localAddress, noDelay: true, onread });
      const deadline = setTimeout(() => {
        resolve(`no connection within ${connectMsMax / 1000} s`);
        socket.destroy();
      }, connectMsMax);
      socket.once('close', () => clearTimeout(deadline));
      socket.once('connect', () => {
        clearTimeout(deadline);
        this.#socket = socket;
        this.#poll();
        socket.once('close', () => {
          tell({ kind: 'answered', token: this.#token, status: 0, body: '', atMs: now() });
        });
        resolve('');
      });
      socket.on('error', ({ code, message }: NodeJS.ErrnoException) => resolve(`${code ?? message} at the connect`));
    });
  }

  #poll(): void {
    this.#socket!.write(`GET /api/v1/${this.#token}/${this.#order.path} HTTP/1.1\r\nHost: localhost\r\n\r\n`);
  }

  #receive(length: number): void {
    const atMs = now();
    const status = this.#answer.read(received, length);
    if (status === 0) return;
    const body = this.#answer.body.toString();
    if (status >= 400) {
      tell({ kind: 'refused', reason: `status ${status}` });
      setTimeout(() => this.#poll(), retryMs);
      return;
    }
    this.#poll();
    tell({ kind: 'answered', token: this.#token, status, body, atMs });
  }
}

/** Milliseconds since the machine started. */
function now(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}

function tell(note: PollNote): void {
  if (process.connected) process.send!(note);
}

async function connectAll(order: PollOrder): Promise<void> {
  const waiters = order.tokens.map((_, n) => new Waiter(order, n));
  let next = 0;
  const connectNext = async (): Promise<void> => {
    while (next < waiters.length) await waiters[next++]!.connect();
  };
  await Promise.all(Array.from({ length: connectsAtOnce }, connectNext));
}

process.once('message', (order: PollOrder) => {
  connectAll(order).then(
    () => tell({ kind: 'connected' }),
    (error: Error) => {
      process.stderr.write(`${error.stack}\n`);
      process.exit(1);
    },
  );
});
process.on('disconnect', () => process.exit(0));
