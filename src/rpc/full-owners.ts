/**
 * The owners whose share of this worker's room for commands is used up. Their persistent commands are not claimed for
 * the time of a lease, because they would take the places of commands of other owners. The list is short: the shares
 * are parts of one room.
 */
import type { Clock } from '../base/clock.ts';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { CommandOwners } from './shares.ts';
import type { WithoutRoom } from './store.ts';

/** Reason of a refusal → the owner whose share is used up (`shares.ts`, `waiters.ts`). */
const fullOwners: Record<string, keyof WithoutRoom | undefined> = {
  rpc_device_full: 'device',
  rpc_device_bytes: 'device',
  rpc_customer_full: 'customer',
  rpc_tenant_full: 'tenant',
};

interface FullOwner {
  kind: keyof WithoutRoom;
  id: unknown;
  /** Monotonic time. */
  until: number;
}

export class FullOwners {
  readonly #clock: Clock;
  readonly #owners = new Map<string, FullOwner>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Notes the owner whose share was too small for a command. Returns false for an error of another kind. */
  note(error: unknown, { device, customerId, tenantId }: CommandOwners): boolean {
    const kind = error instanceof Fault ? fullOwners[error.reason] : undefined;
    if (!kind) return false;
    const id = { device, customer: customerId, tenant: tenantId }[kind];
    this.#owners.set(`${kind} ${id}`, { kind, id, until: this.#clock.monotonic() + limits.rpcLeaseMs });
    return true;
  }

  /** Returns the owners whose commands must not be claimed now. */
  current(): WithoutRoom {
    const without = { device: [], customer: [], tenant: [] } as Record<keyof WithoutRoom, unknown[]>;
    const now = this.#clock.monotonic();
    for (const [key, { kind, id, until }] of this.#owners) {
      if (until <= now) this.#owners.delete(key);
      else without[kind].push(id);
    }
    return without as WithoutRoom;
  }
}
