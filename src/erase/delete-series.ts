/**
 * Deletes ranges of a device's telemetry. The tombstone makes the delete durable. `DeleteSeries` then waits until the
 * rows accepted earlier are in ClickHouse, and carries the delete out. `done`: no read shows a deleted point from now
 * on. `recorded`: some deleted points may be readable until `erase.ts` of one of the hosts has carried the delete out.
 */
import type { Clock } from '../base/clock.ts';
import { messageOf } from '../base/errors.ts';
import { GatheredStatements } from '../base/gathered-statements.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import { Places, placeOwners } from '../base/places.ts';
import { systemScheduler } from '../base/scheduler.ts';
import type { Shards } from '../clickhouse/shards.ts';
import type { JournalReport } from '../ingest/journal-report.ts';
import { type JournalRow, readHighOrders, readJournals } from '../ingest/journal-store.ts';
import { orderUpTo } from '../ingest/order-number.ts';
import { isAway, type Queries } from '../postgres/client.ts';
import { eraseSeries, NotYet } from './erase-in-clickhouse.ts';
import { EraseTogether } from './erase-together.ts';
import {
  type CarriedOut,
  type Erased,
  handOver,
  insertTombstones,
  type LatestFate,
  listBytesOf,
  markApplied,
  type Tombstone,
} from './tombstone-store.ts';

const { sleep } = systemScheduler;

interface SeriesDeleteDeps {
  postgres: Queries;
  shards: Shards;
  cluster: string;
  /** As in `CarryOutDeps`. */
  latestAheadMsMax?: number;
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

/** The journals once each has shipped the rows that it had at a delete. */
type Settled = Pick<CarriedOut, 'seen' | 'settledBy'>;

/** Deletes that run at the same time share each of these questions and statements. */
interface Statements {
  /** The journals of this host. */
  journalsOfHost(flush?: boolean): ReturnType<SeriesDeleteDeps['journals']>;
  journalsOfAll(): Promise<JournalRow[]>;
  /** Includes journals that are gone and that were ahead of the clock. */
  highOrders(): ReturnType<typeof readHighOrders>;
  insert(erased: Erased, createdTime: number, tenantId: string): Promise<Tombstone>;
  /** Returns false when the delete is not finished. */
  mark(tombstone: Tombstone, settled: Settled, tenantId: string): Promise<boolean>;
  handOver(tombstone: Tombstone, tenantId: string): Promise<void>;
}

/** Bytes of a delete without its lists. */
const recordBytes = 256;

/** Time after which a caller without a place is answered. */
const recordedMs = 1000;
/** Time between two looks at the journals of this host. */
const lookMs = 20;
/** Time between two looks at the journals of other hosts. */
const lookAtHostsMs = 200;

export function seriesDeleter(deps: SeriesDeleteDeps): DeleteSeries {
  const { shards, cluster, latestAheadMsMax = 0, clock, log } = deps;
  // The batches of each shard are apart: a shard that does not answer delays no delete of the others.
  const together = shards.all.map(
    (clickhouse) =>
      new EraseTogether(clock, (batch, msLeft) =>
        eraseSeries({ clickhouse, cluster, latestAheadMsMax, msLeft }, batch),
      ),
  );
  const statements = gatheredStatements(deps);
  const places = new Places(limits.seriesDeletesWaitingMax);
  const remove: DeleteSeries = async (asked, tenantId = '') => {
    const until = clock.monotonic() + limits.seriesDeleteMsMax;
    const holders = shards.byHolder([asked.device], (device) => device);
    const version = shards.map?.version;
    const [host, reported] = await Promise.all([statements.journalsOfHost(), statements.highOrders()]);
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
    const tombstone = await statements.insert(erased, now, tenantId);
    let isDone = false;
    // A row that waits beside a journal may be stored much later: it must then be deleted again. Another version of the
    // map may have the device on other shards.
    const isHeld = ({ orderHeld, shardsBehind, mapVersion }: JournalReport) =>
      orderHeld !== null &&
      (!shardsBehind ||
        version === undefined ||
        mapVersion !== version ||
        holders.some(({ clickhouse }) => shardsBehind.includes(clickhouse.shard!)));
    const owners = placeOwners(tenantId, null);
    const isAwaited = places.take(owners) === 'taken';
    try {
      if (!isAwaited) throw new NotYet('many deletes wait');
      const settled = host.isWhole ? await allSettled(clock, statements, tombstone, host.reports, isHeld) : undefined;
      await Promise.all(
        holders.map(({ clickhouse }) => together[shards.all.indexOf(clickhouse)]!.add(tombstone, tenantId, until)),
      );
      // A journal that was opened meanwhile may have rows that the delete covers, so the delete is not finished.
      if (settled) isDone = await statements.mark(tombstone, settled, tenantId);
    } catch (error) {
      log.warn('delete_later', { reason: messageOf(error) });
    } finally {
      if (isAwaited) places.release(owners);
    }
    if (!isDone) await statements.handOver(tombstone, tenantId).catch((error) => warnUnlessAway(log, error));
    // A caller that deletes again at once would record deletes faster than they are carried out.
    if (!isAwaited) await sleep(recordedMs);
    return isDone ? 'done' : 'recorded';
  };
  return async (asked, tenantId) => {
    const end = shards.begin();
    try {
      return await remove(asked, tenantId);
    } finally {
      end();
    }
  };
}

function gatheredStatements({ postgres, journals }: SeriesDeleteDeps): Statements {
  const ofHost = new GatheredStatements<boolean, Awaited<ReturnType<typeof journals>>>(async (flushes) => {
    const host = await journals(flushes.includes(true));
    return new Map(flushes.map((_, place) => [place, host]));
  });
  let last: { rows: JournalRow[]; text: string } = { rows: [], text: '' };
  const ofAll = new GatheredStatements<null, JournalRow[]>(async () => {
    const rows = await readJournals(postgres);
    const text = JSON.stringify(rows);
    // Deletes that have read the same journals share the list of them in `markApplied`.
    if (text !== last.text) last = { rows, text };
    return new Map([[0, last.rows]]);
  });
  const highs = new GatheredStatements<null, Awaited<ReturnType<typeof readHighOrders>>>(async () => {
    return new Map([[0, await readHighOrders(postgres)]]);
  });
  const { seriesDeletesPerStatementMax: keysMax, seriesDeleteBytesPerStatementMax: sizeMax } = limits;
  const sizeOf = (erased: Erased) => recordBytes + listBytesOf(erased);
  const inserts = new GatheredStatements<Erased & { createdTime: number }, Tombstone>(
    async (deletes) => new Map((await insertTombstones(postgres, deletes)).entries()),
    { keysMax, sizeMax, sizeOf },
  );
  const marks = new GatheredStatements<CarriedOut, boolean>(
    async (done) => {
      const marked = await markApplied(postgres, done);
      return new Map(done.map(({ tombstones }, place) => [place, tombstones.every(({ id }) => marked.has(id))]));
    },
    { keysMax },
  );
  const handOvers = new GatheredStatements<number, null>(
    async (ids) => {
      await handOver(postgres, ids);
      return new Map();
    },
    { keysMax },
  );
  return {
    journalsOfHost: async (flush = false) => (await ofHost.ask(String(flush), flush))!,
    journalsOfAll: async () => (await ofAll.ask('all', null))!,
    highOrders: async () => (await highs.ask('high', null))!,
    insert: async (erased, createdTime, tenantId) =>
      (await inserts.ask(undefined, { ...erased, createdTime }, tenantId))!,
    mark: async (tombstone, settled, tenantId) =>
      (await marks.ask(undefined, { tombstones: [tombstone], ...settled }, tenantId))!,
    handOver: async ({ id }, tenantId) => {
      await handOvers.ask(undefined, id, tenantId);
    },
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

/** Returns undefined when that takes too long. */
async function allSettled(
  clock: Clock,
  statements: Statements,
  { id }: Tombstone,
  own: JournalReport[],
  isHeld: (report: JournalReport) => boolean,
): Promise<Settled | undefined> {
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
    await sleep(lookMs);
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
    await sleep(lookAtHostsMs);
  }
}

function warnUnlessAway(log: Log, error: unknown): void {
  if (!isAway(error)) log.warn('delete_later', { reason: messageOf(error) });
}
