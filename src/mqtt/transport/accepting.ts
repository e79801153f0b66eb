/**
 * One listening socket of a worker, which accepts while the worker has room for connections and not clearly more of
 * them than the other workers of this host. Otherwise it closes, so that the kernel gives new connections to the
 * others, and listens again later. Made by `listen.ts`. When all workers of the host are full, nothing listens and new
 * connections are refused by the kernel.
 */
import type { Server } from 'node:net';
import { messageOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';

/** The kernel reduces the value to net.core.somaxconn. */
const backlog = 65_535;
/** Interval at which a worker that does not accept checks for room. */
const roomCheckMs = 100;

interface AcceptingDeps {
  hasRoom(): boolean;
  log: Log;
}

export class Accepting {
  readonly #server: Server;
  readonly #address: string;
  readonly #port: number;
  readonly #deps: AcceptingDeps;
  /** Runs while the socket is closed although this worker serves. */
  #roomCheck: NodeJS.Timeout | undefined;
  /** Undefined while there is room. */
  #fullSince: number | undefined;
  #isOpening = false;
  #isClosed = false;
  /** True while other workers of this host are to accept. */
  #leavesToOthers = false;
  #onListening: () => void = () => {};

  private constructor(server: Server, address: string, port: number, deps: AcceptingDeps) {
    this.#server = server;
    this.#address = address;
    this.#port = port;
    this.#deps = deps;
  }

  /** Rejects when the address cannot be used. */
  static async on(server: Server, address: string, port: number, deps: AcceptingDeps): Promise<Accepting> {
    const accepting = new Accepting(server, address, port, deps);
    await accepting.#listen();
    return accepting;
  }

  /** Called after each accepted connection of the worker: a listening socket that closes now accepts no further one. */
  check(): void {
    if (this.#isClosed || this.#roomCheck !== undefined || this.#mayAccept()) return;
    this.#server.close();
    if (!this.#deps.hasRoom()) {
      this.#fullSince = performance.now();
      const reason = 'this worker has as many connections as MQTT_CONNECTIONS_MAX and the file limit allow';
      this.#deps.log.warn('mqtt_not_accepting', { address: this.#address, port: this.#port, reason });
    }
    this.#roomCheck = setInterval(() => this.#listenWithRoom(), roomCheckMs);
  }

  /** Other workers of this host accept from now on. */
  leaveToOthers(): void {
    this.#leavesToOthers = true;
    this.check();
  }

  /** Resolves when this worker listens as well. */
  acceptAgain(): Promise<void> {
    this.#leavesToOthers = false;
    if (this.#roomCheck === undefined) return Promise.resolve();
    return new Promise((resolve) => {
      this.#onListening = resolve;
      this.#listenWithRoom();
    });
  }

  /** May be called again. */
  close(): void {
    this.#isClosed = true;
    clearInterval(this.#roomCheck);
    this.#server.close();
  }

  #mayAccept(): boolean {
    return this.#deps.hasRoom() && !this.#leavesToOthers;
  }

  #listenWithRoom(): void {
    if (this.#isClosed || this.#isOpening || this.#server.listening || !this.#mayAccept()) return;
    this.#isOpening = true;
    const { log } = this.#deps;
    const place = { address: this.#address, port: this.#port };
    clearInterval(this.#roomCheck);
    this.#listen().then(
      () => {
        this.#isOpening = false;
        this.#roomCheck = undefined;
        // `close` was called while the socket was being opened.
        if (this.#isClosed) {
          this.#server.close();
          return;
        }
        if (this.#fullSince !== undefined) {
          log.info('mqtt_accepting', { ...place, fullMs: Math.round(performance.now() - this.#fullSince) });
          this.#fullSince = undefined;
        }
        this.#onListening();
        // Connections may have arrived over another socket of this worker meanwhile.
        this.check();
      },
      (error: unknown) => {
        this.#isOpening = false;
        if (this.#isClosed) return;
        log.error('mqtt_listen_failed', { ...place, reason: messageOf(error) });
        this.#roomCheck = setInterval(() => this.#listenWithRoom(), roomCheckMs);
      },
    );
  }

  #listen(): Promise<void> {
    const server = this.#server;
    return new Promise((resolve, reject) => {
      const failed = (error: Error) => {
        server.off('listening', listening);
        reject(error);
      };
      const listening = () => {
        server.off('error', failed);
        resolve();
      };
      server.once('error', failed);
      server.once('listening', listening);
      server.listen({ host: this.#address, port: this.#port, backlog });
    });
  }
}
