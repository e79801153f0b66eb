/**
 * What everything that a device sends goes through, whatever door it came by: it counts against the rate limits, and it
 * is a sign of life. A post with data points is looked at twice, because it is worth reading only if one point fits.
 */
import type { RateLimits } from '../auth/rate-limits.ts';
import type { CachedDevice } from '../device/cached-device.ts';

export interface MeterDeps {
  /** Undefined = unlimited. */
  rateLimits: RateLimits | undefined;
  touch: (device: CachedDevice) => void;
}

export class Admission {
  readonly rateLimits: RateLimits | undefined;
  readonly touch: (device: CachedDevice) => void;

  constructor({ rateLimits, touch }: MeterDeps) {
    this.rateLimits = rateLimits;
    this.touch = touch;
  }

  /** A message without data points: a read, a subscription, a call. Throws 429. */
  message(device: CachedDevice): void {
    this.rateLimits?.message(device);
    this.touch(device);
  }

  /** Before a post is read. Throws 429. */
  admit(device: CachedDevice): void {
    this.rateLimits?.admit(device);
  }

  /** Once it is read. Throws 429. */
  points(device: CachedDevice, count: number): void {
    this.rateLimits?.points(device, count);
    this.touch(device);
  }

  /** As `message`, of a gateway for one of its children, which share its limits. */
  childMessage(gateway: CachedDevice): void {
    this.rateLimits?.childMessage(gateway);
    this.touch(gateway);
  }

  /** As `points`, of a child. */
  childPoints(gateway: CachedDevice, child: CachedDevice, count: number): void {
    this.rateLimits?.childPoints(gateway, count);
    this.touch(gateway);
    this.touch(child);
  }
}
