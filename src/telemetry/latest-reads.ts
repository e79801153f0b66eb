/**
 * Reads latest values for callers that ask at the same time. While a query of a customer or tenant runs, or waits for
 * its turn, further reads of the same keys gather, and the next query reads all of their devices: a query for sixteen
 * devices takes hardly more of the store's CPU than a query for one, and ingest needs that CPU.
 */
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { Places, placeOwners } from '../base/places.ts';
import { ClickHouseError, type Reads } from '../clickhouse/client.ts';
import type { Shards } from '../clickhouse/shards.ts';
import { type Point, readLatest, readLatestEach } from './latest.ts';

interface LatestReadsDeps {
  shards: Pick<Shards, 'readsOf'>;
  /** Callers that wait, of all owners: each has its share of these places. */
  waitingMax: number;
  /** The refusal of a further caller. */
  refusal: () => Fault;
}

/** The tenant, null = the system administrators, and the customer, null = the tenant itself. */
interface Owner {
  tenantId: string | null;
  customerId: string | null;
}

/** Runs a query when it is the turn of its owner. */
type InTurn = (query: () => Promise<void>) => Promise<void>;

interface Asked {
  reads: Reads;
  keys: string[] | undefined;
  device: number;
  inTurn: InTurn;
}

interface Waiter extends Pick<Asked, 'device' | 'inTurn'> {
  resolve(points: Point[]): void;
  reject(error: unknown): void;
}

export class LatestReads {
  readonly #deps: LatestReadsDeps;
  /** Callers that wait for the same keys, by owner, server and keys, while a query for such callers is due. */
  readonly #waiting = new Map<string, Waiter[]>();
  readonly #places: Places;

  constructor(deps: LatestReadsDeps) {
    this.#deps = deps;
    this.#places = new Places(deps.waitingMax);
  }

  /** Returns what `readLatest` returns. `inTurn` runs one query for several callers of the owner. */
  async read(
    { tenantId, customerId }: Owner,
    device: number,
    keys: string[] | undefined,
    inTurn: InTurn,
  ): Promise<Point[]> {
    const { shards, refusal } = this.#deps;
    const owners = placeOwners(tenantId, customerId);
    if (this.#places.take(owners) !== 'taken') throw refusal();
    try {
      const reads = shards.readsOf(tenantId).of(device);
      return await this.#joined(JSON.stringify([tenantId, customerId, reads.shard, keys]), {
        reads,
        keys,
        device,
        inTurn,
      });
    } finally {
      this.#places.release(owners);
    }
  }

  #joined(kind: string, { reads, keys, device, inTurn }: Asked): Promise<Point[]> {
    const gathering = this.#waiting.get(kind);
    const waiting = gathering ?? [];
    const points = new Promise<Point[]>((resolve, reject) => waiting.push({ device, inTurn, resolve, reject }));
    if (gathering === undefined) {
      this.#waiting.set(kind, waiting);
      void this.#serve(kind, waiting, reads, keys);
    }
    return points;
  }

  /** Reads for the callers that wait, until none waits. */
  async #serve(kind: string, waiting: Waiter[], reads: Reads, keys: string[] | undefined): Promise<void> {
    while (waiting.length > 0) {
      const query = () => readTogether(reads, waiting.splice(0, limits.latestReadDevicesMax), keys);
      await waiting[0]!.inTurn(query).catch((refused: unknown) => {
        for (const { reject } of waiting.splice(0)) reject(refused);
      });
    }
    this.#waiting.delete(kind);
  }
}

/** Answers every waiter. Devices are read one by one when their answer was too large for one query. */
async function readTogether(reads: Reads, waiters: Waiter[], keys: string[] | undefined): Promise<void> {
  const devices = [...new Set(waiters.map(({ device }) => device))];
  const [first] = devices;
  const isAlone = devices.length === 1;
  try {
    const found = isAlone
      ? new Map([[first!, await readLatest(reads, first!, keys)]])
      : await readLatestEach(reads, devices, keys);
    for (const { device, resolve } of waiters) resolve(found.get(device)!);
  } catch (error) {
    if (isAlone || !isOfOneAnswer(error)) {
      for (const { reject } of waiters) reject(error);
      return;
    }
    for (const each of devices) {
      const own = waiters.filter(({ device }) => device === each);
      await readTogether(reads, own, keys);
    }
  }
}

/** True when the answer for all devices was too large, which that for each single device may not be. */
function isOfOneAnswer(error: unknown): boolean {
  if (!(error instanceof Fault)) return false;
  return error.status === 400 || (error.cause instanceof ClickHouseError && error.cause.kind === 'size');
}
