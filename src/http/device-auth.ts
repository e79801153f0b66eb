/**
 * Identifies the sender, the first step of nearly every operation: token → device or 401; 429 for an address that sent
 * too many wrong tokens; the rate limit of messages; the device's activity.
 */

import type { Admission } from '../activity/admission.ts';
import type { WrongCredentials } from '../auth/wrong-credentials.ts';
import { asFault, Fault } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { CachedDevice } from '../device/model/cached-device.ts';
import type { TokenCache } from '../device/token-cache.ts';
import type { Strangers } from '../diagnostics/strangers.ts';
import type { Troubles } from '../diagnostics/troubles.ts';
import type { Exchange } from '../uws/exchange.ts';
import type { HttpRequest } from '../uws/request.ts';
import type { HttpHandler } from '../uws/server.ts';

const unknownToken = new Fault('unknown_token', 'No device has this access token; check the token in the path.');

/** Names a device in the budget of request bodies. */
export function senderOf({ number }: CachedDevice): string {
  return `device ${number}`;
}

/** The request that carries a token. The address is read only when it is needed. */
type From = Pick<Exchange, 'remoteAddress'> | Pick<HttpRequest, 'remoteAddress'>;

interface DeviceAuthDeps {
  tokens: TokenCache;
  /** Undefined = an address may try any number of tokens. */
  wrong: WrongCredentials | undefined;
  admission: Admission;
  troubles: Troubles;
  strangers: Strangers;
  log: Log;
}

export class DeviceAuth {
  readonly admission: Admission;
  readonly #tokens: TokenCache;
  /** Undefined = an address may try any number of tokens. */
  readonly #wrong: WrongCredentials | undefined;
  readonly #troubles: Troubles;
  readonly #strangers: Strangers;
  readonly #log: Log;
  /** Devices that were looked up for a request: a change at this moment may remove the device from the cache. */
  readonly #found = new WeakMap<From, CachedDevice>();

  constructor({ tokens, wrong, admission, troubles, strangers, log }: DeviceAuthDeps) {
    this.#tokens = tokens;
    this.#wrong = wrong;
    this.admission = admission;
    this.#troubles = troubles;
    this.#strangers = strangers;
    this.#log = log;
  }

  /**
   * Returns the device at once if this worker knows the token and the address may use it. Undefined leaves the decision
   * open.
   */
  known(token: string, from: From): CachedDevice | undefined {
    const device = this.#tokens.get(token);
    if (device === undefined) return this.#tokens.hasUnserved ? this.#first(token, from) : undefined;
    if (this.#wrong === undefined || this.#wrong.isCalm) return device;
    return this.#wrong.mayUse(addressOf(from), token) ? device : undefined;
  }

  /** Returns the device at the first request after its load. */
  #first(token: string, from: From): CachedDevice | undefined {
    const address = this.#wrong === undefined ? '' : addressOf(from);
    if (this.#wrong?.refuses(address, token)) return undefined;
    const device = this.#tokens.first(token);
    if (device !== undefined) this.#wrong?.right(address, token);
    return device;
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
    this.#found.set(from, device);
    return device;
  }

  /** Names the sender of a body that comes in pieces, before the rest of the body is read. */
  readonly admitBody = (token: string, from: From): string | Promise<string> => {
    const device = this.known(token, from);
    return device ? senderOf(device) : this.find(token, from).then(senderOf);
  };

  /** Refuses a request that failed, and records the refusal. */
  refuse(exchange: Exchange, error: unknown, token: string, body?: Buffer): void {
    const fault = this.fault(error);
    this.record(fault, token, exchange, body);
    exchange.refuse(fault);
  }

  /** Records the refusals of a handler whose first parameter is the token. */
  recorded(handler: HttpHandler): HttpHandler {
    return async (request) => {
      try {
        return await handler(request);
      } catch (error) {
        if (error instanceof Fault) this.record(error, request.params[0]!, request, request.body);
        throw error;
      }
    };
  }

  /** Records a refusal: of the device, or of the address when no device with this token is known. */
  record(fault: Fault, token: string, from: From, body?: Buffer): void {
    const device = this.#tokens.get(token) ?? this.#found.get(from);
    const address = () => addressOf(from);
    if (device !== undefined) this.#troubles.refused(device, fault, { door: 'http', address }, body);
    else this.#strangers.refused(address(), 'http', fault.reason);
  }

  fault(error: unknown): Fault {
    if (!(error instanceof Fault)) this.#log.error('handler_bug', { error });
    return asFault(error);
  }

  /** Returns the device that sends a message, and counts the message and the activity. */
  async admit(token: string, from: From): Promise<CachedDevice> {
    const device = await this.count(token, from);
    this.admission.touch(device);
    return device;
  }

  /** Does what `admit` does, before the body is read. The caller notes the activity when the body is valid. */
  async count(token: string, from: From): Promise<CachedDevice> {
    const device = await this.find(token, from);
    this.admission.count(device);
    return device;
  }
}

function addressOf(from: From): string {
  return typeof from.remoteAddress === 'string' ? from.remoteAddress : (from as Exchange).remoteAddress();
}
