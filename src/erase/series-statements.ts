/** The statements and questions of deletes over REST, gathered: deletes that run at the same time share one of each. */
import { GatheredStatements } from '../base/gathered-statements.ts';
import { limits } from '../base/limits.ts';
import type { JournalReport } from '../ingest/journal-report.ts';
import { type JournalRow, readHighOrders, readJournals } from '../ingest/journal-store.ts';
import type { Queries } from '../postgres/client.ts';
import {
  type CarriedOut,
  type Erased,
  handOver,
  insertTombstones,
  listBytesOf,
  markApplied,
  type Tombstone,
} from './tombstone-store.ts';

/** The journals of one host; `isWhole`: all workers have answered. */
export interface HostJournals {
  reports: JournalReport[];
  isWhole: boolean;
}

/** The journals once each has shipped the rows that it had at a delete. */
export type SettledJournals = Pick<CarriedOut, 'seen' | 'settledBy'>;

interface SeriesStatementsDeps {
  postgres: Queries;
  journals: (flush?: boolean) => Promise<HostJournals>;
}

export interface SeriesStatements {
  /** The journals of this host. */
  journalsOfHost(flush?: boolean): Promise<HostJournals>;
  journalsOfAll(): Promise<JournalRow[]>;
  /** Includes journals that are gone and that were ahead of the clock. */
  highOrders(): ReturnType<typeof readHighOrders>;
  insert(erased: Erased, createdTime: number, tenantId: string): Promise<Tombstone>;
  /** Returns false when the delete is not finished. */
  mark(tombstone: Tombstone, settled: SettledJournals, tenantId: string): Promise<boolean>;
  handOver(tombstone: Tombstone, tenantId: string): Promise<void>;
}

/** Bytes of a delete without its lists. */
const recordBytes = 256;

export function seriesStatements({ postgres, journals }: SeriesStatementsDeps): SeriesStatements {
  const ofHost = new GatheredStatements<boolean, HostJournals>(async (flushes) => {
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
