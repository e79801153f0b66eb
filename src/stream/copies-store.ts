/**
 * The restores from which this instance has come, in PostgreSQL, whose rows are part of a backup. So two restores of
 * one backup differ, and neither uses the streams of the other.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { listOfSetting } from '../base/settings/list-setting.ts';
import type { Queries } from '../postgres/client.ts';
import { findSetting } from '../postgres/stored-settings.ts';
import { type KnownStream, readKnownStreams } from './position-store.ts';

const name = 'stream.copies';

/** A connection to the servers of the streams waits so long for PostgreSQL, which telemetry does not need. */
const waitMsMax = 1_000;

/** What PostgreSQL knows of the use of the streams. */
interface StreamUse {
  /** The ids of the restores, the latest one last; undefined when PostgreSQL does not answer in time. */
  copies: string[] | undefined;
  /** The streams that hosts have used; undefined as well. */
  known: KnownStream[] | undefined;
}

export async function findUse(queries: Queries): Promise<StreamUse> {
  const found = Promise.all([findSetting(queries, name), readKnownStreams(queries)]).then(
    ([list, known]) => ({ copies: listOfSetting(list ?? ''), known }),
    () => undefined,
  );
  const use = await Promise.race([found, sleep(waitMsMax, undefined, { ref: false })]);
  return use ?? { copies: undefined, known: undefined };
}

/** May be repeated with the same id. */
export async function addCopy(queries: Queries, id: string): Promise<void> {
  await queries.query(
    `insert into setting (name, value) values ($1, $2)
     on conflict (name) do update set value = setting.value || ',' || excluded.value
     where excluded.value <> all (string_to_array(setting.value, ','))`,
    [name, id],
  );
}
