/**
 * Which credentials were right from which network, the latest ones, for `wrong-credentials.ts`: what this worker has
 * seen itself, and digests of what other workers have seen from networks that are refused.
 */
import { createHash } from 'node:crypto';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';

interface Right {
  network: string;
  credentials: string;
}

export class RightCredentials {
  /** By network and credentials, with a blank between them: no network has one. */
  readonly #own = new FifoMap<string, Right>(limits.rightCredentialsMax);
  /** The same by network, so that a refused network costs what that network has, not what all of them have. */
  readonly #ownOfNetwork = new Map<string, Set<string>>();
  readonly #others = new FifoMap<string, true>(limits.rightCredentialsMax);

  add(network: string, credentials: string): void {
    const name = nameOf(network, credentials);
    if (this.#own.get(name) !== undefined) return;
    const evicted = this.#own.set(name, { network, credentials });
    if (evicted) this.#forget(evicted);
    const known = this.#ownOfNetwork.get(network);
    if (known) known.add(credentials);
    else this.#ownOfNetwork.set(network, new Set([credentials]));
  }

  has(network: string, credentials: string): boolean {
    const own = this.#own.get(nameOf(network, credentials)) !== undefined;
    return own || this.#others.get(nameOf(network, digestOf(credentials))) !== undefined;
  }

  /** Digests of what this worker itself has seen from the network. */
  digests(network: string): string[] {
    return [...(this.#ownOfNetwork.get(network) ?? [])].map(digestOf);
  }

  learn(network: string, digests: string[]): void {
    for (const digest of digests) this.#others.set(nameOf(network, digest), true);
  }

  #forget({ network, credentials }: Right): void {
    const known = this.#ownOfNetwork.get(network);
    known?.delete(credentials);
    if (known?.size === 0) this.#ownOfNetwork.delete(network);
  }
}

function nameOf(network: string, credentials: string): string {
  return `${network} ${credentials}`;
}

function digestOf(credentials: string): string {
  return createHash('sha256').update(credentials).digest('base64url');
}
