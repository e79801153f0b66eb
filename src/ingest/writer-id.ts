/**
 * The writer id of a worker's journal: assigned once in the life of a journal directory, and unique across hosts. A
 * crash between its assignment and its storing wastes an id, and never gives it to two journals.
 */
import { hostname } from 'node:os';
import { messageOf } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { systemScheduler } from '../base/scheduler.ts';
import { type Disk, errorCode, realDisk } from '../journal/disk.ts';
import { readWriterId, storeWriterId, writerIdMax } from '../journal/identity.ts';
import type { Journal } from '../journal/journal.ts';
import type { Queries } from '../postgres/client.ts';
import { isAway } from '../postgres/postgres-error.ts';
import { giveBackWriterId, takeWriterId, unknownRun } from './journal-store.ts';

interface WriterIdDeps {
  journal: Pick<Journal, 'orderMax' | 'epoch'>;
  dir: string;
  postgres: Queries;
  /** Called before each wait with its reason: the worker cannot serve without an id. */
  onWaiting: (reason: string) => void;
  disk?: Disk;
  sleep?: (ms: number) => Promise<unknown>;
}

/** A worker with a new journal waits for PostgreSQL, for a free id, and for a disk that keeps the id. */
export async function writerIdOf({
  journal,
  dir,
  postgres,
  onWaiting,
  disk = realDisk,
  sleep = systemScheduler.sleep,
}: WriterIdDeps): Promise<number> {
  const known = await readWriterId(dir, disk);
  if (known !== undefined) return known;
  for (;;) {
    try {
      const run = journal.orderMax === 0n ? String(journal.epoch! - 1) : unknownRun;
      const id = await takeWriterId(postgres, hostname(), run);
      const failure = id === undefined ? noneFree : await keep(postgres, disk, dir, id);
      if (failure === undefined) return id!;
      onWaiting(`its journal is new and ${failure}`);
    } catch (error) {
      if (!isAway(error)) throw error;
      onWaiting('its journal is new and needs an id from PostgreSQL');
    }
    await sleep(limits.storeCheckMs);
  }
}

const noneFree =
  `all ${writerIdMax + 1} writer ids are in use: keep the data directories of hosts, or ` +
  'lower TELEMETRY_TOMBSTONES_KEPT_DAYS, after which the id of a journal that is not reported is free again';

/**
 * Returns the reason why the disk does not keep the id, which is free again then: ids that no journal has would delay
 * deletes, and be used up by repeated starts.
 */
async function keep(postgres: Queries, disk: Disk, dir: string, id: number): Promise<string | undefined> {
  try {
    await storeWriterId(dir, id, disk);
    return undefined;
  } catch (error) {
    if (errorCode(error) === '') throw error;
    // The file may have its name although the directory was not synced.
    if ((await readWriterId(dir, disk)) !== undefined) throw error;
    await giveBackWriterId(postgres, id);
    return `its id cannot be stored in ${dir}: ${messageOf(error)}`;
  }
}
