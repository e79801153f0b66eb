/**
 * Deletes ranges of a device's telemetry. The tombstone makes the delete durable. `DeleteSeries` then waits until the
 * rows accepted earlier are in ClickHouse, and carries the delete out. `done`: no read shows a deleted point from now
 * on. `recorded`: some deleted points may be readable until `erase.ts` of one of the hosts has carried the delete out.
 */
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { Places, placeOwners } from '../base/places.ts';
import { systemScheduler } from '../base/scheduler.ts';
import type { ClickHouse } from '../clickhouse/client.ts';
import type { Shards } from '../clickhouse/shards.ts';
import type { JournalReport } from '../ingest/journal-report.ts';
import type { readHighOrders } from '../ingest/journal-store.ts';
import { orderUpTo } from '../ingest/order-number.ts';
import type { Queries } from '../postgres/client.ts';
import { isAway } from '../postgres/postgres-error.ts';
import { storedDeletes } from './deletes-store.ts';
import { eraseSeries, NotYet } from './erase-in-clickhouse.ts';
import { EraseTogether } from './erase-together.ts';
import {
  type HostJournals,
  type SeriesStatements,
  type SettledJournals,
  seriesStatements,
} from './series-statements.ts';
import type { LatestFate, Tombstone } from './tombstone-store.ts';

const { sleep } = systemScheduler;

interface SeriesDeleteDeps {
  postgres: Queries;
  shards: Shards;
  cluster: string;
  /** As in `CarryOutDeps`. */
  latestAheadMsMax?: number;
  clock: Clock;
  log: Log;
  /** Requests the reports of this host's journals from all its workers. `flush`: ship the waiting rows. */
  journals: (flush?: boolean) => Promise<HostJournals>;
}

interface SeriesDelete {
  device: number;
  keys: string[];
  startTs: number;
  endTs: number;
  latest: LatestFate;
}

/** `tenantId`: the tenant of the caller, for its turn; undefined for calls of this installation itself. */
export type DeleteSeries = (asked: SeriesDelete, tenantId?: string) => Promise<'done' | 'recorded'>;

/** Time after which a caller without a place is answered. */
const recordedMs = 1000;
/** Time between two checks of the journals of this host. */
const checkMs = 20;
/** Time between two checks of the journals of other hosts. */
const checkHostsMs = 200;

export function seriesDeleter(deps: SeriesDeleteDeps): DeleteSeries {
  const { shards } = deps;
  const deletes = new SeriesDeletes(deps);
  return async (asked, tenantId = '') => {
    const end = shards.begin();
    try {
      return await deletes.remove(asked, tenantId);
    } finally {
      end();
    }
  };
}

class SeriesDeletes {
  readonly #deps: SeriesDeleteDeps;
  readonly #statements: SeriesStatements;
  readonly #places = new Places(limits.seriesDeletesWaitingMax);
  /** The batches of each shard are apart: a shard that does not answer delays no delete of the others. */
  readonly #together: EraseTogether[];

  constructor(deps: SeriesDeleteDeps) {
    const { postgres, shards, cluster, latestAheadMsMax = 0, clock } = deps;
    const stored = storedDeletes(postgres);
    this.#deps = deps;
    this.#statements = seriesStatements(deps);
    this.#together = shards.all.map(
      (clickhouse) =>
        new EraseTogether(clock, (batch, msLeft) =>
          eraseSeries({ clickhouse, cluster, latestAheadMsMax, msLeft, deletes: stored, mayHaveBegun: false }, batch),
        ),
    );
  }

  async remove(asked: SeriesDelete, tenantId: string): Promise<'done' | 'recorded'> {
    const { shards, clock, log } = this.#deps;
    const until = clock.monotonic() + limits.seriesDeleteMsMax;
    const holders = shards.byHolder([asked.device], (device) => device).map(({ clickhouse }) => clickhouse);
    const isHeld = heldBeside(holders, shards.map?.version);
    const { tombstone, host } = await this.#record(asked, tenantId);
    let isDone = false;
    const owners = placeOwners(tenantId, null);
    const isAwaited = this.#places.take(owners) === 'taken';
    try {
      if (!isAwaited) throw new NotYet('many deletes wait');
      const statements = this.#statements;
      const settled = host.isWhole ? await allSettled(clock, statements, tombstone, host.reports, isHeld) : undefined;
      await Promise.all(
        holders.map((holder) => this.#together[shards.all.indexOf(holder)]!.add(tombstone, tenantId, until)),
      );
      // A journal that was opened meanwhile may have rows that the delete covers, so the delete is not finished.
      if (settled) isDone = await statements.mark(tombstone, settled, tenantId);
    } catch (error) {
      log.warn('delete_later', { reason: messageOf(error) });
    } finally {
      if (isAwaited) this.#places.release(owners);
    }
    if (!isDone) await this.#statements.handOver(tombstone, tenantId).catch((error) => warnUnlessAway(log, error));
    // A caller that deletes again at once would record deletes faster than they are carried out.
    if (!isAwaited) await sleep(recordedMs);
    return isDone ? 'done' : 'recorded';
  }

  /** Stores the tombstone. Returns it with the reports of the journals of this host, which were made before. */
  async #record(asked: SeriesDelete, tenantId: string): Promise<{ tombstone: Tombstone; host: HostJournals }> {
    const statements = this.#statements;
    const [host, reported] = await Promise.all([statements.journalsOfHost(), statements.highOrders()]);
    const now = this.#deps.clock.now();
    const order = orderUpTo(now);
    // An order clock never goes back: after a step of the clock a journal's orders are ahead by the size of the step.
    const ahead = highOrders(host.reports, reported).filter(([, high]) => high > order);
    const erased = {
      ...asked,
      orderNumber: String(order),
      aheadWriters: ahead.map(([writer]) => writer),
      aheadOrders: ahead.map(([, high]) => String(high)),
    };
    return { tombstone: await statements.insert(erased, now, tenantId), host };
  }
}

/**
 * Returns whether a journal has rows of the device that wait beside it for a shard. They may be stored much later, so
 * the delete must be carried out again. Another version of the map may have the device on other shards.
 */
function heldBeside(holders: ClickHouse[], version: number | undefined): (report: JournalReport) => boolean {
  return ({ orderHeld, shardsBehind, mapVersion }) =>
    orderHeld !== null &&
    (!shardsBehind ||
      version === undefined ||
      mapVersion !== version ||
      holders.some(({ shard }) => shardsBehind.includes(shard!)));
}

/**
 * Returns for each writer the highest order that it is known to have assigned: now on this host, at its last report
 * elsewhere. The report of a removed journal has no order.
 */
function highOrders(own: JournalReport[], reported: Awaited<ReturnType<typeof readHighOrders>>): [number, bigint][] {
  const high = new Map(reported.map(({ writer, orderHigh }) => [writer, BigInt(orderHigh)]));
  for (const { writer, orderHigh, gone = false } of own) if (!gone) high.set(writer, BigInt(orderHigh));
  return [...high];
}

/** Returns undefined when that takes too long. */
async function allSettled(
  clock: Clock,
  statements: SeriesStatements,
  { id }: Tombstone,
  own: JournalReport[],
  isHeld: (report: JournalReport) => boolean,
): Promise<SettledJournals | undefined> {
  const deadline = clock.monotonic() + limits.seriesDeleteWaitMsMax;
  const target = new Map(own.map(({ writer, orderHigh }) => [writer, BigInt(orderHigh)]));
  let host = { reports: own, isWhole: true };
  // `orderHigh` decreases when the append that was in flight at the first report has failed.
  const isShipped = ({ writer, orderHigh, orderShipped }: JournalReport) =>
    BigInt(orderShipped) >= (target.get(writer) ?? 0n) || orderShipped === orderHigh;
  // A stream has no report while its servers do not answer: what it held at the first report may still wait then.
  const areShipped = (reports: readonly JournalReport[]) =>
    own.every(({ writer }) => reports.some((report) => report.writer === writer && isShipped(report)));
  if (own.some(isHeld)) return undefined;
  let isFlushed = false;
  while (!host.isWhole || !areShipped(host.reports)) {
    if (clock.monotonic() >= deadline) return undefined;
    await sleep(checkMs);
    host = await statements.journalsOfHost(!isFlushed);
    isFlushed = true;
    if (host.reports.some(isHeld)) return undefined;
  }
  for (;;) {
    const rows = await statements.journalsOfAll();
    const others = rows.filter(({ writer, isLive }) => isLive && !target.has(writer));
    if (others.every(({ settled }) => settled >= id)) {
      return { seen: rows, settledBy: [...target.keys()] };
    }
    if (clock.monotonic() >= deadline) return undefined;
    await sleep(checkHostsMs);
  }
}

function warnUnlessAway(log: Log, error: unknown): void {
  if (!isAway(error)) log.warn('delete_later', { reason: messageOf(error) });
}
