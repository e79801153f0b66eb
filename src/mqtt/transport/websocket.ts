/**
 * MQTT over WebSocket at `/mqtt` of the HTTP and HTTPS ports: binary messages form a byte stream, cut at any place. The
 * library cannot pause reading, so bytes that arrive while a connection is paused are kept in blocks, up to a cap: a
 * message costs only its bytes. Above the cap the messages of a connection that waits for the journal are refused; any
 * other connection ends.
 */
import { limits } from '../../base/limits.ts';
import type { HttpServer } from '../../uws/server.ts';
import type { WebSocketConnection, WebSocketEvents } from '../../uws/web-socket.ts';
import type { ConnectionRoom } from './connection-room.ts';
import type { OpenConnection, Transport, TransportEvents } from './transport.ts';
import type { UnnamedWebSockets } from './unnamed-web-sockets.ts';

/** Both names of the standard: MQTT 3.1 clients offer the second one. */
const protocols = ['mqtt', 'mqttv3.1'];
const normalClosure = 1000;
const unsupportedData = 1003;
const tooMuchData = 1009;

interface WebSocketClients {
  readonly open: OpenConnection;
  /** True while no new connections are taken. */
  readonly isLeaving: boolean;
}

/** Counts the connections over WebSocket. */
type WebSocketRoom = Pick<ConnectionRoom, 'webSocketOpened' | 'webSocketClosed'>;

/** Returns the largest message, for the largest packet of any client, which many clients send in one message. */
export function webSocketMessageBytesMax(packetBytesMax: number): number {
  return Math.max(limits.webSocketMessageBytesMax, packetBytesMax);
}

interface WebSocketDoorDeps {
  clients: WebSocketClients;
  messageBytesMax: number;
  room: WebSocketRoom;
  /** All servers of a worker share it. */
  unnamed: UnnamedWebSockets;
}

export function webSocketDoor(
  server: HttpServer,
  { clients, messageBytesMax, room, unnamed }: WebSocketDoorDeps,
): void {
  server.webSocket('/mqtt', {
    protocols,
    messageBytesMax,
    waitingBytesMax: limits.webSocketWaitingBytesMax,
    isLeaving: () => clients.isLeaving,
    open: (connection) => new WebSocketTransport(connection, clients.open, room, unnamed),
  });
}

class WebSocketTransport implements Transport, WebSocketEvents {
  readonly #connection: WebSocketConnection;
  readonly #events: TransportEvents;
  readonly #room: WebSocketRoom;
  readonly #unnamed: UnnamedWebSockets;
  #paused = false;
  #ended = false;
  /** Bytes that arrived during a pause. Every block except the last one is full. */
  #kept: Buffer[] = [];
  #keptBytes = 0;
  /** Used bytes of the last block. */
  #lastBlockBytes = 0;

  constructor(connection: WebSocketConnection, open: OpenConnection, room: WebSocketRoom, unnamed: UnnamedWebSockets) {
    this.#connection = connection;
    this.#room = room;
    this.#unnamed = unnamed;
    this.#events = open(this);
    room.webSocketOpened();
    unnamed.add(this);
  }

  get remoteAddress(): string {
    return this.#connection.remoteAddress;
  }

  get bufferedBytes(): number {
    return this.#connection.bufferedBytes;
  }

  get hasEnded(): boolean {
    return this.#ended;
  }

  named(): void {
    this.#unnamed.remove(this);
  }

  /** Closes the socket of a client that names no credentials while too many others do not, either. */
  crowdedOut(): void {
    this.#unnamed.remove(this);
    this.destroy();
  }

  write(bytes: Buffer): void {
    if (!this.#ended) this.#connection.send(bytes);
  }

  pause(): void {
    this.#paused = true;
  }

  resume(): void {
    this.#paused = false;
    while (this.#keptBytes > 0 && !this.#paused && !this.#ended) {
      const bytes = this.#takeBlock();
      this.#keptBytes -= bytes.length;
      this.#events.onData(bytes);
    }
  }

  end(): void {
    this.#end(normalClosure, '');
  }

  destroy(): void {
    this.#ended = true;
    this.#connection.close();
  }

  onMessage(bytes: Buffer, isBinary: boolean): void {
    if (this.#ended) return;
    if (!isBinary) {
      this.#end(unsupportedData, 'MQTT is sent in binary messages');
      return;
    }
    const isFull = () => this.#keptBytes + bytes.length > limits.webSocketKeptBytesMax;
    if (this.#paused && isFull()) this.#events.onOverflow();
    if (this.#ended) return;
    if (!this.#paused) {
      this.#events.onData(bytes);
      return;
    }
    if (isFull()) {
      this.#end(tooMuchData, 'More was sent than can be kept');
      return;
    }
    this.#keep(bytes);
  }

  onDrained(): void {
    if (!this.#ended) this.#events.onDrained();
  }

  onClosed(): void {
    this.#ended = true;
    this.#unnamed.remove(this);
    this.#room.webSocketClosed();
    const kept: Buffer[] = [];
    while (this.#kept.length > 0) kept.push(this.#takeBlock());
    // The library calls this function from inside `end` and `close`, and so from inside the connection's own code.
    queueMicrotask(() => {
      // A client may publish and disconnect at once.
      if (kept.length > 0) this.#events.onData(Buffer.concat(kept));
      this.#events.onClosed();
    });
  }

  #keep(bytes: Buffer): void {
    for (let at = 0; at < bytes.length; ) {
      if (this.#kept.length === 0 || this.#lastBlockBytes === limits.webSocketBlockBytes) {
        this.#kept.push(Buffer.allocUnsafe(limits.webSocketBlockBytes));
        this.#lastBlockBytes = 0;
      }
      const copied = bytes.copy(this.#kept.at(-1)!, this.#lastBlockBytes, at);
      this.#lastBlockBytes += copied;
      at += copied;
    }
    this.#keptBytes += bytes.length;
  }

  /** Removes and returns the oldest block. Blocks are few (`checkLimits`), so `shift` costs little. */
  #takeBlock(): Buffer {
    const block = this.#kept.shift()!;
    return this.#kept.length === 0 ? block.subarray(0, this.#lastBlockBytes) : block;
  }

  #end(code: number, reason: string): void {
    if (this.#ended) return;
    this.#ended = true;
    this.#kept = [];
    this.#connection.end(code, reason);
  }
}
