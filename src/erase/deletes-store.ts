/** What `erase-in-clickhouse.ts` asks PostgreSQL for while it carries out deletes. */
import type { Queries } from '../postgres/client.ts';
import { type Erased, readTombstonesBeside, readTombstonesOf, type Tombstone } from './tombstone-store.ts';

/** A tombstone as far as it is carried out in ClickHouse. */
export type StoredDelete = Erased & Pick<Tombstone, 'id'>;

/** Keys of latest values that a delete replaces. */
export interface Rewrites {
  id: number;
  keys: string[];
}

export interface StoredDeletes {
  /** Returns the deletes of some devices, whether they were carried out or not. */
  of: (devices: number[]) => Promise<Erased[]>;
  /** Returns deletes of the same devices that may have been carried out beside an earlier call of these deletes. */
  beside: (ids: number[]) => Promise<Erased[]>;
  /** Remembers the keys until `forgetRewrites`. */
  noteRewrites: (rewrites: readonly Rewrites[]) => Promise<void>;
  readRewrites: (ids: number[]) => Promise<Rewrites[]>;
  forgetRewrites: (ids: number[]) => Promise<void>;
}

export function storedDeletes(postgres: Queries): StoredDeletes {
  return {
    of: (devices) => readTombstonesOf(postgres, devices),
    beside: (ids) => readTombstonesBeside(postgres, ids),
    noteRewrites: async (rewrites) => {
      await postgres.query(
        `insert into tombstone_rewrites (tombstone, keys)
         select id, keys from json_to_recordset($1) as each (id bigint, keys text[])`,
        [JSON.stringify(rewrites)],
      );
    },
    readRewrites: (ids) =>
      postgres.query<Rewrites>(
        'select tombstone as id, keys from tombstone_rewrites where tombstone = any($1::bigint[])',
        [ids],
      ),
    forgetRewrites: async (ids) => {
      await postgres.query('delete from tombstone_rewrites where tombstone = any($1::bigint[])', [ids]);
    },
  };
}
