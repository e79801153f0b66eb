/**
 * Deletes of telemetry that stay deleted. A delete is a tombstone (`tombstones.ts`). It is carried out here when every worker of this instance has shipped past its order, and again whenever a
 * worker has replayed older frames, until it is older than any journal. Each host does so for its own journals.
 */
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { ClickHouse } from '../clickhouse/client.ts';
import { isAway, type Postgres } from '../postgres/client.ts';
import { orderUpTo } from './order.ts';
import { carryOut, deleteTombstone, readTombstones, type Tombstone } from './tombstones.ts';

export interface EraserParts {
  postgres: Postgres;
  clickhouse: ClickHouse;
  /** Name of the ClickHouse cluster, '' without one. */
  cluster: string;
  clock: Clock;
  log: Log;
  /** Every frame up to this order is in ClickHouse; 0n while a worker is starting. */
  orderShipped: () => bigint;
  /** Rises when a worker has begun to replay. */
  replays: () => number;
}

export class Eraser {
  readonly #parts: EraserParts;
  /** Carried out since the last replay. */
  readonly #applied = new Set<number>();
  #replays = 0;
  #timer: NodeJS.Timeout | undefined;
  #running: Promise<void> = Promise.resolve();
  #stopped = false;

  constructor(parts: EraserParts) {
    this.#parts = parts;
  }

  start(): void {
    this.#timer = setTimeout(() => {
      this.#running = this.#round().finally(() => {
        if (!this.#stopped) this.start();
      });
    }, limits.erasePollMs);
    this.#timer.unref();
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    clearTimeout(this.#timer);
    await this.#running;
  }

  async #round(): Promise<void> {
    const { postgres, log, replays } = this.#parts;
    if (replays() !== this.#replays) {
      this.#replays = replays();
      this.#applied.clear();
    }
    try {
      for (let after = 0; !this.#stopped; ) {
        const tombstones = await readTombstones(postgres, after);
        for (const tombstone of tombstones) await this.#consider(tombstone);
        if (tombstones.length === 0) return;
        after = tombstones.at(-1)!.id;
      }
    } catch (error) {
      // Both stores may be away; the tombstones wait.
      if (!isAway(error)) log.warn('erase', { reason: messageOf(error) });
    }
  }

  async #consider(tombstone: Tombstone): Promise<void> {
    const { postgres, clickhouse, cluster, clock, orderShipped } = this.#parts;
    if (clock.now() - tombstone.createdTime > limits.tombstoneKeptMs && this.#applied.has(tombstone.id)) {
      await deleteTombstone(postgres, tombstone.id);
      this.#applied.delete(tombstone.id);
      return;
    }
    if (this.#applied.has(tombstone.id) || orderShipped() < this.#orderOf(tombstone)) return;
    await carryOut(clickhouse, cluster, tombstone);
    this.#applied.add(tombstone.id);
  }

  /** A deleted device may still send until every cache has heard of it. */
  #orderOf({ orderNumber, createdTime }: Tombstone): bigint {
    return orderNumber === null ? orderUpTo(createdTime + limits.deletedDeviceGraceMs) : BigInt(orderNumber);
  }
}
