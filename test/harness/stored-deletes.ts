/** The deletes of a test without PostgreSQL. */
import type { Rewrites, StoredDelete, StoredDeletes } from '../../src/erase/deletes-store.ts';
import type { Erased } from '../../src/erase/tombstone-store.ts';

export const noStoredDeletes: StoredDeletes = {
  of: async () => [],
  beside: async () => [],
  noteRewrites: async () => {},
  readRewrites: async () => [],
  forgetRewrites: async () => {},
};

/** Deletes in memory. `all` takes deletes with ids, and deleted devices without. */
export function deletesInMemory(): { all: (StoredDelete | Erased)[]; deletes: StoredDeletes } {
  const all: (StoredDelete | Erased)[] = [];
  let noted: Rewrites[] = [];
  const hasId = (erased: StoredDelete | Erased, ids: number[]) => 'id' in erased && ids.includes(erased.id);
  const deletes: StoredDeletes = {
    of: async (devices) => all.filter(({ device }) => devices.includes(device)),
    beside: async (ids) => {
      const devices = all.filter((erased) => hasId(erased, ids)).map(({ device }) => device);
      return all.filter((erased) => devices.includes(erased.device) && !hasId(erased, ids) && erased.latest !== 'keep');
    },
    noteRewrites: async (rewrites) => void noted.push(...rewrites),
    readRewrites: async (ids) => noted.filter(({ id }) => ids.includes(id)),
    forgetRewrites: async (ids) => {
      noted = noted.filter(({ id }) => !ids.includes(id));
    },
  };
  return { all, deletes };
}
