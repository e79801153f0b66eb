/**
 * A TCP link between two programs that can be cut: nothing passes then, and neither program is notified. A single
 * answer can be lost with its connection, and a single request can be held.
 */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';

export class Link {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  #isCut = false;
  /** `isLost` is true of the bytes that are to be lost. */
  #lost: { asked: string; isLost: (bytes: Buffer) => boolean } | undefined;

  #held: { asked: string; hold: () => Promise<void> } | undefined;

  private constructor(to: number) {
    this.#server = createServer((near) => {
      const far = connect(to, '127.0.0.1');
      let hasAsked = false;
      this.#forward(near, far, (bytes) => {
        hasAsked ||= this.#lost !== undefined && bytes.includes(this.#lost.asked);
        if (this.#held === undefined || !bytes.includes(this.#held.asked)) {
          far.write(bytes);
          return;
        }
        const { hold } = this.#held;
        this.#held = undefined;
        near.pause();
        void hold().then(() => {
          far.write(bytes);
          near.resume();
        });
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

  /** Holds the request that has these bytes until `release`, once. Resolves when the request has come. */
  hold(asked: string): { held: Promise<void>; release: () => void } {
    let release!: () => void;
    const released = new Promise<void>((resolve) => (release = resolve));
    const held = new Promise<void>((resolve) => {
      const hold = () => {
        resolve();
        return released;
      };
      this.#held = { asked, hold };
    });
    return { held, release };
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
