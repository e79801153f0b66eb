/**
 * A TCP link between two programs that can be cut: nothing passes then, and neither program is notified. A single
 * answer can be lost with its connection.
 */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';

export class Link {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  #isCut = false;
  /** `isLost` is true of the bytes that are to be lost. */
  #lost: { asked: string; isLost: (bytes: Buffer) => boolean } | undefined;

  private constructor(to: number) {
    this.#server = createServer((near) => {
      const far = connect(to, '127.0.0.1');
      let hasAsked = false;
      this.#forward(near, far, (bytes) => {
        hasAsked ||= this.#lost !== undefined && bytes.includes(this.#lost.asked);
        far.write(bytes);
      });
      this.#forward(far, near, (bytes) => {
        if (hasAsked && this.#lost?.isLost(bytes)) near.resetAndDestroy();
        else near.write(bytes);
      });
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

  /**
   * Ends the connection over which `asked` was sent in place of passing on an `answer`, once. Resolves when the answer
   * is lost.
   */
  loseAnswer(asked: string, answer: string): Promise<void> {
    return new Promise((resolve) => {
      const isLost = (bytes: Buffer) => {
        if (!bytes.includes(answer)) return false;
        this.#lost = undefined;
        resolve();
        return true;
      };
      this.#lost = { asked, isLost };
    });
  }

  close(): void {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  #forward(from: Socket, to: Socket, pass: (bytes: Buffer) => void): void {
    this.#sockets.add(from);
    from.on('data', pass);
    if (this.#isCut) from.pause();
    from.on('error', () => {});
    from.on('close', () => {
      this.#sockets.delete(from);
      to.destroy();
    });
  }
}
