/** Servers of ThingsBoard's protocol that are not Millrace, for the benchmarks that measure any server. */
import { once } from 'node:events';
import { createServer, type IncomingMessage, type RequestListener, type Server, type ServerResponse } from 'node:http';
import { createServer as createSecureServer } from 'node:https';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';

/** Any free port when `port` is 0. */
async function listening(server: Server, port = 0): Promise<Server> {
  server.listen(port, '127.0.0.1');
  await once(server, 'listening');
  return server;
}

export function portOf(server: Server): number {
  return (server.address() as AddressInfo).port;
}

export function closeServer(server: Server): void {
  server.close();
  server.closeAllConnections();
}

interface StandInOptions {
  port?: number;
  onRequest?: () => void;
}

/** The device protocol over HTTP in its simplest form: the tokens `first` and `second` get 200, all others 401. */
export function standIn({ port = 0, onRequest = () => {} }: StandInOptions = {}): Promise<Server> {
  const server = createServer((request, response) => {
    onRequest();
    const isKnown = /^\/api\/v1\/(first|second)\/telemetry$/.test(request.url ?? '');
    request.resume().once('end', () => response.writeHead(isKnown ? 200 : 401, { 'Content-Length': 0 }).end());
  });
  return listening(server, port);
}

interface PlatformOptions {
  isRefused?: () => boolean;
  /** The time that the creation of the n-th device takes. */
  createMs?: (n: number) => number;
  /** The time that the removal of a device takes. */
  deleteMs?: number;
  /** True: a call of this method, for a device, is answered 429. */
  isLimited?: (method: string) => boolean;
  /** The seconds that such an answer asks for. */
  retryAfter?: number;
  /** The authority of the user; undefined: the server has no such call. */
  authority?: string;
  /** Key and certificate, for TLS. */
  secure?: { key: string; cert: string };
}

const jwt = 'Bearer jwt';
const apiKey = 'ApiKey key';

/**
 * Another server with ThingsBoard's device protocol and REST interface: it creates devices one at a time, and answers a
 * message with a body, in a later segment than the head. It takes the API key `key`.
 */
export class OtherPlatform {
  readonly devices = new Map<string, { name: string; times: Set<number> }>();
  messages = 0;
  /** Calls that were answered 429. */
  limited = 0;
  signIns = 0;
  url = '';
  readonly #server: Server;
  readonly #options: PlatformOptions;
  #created = 0;

  private constructor(options: PlatformOptions) {
    this.#options = options;
    const answer: RequestListener = (request, response) => {
      const pieces: Buffer[] = [];
      request.on('data', (piece: Buffer) => pieces.push(piece));
      request.once('end', () => void this.#answer(request, Buffer.concat(pieces).toString(), response));
    };
    const { secure } = options;
    this.#server = secure ? createSecureServer(secure, answer) : createServer(answer);
  }

  static async listen(options: PlatformOptions = {}): Promise<OtherPlatform> {
    const platform = new OtherPlatform(options);
    await listening(platform.#server);
    platform.url = `http${options.secure ? 's' : ''}://localhost:${portOf(platform.#server)}`;
    return platform;
  }

  close(): void {
    closeServer(this.#server);
  }

  async #answer({ method, url = '', headers }: IncomingMessage, body: string, response: ServerResponse): Promise<void> {
    const { pathname, searchParams } = new URL(url, this.url);
    const [, kind, id = ''] = /^\/api\/(v1|device|plugins\/telemetry\/DEVICE)\/([^/]+)/.exec(pathname) ?? [];
    const json = (answer: object, status = 200) => {
      const text = JSON.stringify(answer);
      response.writeHead(status, { 'Content-Length': text.length }).flushHeaders();
      setImmediate(() => response.end(text));
    };
    const { authority } = this.#options;
    if (pathname === '/api/auth/login') {
      this.signIns += 1;
      json({ token: 'jwt' });
    } else if (kind === 'v1') json(...this.#take(id, body, headers.host));
    else if (![jwt, apiKey].includes(String(headers['x-authorization']))) json({}, 401);
    else if (pathname === '/api/auth/user' && authority !== undefined) json({ authority });
    else if (pathname.startsWith('/api/device') && this.#options.isLimited?.(method!)) {
      this.limited += 1;
      response.setHeader('Retry-After', String(this.#options.retryAfter ?? 1));
      json({}, 429);
    } else if (pathname === '/api/device') json(await this.#create(searchParams.get('accessToken')!, body));
    else if (pathname === '/api/tenant/devices') json(this.#page(searchParams));
    else if (method === 'DELETE') {
      await sleep(this.#options.deleteMs ?? 0);
      json({}, this.devices.delete(id) ? 200 : 404);
    } else if (kind?.startsWith('plugins'))
      json({ temperature: [{ value: String(this.devices.get(id)!.times.size) }] });
    else json({}, 404);
  }

  /** A balancer finds the server by its name. */
  #take(token: string, body: string, host: string | undefined): [answer: object, status: number] {
    this.messages += 1;
    const device = this.devices.get(token);
    if (this.#options.isRefused?.()) return [{ message: 'too many' }, 429];
    if (device === undefined || host !== new URL(this.url).host) return [{}, 401];
    device.times.add((JSON.parse(body) as { ts: number }).ts);
    return [{ accepted: true }, 200];
  }

  async #create(token: string, body: string): Promise<object> {
    await sleep(this.#options.createMs?.(this.#created++) ?? 0);
    this.devices.set(token, { name: (JSON.parse(body) as { name: string }).name, times: new Set() });
    return { id: { id: token } };
  }

  #page(query: URLSearchParams): object {
    const [size, page, search] = [Number(query.get('pageSize')), Number(query.get('page')), query.get('textSearch')!];
    const found = [...this.devices].filter(([, { name }]) => name.startsWith(search));
    const data = found.slice(page * size, (page + 1) * size).map(([id, { name }]) => ({ id: { id }, name }));
    return { data, hasNext: found.length > (page + 1) * size };
  }
}
