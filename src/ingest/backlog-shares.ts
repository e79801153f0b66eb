/**
 * Shares of the journal, so that one sender does not use up what all senders need while ClickHouse takes less than
 * comes in. Nothing is counted while less than half of the journal waits. From then on `Ingest` counts the bytes that
 * each device, customer and tenant adds: a tenant may add nine times what stays free, a customer three times, a device
 * or gateway as much as stays free. So one tenant alone leaves a twentieth of the journal to others, one device a
 * quarter. What waited before, as before a restart, counts for no sender. The counts hold for the journal of this
 * worker. The stream of a lane is shared in the same way. All workers fill it, and a worker counts only what it has
 * accepted, so a tenant or customer may add at each worker that part of its share.
 */
import { Fault } from '../base/errors.ts';

/** Whose data it is: a device, or the gateway that sent for its devices. */
export interface Sender {
  readonly id: string;
  readonly number: number;
  readonly tenantId: string;
  readonly customerId: string | null;
}

/** What is shared, as refusals and the log name it. */
export interface Shared {
  readonly what: string;
  readonly reason: 'backlog_share' | 'stream_late_share';
}

export const ofJournal: Shared = { what: 'the journal', reason: 'backlog_share' };

/** Bytes that a sender of each kind may add, as multiples of what stays free. */
const timesFree = { device: 1, customer: 3, tenant: 9 } as const;
type Kind = keyof typeof timesFree;

export class BacklogShares {
  readonly #added: Record<Kind, Map<number | string, number>> = {
    device: new Map(),
    customer: new Map(),
    tenant: new Map(),
  };
  readonly #onRefused: (kind: Kind, id: string) => void;
  readonly #shared: Shared;
  #sum = 0;
  #freeBytes = 0;
  #workers = 1;

  /** `onRefused`: called for each refused message, with whose share is used up. */
  constructor(onRefused: (kind: Kind, id: string) => void, shared = ofJournal) {
    this.#onRefused = onRefused;
    this.#shared = shared;
  }

  /**
   * `waitingBytes` is what waits beyond the half: more than that was not added. The journal is emptied from its oldest
   * end, and which bytes left is not known, so all counts shrink alike. `workers`: those that share it.
   */
  update(freeBytes: number, waitingBytes: number, workers = 1): void {
    this.#freeBytes = freeBytes;
    this.#workers = workers;
    if (this.#sum <= waitingBytes) return;
    const part = waitingBytes / this.#sum;
    this.#sum = waitingBytes;
    for (const counts of Object.values(this.#added)) {
      for (const [owner, bytes] of counts) {
        const left = Math.floor(bytes * part);
        if (left > 0) counts.set(owner, left);
        else counts.delete(owner);
      }
    }
  }

  /** Throws 429 when the sender, its customer or its tenant has its share. */
  admit({ id, number, customerId, tenantId }: Sender): void {
    if (this.#hasShare('device', number)) this.#refuse('device', id);
    if (customerId !== null && this.#hasShare('customer', customerId)) this.#refuse('customer', customerId);
    if (this.#hasShare('tenant', tenantId)) this.#refuse('tenant', tenantId);
  }

  add({ number, customerId, tenantId }: Sender, bytes: number): void {
    this.#sum += bytes;
    this.#freeBytes -= bytes;
    this.#add('device', number, bytes);
    if (customerId !== null) this.#add('customer', customerId, bytes);
    this.#add('tenant', tenantId, bytes);
  }

  #hasShare(kind: Kind, owner: number | string): boolean {
    const added = this.#added[kind].get(owner) ?? 0;
    // A device sends to one worker, a tenant to all of them.
    const free = kind === 'device' ? this.#freeBytes : this.#freeBytes / this.#workers;
    return added > 0 && added > timesFree[kind] * free;
  }

  #refuse(kind: Kind, id: string): never {
    this.#onRefused(kind, id);
    const message =
      `ClickHouse takes less than comes in, and this ${kind} has its share of ${this.#shared.what}: send less, or send again ` +
      'later.';
    throw new Fault(this.#shared.reason, message, 5);
  }

  #add(kind: Kind, owner: number | string, bytes: number): void {
    const counts = this.#added[kind];
    counts.set(owner, (counts.get(owner) ?? 0) + bytes);
  }
}
