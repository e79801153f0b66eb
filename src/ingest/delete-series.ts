/**
 * Deleting ranges of a device's telemetry. The tombstone makes the delete durable; then this waits a moment for what was
 * accepted before to be in ClickHouse and carries it out at once, so that no read after the answer shows a deleted point.
 * What is shipped later (points of old days are gathered for a while), or when a store is away, `erase.ts` deletes.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { ClickHouse } from '../clickhouse/client.ts';
import type { Queries } from '../postgres/client.ts';
import { orderUpTo } from './order.ts';
import { carryOut, insertTombstone, type LatestFate } from './tombstones.ts';

export interface SeriesDeleteParts {
  postgres: Queries;
  clickhouse: ClickHouse;
  cluster: string;
  clock: Clock;
  log: Log;
  /** Every frame of this instance up to this order is in ClickHouse. */
  orderShipped: () => bigint;
}

export interface SeriesDelete {
  device: number;
  keys: string[];
  startTs: number;
  endTs: number;
  latest: LatestFate;
}

export type DeleteSeries = (asked: SeriesDelete) => Promise<void>;

const lookMs = 20;

export function seriesDeleter(parts: SeriesDeleteParts): DeleteSeries {
  const { postgres, clickhouse, cluster, clock, log, orderShipped } = parts;
  return async (asked) => {
    const now = clock.now();
    const order = orderUpTo(now);
    const tombstone = { ...asked, orderNumber: String(order), createdTime: now };
    await insertTombstone(postgres, tombstone);
    const deadline = clock.monotonic() + limits.seriesDeleteWaitMsMax;
    while (orderShipped() < order && clock.monotonic() < deadline) await sleep(lookMs);
    try {
      await carryOut(clickhouse, cluster, tombstone);
    } catch (error) {
      log.warn('delete_later', { reason: messageOf(error) });
    }
  };
}
