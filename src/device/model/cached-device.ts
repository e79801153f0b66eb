/**
 * A device as the hot path knows it. `LocalDevices` keeps one object for each device in a worker, shared by all its
 * requests and sessions. Every field is set in the constructor, so that all objects have one shape.
 */

export interface DeviceRow {
  /** The number of the device in ClickHouse. */
  number: number;
  id: string;
  tenantId: string;
  customerId: string | null;
  profileId: string;
  name: string;
  /** Increases with each change of the device. */
  version: number;
  /** Undefined when the query did not read it. */
  isGateway?: boolean | undefined;
  /** `gateway-scope.ts`. Undefined when the query did not read it. */
  isConfined?: boolean | undefined;
  /** Number of the gateway that made the device; null = none. Undefined when the query did not read it. */
  madeBy?: number | null | undefined;
}

/** A device as it is stored. */
export interface StoredDevice extends DeviceRow {
  /** Increases with each change of its credentials. */
  credentialsVersion: number;
}

/** Counts the renames that this process has seen: a name that was valid at this count is still valid. */
export const renames = { count: 0 };

export class CachedDevice {
  readonly number: number;
  readonly id: string;
  readonly tenantId: string;
  customerId: string | null;
  profileId: string;
  name: string;
  version: number;
  /** True: other rate limits apply to the device. */
  isGateway: boolean;
  isConfined: boolean;
  madeBy: number | null | undefined;
  /** Number of users that share the object (`LocalDevices`). */
  holders = 0;

  constructor(row: DeviceRow) {
    this.number = row.number;
    this.id = row.id;
    this.tenantId = row.tenantId;
    this.customerId = row.customerId;
    this.profileId = row.profileId;
    this.name = row.name;
    this.version = row.version;
    this.isGateway = row.isGateway ?? false;
    this.isConfined = row.isConfined ?? false;
    this.madeBy = row.madeBy;
  }

  /** Takes over the members that a user may change. A row that is older than the known one is ignored. */
  refresh(row: DeviceRow): void {
    if (row.version < this.version) return;
    this.customerId = row.customerId;
    this.profileId = row.profileId;
    if (row.name !== this.name) {
      this.name = row.name;
      renames.count += 1;
    }
    this.version = row.version;
    if (row.isGateway !== undefined) this.isGateway = row.isGateway;
    if (row.isConfined !== undefined) this.isConfined = row.isConfined;
    if (row.madeBy !== undefined) this.madeBy = row.madeBy;
  }
}
