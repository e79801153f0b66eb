/**
 * SQL of activity. The row of a device in `device_activity` is locked before its server attributes are written, in one
 * transaction, so the last writer decides in both whether a device is active.
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

interface ActivityRow {
  device: number;
  active: boolean;
  lastActivityTime: number;
  lastConnectTime: number | null;
  lastDisconnectTime: number | null;
}

/** Writes the marks of devices that still exist; times never go back. */
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
      `insert into device_activity as a (device, active, last_activity_time, last_connect_time, last_disconnect_time)
       select g.device, g.active_ts > 0, g.active_ts, nullif(g.connect_ts, 0), nullif(g.disconnect_ts, 0)
         from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) as g (device, active_ts, connect_ts, disconnect_ts)
         join device d on d.number = g.device order by g.device
       on conflict (device) do update set active = a.active or excluded.active,
         last_activity_time = greatest(a.last_activity_time, excluded.last_activity_time),
         last_connect_time = greatest(a.last_connect_time, excluded.last_connect_time),
         last_disconnect_time = greatest(a.last_disconnect_time, excluded.last_disconnect_time)
       returning device, active, last_activity_time as "lastActivityTime", last_connect_time as "lastConnectTime",
         last_disconnect_time as "lastDisconnectTime"`,
      [
        devices,
        marks.map((mark) => mark.activeTs),
        marks.map((mark) => mark.connectTs),
        marks.map((mark) => mark.disconnectTs),
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

/** Devices that said nothing before `writtenUpTo` for as long as they may turn inactive. Returns how many did. */
export async function endActivity(
  postgres: Postgres,
  writtenUpTo: number,
  inactivityMs: number,
  rowsMax: number,
  now: number,
): Promise<number> {
  return await postgres.transaction(async (queries) => {
    const ended = await queries.query<{ device: number }>(
      `with due as (
         select a.device from device_activity a join device d on d.number = a.device
           left join attribute t on t.device = a.device and t.scope = 3 and t.key = 'inactivityTimeout' and t.kind = 2
          where a.active and a.last_activity_time < $1::bigint
                - coalesce(nullif(least(greatest(t.value::bigint, 0), 1e15::bigint), 0), $2::bigint)
          order by a.device limit $3 for key share of d skip locked for update of a skip locked)
       update device_activity a set active = false, inactivity_alarm_time = $4
         from due where a.device = due.device returning a.device`,
      [writtenUpTo, inactivityMs, rowsMax, now],
    );
    const writes = ended.flatMap(({ device }) => [
      serverAttribute(device, 'active', false, now),
      serverAttribute(device, 'inactivityAlarmTime', now, now),
    ]);
    if (writes.length > 0) await upsertAttributes(queries, writes);
    return ended.length;
  });
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
