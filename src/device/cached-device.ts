/**
 * What the hot path knows about a device. One object in a worker (`DevicesHere`), shared by all its requests and
 * sessions; every field is set in the constructor, so that all of them have one shape.
 */

import type { Fault } from '../base/errors.ts';

/** One worker hands out the server times `t` with `t % stride === offset` only. */
export interface TimeSlot {
  stride: number;
  offset: number;
}

/** Why this process hands out no server times at the moment: its clock and the database's are too far apart. */
let refusal: Fault | undefined;

export function refuseServerTimes(fault: Fault | undefined): void {
  refusal = fault;
}

export interface DeviceRow {
  /** The device in ClickHouse. */
  number: number;
  id: string;
  tenantId: string;
  customerId: string | null;
  profileId: string;
  name: string;
  /** Rises with each change of the device. */
  version: number;
  /** Undefined where nobody asked. */
  isGateway?: boolean;
}

/** A device as it is stored now. */
export interface StoredDevice extends DeviceRow {
  /** Rises with each change of its credentials. */
  credentialsVersion: number;
}

export class CachedDevice {
  readonly number: number;
  readonly id: string;
  readonly tenantId: string;
  customerId: string | null;
  profileId: string;
  name: string;
  version: number;
  /** It counts against other rate limits. */
  isGateway: boolean;
  /** How many share it (`DevicesHere`). */
  holders = 0;
  readonly #stride: number;
  readonly #offset: number;
  /** The last server time handed out. */
  lastTs: number;
  /** Epoch milliseconds of the last sign of life; fleet/activity.ts writes it down from time to time. */
  activeTs = 0;
  /** Listed to be written down. */
  isActivityNoted = false;
  /** It was written down as active and is never silent for long: the next time need not be written at once. */
  isActivitySteady = false;

  constructor(row: DeviceRow, slot: TimeSlot, lastTs: number) {
    this.number = row.number;
    this.id = row.id;
    this.tenantId = row.tenantId;
    this.customerId = row.customerId;
    this.profileId = row.profileId;
    this.name = row.name;
    this.version = row.version;
    this.isGateway = row.isGateway ?? false;
    this.#stride = slot.stride;
    this.#offset = slot.offset;
    this.lastTs = lastTs;
  }

  /** Takes over what a user may change; a row that was read before the known one says nothing. */
  refresh(row: DeviceRow): void {
    if (row.version < this.version) return;
    this.customerId = row.customerId;
    this.profileId = row.profileId;
    this.name = row.name;
    this.version = row.version;
    if (row.isGateway !== undefined) this.isGateway = row.isGateway;
  }

  /**
   * Server time of a message without `ts`. It strictly rises, because a second message in the same millisecond would
   * replace the first. A device's messages may reach any worker of the host and workers share no memory, so each
   * worker has its own residue: two of them never hand out the same time. The price is a time up to `stride` - 1 ms
   * ahead of the clock, and more while a device sends faster than one message in `stride` ms.
   */
  nextTs(now: number): number {
    if (refusal !== undefined) throw refusal;
    const earliest = now > this.lastTs ? now : this.lastTs + 1;
    const behind = earliest % this.#stride;
    const ts = earliest + ((this.#offset - behind + this.#stride) % this.#stride);
    this.lastTs = ts;
    return ts;
  }
}
