/**
 * The places for MQTT connections of a worker. All its listening sockets share them, and so do connections over
 * WebSocket: when one door has taken the last place, every listening socket stops accepting. Otherwise the worker would
 * accept a connection for which it has no place, although another worker has one.
 */
import { Arrivals } from './arrivals.ts';

interface RoomDeps {
  /** Connections that are open. */
  connections: () => number;
  connectionsMax: number;
  /** True while the worker may open a file for another connection. */
  hasFile: () => boolean;
  /** Called after each accepted connection with the number of connections, those that are not read yet included. */
  accepted: (count: number, isFull: boolean) => void;
}

export class ConnectionRoom {
  readonly arrivals = new Arrivals();
  readonly #deps: RoomDeps;
  readonly #waiting: (() => number)[] = [];
  readonly #checks: (() => void)[] = [];
  #webSockets = 0;

  constructor(deps: RoomDeps) {
    this.#deps = deps;
  }

  /**
   * Adds a listening socket. `waiting` returns its sockets that wait for a PROXY header or a TLS handshake. `check`
   * lets it stop accepting when there is no room.
   */
  add(waiting: () => number, check: () => void): void {
    this.#waiting.push(waiting);
    this.#checks.push(check);
  }

  /** Connections, and sockets that may become connections. */
  get count(): number {
    let count = this.#deps.connections() + this.arrivals.size;
    for (const waiting of this.#waiting) count += waiting();
    return count;
  }

  /** The connections that are sockets of this door: one over WebSocket is a socket of the HTTP door. */
  get sockets(): number {
    return this.count - this.#webSockets;
  }

  get has(): boolean {
    return this.count < this.#deps.connectionsMax && this.#deps.hasFile();
  }

  /** True while an accepted socket may become a connection. */
  get hasPlace(): boolean {
    return this.#deps.connections() < this.#deps.connectionsMax;
  }

  /** Called after each accepted connection. */
  taken(): void {
    this.#deps.accepted(this.count, !this.has);
    for (const check of this.#checks) check();
  }

  webSocketOpened(): void {
    this.#webSockets += 1;
    this.taken();
  }

  webSocketClosed(): void {
    this.#webSockets -= 1;
  }
}
