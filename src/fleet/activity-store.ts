/**
 * SQL of activity. The row of a device in `device_activity` is locked before its server attributes are written, in one
 * transaction, so whoever says last that a device is active or inactive has the last word in both. All times in
 * `device_activity` are the database's: hosts whose clocks are wrong neither wake a device nor end its activity.
 */
import { ownValue, scopeNumber } from '../attributes/attributes.ts';
import { type AttributeWrite, upsertAttributes } from '../attributes/store.ts';
import type { Postgres, Queries } from '../postgres/client.ts';

/** What happened to a device since it was written last; 0 = nothing of the kind. Epoch milliseconds. */
export interface ActivityMark {
  device: number;
  activeTs: number;
  connectTs: number;
  disconnectTs: number;
}

const nowMs = '(extract(epoch from clock_timestamp()) * 1000)::bigint';
/** Clocks that are nearer than this are one clock: a time is stored as the host has it. */
const sameClockMs = 5_000;

/** Milliseconds, by the clock of the database. */
export async function databaseNow(queries: Queries): Promise<number> {
  const [row] = await queries.query<{ now: number }>(`select ${nowMs} as now`, [], { timeoutMs: 2_000 });
  return row!.now;
}

interface ActivityRow {
  device: number;
  active: boolean;
  lastActivityTime: number;
  lastConnectTime: number | null;
  lastDisconnectTime: number | null;
}

/**
 * Writes the marks of devices that still exist; times never go back and never lie in the future. `now` is the caller's
 * clock: when it is far from the database's, the marks are moved by the difference.
 */
export async function recordActivity(postgres: Postgres, marks: ActivityMark[], now: number): Promise<void> {
  if (marks.length === 0) {
    await postgres.ping();
    return;
  }
  await postgres.transaction(async (queries) => {
    const devices = marks.map(({ device }) => device);
    await lockNewcomers(queries, marks, devices);
    const before = await queries.query<{ device: number }>(
      'select device from device_activity where device = any($1) and active order by device for update',
      [devices],
    );
    const wasActive = new Set(before.map(({ device }) => device));
    const rows = await queries.query<ActivityRow>(
      `with clock as materialized (select ${nowMs} as now),
       shift as (select case when abs(now - $5::bigint) > ${sameClockMs} then now - $5::bigint else 0 end as ms from clock)
       insert into device_activity as a (device, active, last_activity_time, last_connect_time, last_disconnect_time)
       select g.device, g.active_ts > 0,
              case when g.active_ts > 0 then least(g.active_ts + shift.ms, clock.now) else 0 end,
              case when g.connect_ts > 0 then least(g.connect_ts + shift.ms, clock.now) end,
              case when g.disconnect_ts > 0 then least(g.disconnect_ts + shift.ms, clock.now) end
         from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) as g (device, active_ts, connect_ts, disconnect_ts)
         join device d on d.number = g.device, clock, shift order by g.device
       on conflict (device) do update set active = a.active or excluded.active,
         last_activity_time = greatest(least(a.last_activity_time, (select now from clock)), excluded.last_activity_time),
         last_connect_time = greatest(least(a.last_connect_time, (select now from clock)), excluded.last_connect_time),
         last_disconnect_time = greatest(least(a.last_disconnect_time, (select now from clock)), excluded.last_disconnect_time)
       returning device, active, last_activity_time as "lastActivityTime", last_connect_time as "lastConnectTime",
         last_disconnect_time as "lastDisconnectTime"`,
      [
        devices,
        marks.map((mark) => mark.activeTs),
        marks.map((mark) => mark.connectTs),
        marks.map((mark) => mark.disconnectTs),
        now,
      ],
    );
    const marked = new Map(marks.map((mark) => [mark.device, mark]));
    const writes = rows.flatMap((row) => attributesOf(row, marked.get(row.device)!, wasActive.has(row.device), now));
    if (writes.length > 0) await upsertAttributes(queries, writes);
  });
}

/**
 * A new attribute locks its device. Who deletes a device holds that lock and waits for the rows below, so it is taken
 * before them; devices that were active all the time get no new attribute, and no lock.
 */
async function lockNewcomers(queries: Queries, marks: ActivityMark[], devices: number[]): Promise<void> {
  const known = await queries.query<{ device: number }>(
    'select device from device_activity where device = any($1) and active',
    [devices],
  );
  const steady = new Set(known.map(({ device }) => device));
  const newcomers = marks.filter((mark) => !steady.has(mark.device) || mark.connectTs > 0 || mark.disconnectTs > 0);
  if (newcomers.length === 0) return;
  await queries.query('select 1 from device where number = any($1) order by number for key share', [
    newcomers.map(({ device }) => device),
  ]);
}

/**
 * Devices of which nothing came for as long as they may be silent and `lateMs` more, which other workers may take to write
 * what they know. Goes by the clock of the database alone. Returns how many turned inactive.
 */
export async function endActivity(
  postgres: Postgres,
  lateMs: number,
  inactivityMs: number,
  rowsMax: number,
): Promise<number> {
  return await postgres.transaction(async (queries) => {
    const ended = await queries.query<{ device: number; now: number }>(
      `with clock as materialized (select ${nowMs} as now),
       due as (
         select a.device from clock, device_activity a join device d on d.number = a.device
           left join attribute t on t.device = a.device and t.scope = 3 and t.key = 'inactivityTimeout' and t.kind = 2
          where a.active and a.last_activity_time < clock.now - $1::bigint
                - coalesce(nullif(least(greatest(t.value::bigint, 0), 1e15::bigint), 0), $2::bigint)
          order by a.device limit $3 for key share of d skip locked for update of a skip locked)
       update device_activity a set active = false, inactivity_alarm_time = clock.now
         from due, clock where a.device = due.device returning a.device, clock.now`,
      [lateMs, inactivityMs, rowsMax],
    );
    const writes = ended.flatMap(({ device, now }) => [
      serverAttribute(device, 'active', false, now),
      serverAttribute(device, 'inactivityAlarmTime', now, now),
    ]);
    if (writes.length > 0) await upsertAttributes(queries, writes);
    return ended.length;
  });
}

/** After the database's clock was set back: no device stays active because it was alive in what is the future now. */
export async function clampActivity(queries: Queries): Promise<void> {
  await queries.query(
    `update device_activity set last_activity_time = ${nowMs}
      where active and last_activity_time > ${nowMs} + ${sameClockMs}`,
  );
}

/** The longest silence that any device may keep, at most `msMax`. */
export async function longestInactivity(queries: Queries, inactivityMs: number, msMax: number): Promise<number> {
  const [row] = await queries.query<{ ms: number | null }>(
    `select max(least(greatest(value::bigint, 0), $1::bigint)) as ms from attribute
      where scope = 3 and key = 'inactivityTimeout' and kind = 2`,
    [msMax],
  );
  return Math.min(msMax, Math.max(inactivityMs, row?.ms ?? 0));
}

/** What the mark changed; `active` only when the device was not. */
function attributesOf(row: ActivityRow, mark: ActivityMark, wasActive: boolean, now: number): AttributeWrite[] {
  const { device } = row;
  const writes: AttributeWrite[] = [];
  const write = (key: string, value: number | boolean) => writes.push(serverAttribute(device, key, value, now));
  if (mark.activeTs > 0) write('lastActivityTime', row.lastActivityTime);
  if (mark.activeTs > 0 && !wasActive) write('active', true);
  if (mark.connectTs > 0) write('lastConnectTime', row.lastConnectTime!);
  if (mark.disconnectTs > 0) write('lastDisconnectTime', row.lastDisconnectTime!);
  return writes;
}

function serverAttribute(device: number, key: string, value: number | boolean, ts: number): AttributeWrite {
  const typed = typeof value === 'boolean' ? ownValue.boolean(value) : ownValue.long(value);
  return { device, scope: scopeNumber.SERVER_SCOPE, key, value: typed, ts };
}
