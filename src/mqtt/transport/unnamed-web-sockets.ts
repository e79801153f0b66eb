/**
 * The WebSockets of a worker whose clients have named no credentials yet. The library gathers the pieces of a message
 * out of sight, up to the largest message, and such a client may send pieces only. So the number of these sockets
 * bounds what strangers make a worker keep. A client sends its CONNECT at once, so the oldest socket of the address
 * that has the most of them ends first.
 */
import { limits } from '../../base/limits.ts';
import { usableMemoryBytes } from '../../base/usable-memory.ts';

interface UnnamedWebSocket {
  readonly remoteAddress: string;
  /** Closes the connection and removes the socket from here. */
  crowdedOut(): void;
}

/** So many are taken on a machine with little memory, too. */
const socketsMin = 16;

export class UnnamedWebSockets {
  readonly #max: number;
  readonly #ofAddress = new Map<string, Set<UnnamedWebSocket>>();
  #size = 0;

  constructor(messageBytesMax: number, memoryBytes = usableMemoryBytes()) {
    this.#max = Math.max(socketsMin, Math.floor((memoryBytes * limits.webSocketUnnamedShare) / messageBytesMax));
  }

  get size(): number {
    return this.#size;
  }

  add(socket: UnnamedWebSocket): void {
    const { remoteAddress } = socket;
    const own = this.#ofAddress.get(remoteAddress) ?? new Set();
    this.#ofAddress.set(remoteAddress, own.add(socket));
    this.#size += 1;
    if (this.#size > this.#max) this.#oldest().crowdedOut();
  }

  /** Called when the client has named its credentials, and when the socket has closed. */
  remove(socket: UnnamedWebSocket): void {
    const own = this.#ofAddress.get(socket.remoteAddress);
    if (own?.delete(socket) !== true) return;
    this.#size -= 1;
    if (own.size === 0) this.#ofAddress.delete(socket.remoteAddress);
  }

  /** Returns the oldest socket of the address that has the most. */
  #oldest(): UnnamedWebSocket {
    let most = new Set<UnnamedWebSocket>();
    for (const own of this.#ofAddress.values()) if (own.size > most.size) most = own;
    const [oldest] = most;
    return oldest!;
  }
}
