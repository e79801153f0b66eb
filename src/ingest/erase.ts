/**
 * Deletes of telemetry that stay deleted. A delete is a row in Postgres (a tombstone: device, keys, range, order
 * number). It is carried out here when every worker of this instance has shipped past its order, and again whenever a
 * worker has replayed older frames, until it is older than any journal. Each host does so for its own journals.
 */
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { ClickHouse } from '../clickhouse/client.ts';
import { deleteStatements } from '../clickhouse/statements.ts';
import { isAway, type Postgres } from '../postgres/client.ts';
import { orderUpTo } from './order.ts';

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

interface Tombstone {
  id: number;
  device: number;
  keys: string[] | null;
  startTs: number;
  endTs: number;
  /** Decimal; null = the device itself is gone, whatever arrives late. */
  orderNumber: string | null;
  createdTime: number;
}

const select = `select id, device, keys, start_ts as "startTs", end_ts as "endTs", order_number::text as "orderNumber",
  created_time as "createdTime" from tombstones where id > $1 order by id limit 1000`;

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
        const tombstones = await postgres.query<Tombstone>(select, [after]);
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
    const { postgres, clock, orderShipped } = this.#parts;
    if (clock.now() - tombstone.createdTime > limits.tombstoneKeptMs && this.#applied.has(tombstone.id)) {
      await postgres.query('delete from tombstones where id = $1', [tombstone.id]);
      this.#applied.delete(tombstone.id);
      return;
    }
    if (this.#applied.has(tombstone.id) || orderShipped() < this.#orderOf(tombstone)) return;
    await this.#apply(tombstone);
    this.#applied.add(tombstone.id);
  }

  /** A deleted device may still send until every cache has heard of it. */
  #orderOf({ orderNumber, createdTime }: Tombstone): bigint {
    return orderNumber === null ? orderUpTo(createdTime + limits.deletedDeviceGraceMs) : BigInt(orderNumber);
  }

  async #apply({ device, keys, startTs, endTs, orderNumber }: Tombstone): Promise<void> {
    const { clickhouse, cluster } = this.#parts;
    const params = {
      device,
      keys: keys ?? [],
      allKeys: keys === null ? 1 : 0,
      startTs,
      endTs,
      order: orderNumber ?? '9223372036854775807',
    };
    for (const statement of deleteStatements(cluster)) await clickhouse.exec(statement, params);
  }
}
