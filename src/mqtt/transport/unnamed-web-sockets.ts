/**
 * The WebSockets of a worker whose clients have named no credentials yet. The library gathers the pieces of a message
 * out of sight, up to the largest message, and such a client may send pieces only. So the number of these sockets
 * bounds what strangers make a worker keep. The oldest socket of the network that has the most of them ends first. A
 * socket has two seconds to send its CONNECT: until then the bandwidth of the host bounds what was sent.
 */
import { availableParallelism } from 'node:os';
import { type Clock, systemClock } from '../../base/clock.ts';
import { limits } from '../../base/limits.ts';
import { networkOf } from '../../base/network.ts';
import { type Scheduler, systemScheduler } from '../../base/scheduler.ts';
import { usableMemoryBytes } from '../../base/usable-memory.ts';

interface UnnamedWebSocket {
  readonly remoteAddress: string;
  /** Closes the connection and removes the socket from here. */
  crowdedOut(): void;
}

interface UnnamedWebSocketsDeps {
  /** The largest message of a client. */
  messageBytesMax: number;
  memoryBytes?: number;
  clock?: Pick<Clock, 'monotonic'>;
  scheduler?: Scheduler;
}

/** Returns how many such sockets a worker has, beside those that are young. */
export function unnamedSocketsMax(messageBytesMax: number, memoryBytes = usableMemoryBytes()): number {
  const shareOfWorker = limits.webSocketUnnamedShare / availableParallelism();
  return Math.max(limits.webSocketUnnamedMin, Math.floor((memoryBytes * shareOfWorker) / messageBytesMax));
}

export class UnnamedWebSockets {
  readonly #max: number;
  readonly #clock: Pick<Clock, 'monotonic'>;
  readonly #scheduler: Scheduler;
  /** Each socket with the time at which it was opened, the oldest first. */
  readonly #ofNetwork = new Map<string, Map<UnnamedWebSocket, number>>();
  #size = 0;
  /** True while a later check is due. */
  #isChecking = false;

  constructor({ messageBytesMax, memoryBytes, clock, scheduler }: UnnamedWebSocketsDeps) {
    this.#max = unnamedSocketsMax(messageBytesMax, memoryBytes);
    this.#clock = clock ?? systemClock;
    this.#scheduler = scheduler ?? systemScheduler;
  }

  get size(): number {
    return this.#size;
  }

  add(socket: UnnamedWebSocket): void {
    const network = networkOf(socket.remoteAddress);
    const own = this.#ofNetwork.get(network) ?? new Map<UnnamedWebSocket, number>();
    this.#ofNetwork.set(network, own.set(socket, this.#clock.monotonic()));
    this.#size += 1;
    if (this.#size > this.#max) this.#checkLater();
  }

  /** Called when the client has named its credentials, and when the socket has closed. */
  remove(socket: UnnamedWebSocket): void {
    const network = networkOf(socket.remoteAddress);
    const own = this.#ofNetwork.get(network);
    if (own?.delete(socket) !== true) return;
    this.#size -= 1;
    if (own.size === 0) this.#ofNetwork.delete(network);
  }

  #checkLater(): void {
    if (this.#isChecking) return;
    this.#isChecking = true;
    this.#scheduler.after(limits.webSocketUnnamedMsMin / 4, () => {
      this.#isChecking = false;
      this.#check();
      if (this.#size > this.#max) this.#checkLater();
    });
  }

  /** Ends sockets above the cap, but none that is young. */
  #check(): void {
    const openedBefore = this.#clock.monotonic() - limits.webSocketUnnamedMsMin;
    while (this.#size > this.#max) {
      const oldest = this.#oldest(openedBefore);
      if (oldest === undefined) return;
      oldest.crowdedOut();
    }
  }

  /** Returns the oldest socket of the network that has the most, among networks with a socket that is old enough. */
  #oldest(openedBefore: number): UnnamedWebSocket | undefined {
    let most = 0;
    let found: UnnamedWebSocket | undefined;
    for (const own of this.#ofNetwork.values()) {
      const [first] = own;
      if (first === undefined || own.size <= most || first[1] > openedBefore) continue;
      most = own.size;
      found = first[0];
    }
    return found;
  }
}
