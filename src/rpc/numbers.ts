/**
 * The ids that devices see on their commands. They count up for each device, across workers, hosts and restarts,
 * because each one is taken from a row in PostgreSQL. The first number is 1, because many clients test an id for truth.
 * Requests of the same tick, and those made while a statement runs, share one statement.
 */
import { Batches } from '../base/batches.ts';
import { Fault, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { Places, placeOwners } from '../base/places.ts';
import type { Queries } from '../postgres/client.ts';
import { rpcIdMax, unknownDevice } from './rpc.ts';
import { takeNumbers } from './store.ts';

const queueFull = unavailable('rpc_numbers_queue', 'Too many commands at once; try again.');
const queueShare = new Fault(
  'rpc_numbers_share',
  'Your customer or tenant sends too many commands at once: send fewer at once.',
  1,
);

/** The device of a command, with its tenant and customer. */
interface NumberedDevice {
  readonly device: number;
  readonly tenantId: string;
  readonly customerId: string | null;
}

/** A call of `next` that waits for the statement. */
interface NumberRequest {
  device: number;
  resolve(number: number): void;
  reject(error: unknown): void;
}

export class RpcNumbers {
  readonly #postgres: Queries;
  readonly #places: Places;
  #requests: NumberRequest[] = [];
  readonly #batches = new Batches(
    () => this.#requests.length > 0,
    () => this.#runBatch(),
  );

  constructor(postgres: Queries, queueMax: number = limits.rpcNumbersQueueMax) {
    this.#postgres = postgres;
    this.#places = new Places(queueMax);
  }

  /** Returns the next number of the device. */
  async next({ device, tenantId, customerId }: NumberedDevice): Promise<number> {
    const owners = placeOwners(tenantId, customerId);
    const place = this.#places.take(owners);
    if (place !== 'taken') throw place === 'full' ? queueFull : queueShare;
    try {
      return await this.#request(device);
    } finally {
      this.#places.release(owners);
    }
  }

  #request(device: number): Promise<number> {
    return new Promise((resolve, reject) => {
      this.#requests.push({ device, resolve, reject });
      this.#batches.wake();
    });
  }

  async #runBatch(): Promise<void> {
    const batch = this.#requests.splice(0, limits.rpcNumbersBatchMax);
    const counts = new Map<number, number>();
    for (const { device } of batch) counts.set(device, (counts.get(device) ?? 0) + 1);
    try {
      const taken = await takeNumbers(this.#postgres, [...counts.keys()], [...counts.values()]);
      for (const { device, resolve, reject } of batch) {
        const number = taken.get(device);
        if (number === undefined) reject(unknownDevice());
        else resolve((number % rpcIdMax) + 1);
        if (number !== undefined) taken.set(device, number + 1);
      }
    } catch (error) {
      for (const { reject } of batch) reject(error);
    }
  }
}
