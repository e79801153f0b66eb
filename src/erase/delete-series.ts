/**
 * Deletes ranges of a device's telemetry. The tombstone makes the delete durable. `DeleteSeries` then waits until the
 * rows accepted earlier are in ClickHouse, and carries the delete out. `done`: no read shows a deleted point from now
 * on. `recorded`: some deleted points may be readable until `erase.ts` of one of the hosts has carried the delete out.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import type { Clock } from '../base/clock.ts';
import { messageOf, unavailable } from '../base/errors.ts';
import { GatheredReads } from '../base/gathered-reads.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { Turns } from '../base/turns.ts';
import type { ClickHouse } from '../clickhouse/client.ts';
import type { JournalReport } from '../ingest/journal-report.ts';
import { type JournalRow, readHighOrders, readJournals } from '../ingest/journal-store.ts';
import { orderUpTo } from '../ingest/order-number.ts';
import { isAway, type Queries } from '../postgres/client.ts';
import { eraseSeries } from './erase-in-clickhouse.ts';
import { EraseTogether } from './erase-together.ts';
import { handOver, insertTombstone, type LatestFate, markApplied, type Tombstone } from './tombstone-store.ts';

interface SeriesDeleteDeps {
  postgres: Queries;
  clickhouse: ClickHouse;
  cluster: string;
  /** As in `CarryOutDeps`. */
  latestAheadMsMax?: number;
  /** Fewer than the connections to PostgreSQL: more would wait for a connection, where tenants take no turns. */
  statementsAtOnceMax: number;
  clock: Clock;
  log: Log;
  /**
   * Requests the reports of this host's journals from all its workers; `isWhole`: all have answered. `flush`: ship the
   * waiting rows.
   */
  journals: (flush?: boolean) => Promise<{ reports: JournalReport[]; isWhole: boolean }>;
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

/** The journals of this host and of all hosts: deletes that wait at the same time share each question. */
interface Journals {
  ofHost(flush?: boolean): ReturnType<SeriesDeleteDeps['journals']>;
  all(): Promise<JournalRow[]>;
  /** Includes journals that are gone and that were ahead of the clock. */
  highOrders(): ReturnType<typeof readHighOrders>;
}

const lookMs = 20;
const lookAtHostsMs = 200;

export function seriesDeleter(deps: SeriesDeleteDeps): DeleteSeries {
  const { postgres, clickhouse, cluster, latestAheadMsMax = 0, statementsAtOnceMax, clock, log } = deps;
  const stores = { clickhouse, cluster, latestAheadMsMax };
  const together = new EraseTogether(clock, (batch, msLeft) => eraseSeries({ ...stores, msLeft }, batch));
  const journals = sharedJournals(deps);
  const statements = new Turns({
    atOnceMax: statementsAtOnceMax,
    waitingMax: limits.seriesDeleteStatementsWaitingMax,
    refusal: () => unavailable('rest_calls', 'Too many deletes of series at once; call again later.'),
  });
  return async (asked, tenantId = '') => {
    const inTurn = <T>(statement: () => Promise<T>): Promise<T> => statements.run(tenantId, null, statement);
    const until = clock.monotonic() + limits.seriesDeleteMsMax;
    const [host, reported] = await Promise.all([journals.ofHost(), journals.highOrders()]);
    const now = clock.now();
    const order = orderUpTo(now);
    // An order clock never goes back: after a step of the clock a journal's orders are ahead by the size of the step.
    const ahead = highOrders(host.reports, reported).filter(([, high]) => high > order);
    const erased = {
      ...asked,
      orderNumber: String(order),
      aheadWriters: ahead.map(([writer]) => writer),
      aheadOrders: ahead.map(([, high]) => String(high)),
    };
    const tombstone = await inTurn(() => insertTombstone(postgres, erased, now));
    let isDone = false;
    try {
      const settled = host.isWhole ? await allSettled(clock, journals, tombstone, host.reports) : undefined;
      await together.add(tombstone, tenantId, until);
      // A journal that was opened meanwhile may have rows that the delete covers, so the delete is not finished.
      if (settled) isDone = (await inTurn(() => markApplied(postgres, [tombstone], settled))) === 1;
    } catch (error) {
      log.warn('delete_later', { reason: messageOf(error) });
    }
    if (!isDone) await inTurn(() => handOver(postgres, tombstone.id)).catch((error) => warnUnlessAway(log, error));
    return isDone ? 'done' : 'recorded';
  };
}

function sharedJournals({ postgres, journals }: SeriesDeleteDeps): Journals {
  const ofHost = new GatheredReads<boolean, Awaited<ReturnType<typeof journals>>>(async (flushes) => {
    const host = await journals(flushes.includes(true));
    return new Map(flushes.map((_, place) => [place, host]));
  });
  const all = new GatheredReads<null, JournalRow[]>(async () => new Map([[0, await readJournals(postgres)]]));
  const highOrders = new GatheredReads<null, Awaited<ReturnType<typeof readHighOrders>>>(async () => {
    return new Map([[0, await readHighOrders(postgres)]]);
  });
  return {
    ofHost: async (flush = false) => (await ofHost.find(String(flush), flush))!,
    all: async () => (await all.find('all', null))!,
    highOrders: async () => (await highOrders.find('high', null))!,
  };
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

/**
 * Returns the journals once each has shipped the rows that it had at the delete; undefined when that takes too long.
 */
async function allSettled(
  clock: Clock,
  journals: Journals,
  { id }: Tombstone,
  own: JournalReport[],
): Promise<JournalRow[] | undefined> {
  const deadline = clock.monotonic() + limits.seriesDeleteWaitMsMax;
  const target = new Map(own.map(({ writer, orderHigh }) => [writer, BigInt(orderHigh)]));
  let host = { reports: own, isWhole: true };
  // `orderHigh` decreases when the append that was in flight at the first report has failed.
  const isShipped = ({ writer, orderHigh, orderShipped }: JournalReport) =>
    BigInt(orderShipped) >= (target.get(writer) ?? 0n) || orderShipped === orderHigh;
  // A row that waits beside the journal may be stored much later: it must then be deleted again.
  if (own.some(({ orderHeld }) => orderHeld !== null)) return undefined;
  let isFlushed = false;
  while (!host.isWhole || !host.reports.every(isShipped)) {
    if (clock.monotonic() >= deadline) return undefined;
    await sleep(lookMs);
    host = await journals.ofHost(!isFlushed);
    isFlushed = true;
    if (host.reports.some(({ orderHeld }) => orderHeld !== null)) return undefined;
  }
  for (;;) {
    const rows = await journals.all();
    const others = rows.filter(({ writer, isLive }) => isLive && !target.has(writer));
    if (others.every(({ settled }) => settled >= id)) {
      const isSettled = (row: JournalRow) => target.has(row.writer) || row.settled >= id;
      return rows.map((row) => (isSettled(row) ? { ...row, settled: Math.max(row.settled, id) } : row));
    }
    if (clock.monotonic() >= deadline) return undefined;
    await sleep(lookAtHostsMs);
  }
}

function warnUnlessAway(log: Log, error: unknown): void {
  if (!isAway(error)) log.warn('delete_later', { reason: messageOf(error) });
}
