/**
 * The proxies that the settings trust, and the check whether a request reached one of them, or this server, over HTTPS.
 */
import { BlockList, isIP } from 'node:net';
import { StartError } from '../base/errors.ts';

/** The part of a request that a sign-in reads. */
export interface Caller {
  header(name: string): string;
  headers(name: string): string[];
  remoteAddress: string;
  /** True when the connection to this server uses TLS. */
  secure: boolean;
  /** True when a trusted proxy made the request on behalf of a client. */
  fromProxy: boolean;
}

export class Proxies {
  readonly #trusted = new BlockList();
  /** Most servers have none, and a check of the list takes a microsecond. */
  #hasAny = false;

  /**
   * Parses addresses and networks separated by commas: `10.0.0.7,10.1.0.0/16`. Throws one line that names the setting.
   */
  constructor(setting: string) {
    for (const part of setting.split(',').map((text) => text.trim())) {
      if (part === '') continue;
      const [address = '', bits, ...rest] = part.split('/');
      const version = isIP(address);
      const bitsMax = version === 4 ? 32 : 128;
      const prefix = bits === undefined ? bitsMax : Number(bits);
      if (version === 0 || rest.length > 0 || !/^\d{0,3}$/.test(bits ?? '') || prefix > bitsMax) {
        throw new StartError(
          `Setting trustedProxies (TRUSTED_PROXIES, or HTTP_TRUSTED_PROXIES as before) names "${part}": it must be an address or a network, as 10.0.0.7 or 10.1.0.0/16.`,
        );
      }
      this.#hasAny = true;
      this.#trusted.addSubnet(address, prefix, version === 4 ? 'ipv4' : 'ipv6');
    }
  }

  static of({ trustedProxies, http }: { trustedProxies: string; http: { trustedProxies: string } }): Proxies {
    return new Proxies(`${trustedProxies},${http.trustedProxies}`);
  }

  isTrusted(remoteAddress: string): boolean {
    if (!this.#hasAny) return false;
    const version = isIP(remoteAddress);
    return version !== 0 && this.#trusted.check(remoteAddress, version === 4 ? 'ipv4' : 'ipv6');
  }

  isSecure(caller: Pick<Caller, 'secure' | 'fromProxy' | 'header'>): boolean {
    if (caller.secure) return true;
    if (!caller.fromProxy) return false;
    // Only the last of several proxies in a row is trusted.
    return caller.header('x-forwarded-proto').split(',').at(-1)!.trim() === 'https';
  }
}
