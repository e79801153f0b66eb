/**
 * HTTP as bytes on a socket: what is sent is exactly what the test wrote, and answers are read one by one from a
 * keep-alive connection. For rules that an HTTP client would hide or repair.
 */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';

export const headEnd = Buffer.from('\r\n\r\n');

/**
 * The test itself closed the connection before the answer came. A test that failed half-way leaves such calls, and
 * nothing awaits them any more. So `vitest.config.ts` ignores this error, and no other, when nothing handles it.
 */
export class AbandonedError extends Error {
  override name = 'AbandonedError';
}

export interface RawResponse {
  status: number;
  headers: Map<string, string>;
  body: Buffer;
}

export interface RawRequest {
  method?: string;
  path: string;
  headers?: Record<string, string>;
  body?: string | Buffer;
}

/**
 * Returns a well-formed request. Content-Length is set when there is a body and `headers` have neither it nor
 * Transfer-Encoding.
 */
export function requestBytes({ method = 'POST', path, headers = {}, body }: RawRequest): Buffer {
  const content = Buffer.from(body ?? '');
  const names = Object.keys(headers).map((name) => name.toLowerCase());
  const framed = names.includes('content-length') || names.includes('transfer-encoding');
  const lines = [
    `${method} ${path} HTTP/1.1`,
    ...(names.includes('host') ? [] : ['Host: localhost']),
    ...Object.entries(headers).map(([name, value]) => `${name}: ${value}`),
    ...(body !== undefined && !framed ? [`Content-Length: ${content.length}`] : []),
  ];
  return Buffer.concat([Buffer.from(`${lines.join('\r\n')}\r\n\r\n`), content]);
}

/** Parses the status line and the headers of an answer, without the empty line after them. */
export function parseHead(text: string): { status: number; headers: Map<string, string> } {
  const [statusLine = '', ...lines] = text.split('\r\n');
  const headers = lines.map((line): [string, string] => {
    const colon = line.indexOf(':');
    return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()];
  });
  return { status: Number(statusLine.split(' ')[1]), headers: new Map(headers) };
}

/** The server closes a connection that is idle for 8 s. */
const idleMsMax = 5_000;

export class RawConnection {
  socket: Socket;
  /**
   * Opens a connection that takes the place of this one after a pause, which may be long on a busy machine. Without it
   * the test sees that the server closes an idle connection.
   */
  reopen: (() => Promise<RawConnection>) | undefined;
  #answeredAt = performance.now();
  #received = Buffer.alloc(0);
  #ended = false;
  #isClosedHere = false;
  #wake: () => void = () => {};

  private constructor(socket: Socket) {
    this.socket = socket;
    this.#listen(socket);
  }

  #listen(socket: Socket): void {
    socket.on('data', (chunk: Buffer) => {
      this.#received = Buffer.concat([this.#received, chunk]);
      this.#wake();
    });
    const end = () => {
      if (this.socket !== socket) return;
      this.#ended = true;
      this.#wake();
    };
    socket.on('close', end);
    socket.on('end', end);
    socket.on('error', end);
  }

  static async open(port: number, host = '127.0.0.1', localAddress?: string): Promise<RawConnection> {
    const socket = connect({ port, host, noDelay: true, ...(localAddress !== undefined && { localAddress }) });
    const connection = new RawConnection(socket);
    await once(socket, 'connect');
    return connection;
  }

  /** Resolves when the kernel has the bytes, or the peer has closed the connection. */
  send(bytes: string | Buffer): Promise<void> {
    return new Promise((resolve) => {
      if (this.#ended || !this.socket.writable) resolve();
      else this.socket.write(bytes, () => resolve());
    });
  }

  async ask(request: RawRequest, waitMsMax?: number): Promise<RawResponse> {
    if (this.reopen && performance.now() - this.#answeredAt > idleMsMax) this.#replaceSocket(await this.reopen());
    await this.send(requestBytes(request));
    return this.response(waitMsMax, request.method === 'HEAD');
  }

  #replaceSocket({ socket }: RawConnection): void {
    this.socket.destroy();
    this.socket = socket;
    this.#ended = this.#isClosedHere;
    if (this.#isClosedHere) socket.destroy();
    socket.removeAllListeners();
    this.#listen(socket);
  }

  /** Returns the next answer on this connection. */
  async response(waitMsMax = 10_000, withoutBody = false): Promise<RawResponse> {
    const deadline = performance.now() + waitMsMax;
    for (;;) {
      const taken = this.#take(withoutBody);
      if (taken) {
        this.#answeredAt = performance.now();
        return taken;
      }
      if (this.#ended) {
        const message = `closed before an answer; received: ${this.#received.toString('latin1')}`;
        throw this.#isClosedHere ? new AbandonedError(message) : new Error(message);
      }
      await this.#change(deadline, 'no answer');
    }
  }

  /** Returns every byte that the peer sends until it closes the connection. */
  async untilClosed(waitMsMax = 20_000): Promise<string> {
    const deadline = performance.now() + waitMsMax;
    while (!this.#ended) await this.#change(deadline, 'not closed');
    return this.#received.toString('latin1');
  }

  /** Bytes that arrived after the last answer. */
  get leftover(): string {
    return this.#received.toString('latin1');
  }

  get closed(): boolean {
    return this.#ended;
  }

  close(): void {
    this.#isClosedHere = true;
    this.socket.destroy();
  }

  #take(withoutBody: boolean): RawResponse | undefined {
    const end = this.#received.indexOf(headEnd);
    if (end < 0) return undefined;
    const { status, headers } = parseHead(this.#received.toString('latin1', 0, end));
    const start = end + headEnd.length;
    const hasNoBody = withoutBody || status === 204 || status === 304 || status < 200;
    const length = hasNoBody ? 0 : Number(headers.get('content-length') ?? 0);
    if (!hasNoBody && headers.get('transfer-encoding') === 'chunked') {
      return this.#takeChunked(start, status, headers);
    }
    if (this.#received.length < start + length) return undefined;
    const body = this.#received.subarray(start, start + length);
    this.#received = this.#received.subarray(start + length);
    // An interim answer (100 Continue) precedes the real one.
    return status < 200 ? this.#take(withoutBody) : { status, headers, body };
  }

  #takeChunked(start: number, status: number, headers: Map<string, string>): RawResponse | undefined {
    const chunks: Buffer[] = [];
    let at = start;
    for (;;) {
      const lineEnd = this.#received.indexOf('\r\n', at);
      if (lineEnd < 0) return undefined;
      const size = Number.parseInt(this.#received.toString('latin1', at, lineEnd), 16);
      const next = lineEnd + 2 + size + 2;
      if (this.#received.length < next) return undefined;
      chunks.push(this.#received.subarray(lineEnd + 2, lineEnd + 2 + size));
      at = next;
      if (size === 0) break;
    }
    this.#received = this.#received.subarray(at);
    return { status, headers, body: Buffer.concat(chunks) };
  }

  #change(deadline: number, what: string): Promise<void> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(
        () => reject(new Error(`${what} in time; received: ${this.#received.toString('latin1').slice(0, 500)}`)),
        Math.max(0, deadline - performance.now()),
      );
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

/** Opens, uses and closes a connection. */
export async function withConnection<T>(port: number, use: (connection: RawConnection) => Promise<T>): Promise<T> {
  const connection = await RawConnection.open(port);
  try {
    return await use(connection);
  } finally {
    connection.close();
  }
}
