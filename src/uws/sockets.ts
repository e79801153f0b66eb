/**
 * Limits the connections of one HTTP server by address. The library reports that a connection opened, with its address,
 * and that one closed, without it. So counts are exact when the kernel's table of connections is read; then each opened
 * connection is added until the next read: a count is never too low. Reads begin when half of all connections are in
 * use. The table has the connections of all workers on the port; this server is assumed to have the same part of each
 * address.
 */
import { open } from 'node:fs/promises';
import { networkOf } from '../base/network.ts';

interface SocketsDeps {
  connectionsMax: number;
  /** The connections that one address may have now. */
  perAddressMax: () => number;
  /** True for the address of a trusted proxy, which has no share. */
  isTrusted: (address: string) => boolean;
  /** Returns the connections with this local port, by network. */
  readTable?: (port: number) => Promise<Map<string, number>>;
}

/**
 * Time between two reads; a read takes at most this part of the time. With 19 000 connections, whose both ends are in
 * the table, a read is 1413 slices of 4 kB. A slice takes less than 1 ms of the loop (99 % of them 0.2 ms), all of them
 * 110 ms.
 */
const readingMs = 1_000;
const readingPart = 0.05;

export class Sockets {
  readonly #deps: Required<SocketsDeps>;
  /** Undefined while less than half of all connections are in use. */
  #counts: Map<string, number> | undefined;
  /** Connections of any address that opened since the last read began. */
  #unknown = 0;
  #openedMeanwhile: Map<string, number> | undefined;
  #nextReadingAt = 0;
  port = 0;

  constructor(deps: SocketsDeps) {
    this.#deps = { readTable: connectionsByNetwork, ...deps };
  }

  /** Called when a connection opened; `connections` includes it. Returns false when its address exceeds its share. */
  admits(addressOf: () => string, connections: number): boolean {
    const { connectionsMax, isTrusted } = this.#deps;
    const perAddressMax = this.#deps.perAddressMax();
    if (connections <= Math.min(perAddressMax, connectionsMax / 2)) {
      this.#counts = undefined;
      return true;
    }
    if (!this.#counts) {
      this.#counts = new Map();
      this.#unknown = connections - 1;
    }
    const address = addressOf();
    const network = networkOf(address);
    add(this.#counts, network);
    if (this.#openedMeanwhile) add(this.#openedMeanwhile, network);
    if (connections <= perAddressMax) {
      void this.#read(connections);
      return true;
    }
    const isAdmitted = this.#counts.get(network)! + this.#unknown <= perAddressMax || isTrusted(address);
    void this.#read(connections);
    return isAdmitted;
  }

  /** Never rejects. */
  async #read(connections: number): Promise<void> {
    const startedAt = performance.now();
    if (this.#openedMeanwhile || startedAt < this.#nextReadingAt) return;
    const meanwhile = new Map<string, number>();
    this.#openedMeanwhile = meanwhile;
    try {
      const table = await this.#deps.readTable(this.port);
      if (!this.#counts) return;
      let all = 0;
      for (const count of table.values()) all += count;
      const part = Math.min(1, connections / Math.max(1, all));
      const counts = new Map<string, number>();
      for (const [network, count] of table) counts.set(network, Math.ceil(count * part));
      for (const [network, count] of meanwhile) add(counts, network, count);
      this.#counts = counts;
      this.#unknown = 0;
    } catch {
      // After a failed read each address keeps the connections opened since: too many, never too few.
    } finally {
      this.#openedMeanwhile = undefined;
      const took = performance.now() - startedAt;
      this.#nextReadingAt = performance.now() + Math.max(readingMs, took / readingPart);
    }
  }
}

function add(counts: Map<string, number>, network: string, count = 1): void {
  counts.set(network, (counts.get(network) ?? 0) + count);
}

/** Parses the table in slices, so that the event loop has turns in between. */
const sliceBytes = 64 * 1024;
/** Kernel states: established, or closed only by the other side. */
const heldStates = new Set(['01', '08']);

/** Parses /proc: an IPv6 socket may have an IPv4 address. */
async function connectionsByNetwork(port: number): Promise<Map<string, number>> {
  const counts = new Map<string, number>();
  const localPort = `:${port.toString(16).toUpperCase().padStart(4, '0')}`;
  for (const path of ['/proc/self/net/tcp', '/proc/self/net/tcp6']) {
    const file = await open(path).catch(() => undefined);
    if (!file) continue;
    try {
      let rest = '';
      const slice = Buffer.alloc(sliceBytes);
      for (;;) {
        const { bytesRead } = await file.read(slice, 0, sliceBytes, null);
        if (bytesRead === 0) break;
        const lines = (rest + slice.toString('latin1', 0, bytesRead)).split('\n');
        rest = lines.pop()!;
        for (const line of lines) {
          const [, local = '', remote = '', state = ''] = line.trim().split(/\s+/, 4);
          if (!local.endsWith(localPort) || !heldStates.has(state)) continue;
          add(counts, networkOf(addressOfHex(remote.slice(0, remote.indexOf(':')))));
        }
      }
    } finally {
      await file.close();
    }
  }
  return counts;
}

/** The kernel prints 32-bit words in the byte order of this machine: little-endian. */
function addressOfHex(hex: string): string {
  const bytes = Buffer.from(hex, 'hex');
  for (let at = 0; at < bytes.length; at += 4) bytes.subarray(at, at + 4).reverse();
  if (bytes.length === 4) return bytes.join('.');
  return Array.from({ length: 8 }, (_, n) => bytes.readUInt16BE(2 * n).toString(16)).join(':');
}
