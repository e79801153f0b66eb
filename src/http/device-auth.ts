/**
 * Identifies the sender, the first step of nearly every operation: token → device or 401; 429 for an address that sent
 * too many wrong tokens; the rate limit of messages; the device's activity.
 */

import type { Admission } from '../activity/admission.ts';
import type { WrongCredentials } from '../auth/wrong-credentials.ts';
import { asFault, Fault } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { CachedDevice } from '../device/cached-device.ts';
import type { TokenCache } from '../device/token-cache.ts';
import type { Exchange } from '../uws/exchange.ts';
import type { HttpRequest } from '../uws/server.ts';

const unknownToken = new Fault('unknown_token', 'No device has this access token; check the token in the path.');

/** Names a device in the budget of request bodies. */
export function senderOf({ number }: CachedDevice): string {
  return `device ${number}`;
}

/** The request that carries a token. The address is read only when it is needed. */
export type From = Pick<Exchange, 'remoteAddress'> | Pick<HttpRequest, 'remoteAddress'>;

export class DeviceAuth {
  readonly admission: Admission;
  readonly #tokens: TokenCache;
  /** Undefined = an address may try any number of tokens. */
  readonly #wrong: WrongCredentials | undefined;
  readonly #log: Log;

  constructor(tokens: TokenCache, wrong: WrongCredentials | undefined, admission: Admission, log: Log) {
    this.#tokens = tokens;
    this.#wrong = wrong;
    this.admission = admission;
    this.#log = log;
  }

  /**
   * Returns the device at once if this worker knows the token and the address may use it. Undefined leaves the decision
   * open.
   */
  known(token: string, from: From): CachedDevice | undefined {
    const device = this.#tokens.get(token);
    if (device === undefined || this.#wrong === undefined || this.#wrong.isCalm) return device;
    return this.#wrong.mayUse(addressOf(from), token) ? device : undefined;
  }

  async find(token: string, from: From): Promise<CachedDevice> {
    const known = this.known(token, from);
    if (known !== undefined) return known;
    const wrong = this.#wrong;
    // A request that has ended has no address any more.
    const address = wrong === undefined ? '' : addressOf(from);
    wrong?.check(address, token);
    const device = await this.#tokens.lookup(token);
    // Checks again, because many tries may have waited for lookups at the same time.
    wrong?.check(address, token);
    if (device === null) {
      wrong?.wrong(address);
      throw unknownToken;
    }
    wrong?.right(address, token);
    return device;
  }

  /** Names the sender of a body that comes in pieces, before the rest of the body is read. */
  readonly admitBody = (token: string, from: From): string | Promise<string> => {
    const device = this.known(token, from);
    return device ? senderOf(device) : this.find(token, from).then(senderOf);
  };

  /** Refuses a request that failed. */
  refuse(exchange: Exchange, error: unknown): void {
    exchange.refuse(this.fault(error));
  }

  fault(error: unknown): Fault {
    if (!(error instanceof Fault)) this.#log.error('handler_bug', { error });
    return asFault(error);
  }

  /** Returns the device that sends a message, and counts the message and the activity. */
  async admit(token: string, from: From): Promise<CachedDevice> {
    const device = await this.find(token, from);
    this.admission.message(device);
    return device;
  }
}

function addressOf(from: From): string {
  return typeof from.remoteAddress === 'string' ? from.remoteAddress : (from as Exchange).remoteAddress();
}
