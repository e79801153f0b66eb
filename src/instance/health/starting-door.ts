/**
 * Answers on the HTTP port until the workers listen. A first start may wait for its stores for minutes, and an
 * orchestrator that polls /livez must not take that for a hang. The primary opens the door after the ports were probed,
 * and closes the door before the first worker begins. The door answers only with the state of the start.
 */
import { createServer, type Server } from 'node:http';

export class StartingDoor {
  readonly #server: Server;
  /** The reason why the start waits, in a sentence. */
  reason: string | undefined;

  private constructor() {
    this.#server = createServer((request, response) => {
      const [pathname] = (request.url ?? '').split('?');
      const isLive = pathname === '/livez';
      const reasons = this.reason === undefined ? [] : [this.reason];
      const isHealth = isLive || pathname === '/readyz' || pathname === '/healthz';
      const body = isHealth
        ? { status: isLive ? 'live' : 'starting', ...(!isLive && { parts: {}, reasons }) }
        : { status: 503, message: 'Millrace starts; try again in a moment.', errorCode: 2, timestamp: Date.now() };
      response.writeHead(isLive ? 200 : 503, {
        'content-type': 'application/json',
        connection: 'close',
        ...(!isHealth && { 'retry-after': '1' }),
      });
      response.end(JSON.stringify(body));
      request.resume();
    });
    this.#server.maxConnections = connectionsMax;
    this.#server.requestTimeout = requestMsMax;
    this.#server.headersTimeout = requestMsMax;
  }

  /** An address that cannot be bound now is left to the workers, which name the reason. */
  static open(address: string, port: number): Promise<StartingDoor> {
    const door = new StartingDoor();
    return new Promise((resolve) => {
      const opened = () => resolve(door);
      door.#server.once('error', opened);
      door.#server.listen({ port, host: address, exclusive: true }, opened);
    });
  }

  /** Resolves when the port is free. */
  close(): Promise<void> {
    return new Promise((resolve) => {
      this.#server.close(() => resolve());
      this.#server.closeAllConnections();
    });
  }
}

const connectionsMax = 100;
const requestMsMax = 5_000;
