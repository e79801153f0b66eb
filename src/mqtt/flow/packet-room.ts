/**
 * The room of a worker for large packets of gateways: a cap for all of them, a share for each gateway and each tenant.
 * A packet that finds no room waits. Freed room is offered to the waiting packets, the oldest first; a packet whose
 * gateway or tenant has no share left is skipped. A connection waits for at most one packet.
 */
import { type BudgetOwner, ByteBudget, Held } from '../../base/byte-budget.ts';
import { type Scheduler, systemScheduler } from '../../base/scheduler.ts';
import type { CachedDevice } from '../../device/model/cached-device.ts';
import type { Room } from '../wire/large-packet.ts';

export interface RoomWaiter {
  /** Called when there may be room: the packet tries again, and waits again when there is none. */
  hasRoom(): void;
}

interface Waiting {
  readonly bytes: number;
  readonly owners: readonly BudgetOwner[];
}

export class PacketRoom {
  readonly #budget: ByteBudget;
  readonly #bytesMax: number;
  readonly #packetBytesMax: number;
  readonly #scheduler: Scheduler;
  readonly #waiting = new Map<RoomWaiter, Waiting>();
  #isOffering = false;

  constructor(bytesMax: number, packetBytesMax: number, scheduler = systemScheduler) {
    this.#scheduler = scheduler;
    this.#budget = new ByteBudget(bytesMax);
    this.#bytesMax = bytesMax;
    this.#packetBytesMax = packetBytesMax;
  }

  get held(): number {
    return this.#budget.held;
  }

  get waiting(): number {
    return this.#waiting.size;
  }

  /** Returns the room of a gateway: for one packet that is handled and one that is received. */
  of({ number, tenantId }: Pick<CachedDevice, 'number' | 'tenantId'>, waiter: RoomWaiter): Room {
    const owners = [
      { name: `gateway ${number}`, bytesMax: 2 * this.#packetBytesMax },
      { name: `tenant ${tenantId}`, bytesMax: Math.max(this.#packetBytesMax, 0.75 * this.#bytesMax) },
    ];
    const held = new Held(this.#budget, owners);
    return {
      grow: (bytes) => {
        if (held.grow(bytes)) {
          this.#waiting.delete(waiter);
          return true;
        }
        // A packet that already waits keeps its place.
        this.#waiting.set(waiter, { bytes: bytes - held.bytes, owners });
        return false;
      },
      release: () => {
        held.release();
        this.#offer();
      },
    };
  }

  /** Ends the wait of `waiter`, if there is one. */
  forget(waiter: RoomWaiter): void {
    this.#waiting.delete(waiter);
  }

  /** Offers freed room in a later turn, because a release may be part of the work of a connection. */
  #offer(): void {
    if (this.#isOffering || this.#waiting.size === 0) return;
    this.#isOffering = true;
    this.#scheduler.soon(() => {
      this.#isOffering = false;
      for (const [waiter, { bytes, owners }] of [...this.#waiting]) {
        if (this.#budget.held + bytes > this.#bytesMax) return;
        if (!this.#budget.lacking(bytes, owners)) waiter.hasRoom();
      }
    });
  }
}
