/**
 * Records of devices in a bounded memory. A record that is added or used becomes the newest one. A full table evicts
 * the oldest record of the tenant that adds one, if this tenant has more than its share (the cap divided by the tenants
 * in the table), and the oldest record of all otherwise. So one tenant with trouble does not evict the records of
 * another.
 */
import { FifoMap } from '../base/fifo-map.ts';

interface DeviceRecord {
  readonly number: number;
  readonly tenantId: string;
}

export class RecordTable<R extends DeviceRecord> {
  readonly #max: number;
  readonly #all: FifoMap<number, R>;
  readonly #byTenant = new Map<string, FifoMap<number, R>>();

  constructor(max: number) {
    this.#max = max;
    this.#all = new FifoMap(max);
  }

  get size(): number {
    return this.#all.size;
  }

  get(number: number): R | undefined {
    return this.#all.get(number);
  }

  /** Adds the record, or makes a known one the newest. */
  add(record: R): void {
    const { number, tenantId } = record;
    this.delete(number);
    if (this.size >= this.#max) this.#evict(tenantId);
    this.#all.set(number, record);
    const ofTenant = this.#byTenant.get(tenantId) ?? new FifoMap<number, R>(this.#max);
    this.#byTenant.set(tenantId, ofTenant);
    ofTenant.set(number, record);
  }

  delete(number: number): void {
    const record = this.#all.get(number);
    if (record === undefined) return;
    this.#all.delete(number);
    this.#leaveTenant(record);
  }

  /** The records of a tenant, oldest first. */
  ofTenant(tenantId: string): R[] {
    return [...(this.#byTenant.get(tenantId)?.values() ?? [])];
  }

  #evict(tenantId: string): void {
    const own = this.#byTenant.get(tenantId);
    const isOverShare = own !== undefined && own.size > this.#max / this.#byTenant.size;
    if (isOverShare) this.delete(own.takeOldest().number);
    else this.#leaveTenant(this.#all.takeOldest());
  }

  #leaveTenant({ number, tenantId }: R): void {
    const ofTenant = this.#byTenant.get(tenantId)!;
    ofTenant.delete(number);
    if (ofTenant.size === 0) this.#byTenant.delete(tenantId);
  }
}
