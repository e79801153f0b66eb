/**
 * WebSockets of one worker: the upgrade with its checks, and a connection as a plain object. Compression is off.
 * Incoming messages and unsent bytes have a cap. Silent connections stay open, because keep-alive belongs to MQTT.
 */
import type { TemplatedApp, HttpRequest as UwsRequest, HttpResponse as UwsResponse, WebSocket } from 'uWebSockets.js';
import { badRequest, Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { type Answer, type Exchange, faultAnswer } from './exchange.ts';
import { type RequestHead, readHead } from './head.ts';
import { uws } from './load.ts';

export interface WebSocketRoute {
  /** Supported sub-protocols; a client must offer one of them. */
  protocols: readonly string[];
  /** The longest accepted message; a longer one ends the connection. */
  messageBytesMax: number;
  /** Unsent bytes for a slow reader; above it the connection is closed. */
  waitingBytesMax: number;
  /** True while an upgrade is refused as by a server that stops. */
  isLeaving(): boolean;
  open(connection: WebSocketConnection): WebSocketEvents;
}

export interface WebSocketEvents {
  /** Receives a message, whose bytes are valid during the call only. */
  onMessage(bytes: Buffer, isBinary: boolean): void;
  /** Called when all bytes have been sent. */
  onDrained(): void;
  /** Called once, as the last call; also from inside `end` and `close`. */
  onClosed(): void;
}

/** The server that owns a route. */
interface WebSocketDoor {
  exchange(res: UwsResponse, head: Readonly<RequestHead>): Exchange;
  /** Called before each upgrade: a server that stops or is full refuses every client. */
  refusal(): Fault | undefined;
  onClosed(): void;
}

/** Data that the library keeps with each socket. */
interface Held {
  remoteAddress: string;
  connection: WebSocketConnection | undefined;
  events: WebSocketEvents | undefined;
}

type Socket = WebSocket<Held>;

const dropped = 2;
const sendsBinary = true;
const sendsCompressed = false;

export class WebSocketConnection {
  readonly remoteAddress: string;
  /** Undefined after the close: the library forbids any further use. */
  #socket: Socket | undefined;
  #ending: (() => void) | undefined;
  #timer: NodeJS.Timeout | undefined;

  constructor(socket: Socket, remoteAddress: string) {
    this.#socket = socket;
    this.remoteAddress = remoteAddress;
  }

  get bufferedBytes(): number {
    return this.#socket?.getBufferedAmount() ?? 0;
  }

  /** Sends a binary message. When the buffer is full, the connection is closed, because the stream would have a gap. */
  send(bytes: Buffer): void {
    if (this.#socket?.send(bytes, sendsBinary, sendsCompressed) === dropped) this.close();
  }

  /**
   * Sends a close frame after all other bytes. The library closes the connection of a client that does not close within
   * seconds, but only when no bytes wait. So `end` waits until all bytes were sent.
   */
  end(code: number, reason: string): void {
    if (!this.#socket || this.#ending) return;
    if (this.bufferedBytes === 0) {
      this.#socket.end(code, reason);
      return;
    }
    const ending = () => this.#socket?.end(code, reason);
    this.#ending = ending;
    this.#timer = setTimeout(() => this.close(), limits.webSocketEndMsMax).unref();
  }

  close(): void {
    this.#socket?.close();
  }

  /** Called by the library when all bytes were sent. */
  drained(): void {
    this.#ending?.();
  }

  /** Called by the library after the close. */
  forget(): void {
    this.#socket = undefined;
    clearTimeout(this.#timer);
  }
}

export function registerWebSocket(
  app: TemplatedApp,
  pattern: string,
  route: WebSocketRoute,
  door: WebSocketDoor,
): void {
  app.ws<Held>(pattern, {
    compression: uws.DISABLED,
    maxPayloadLength: route.messageBytesMax,
    maxBackpressure: route.waitingBytesMax,
    idleTimeout: 0,
    sendPingsAutomatically: false,
    upgrade: (res, req, context) => {
      const head = readHead(req);
      const exchange = door.exchange(res, head);
      if (!head.sound) {
        exchange.cut();
        return;
      }
      const fault = exchange.proxyFault() ?? door.refusal() ?? versionFault(req);
      const protocol = chosenProtocol(req, route.protocols);
      if (fault || protocol === undefined) {
        exchange.closeAfter = true;
        exchange.answer(fault ? upgradeAnswer(fault) : faultAnswer(protocolFault(route.protocols)));
        return;
      }
      const held: Held = { remoteAddress: exchange.remoteAddress(), connection: undefined, events: undefined };
      res.upgrade(held, req.getHeader('sec-websocket-key'), protocol, '', context);
    },
    open: (socket) => {
      const held = socket.getUserData();
      const connection = new WebSocketConnection(socket, held.remoteAddress);
      held.connection = connection;
      held.events = route.open(connection);
    },
    message: (socket, message, isBinary) => socket.getUserData().events?.onMessage(Buffer.from(message), isBinary),
    drain: (socket) => {
      if (socket.getBufferedAmount() > 0) return;
      const { connection, events } = socket.getUserData();
      connection?.drained();
      events?.onDrained();
    },
    close: (socket) => {
      const { connection, events } = socket.getUserData();
      door.onClosed();
      connection?.forget();
      events?.onClosed();
    },
  });
  // The library passes a request without upgrade headers to this handler.
  app.get(pattern, (res, req) => {
    const exchange = door.exchange(res, readHead(req));
    exchange.closeAfter = true;
    exchange.answer(upgradeAnswer(notAnUpgrade()));
  });
}

/** Returns the first supported sub-protocol that the client offers, in the client's order. */
function chosenProtocol(req: UwsRequest, known: readonly string[]): string | undefined {
  const offered = req.getHeader('sec-websocket-protocol').split(',');
  return offered.map((name) => name.trim()).find((name) => known.includes(name));
}

function protocolFault(known: readonly string[]): Fault {
  return badRequest('sub_protocol', `Sec-WebSocket-Protocol must offer ${known.join(' or ')}`);
}

function versionFault(req: UwsRequest): Fault | undefined {
  return req.getHeader('sec-websocket-version') === '13' ? undefined : notAnUpgrade();
}

function notAnUpgrade(): Fault {
  return new Fault('upgrade', 'This path speaks WebSocket, version 13');
}

function upgradeAnswer(fault: Fault): Answer {
  const answer = faultAnswer(fault);
  if (fault.status !== 426) return answer;
  return { ...answer, headers: { Upgrade: 'websocket', 'Sec-WebSocket-Version': '13' } };
}
