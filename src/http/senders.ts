/** Who sends: what nearly every operation does first. Token → device, or 401; the rate limit of messages; a sign of life. */
import { ErrorCode, Fault } from '../base/errors.ts';
import type { CachedDevice } from '../device/cached-device.ts';
import type { TokenCache } from '../device/token-cache.ts';
import type { Meter } from '../fleet/meter.ts';

const unknownToken = new Fault(
  401,
  ErrorCode.authentication,
  'unknown_token',
  'No device has this access token; check the token in the path.',
);

export class Senders {
  readonly meter: Meter;
  readonly #tokens: TokenCache;

  constructor(tokens: TokenCache, meter: Meter) {
    this.#tokens = tokens;
    this.meter = meter;
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
    this.meter.message(device);
    return device;
  }
}
