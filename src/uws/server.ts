/**
 * The HTTP server of one worker: routes, listening, closing. `route` is for handlers that return a promise of an
 * answer. The raw routes of the device API pass on the exchange, which is answered later, with no further allocation:
 * `rawPost` a body, `rawGet` a query, and `waitingGet` a query whose answer may take minutes. Each pattern also accepts
 * a trailing slash, and answers other methods with 405 and `Allow`. HEAD is answered as GET without body, except by
 * `waitingGet`.
 */
import type {
  TemplatedApp,
  HttpRequest as UwsRequest,
  HttpResponse as UwsResponse,
  us_listen_socket,
} from 'uWebSockets.js';
import { asFault, Fault, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';
import { closeRequest, current, openRequest, type Work } from '../base/running-work.ts';
import { noted, refuseBlocked } from './blocked-routes.ts';
import {
  type Admit,
  BodyRoom,
  type BodyRules,
  bodiesInFlight,
  keepBody,
  type LargeBodies,
  type OnRefused,
  readBody,
} from './body.ts';
import { hasProxyHeader, peerOf } from './client-address.ts';
import { type Answer, Exchange, faultAnswer, type ServerHeaders } from './exchange.ts';
import { hasBody, type RequestHead, readHead } from './head.ts';
import { HeldRefusals } from './held-refusals.ts';
import { uws } from './load.ts';
import { OtherRequests, registrars, withSlash } from './other-requests.ts';
import { unpacking } from './packed-body.ts';
import { CopiedRequest, decodeParameter, emptyBody, type HttpRequest } from './request.ts';
import { RouteMetrics } from './route-metrics.ts';
import { SkippedBodies } from './skipped-bodies.ts';
import { Sockets } from './sockets.ts';
import { registerWebSocket, type WebSocketRoute } from './web-socket.ts';

export type HttpHandler = (request: HttpRequest) => Promise<Answer>;
export type HttpMethod = 'GET' | 'POST' | 'PUT' | 'DELETE';

/** Receives a request without a body; only the arguments are kept. */
type QueryReceiver = (exchange: Exchange, parameter: string, query: string) => void;

/** Receives the body of a raw route, which is valid during the call only. */
export type RawReceiver = (exchange: Exchange, parameter: string, body: Buffer) => void;

/** The rules for the bodies of a raw route. */
interface RawBodies {
  /** Names, by the parameter, the sender of a body that arrives in pieces. */
  admit: Admit<string>;
  /** Absent: the cap of the server. */
  bytesMax?: number;
  large?: LargeBodies<string>;
  /** Called for a refused body. */
  onRefused?: OnRefused<string>;
}

interface HttpServerDeps {
  log: Log;
  metrics: Metrics;
  bodyBytesMax: number;
  bodyBytesInFlightMax: number;
  connectionsMax: number;
  /** Connections of one address; 0 = nine tenths of all. */
  connectionsPerAddressMax?: number;
  isTrustedProxy?: (address: string) => boolean;
  /** The connections that the file limit allows now, of all servers of this process; absent = any number. */
  files?: { readonly httpMax: number; readonly hasHttp: boolean };
  /** The name of this worker for a header of each answer; '' = no header. */
  worker: string;
  tls?: { cert: string; key: string; hstsSeconds: number };
}

export class HttpServer {
  readonly #app: TemplatedApp;
  readonly #deps: HttpServerDeps;
  readonly #headers: ServerHeaders;
  readonly #room: BodyRoom;
  readonly #refusals = new HeldRefusals();
  readonly #skipped = new SkippedBodies();
  readonly #allowed = new Map<string, Set<string>>();
  readonly #listening: us_listen_socket[] = [];
  readonly #others: OtherRequests;
  readonly #ambiguous: Counter;
  readonly #sockets: Sockets;
  readonly #addressRefused: Counter;
  readonly #filesRefused: Counter;
  #connections = 0;
  #open = 0;
  #draining = false;

  constructor(deps: HttpServerDeps) {
    this.#deps = deps;
    const { tls, metrics, worker } = deps;
    const transportSecurity = tls && tls.hstsSeconds > 0 ? `max-age=${tls.hstsSeconds}` : '';
    this.#headers = { worker, transportSecurity, isTrustedProxy: deps.isTrustedProxy ?? (() => false) };
    this.#app = tls ? uws.SSLApp({ cert_file_name: tls.cert, key_file_name: tls.key }) : uws.App();
    this.#room = new BodyRoom(deps.bodyBytesInFlightMax);
    const { connectionsMax, connectionsPerAddressMax, files, isTrustedProxy = () => false } = deps;
    const perAddressMax = () =>
      connectionsPerAddressMax || Math.ceil(0.9 * Math.min(connectionsMax, files?.httpMax ?? connectionsMax));
    this.#sockets = new Sockets({ connectionsMax, perAddressMax, isTrusted: isTrustedProxy });
    this.#app.filter((res, change) => (Number(change) > 0 ? this.#opened(res) : this.#countConnection(-1)));
    this.#ambiguous = metrics.counter(
      'http_ambiguous_total',
      'Connections cut because the length of a body was ambiguous.',
    );
    this.#others = new OtherRequests({
      app: this.#app,
      exchange: (res, head, method) => this.#exchange(res, head, method),
      skipped: this.#skipped,
      ambiguous: this.#ambiguous,
    });
    this.#addressRefused = metrics.counter(
      'http_address_refused_total',
      'Connections closed because their address has used its share.',
    );
    this.#filesRefused = metrics.counter(
      'http_files_refused_total',
      'Connections closed because the worker has as many connections as its file limit allows.',
    );
    const door = { door: tls ? 'https' : 'http' };
    metrics.observed('http_connections', 'Open HTTP connections.', () => this.#connections, 'sum', door);
    metrics.observed('http_requests_open', 'Requests being answered.', () => this.#open, 'sum', door);
    metrics.observed('http_body_bytes', 'Bytes of bodies in memory.', () => this.#room.held, 'sum', door);
  }

  /** Open connections, those over WebSocket included. */
  get connections(): number {
    return this.#connections;
  }

  /** True while a request waits for the rest of its body, or for its answer; false when the server is drained. */
  get hasRequests(): boolean {
    return this.#open > 0 || this.#room.held > 0;
  }

  /** `admit` names the sender of a body that arrives in pieces; without it every sender is unknown. */
  route(
    method: HttpMethod,
    pattern: string,
    handler: HttpHandler,
    bodyBytesMax = this.#deps.bodyBytesMax,
    admit?: Admit<HttpRequest>,
  ): void {
    const rules = this.#rules({ bytesMax: bodyBytesMax, admit });
    const route = `${method} ${pattern}`;
    const metrics = new RouteMetrics(this.#deps.metrics, method, pattern);
    const names = pattern.split('/').filter((part) => part.startsWith(':')).length;
    const receive = (res: UwsResponse, req: UwsRequest, method: string) => {
      const head = readHead(req);
      const exchange = this.#exchange(res, head, method);
      if (this.#refusedAtDoor(exchange, head)) return;
      const { contentLength, chunked } = head;
      const remoteAddress = exchange.remoteAddress();
      const work: Work = { what: route, caller: `address ${remoteAddress}` };
      const request = new CopiedRequest(req, names, exchange, remoteAddress, this.#deps.tls !== undefined, work);
      const run = (body: Buffer) => {
        // The library reuses its buffer when the call returns; a handler may keep the body longer.
        let release = keepBody(exchange, body);
        if (!release && body.length > limits.bodyPieceBytesMin) {
          const held = this.#room.ofPiece(remoteAddress);
          if (!held.grow(body.length)) {
            exchange.refuse(bodiesInFlight());
            return;
          }
          release = () => held.release();
          request.body = Buffer.from(body);
        } else {
          request.body = body.length > 0 && !release ? Buffer.from(body) : body;
        }
        this.#run(exchange, request, work, handler, metrics, release);
      };
      if (contentLength <= 0 && !chunked) {
        run(emptyBody);
        return;
      }
      const receive =
        head.encoding === '' ? run : unpacking(exchange, contentLength, head.encoding, request, rules, run);
      if (receive) readBody(exchange, contentLength, request, rules, receive);
    };
    this.#register(method, pattern, (res, req) => receive(res, req, method));
    if (method === 'GET') this.#register('HEAD', pattern, (res, req) => receive(res, req, 'HEAD'));
  }

  /** Adds a POST whose one path parameter and body are passed on raw. */
  rawPost(pattern: string, bodies: RawBodies, receive: RawReceiver): void {
    const rules = this.#rules(bodies);
    const take = noted(`POST ${pattern}`, receive);
    this.#register('POST', pattern, (res, req) => {
      const head = readHead(req);
      const exchange = this.#exchange(res, head, 'POST');
      if (head.wantsReceipt) exchange.receipt = '';
      if (this.#refusedAtDoor(exchange, head)) return;
      const parameter = decodeParameter(req.getParameter(0) ?? '');
      if (!hasBody(head)) {
        take(exchange, parameter, emptyBody);
        return;
      }
      const { contentLength, encoding } = head;
      const run = (body: Buffer) => take(exchange, parameter, body);
      const receive = encoding === '' ? run : unpacking(exchange, contentLength, encoding, parameter, rules, run);
      if (receive) readBody(exchange, contentLength, parameter, rules, receive);
    });
  }

  #rules<Subject>({
    bytesMax = this.#deps.bodyBytesMax,
    ...rules
  }: Partial<BodyRules<Subject>> & Pick<BodyRules<Subject>, 'admit'>): BodyRules<Subject> {
    this.#room.mayHold(bytesMax);
    return { ...rules, bytesMax, room: this.#room, refusals: this.#refusals, skipped: this.#skipped };
  }

  /** Adds a GET with one path parameter whose answer may take long; it has no HEAD. */
  waitingGet(pattern: string, receive: QueryReceiver): void {
    const wait = noted(`GET ${pattern}`, receive);
    this.#register('GET', pattern, (res, req) => {
      const head = readHead(req);
      const exchange = this.#exchange(res, head, 'GET');
      if (this.#refusedAtDoor(exchange, head)) return;
      exchange.closeAfter ||= hasBody(head);
      wait(exchange, decodeParameter(req.getParameter(0) ?? ''), req.getQuery());
    });
  }

  /** Adds a GET, and its HEAD, whose one path parameter and query are passed on raw. */
  rawGet(pattern: string, receive: QueryReceiver): void {
    const read = noted(`GET ${pattern}`, receive);
    const take = (res: UwsResponse, req: UwsRequest, method: string) => {
      const head = readHead(req);
      const exchange = this.#exchange(res, head, method);
      if (this.#refusedAtDoor(exchange, head)) return;
      exchange.closeAfter ||= hasBody(head);
      this.#open += 1;
      exchange.onDone = this.#closeOne;
      read(exchange, decodeParameter(req.getParameter(0) ?? ''), req.getQuery());
    };
    this.#register('GET', pattern, (res, req) => take(res, req, 'GET'));
    this.#register('HEAD', pattern, (res, req) => take(res, req, 'HEAD'));
  }

  webSocket(pattern: string, route: WebSocketRoute): void {
    this.#allowed.set(pattern, new Set(['GET']));
    // The library's own count omits a socket after its upgrade.
    const door = {
      exchange: (res: UwsResponse, head: Readonly<RequestHead>) => this.#exchange(res, head, 'GET'),
      refusal: () => (route.isLeaving() ? stopping() : this.#doorRefusal()),
      onClosed: () => this.#countConnection(-1),
    };
    for (const path of withSlash(pattern)) registerWebSocket(this.#app, path, route, door);
  }

  readonly #closeOne = (): void => {
    this.#open -= 1;
  };

  /**
   * Calls `use` with a raw route's body, or a copy of it, and keeps its room until `use` is done, whether or not the
   * client still waits. Refuses the exchange when there is no room. `sender` is the result of `admit`, undefined =
   * unknown. `use` does not reject.
   */
  async withBody(
    exchange: Exchange,
    body: Buffer,
    sender: string | undefined,
    use: (held: Buffer) => Promise<void>,
  ): Promise<void> {
    // The request continues in later turns, in which it counts as running work too.
    const work = current();
    let release = keepBody(exchange, body);
    let held = body;
    if (!release) {
      const address = exchange.remoteAddress();
      const room = sender === undefined ? this.#room.ofStranger(address) : this.#room.ofSender(sender, address);
      if (!room.grow(body.length)) {
        exchange.refuse(bodiesInFlight());
        return;
      }
      release = () => room.release();
      held = Buffer.from(body);
    }
    if (work) openRequest(work);
    try {
      await use(held);
    } finally {
      release();
      if (work) closeRequest(work);
    }
  }

  /** Called after the last route: answers other methods of known paths, pre-flights and unknown paths. */
  seal(): void {
    this.#others.seal(this.#allowed);
  }

  /** Refuses a path that resembles a route with a parameter: each of its methods is answered as an unknown path. */
  refusePath(path: string): void {
    this.#others.refusePath(path);
  }

  listen(address: string, port: number): Promise<number> {
    return new Promise((resolve, reject) => {
      this.#app.listen(address, port, (socket) => {
        if (!socket) return reject(new Error(`port ${port} on ${address} cannot be bound`));
        this.#listening.push(socket);
        this.#sockets.port = uws.us_socket_local_port(socket);
        resolve(this.#sockets.port);
      });
    });
  }

  /** Refuses new connections; an answer on an open one closes it. A refusal that is held back leaves now. */
  drain(): void {
    this.#draining = true;
    this.#refusals.end();
    this.#skipped.end();
    for (const socket of this.#listening.splice(0)) uws.us_listen_socket_close(socket);
  }

  close(): void {
    this.drain();
    this.#app.close();
  }

  #register(method: HttpMethod | 'HEAD', pattern: string, handler: (res: UwsResponse, req: UwsRequest) => void): void {
    const allowed = this.#allowed.get(pattern) ?? new Set();
    this.#allowed.set(pattern, allowed.add(method));
    for (const path of withSlash(pattern)) this.#app[registrars[method]](path, handler);
  }

  #exchange(res: UwsResponse, head: Readonly<RequestHead>, method: string): Exchange {
    const exchange = new Exchange(res, head.origin, method === 'HEAD', this.#headers);
    exchange.forwardedFor = head.forwardedFor;
    if (hasProxyHeader(res)) exchange.takeOneRequest();
    return exchange;
  }

  #refusedAtDoor(exchange: Exchange, head: Readonly<RequestHead>): boolean {
    const { sound, longChars, contentLength } = head;
    if (!sound) {
      // An answer would make the library parse the rest of the bytes as a second request.
      exchange.cut();
      this.#ambiguous.add(1);
      return true;
    }
    const refusal = longChars > limits.headerCharsMax ? headTooLong : (exchange.proxyFault() ?? this.#doorRefusal());
    if (!refusal) return false;
    exchange.closeAfter = true;
    if (hasBody(head)) this.#skipped.answer(exchange, contentLength, faultAnswer(refusal));
    else exchange.refuse(refusal);
    return true;
  }

  #doorRefusal(): Fault | undefined {
    if (this.#draining) return stopping();
    if (this.#connections <= this.#deps.connectionsMax) return undefined;
    return unavailable('connections', 'This server holds the most connections that are allowed.', 5);
  }

  #opened(res: UwsResponse): void {
    this.#countConnection(1);
    const hasFile = this.#deps.files?.hasHttp ?? true;
    if (hasFile && this.#sockets.admits(() => peerOf(res), this.#connections)) return;
    (hasFile ? this.#addressRefused : this.#filesRefused).add(1);
    // The library counts the connection as closed before this call returns.
    res.close();
  }

  #countConnection(change: number): void {
    this.#connections += change > 0 ? 1 : -1;
  }

  async #run(
    exchange: Exchange,
    request: HttpRequest,
    work: Work,
    handler: HttpHandler,
    metrics: RouteMetrics,
    releaseBody: (() => void) | undefined,
  ): Promise<void> {
    const started = performance.now();
    this.#open += 1;
    openRequest(work);
    let answer: Answer;
    try {
      refuseBlocked(work);
      answer = await handler(request);
    } catch (error) {
      // The path is not logged: it may contain a token.
      if (!(error instanceof Fault)) this.#deps.log.error('handler_bug', { ...work, error });
      answer = faultAnswer(asFault(error));
    } finally {
      releaseBody?.();
    }
    metrics.answered(answer.status, (performance.now() - started) / 1000);
    exchange.closeAfter ||= this.#draining;
    const later = exchange.mayAnswer();
    if (later) await later;
    exchange.answer(answer);
    if (exchange.sent) {
      const outcome = await exchange.sent;
      if (outcome instanceof Error) {
        this.#deps.log.warn('answer_cut', { path: request.path, reason: outcome.message });
      }
    }
    this.#open -= 1;
    closeRequest(work);
  }
}

const headTooLong = new Fault(
  'header_fields',
  `The headers have more than ${limits.headerCharsMax} characters; send fewer or shorter ones.`,
);

function stopping(): Fault {
  return unavailable('draining', 'This server is stopping; connect again.');
}
