/**
 * Bytes of the commands that wait in this worker, for each device, customer and tenant that they are for: nobody uses up
 * what the commands of others need. `Waiters` counts a command here as long as it waits.
 */
import { ErrorCode, Fault } from '../base/errors.ts';

/** Whom a command is for. `customerId`: of the device, when the command came. */
export interface CommandOwners {
  readonly device: number;
  readonly tenantId: string;
  readonly customerId: string | null;
}

export interface ShareLimits {
  deviceBytesMax: number;
  customerBytesMax: number;
  tenantBytesMax: number;
}

export class Shares {
  readonly #limits: ShareLimits;
  readonly #devices = new Map<number, number>();
  readonly #customers = new Map<string, number>();
  readonly #tenants = new Map<string, number>();

  constructor(limits: ShareLimits) {
    this.#limits = limits;
  }

  /** Why `bytes` more do not fit; undefined when they do. */
  refusal({ device, customerId, tenantId }: CommandOwners, bytes: number): Fault | undefined {
    const { deviceBytesMax, customerBytesMax, tenantBytesMax } = this.#limits;
    if (held(this.#devices, device) + bytes > deviceBytesMax) {
      return full('rpc_device_bytes', 'of the device', deviceBytesMax);
    }
    if (customerId !== null && held(this.#customers, customerId) + bytes > customerBytesMax) {
      return full('rpc_customer_full', 'of all devices of the customer', customerBytesMax);
    }
    if (held(this.#tenants, tenantId) + bytes > tenantBytesMax) {
      return full('rpc_tenant_full', 'of all devices of the tenant', tenantBytesMax);
    }
    return undefined;
  }

  /** `bytes` below zero when the command has ended. */
  add({ device, customerId, tenantId }: CommandOwners, bytes: number): void {
    count(this.#devices, device, bytes);
    if (customerId !== null) count(this.#customers, customerId, bytes);
    count(this.#tenants, tenantId, bytes);
  }

  /** Nothing is left of commands that have ended. */
  get isEmpty(): boolean {
    return this.#devices.size + this.#customers.size + this.#tenants.size === 0;
  }
}

function held<Key>(bytes: Map<Key, number>, key: Key): number {
  return bytes.get(key) ?? 0;
}

function count<Key>(bytes: Map<Key, number>, key: Key, change: number): void {
  const now = held(bytes, key) + change;
  if (now === 0) bytes.delete(key);
  else bytes.set(key, now);
}

function full(reason: string, whose: string, bytesMax: number): Fault {
  const message = `The waiting commands ${whose} take ${bytesMax} bytes, which is the most they may take; send this one later.`;
  return new Fault(429, ErrorCode.tooManyRequests, reason, message, 1);
}
