/**
 * The latest credentials that were right from each network, for `wrong-credentials.ts`: credentials that this worker
 * received, and digests of credentials that other workers received from refused networks.
 */
import { createHash } from 'node:crypto';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';

interface Right {
  network: string;
  credentials: string;
}

export class RightCredentials {
  /** Key: network and credentials, separated by a blank, which no network contains. */
  readonly #own = new FifoMap<string, Right>(limits.rightCredentialsMax);
  /** The keys of `#own` by network, so that a refused network costs as much as its own entries, not as all entries. */
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

  /** Returns the digests of the credentials that this worker has seen from the network. */
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
