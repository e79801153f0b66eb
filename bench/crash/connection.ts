/**
 * One keep-alive HTTP connection of a crash run's sender. It may break at any moment, and is opened again by its owner.
 */
import { connect, type Socket } from 'node:net';

const answerMsMax = 10_000;

/** A request that posts telemetry. */
export function telemetryRequest(token: string, body: string): string {
  const length = Buffer.byteLength(body);
  return `POST /api/v1/${token}/telemetry HTTP/1.1\r\nHost: localhost\r\nContent-Length: ${length}\r\n\r\n${body}`;
}

export class Connection {
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
