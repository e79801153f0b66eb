/**
 * SQL of `device_activity`: whether a device is active, since when, and the times of its sessions. Steady activity is
 * in the blocks (`block-store.ts`). Readers see both as attributes, through the view `activity_attribute`.
 */
import type { Postgres, Queries } from '../postgres/client.ts';

/** Events of a device, in epoch milliseconds; 0 = no such event. */
export interface ActivityMark {
  device: number;
  activeTs: number;
  connectTs: number;
  disconnectTs: number;
}

/**
 * Writes the marks of devices that still exist; stored times never decrease. An active device whose sessions did not
 * change is not written: a worker that has just started marks each device once.
 */
export async function recordMarks(postgres: Postgres, marks: ActivityMark[]): Promise<void> {
  const active = await postgres.query<{ device: number }>(
    'select device from device_activity where device = any($1) and active',
    [marks.map(({ device }) => device)],
  );
  const known = new Set(active.map(({ device }) => device));
  const changed = marks.filter((mark) => !known.has(mark.device) || mark.connectTs > 0 || mark.disconnectTs > 0);
  if (changed.length > 0) await postgres.transaction((queries) => upsertMarks(queries, changed));
}

async function upsertMarks(queries: Queries, marks: ActivityMark[]): Promise<void> {
  const devices = marks.map(({ device }) => device);
  // A new row locks its device. A delete of the device holds that lock and waits for the rows below, so the lock is
  // taken first.
  await queries.query('select 1 from device where number = any($1) order by number for key share', [devices]);
  await queries.query(
    `insert into device_activity as a (device, active, woke_time, last_connect_time, last_disconnect_time)
     select g.device, g.active_ts > 0, g.active_ts, nullif(g.connect_ts, 0), nullif(g.disconnect_ts, 0)
       from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) as g (device, active_ts, connect_ts, disconnect_ts)
       join device d on d.number = g.device order by g.device
     on conflict (device) do update set active = a.active or excluded.active,
       woke_time = case when a.active then a.woke_time else greatest(a.woke_time, excluded.woke_time) end,
       last_connect_time = greatest(a.last_connect_time, excluded.last_connect_time),
       last_disconnect_time = greatest(a.last_disconnect_time, excluded.last_disconnect_time)`,
    [
      devices,
      marks.map((mark) => mark.activeTs),
      marks.map((mark) => mark.connectTs),
      marks.map((mark) => mark.disconnectTs),
    ],
  );
}

/** Devices that one judgement made inactive. */
export interface Ended {
  number: number;
  judgedTime: number;
  devices: number[];
}

/**
 * Returns the judgements after the number `after`, oldest first, and the last number. Numbers have no gaps: a missing
 * number was pruned.
 */
export async function readEnded(
  queries: Queries,
  after: number | undefined,
  rowsMax: number,
): Promise<{ last: number; ended: Ended[] }> {
  const rows = await queries.query<{ last: number } & { [Key in keyof Ended]: Ended[Key] | null }>(
    `select c.ended_number as last, e.number, e.judged_time as "judgedTime", e.devices
       from activity_check c left join lateral (
         select * from activity_ended where number > $1 order by number limit $2) e on true`,
    [after ?? null, rowsMax],
  );
  const ended = rows.filter((row) => row.number !== null) as ({ last: number } & Ended)[];
  return { last: rows[0]!.last, ended };
}

/** Records that all that the writer received before `settledTime` is stored. */
export async function reportSettled(queries: Queries, writer: string, settledTime: number, now: number): Promise<void> {
  await queries.query(
    `insert into activity_writer (id, settled_time, seen_time) values ($1, $2, $3)
     on conflict (id) do update set settled_time = excluded.settled_time, seen_time = excluded.seen_time`,
    [writer, settledTime, now],
  );
}

/** Removes a writer that has stored all that it received. */
export async function forgetWriter(queries: Queries, writer: string): Promise<void> {
  await queries.query('delete from activity_writer where id = $1', [writer]);
}

/** Makes silence count from `now` on: earlier activity may not be stored, or was stored by a clock that has jumped. */
export async function raiseFloor(queries: Queries, now: number): Promise<void> {
  await queries.query('update activity_check set floor_time = $1', [now]);
}
