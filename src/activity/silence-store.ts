/**
 * SQL of the check for silent devices: which host checks, up to which time silence is judged, and which devices become
 * inactive.
 */
import { serverScope } from '../attributes/scope.ts';
import { assert } from '../base/errors.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { Kind } from '../value/typed.ts';

export interface CheckTurn {
  /** All workers have stored what they received before this time. */
  settledTime: number;
  /** Silence counts from this time on. */
  floorTime: number;
  /** The reason why silence counts from now on; undefined when the floor has not moved. */
  held: 'gap' | 'back' | 'lost_worker' | undefined;
}

interface CheckTimes {
  now: number;
  /** The time of the database's clock. */
  database: number;
  /** Checks are usually not further apart than this. */
  steadyMs: number;
  /** A check is made only when the last one is at least this old. */
  everyMs: number;
  /** After a longer time without a check, devices may have had no host to send to. */
  gapMs: number;
  /** A worker without a report for this long counts as dead, and its unwritten activity as lost. */
  deadMs: number;
  /** The largest difference between two clocks that count as equal. */
  toleranceMs: number;
}

/**
 * Returns undefined when another host checks now, or did so within the interval. Returns 'other_time' when neither the
 * database nor the last check has the time of this host: a machine that was paused would take the times of all other
 * hosts back.
 */
export async function takeCheckTurn(
  postgres: Postgres,
  times: CheckTimes,
): Promise<CheckTurn | 'other_time' | undefined> {
  const { now, database, steadyMs, everyMs, gapMs, deadMs, toleranceMs } = times;
  return await postgres.transaction(async (queries) => {
    const [check] = await queries.query<{ checked: number; floor: number }>(
      'select checked_time as checked, floor_time as floor from activity_check for update skip locked',
    );
    if (check === undefined) return undefined;
    const isBack = now < check.checked - toleranceMs || check.floor > now + toleranceMs;
    if (!isBack && now < check.checked + everyMs) return undefined;
    const followsLast = !isBack && now <= check.checked + steadyMs + toleranceMs;
    if (!followsLast && Math.abs(now - database) > toleranceMs) return 'other_time';
    const dead = await queries.query(
      'delete from activity_writer where seen_time < $1::bigint - $2::bigint or seen_time > $1::bigint + $2::bigint returning 1',
      [now, deadMs],
    );
    let held: CheckTurn['held'];
    if (isBack) held = 'back';
    else if (now > check.checked + gapMs) held = 'gap';
    else if (dead.length > 0) held = 'lost_worker';
    const floorTime = held ? now : check.floor;
    const [settled] = await queries.query<{ time: number | null }>(
      'select min(settled_time) as time from activity_writer',
    );
    await queries.query('update activity_check set checked_time = $1, floor_time = $2', [now, floorTime]);
    return { settledTime: Math.min(now, settled?.time ?? now), floorTime, held };
  });
}

/** Returns the greatest number of a device that was ever active or connected; -1 without one. */
export async function lastDevice(queries: Queries): Promise<number> {
  const [row] = await queries.query<{ last: number | null }>('select max(device) as last from device_activity');
  return row!.last ?? -1;
}

/** Returns the active devices among `count` numbers from `first` on. */
export async function readActiveNumbers(postgres: Postgres, first: number, count: number): Promise<number[]> {
  const bytes = await postgres.bytes(
    `select string_agg(int4send((device - ${first})::int), '') from device_activity
      where active and ${within(first, count)}`,
  );
  return Array.from({ length: (bytes?.length ?? 0) / 4 }, (_, n) => first + bytes!.readInt32BE(4 * n));
}

/**
 * Returns the active ones among `devices`, each with the time at which it became active. All are among the `count`
 * numbers from `first` on.
 */
export async function readWoken(
  postgres: Postgres,
  devices: number[],
  first: number,
  count: number,
): Promise<Map<number, number>> {
  // Above a sixteenth of a page it is cheaper to read the page.
  if (devices.length > count / 16) {
    const bytes = await postgres.bytes(
      `select string_agg(int8send(device) || int8send(woke_time), '') from device_activity
        where active and ${within(first, count)}`,
    );
    return new Map(pairsIn(bytes, (device, wokeTime): [number, number] => [device, wokeTime]));
  }
  const rows = await postgres.query<ActiveDevice>(
    'select device, woke_time as "wokeTime" from device_activity where active and device = any($1)',
    [devices],
  );
  return new Map(rows.map(({ device, wokeTime }) => [device, wokeTime]));
}

export interface ActiveDevice {
  device: number;
  wokeTime: number;
}

/** Returns the server attribute `inactivityTimeout` of the devices that have one, in milliseconds; 0 = the default. */
export async function readTimeouts(postgres: Postgres, first: number, count: number): Promise<Map<number, number>> {
  const bytes = await postgres.bytes(
    `select string_agg(int8send(device) || int8send(least(greatest(value::bigint, 0), 1e15::bigint)), '')
       from attribute
      where scope = ${serverScope} and key = 'inactivityTimeout' and kind = ${Kind.long} and ${within(first, count)}`,
  );
  return new Map(pairsIn(bytes, (device, ms): [number, number] => [device, ms]));
}

function within(first: number, count: number): string {
  assert(Number.isSafeInteger(first) && Number.isSafeInteger(count), 'the numbers become part of a statement');
  return `device >= ${first} and device < ${first + count}`;
}

function pairsIn<Pair>(bytes: Buffer | undefined, pair: (a: number, b: number) => Pair): Pair[] {
  const pairs: Pair[] = [];
  for (let at = 0; at < (bytes?.length ?? 0); at += 16) {
    pairs.push(pair(int8At(bytes!, at), int8At(bytes!, at + 8)));
  }
  return pairs;
}

/** Reads a number that is not negative, much faster than through a BigInt. */
function int8At(bytes: Buffer, at: number): number {
  return bytes.readUInt32BE(at) * 2 ** 32 + bytes.readUInt32BE(at + 4);
}

interface Judgement {
  /** The floor at the start of the check: nothing becomes inactive when the floor has moved since. */
  floorTime: number;
  judgedTime: number;
  now: number;
  /** The number of rows of `activity_ended` that are kept. */
  keptMax: number;
}

/**
 * Makes devices inactive that did not wake up since they were read. Returns these devices, or undefined when the floor
 * has moved.
 */
export async function endActivity(
  postgres: Postgres,
  devices: ActiveDevice[],
  { floorTime, judgedTime, now, keptMax }: Judgement,
): Promise<number[] | undefined> {
  return await postgres.transaction(async (queries) => {
    const [check] = await queries.query<{ number: number; floor: number }>(
      'select ended_number as number, floor_time as floor from activity_check for update',
    );
    if (check!.floor !== floorTime) return undefined;
    const ended = await queries.query<{ device: number }>(
      `with due as (
         select a.device from device_activity a
           join unnest($1::bigint[], $2::bigint[]) as g (device, woke_time) on g.device = a.device
          where a.active and a.woke_time = g.woke_time
          order by a.device for update of a skip locked)
       update device_activity a set active = false, inactivity_alarm_time = $3
         from due where a.device = due.device returning a.device`,
      [devices.map(({ device }) => device), devices.map(({ wokeTime }) => wokeTime), now],
    );
    if (ended.length === 0) return [];
    const number = check!.number + 1;
    await queries.query('insert into activity_ended (number, judged_time, devices) values ($1, $2, $3)', [
      number,
      judgedTime,
      ended.map(({ device }) => device),
    ]);
    await queries.query('delete from activity_ended where number <= $1', [number - keptMax]);
    await queries.query('update activity_check set ended_number = $1', [number]);
    return ended.map(({ device }) => device);
  });
}

/**
 * Limits stored times to `now`, after the clock was set back: a time in the future would keep its device active, or
 * hide its later sessions. Of two times of sessions in the future the later one stays the later one.
 */
export async function clampTimes(queries: Queries, now: number, toleranceMs: number): Promise<void> {
  const clamped = (column: string, limit = '$1::bigint') =>
    `${column} = case when ${column} > $2::bigint then ${limit} else ${column} end`;
  const before = (other: string, column: string) => `$1::bigint - coalesce(${column} < ${other}, false)::int`;
  await queries.query(
    `update device_activity
        set ${clamped('woke_time')}, ${clamped('inactivity_alarm_time')},
            ${clamped('last_connect_time', before('last_disconnect_time', 'last_connect_time'))},
            ${clamped('last_disconnect_time', before('last_connect_time', 'last_disconnect_time'))}
      where greatest(woke_time, inactivity_alarm_time, last_connect_time, last_disconnect_time) > $2::bigint`,
    [now, now + toleranceMs],
  );
}
