/**
 * Counts each message of a device against its rate limits and notes the activity, for every door. A post with data
 * points is checked twice: before it is read, whether one point fits, and then for its points.
 */
import type { RateLimits } from '../auth/rate-limits.ts';
import type { CachedDevice } from '../device/model/cached-device.ts';

/** Notes the activity of a device. `now` saves a reading of the clock. */
type Touch = (device: CachedDevice, now?: number) => void;

interface MeterDeps {
  rateLimits: RateLimits;
  touch: Touch;
}

export class Admission {
  readonly rateLimits: RateLimits;
  readonly touch: Touch;

  constructor({ rateLimits, touch }: MeterDeps) {
    this.rateLimits = rateLimits;
    this.touch = touch;
  }

  /** Counts a message without data points: a read, a subscription, a call. Throws 429. */
  message(device: CachedDevice): void {
    this.rateLimits.message(device);
    this.touch(device);
  }

  /** Called before a post is read. Throws 429. */
  admit(device: CachedDevice): void {
    this.rateLimits.admit(device);
  }

  /** Counts the points of a post that was read. Throws 429. */
  points(device: CachedDevice, count: number): void {
    this.rateLimits.points(device, count);
    this.touch(device);
  }

  /** Counts as `message` does, for a gateway that acts for a child: its children share its limits. */
  childMessage(gateway: CachedDevice): void {
    this.rateLimits.childMessage(gateway);
    this.touch(gateway);
  }

  /** Counts as `points` does, for a child. */
  childPoints(gateway: CachedDevice, child: CachedDevice, count: number): void {
    this.rateLimits.childPoints(gateway, count);
    this.touch(gateway);
    this.touch(child);
  }
}
