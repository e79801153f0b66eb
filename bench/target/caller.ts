/**
 * Calls of a REST interface over kept connections. The certificate of the server is judged as the generators judge it,
 * which `fetch` cannot do.
 */
import { Agent as HttpAgent, request as httpRequest } from 'node:http';
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https';
import type { TlsOrder } from '../load/open-socket.ts';

const timeoutMs = 30_000;
const connectionsMax = 16;
/** Statuses whose answers have no body. */
const emptyStatuses = [204, 205, 304];

interface CallOptions {
  headers: Record<string, string>;
  body?: string | undefined;
}

export class Caller {
  readonly #base: URL;
  readonly #agent: HttpAgent | HttpsAgent;
  /** The longest silence of the server during a call. */
  timeoutMs = timeoutMs;

  constructor(base: string, tls: TlsOrder | undefined) {
    this.#base = new URL(base);
    const kept = { keepAlive: true, maxSockets: connectionsMax };
    const trusted = { rejectUnauthorized: !(tls?.isInsecure ?? false), ...(tls?.ca && { ca: tls.ca }) };
    this.#agent = this.#base.protocol === 'https:' ? new HttpsAgent({ ...kept, ...trusted }) : new HttpAgent(kept);
  }

  /** `path` begins behind the path of the base address. */
  call(method: string, path: string, { headers, body }: CallOptions): Promise<Response> {
    const { protocol, hostname, port, pathname } = this.#base;
    const send = protocol === 'https:' ? httpsRequest : httpRequest;
    const options = {
      method,
      agent: this.#agent,
      host: hostname.replace(/^\[|\]$/g, ''),
      port,
      path: `${pathname.replace(/\/$/, '')}${path}`,
      headers: { ...headers, ...(body !== undefined && { 'content-length': Buffer.byteLength(body) }) },
      timeout: this.timeoutMs,
    };
    return new Promise((resolve, reject) => {
      const request = send(options, (answer) => {
        const pieces: Buffer[] = [];
        answer.on('data', (piece: Buffer) => pieces.push(piece));
        answer.once('error', reject);
        answer.once('end', () => {
          const status = answer.statusCode!;
          const whole = emptyStatuses.includes(status) ? null : Buffer.concat(pieces);
          const { location, 'retry-after': retryAfter } = answer.headers;
          const headers = { ...(location && { location }), ...(retryAfter && { 'retry-after': retryAfter }) };
          resolve(new Response(whole, { status, headers }));
        });
      });
      request.once('timeout', () => request.destroy(new Error(`no answer within ${this.timeoutMs / 1000} s`)));
      request.once('error', reject);
      request.end(body);
    });
  }

  close(): void {
    this.#agent.destroy();
  }
}
