/** Who sends: what nearly every operation does first. Token → device, or 401; the rate limit of messages; a sign of life. */
import { asFault, ErrorCode, Fault } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { CachedDevice } from '../device/cached-device.ts';
import type { TokenCache } from '../device/token-cache.ts';
import type { Meter } from '../fleet/meter.ts';
import type { Exchange } from '../uws/exchange.ts';

const unknownToken = new Fault(
  401,
  ErrorCode.authentication,
  'unknown_token',
  'No device has this access token; check the token in the path.',
);

/** As the room for bodies knows a device. */
export function senderOf({ number }: CachedDevice): string {
  return `device ${number}`;
}

export class Senders {
  readonly meter: Meter;
  readonly #tokens: TokenCache;
  readonly #log: Log;

  constructor(tokens: TokenCache, meter: Meter, log: Log) {
    this.#tokens = tokens;
    this.meter = meter;
    this.#log = log;
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

  /** Who sends a body that comes in pieces, before the rest of it is read. */
  readonly admitBody = (token: string): string | Promise<string> => {
    const device = this.#tokens.get(token);
    return device ? senderOf(device) : this.find(token).then(senderOf);
  };

  /** The answer to a request that failed, and of nobody else. */
  refuse(exchange: Exchange, error: unknown): void {
    exchange.refuse(this.fault(error));
  }

  fault(error: unknown): Fault {
    if (!(error instanceof Fault)) this.#log.error('handler_bug', { error });
    return asFault(error);
  }

  /** The device that sends a message, counted and noted as alive. */
  async admit(token: string): Promise<CachedDevice> {
    const device = await this.find(token);
    this.meter.message(device);
    return device;
  }
}
