/**
 * SQL of `device_activity`: whether a device is active, since when, and the times of its sessions. Steady activity is
 * in the blocks (`block-store.ts`). Readers see both as attributes, through the view `activity_attribute`.
 */
import { clockStepMs } from '../base/clock.ts';
import type { Queries } from '../postgres/client.ts';

/** Events of a device, in epoch milliseconds; 0 = no such event. */
export interface ActivityMark {
  device: number;
  activeTs: number;
  connectTs: number;
  disconnectTs: number;
}

/**
 * Writes the marks of devices that still exist; stored times never decrease, except those that lie after `now` because
 * the clock was set back. An active device whose sessions did not change is not written: a worker that has just started
 * marks each device once. `marks` names each device once.
 */
export async function recordMarks(queries: Queries, marks: ActivityMark[], now: number): Promise<void> {
  const stored = await queries.query<{ device: number; active: boolean }>(
    'select device, active from device_activity where device = any($1)',
    [marks.map(({ device }) => device)],
  );
  const rows = new Map(stored.map(({ device, active }) => [device, active]));
  const isChange = ({ device, connectTs, disconnectTs }: ActivityMark) =>
    !rows.get(device) || connectTs > 0 || disconnectTs > 0;
  const added = marks.filter(({ device }) => !rows.has(device));
  const changed = marks.filter((mark) => rows.has(mark.device) && isChange(mark));
  // Two transactions: a transaction that holds rows while it waits for the lock of a device could deadlock with a
  // delete.
  if (changed.length > 0) await updateRows(queries, changed, now);
  if (added.length > 0) await queries.query(insertRows, valuesOf(added, now));
}

/**
 * Rows are written in the order of devices, as every writer of several rows locks them. An upsert finds and locks a row
 * at half the cost of an update that locks rows first.
 */
const write = `
  insert into device_activity as a (device, active, woke_time, last_connect_time, last_disconnect_time)
  select g.device, g.active_ts > 0, g.active_ts, nullif(g.connect_ts, 0), nullif(g.disconnect_ts, 0)
    from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) as g (device, active_ts, connect_ts, disconnect_ts)`;
/** A stored time in the future is replaced by one before the written event of a session, which came later. */
const past = (column: string) => `case when a.${column} > $5::bigint
            then coalesce(greatest(excluded.last_connect_time, excluded.last_disconnect_time) - 1, a.${column})
            else a.${column} end`;
const merge = `
   order by g.device
  on conflict (device) do update set active = a.active or excluded.active,
         woke_time = case when a.active then a.woke_time else greatest(a.woke_time, excluded.woke_time) end,
         last_connect_time = greatest(${past('last_connect_time')}, excluded.last_connect_time),
         last_disconnect_time = greatest(${past('last_disconnect_time')}, excluded.last_disconnect_time)`;

/** A delete of a device waits for its new row, and then removes it. */
const insertRows = `
  with known as materialized (select number from device where number = any($1) order by number for key share)
  ${write} join known on known.number = g.device ${merge}`;

/** An upsert that waits for the delete of a row inserts the row again, after the device is deleted. */
async function updateRows(queries: Queries, marks: ActivityMark[], now: number): Promise<void> {
  const added = await queries.query<{ device: number }>(
    `with written as (${write} ${merge} returning device, xmax = 0 as added) select device from written where added`,
    valuesOf(marks, now),
  );
  if (added.length === 0) return;
  await queries.query(
    'delete from device_activity a where device = any($1) and not exists (select from device where number = a.device)',
    [added.map(({ device }) => device)],
  );
}

function valuesOf(marks: ActivityMark[], now: number): (number | number[])[] {
  return [
    marks.map(({ device }) => device),
    marks.map(({ activeTs }) => activeTs),
    marks.map(({ connectTs }) => connectTs),
    marks.map(({ disconnectTs }) => disconnectTs),
    now + clockStepMs,
  ];
}

/** Devices that one judgement made inactive. */
interface Ended {
  number: number;
  judgedTime: number;
  devices: number[];
}

/** Selects the number of the last judgement. */
export const endedNumber = 'select ended_number from activity_check';

/**
 * Returns the judgements after the number `after`, oldest first, and the last number. Numbers have no gaps: a missing
 * number was pruned. A server of another timeline may have given the same numbers to other judgements.
 */
export async function readEnded(
  queries: Queries,
  after: number | undefined,
  rowsMax: number,
): Promise<{ last: number; timeline: string | null; ended: Ended[] }> {
  const rows = await queries.query<
    { last: number; timeline: string | null } & { [Key in keyof Ended]: Ended[Key] | null }
  >(
    `select c.ended_number as last, server_timeline() as timeline, e.number, e.judged_time as "judgedTime", e.devices
       from activity_check c left join lateral (
         select * from activity_ended where number > $1 order by number limit $2) e on true`,
    [after ?? null, rowsMax],
  );
  const ended = rows.filter((row) => row.number !== null) as ({ last: number } & Ended)[];
  const { last, timeline } = rows[0]!;
  return { last, timeline, ended };
}

interface SettledReport {
  writer: string;
  /** All that the writer received before this time is stored. */
  settledTime: number;
  now: number;
  /** The timeline of the server on which it is stored. */
  timeline: string | null;
}

/** Returns false when another server answers, which may lack what was stored: nothing is recorded. */
export async function reportSettled(queries: Queries, report: SettledReport): Promise<boolean> {
  const { writer, settledTime, now, timeline } = report;
  const rows = await queries.query(
    `insert into activity_writer (id, settled_time, seen_time)
     select $1, $2, $3 where server_timeline() is not distinct from $4
     on conflict (id) do update set settled_time = excluded.settled_time, seen_time = excluded.seen_time
     returning 1`,
    [writer, settledTime, now, timeline],
  );
  return rows.length > 0;
}

/**
 * Makes silence count from `now` on when no worker of any host runs: until now devices had no host to send to. Workers
 * that crashed still count as running: a check finds them dead later. Returns true when silence counts from `now` on.
 */
export async function raiseFloorWhenAlone(queries: Queries, now: number): Promise<boolean> {
  const rows = await queries.query(
    'update activity_check set floor_time = $1 where not exists (select from activity_writer) returning 1',
    [now],
  );
  return rows.length > 0;
}

/** Removes a writer that has stored all that it received. */
export async function forgetWriter(queries: Queries, writer: string): Promise<void> {
  await queries.query('delete from activity_writer where id = $1', [writer]);
}

/** Makes silence count from `now` on: earlier activity may not be stored, or was stored by a clock that has jumped. */
export async function raiseFloor(queries: Queries, now: number): Promise<void> {
  await queries.query('update activity_check set floor_time = $1', [now]);
}
