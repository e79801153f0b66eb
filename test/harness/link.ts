/** A TCP link between two programs that can be cut: nothing passes then, and neither program is notified. */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';

export class Link {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  #isCut = false;

  private constructor(to: number) {
    this.#server = createServer((near) => {
      const far = connect(to, '127.0.0.1');
      this.#forward(near, far);
      this.#forward(far, near);
    });
  }

  /** Leads to a port of this machine. */
  static async to(port: number): Promise<Link> {
    const link = new Link(port);
    link.#server.listen(0, '127.0.0.1');
    await once(link.#server, 'listening');
    return link;
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  cut(): void {
    this.#isCut = true;
    for (const socket of this.#sockets) socket.pause();
  }

  /** Ends the cut: what was sent meanwhile arrives now. */
  join(): void {
    this.#isCut = false;
    for (const socket of this.#sockets) socket.resume();
  }

  close(): void {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  #forward(from: Socket, to: Socket): void {
    this.#sockets.add(from);
    from.on('data', (bytes) => to.write(bytes));
    if (this.#isCut) from.pause();
    from.on('error', () => {});
    from.on('close', () => {
      this.#sockets.delete(from);
      to.destroy();
    });
  }
}
