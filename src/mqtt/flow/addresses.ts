/**
 * Counts the open connections of one worker by network address. Every address has a share of all connections, and a
 * smaller share of the connections without credentials. An address of a trusted proxy has no share, because many
 * clients share the address. Each worker counts separately, because each worker accepts for itself.
 */
import { networkOf } from '../../base/network.ts';

interface AddressesDeps {
  /** The connections that one address may have now. */
  connectionsMax: () => number;
  /** Connections of one address that request credentials. */
  provisioningMax: number;
  isTrusted: (address: string) => boolean;
}

interface Open {
  connections: number;
  provisioning: number;
}

export class Addresses {
  readonly #deps: AddressesDeps;
  readonly #open = new Map<string, Open>();

  constructor(deps: AddressesDeps) {
    this.#deps = deps;
  }

  /** Counts a connection, until `leave`. Returns false when the address, with this connection, exceeds its share. */
  enter(address: string): boolean {
    const network = networkOf(address);
    const open = this.#open.get(network) ?? { connections: 0, provisioning: 0 };
    open.connections += 1;
    this.#open.set(network, open);
    return open.connections <= this.#deps.connectionsMax() || this.#deps.isTrusted(address);
  }

  leave(address: string): void {
    const network = networkOf(address);
    const open = this.#open.get(network)!;
    open.connections -= 1;
    if (open.connections === 0) this.#open.delete(network);
  }

  /** Like `enter`, for a counted connection that requests credentials; a refused one is not counted. */
  enterProvisioning(address: string): boolean {
    const open = this.#open.get(networkOf(address))!;
    if (open.provisioning >= this.#deps.provisioningMax && !this.#deps.isTrusted(address)) return false;
    open.provisioning += 1;
    return true;
  }

  leaveProvisioning(address: string): void {
    this.#open.get(networkOf(address))!.provisioning -= 1;
  }
}
