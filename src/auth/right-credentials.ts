/**
 * Which credentials were right from which network, the latest ones, for `wrong-credentials.ts`: what this worker has
 * seen itself, and digests of what other workers have seen from networks that are refused.
 */
import { createHash } from 'node:crypto';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';

export class RightCredentials {
  /** Network and credentials, with a blank between them: no network has one. */
  readonly #own = new FifoMap<string, string>(limits.rightCredentialsMax);
  readonly #others = new FifoMap<string, true>(limits.rightCredentialsMax);

  add(network: string, credentials: string): void {
    const name = `${network} ${credentials}`;
    if (this.#own.get(name) === undefined) this.#own.set(name, name);
  }

  has(network: string, credentials: string): boolean {
    const own = this.#own.get(`${network} ${credentials}`) !== undefined;
    return own || this.#others.get(`${network} ${digestOf(credentials)}`) !== undefined;
  }

  /** What this worker has seen itself. Walks through all of it. */
  digests(networks: ReadonlySet<string>): Map<string, string[]> {
    const found = new Map<string, string[]>();
    for (const name of this.#own.values()) {
      const blank = name.indexOf(' ');
      const network = name.slice(0, blank);
      if (!networks.has(network)) continue;
      const digests = found.get(network) ?? [];
      digests.push(digestOf(name.slice(blank + 1)));
      found.set(network, digests);
    }
    return found;
  }

  learn(network: string, digests: string[]): void {
    for (const digest of digests) this.#others.set(`${network} ${digest}`, true);
  }
}

function digestOf(credentials: string): string {
  return createHash('sha256').update(credentials).digest('base64url');
}
