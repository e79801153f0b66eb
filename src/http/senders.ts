/** Who sends: what nearly every operation does first. Token → device, or 401; the rate limit of messages; a sign of life. */
import type { RateLimits } from '../auth/rate-limits.ts';
import { ErrorCode, Fault } from '../base/errors.ts';
import type { CachedDevice } from '../device/cached-device.ts';
import type { TokenCache } from '../device/token-cache.ts';

export interface SendersParts {
  tokens: TokenCache;
  /** Undefined = unlimited. */
  rateLimits: RateLimits | undefined;
  touch: (device: CachedDevice) => void;
}

const unknownToken = new Fault(
  401,
  ErrorCode.authentication,
  'unknown_token',
  'No device has this access token; check the token in the path.',
);

export class Senders {
  readonly rateLimits: RateLimits | undefined;
  readonly touch: (device: CachedDevice) => void;
  readonly #tokens: TokenCache;

  constructor({ tokens, rateLimits, touch }: SendersParts) {
    this.#tokens = tokens;
    this.rateLimits = rateLimits;
    this.touch = touch;
  }

  /** Without waiting, when this worker knows the token; undefined says nothing. */
  known(token: string): CachedDevice | undefined {
    return this.#tokens.get(token);
  }

  async find(token: string): Promise<CachedDevice> {
    const device = this.#tokens.get(token) ?? (await this.#tokens.lookup(token));
    if (device === null) throw unknownToken;
    return device;
  }

  /** The device that sends a message, counted and noted as alive. */
  async admit(token: string): Promise<CachedDevice> {
    const device = await this.find(token);
    this.count(device);
    return device;
  }

  count(device: CachedDevice): void {
    this.rateLimits?.message(device);
    this.touch(device);
  }
}
