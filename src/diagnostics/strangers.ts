/**
 * Refusals of senders that no device is known for, counted by network: wrong tokens, wrong credentials. No token is
 * kept. A new network displaces the one that was counted first.
 */
import type { Clock } from '../base/clock.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import { networkOf } from '../base/network.ts';
import { isObject } from '../base/schema.ts';
import { isText, isWhole } from '../bus/messages.ts';
import type { Door } from './outcome.ts';

export interface Stranger {
  /** An IPv4 address, or the /64 network of an IPv6 address. */
  network: string;
  count: number;
  since: number;
  ts: number;
  door: Door;
  reason: string;
}

export function isStranger(value: unknown): value is Stranger {
  if (!isObject(value)) return false;
  const { network, count, since, ts, door, reason } = value;
  return [network, door, reason].every(isText) && [count, since, ts].every(isWhole);
}

export class Strangers {
  readonly #clock: Clock;
  readonly #networks = new FifoMap<string, Stranger>(limits.diagnosedNetworksMax);

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  refused(address: string, door: Door, reason: string): void {
    if (address === '') return;
    const network = networkOf(address);
    const ts = this.#clock.now();
    const known = this.#networks.get(network);
    if (known === undefined) {
      this.#networks.set(network, { network, count: 1, since: ts, ts, door, reason });
      return;
    }
    known.count += 1;
    known.ts = ts;
    known.door = door;
    known.reason = reason;
  }

  /** The networks that `order` puts first, at most `refusalsListedMax`. */
  list(order: 'newest' | 'most'): Stranger[] {
    const all = [...this.#networks.values()];
    all.sort((a, b) => (order === 'most' ? b.count - a.count : b.ts - a.ts));
    return all.slice(0, limits.refusalsListedMax);
  }
}
