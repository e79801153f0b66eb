/**
 * A WebSocket client as bytes: the test itself decides which frames are sent and how they are cut. For rules that a
 * WebSocket library would hide.
 */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { headEnd, parseHead } from './raw.ts';

export const opcode = { continuation: 0, text: 1, binary: 2, close: 8, ping: 9, pong: 10 } as const;

const maskKey = Buffer.from([0x12, 0x34, 0x56, 0x78]);
const waitMsMaxDefault = 10_000;

interface UpgradeAnswer {
  status: number;
  headers: Map<string, string>;
}

interface CloseFrame {
  /** The code of the close frame; 1006 when the connection ended without one. */
  code: number;
  reason: string;
}

/** One frame as a client sends it, masked. `fin` false: more of the same message follows. */
export function frame(payload: Buffer, kind: number = opcode.binary, fin = true): Buffer {
  const { length } = payload;
  const size = length < 126 ? 0 : length < 65_536 ? 2 : 8;
  const head = Buffer.alloc(2 + size);
  head[0] = (fin ? 0x80 : 0) | kind;
  head[1] = 0x80 | (size === 0 ? length : size === 2 ? 126 : 127);
  if (size === 2) head.writeUInt16BE(length, 2);
  if (size === 8) head.writeBigUInt64BE(BigInt(length), 2);
  const masked = Buffer.from(payload);
  for (let i = 0; i < length; i += 1) masked[i]! ^= maskKey[i & 3]!;
  return Buffer.concat([head, maskKey, masked]);
}

export class RawWebSocket {
  readonly socket: Socket;
  upgrade: UpgradeAnswer = { status: 0, headers: new Map() };
  #received = Buffer.alloc(0);
  /** The stream: the payloads of binary frames, one after the other. */
  #stream = Buffer.alloc(0);
  #pongs = 0;
  #closed: CloseFrame | undefined;
  #ended = false;
  #wake: () => void = () => {};

  private constructor(socket: Socket) {
    this.socket = socket;
    socket.on('data', (chunk: Buffer) => {
      this.#received = Buffer.concat([this.#received, chunk]);
      if (this.upgrade.status === 0) this.#readHead();
      if (this.upgrade.status === 101) this.#readFrames();
      this.#wake();
    });
    const end = () => {
      this.#ended = true;
      this.#wake();
    };
    socket.on('close', end);
    socket.on('error', end);
  }

  /** Asks for the upgrade and resolves with any answer to it. `protocol` '' offers none. */
  static async open(
    port: number,
    protocol = 'mqtt',
    path = '/mqtt',
    host = '127.0.0.1',
    localAddress = '127.0.0.1',
  ): Promise<RawWebSocket> {
    const socket = connect({ port, host, noDelay: true, ...(host === '127.0.0.1' && { localAddress }) });
    await once(socket, 'connect');
    const client = new RawWebSocket(socket);
    const offer = protocol && `Sec-WebSocket-Protocol: ${protocol}\r\n`;
    socket.write(
      `GET ${path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n` +
        `Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OTAxMjM0NQ==\r\n${offer}\r\n`,
    );
    await client.#until(() => client.upgrade.status !== 0, 'no answer to the upgrade');
    return client;
  }

  get isOpen(): boolean {
    return !this.#ended;
  }

  send(...frames: Buffer[]): void {
    this.socket.write(Buffer.concat(frames));
  }

  /** Returns the next bytes of the stream. */
  async read(length: number): Promise<Buffer> {
    await this.#until(() => this.#stream.length >= length, `not ${length} bytes`);
    const bytes = this.#stream.subarray(0, length);
    this.#stream = this.#stream.subarray(length);
    return bytes;
  }

  /** Resolves when one ping is answered: the server has then read everything that was sent before the ping. */
  async pong(): Promise<void> {
    await this.#until(() => this.#pongs > 0, 'no pong');
    this.#pongs -= 1;
  }

  /** Resolves to how the server ended the connection. */
  async closed(): Promise<CloseFrame> {
    await this.#until(() => this.#closed !== undefined || this.#ended, 'not closed');
    return this.#closed ?? { code: 1006, reason: '' };
  }

  close(): void {
    this.socket.destroy();
  }

  #readHead(): void {
    const end = this.#received.indexOf(headEnd);
    if (end < 0) return;
    this.upgrade = parseHead(this.#received.toString('latin1', 0, end));
    this.#received = this.#received.subarray(end + headEnd.length);
  }

  #readFrames(): void {
    for (;;) {
      const bytes = this.#received;
      if (bytes.length < 2) return;
      const short = bytes[1]! & 0x7f;
      const start = short < 126 ? 2 : short === 126 ? 4 : 10;
      if (bytes.length < start) return;
      const length = short < 126 ? short : short === 126 ? bytes.readUInt16BE(2) : Number(bytes.readBigUInt64BE(2));
      if (bytes.length < start + length) return;
      const payload = bytes.subarray(start, start + length);
      this.#received = bytes.subarray(start + length);
      const kind = bytes[0]! & 0x0f;
      if (kind === opcode.binary) this.#stream = Buffer.concat([this.#stream, payload]);
      else if (kind === opcode.pong) this.#pongs += 1;
      else if (kind === opcode.close) {
        this.#closed = { code: length >= 2 ? payload.readUInt16BE(0) : 1005, reason: payload.toString('utf8', 2) };
      }
    }
  }

  async #until(isReached: () => boolean, what: string): Promise<void> {
    const deadline = performance.now() + waitMsMaxDefault;
    while (!isReached()) {
      if (this.#ended && what !== 'not closed') throw new Error(`closed: ${what}`);
      const leftMs = deadline - performance.now();
      if (leftMs <= 0) throw new Error(`${what} after ${waitMsMaxDefault} ms`);
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, leftMs);
        this.#wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }
}
