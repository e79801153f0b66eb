/**
 * Counts each message of a device against the limits of the device and its tenant, and notes the activity, for every
 * door. A post with data points is checked twice: before it is read, whether one point fits, and then for its points
 * and keys.
 */
import type { RateLimits } from '../auth/rate-limits.ts';
import { Fault } from '../base/errors.ts';
import type { CachedDevice } from '../device/model/cached-device.ts';
import type { DeviceKeys } from '../telemetry/device-keys.ts';
import type { Rows } from '../telemetry/rows.ts';
import type { TenantUsage } from './tenant-usage.ts';

/** Notes the activity of a device. `now` saves a reading of the clock. */
type Touch = (device: CachedDevice, now?: number) => void;

interface AdmissionDeps {
  rateLimits: RateLimits;
  usage: TenantUsage;
  deviceKeys: DeviceKeys;
  touch: Touch;
}

export class Admission {
  readonly rateLimits: RateLimits;
  readonly usage: TenantUsage;
  readonly deviceKeys: DeviceKeys;
  readonly touch: Touch;

  constructor({ rateLimits, usage, deviceKeys, touch }: AdmissionDeps) {
    this.rateLimits = rateLimits;
    this.usage = usage;
    this.deviceKeys = deviceKeys;
    this.touch = touch;
  }

  /** False while telemetry has no limit: doors then skip `admit` and `charge`. */
  get isLimiting(): boolean {
    return this.rateLimits.isActive || this.usage.isLimiting || this.deviceKeys.isLimiting;
  }

  /** Counts a message without data points: a read, a subscription, a call. Throws 429. */
  message(device: CachedDevice): void {
    this.count(device);
    this.touch(device);
  }

  /** Counts as `message` does, before the body is read. The caller notes the activity when the body is valid. */
  count(device: CachedDevice): void {
    this.usage.admit(device.tenantId);
    this.rateLimits.message(device);
    this.usage.add(device.tenantId, 0);
  }

  /** Called before a post is read. Throws 429. */
  admit(device: CachedDevice): void {
    this.usage.admit(device.tenantId);
    this.rateLimits.admit(device);
  }

  /** Returns the fault that `admit` would throw now. */
  refusal(device: CachedDevice): Fault | undefined {
    if (!this.isLimiting) return undefined;
    try {
      this.admit(device);
      return undefined;
    } catch (error) {
      if (error instanceof Fault) return error;
      throw error;
    }
  }

  /** Counts the points of a post of attributes that was read. Throws 429. */
  points(device: CachedDevice, count: number): void {
    this.rateLimits.points(device, count);
    this.accepted(device, count);
  }

  /** Takes a post of telemetry whose rows begin at `first`, before it is accepted. Throws the Fault of a limit. */
  readonly charge = (device: CachedDevice, points: number, rows: Rows, first: number): void => {
    this.rateLimits.points(device, points);
    this.deviceKeys.admit(device, rows, first);
  };

  /** Does what `charge` does, for a post that was decoded in a thread. */
  chargeDecoded(device: CachedDevice, points: number, keys: readonly Uint8Array[]): void {
    this.rateLimits.points(device, points);
    this.deviceKeys.admitKeys(device, keys);
  }

  /** Counts an accepted post and notes the activity. */
  accepted(device: CachedDevice, points: number, now?: number): void {
    this.usage.add(device.tenantId, points);
    this.touch(device, now);
  }

  /** Counts as `message` does, for a gateway that acts for a child: its children share its limits. */
  childMessage(gateway: CachedDevice): void {
    this.usage.admit(gateway.tenantId);
    this.rateLimits.childMessage(gateway);
    this.accepted(gateway, 0);
  }

  /** Counts as `points` does, for the attributes of a child. */
  childPoints(gateway: CachedDevice, child: CachedDevice, count: number): void {
    this.usage.admit(gateway.tenantId);
    this.rateLimits.childPoints(gateway, count);
    this.accepted(gateway, count);
    this.touch(child);
  }

  /** Called before the telemetry of a gateway is read. Throws 429 above a quota of the tenant. */
  admitGateway(gateway: CachedDevice): void {
    this.usage.admit(gateway.tenantId);
  }

  /** Does what `charge` does, for the telemetry of a child. */
  chargeChild(gateway: CachedDevice, child: CachedDevice, rows: Rows, first: number): void {
    this.rateLimits.childPoints(gateway, rows.count - first);
    this.deviceKeys.admit(child, rows, first);
  }

  /** Does what `chargeChild` does, for telemetry that was decoded in a thread. */
  chargeDecodedChild(gateway: CachedDevice, child: CachedDevice, points: number, keys: readonly Uint8Array[]): void {
    this.rateLimits.childPoints(gateway, points);
    this.deviceKeys.admitKeys(child, keys);
  }
}
