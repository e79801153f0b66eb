/** SQL of what retention does once a day over all hosts, and of the times at which the clock was checked. */
import type { Queries } from '../postgres/client.ts';

interface ExpiringDevice {
  device: number;
  days: number;
}

/**
 * Returns devices after the number `after`, by number, whose telemetry is kept for fewer days than the installation
 * keeps it (0 = without limit), by their present profile or that of their tenant.
 */
export async function readExpiringDevices(
  queries: Queries,
  ttlDays: number,
  after: number,
  count: number,
): Promise<ExpiringDevice[]> {
  return await queries.query<ExpiringDevice>(
    `select d.number as device, t.days
       from device d join telemetry_days t using (device_profile_id)
      where t.days is not null and ($1::int = 0 or t.days < $1) and d.number > $2
      order by d.number limit $3`,
    [ttlDays, after, count],
  );
}

/**
 * True when the work was not done within the last days, by the clock of the database. Work that was done in the future
 * was done by a clock that has been set back.
 */
export async function isDue(queries: Queries, name: string, days = 1): Promise<boolean> {
  const due = await queries.query(
    `select where not exists (select from retention where name = $1
                     and done_at between clock_timestamp() - $2 * interval '1 day' and clock_timestamp())`,
    [name, days],
  );
  return due.length > 0;
}

export async function setDone(queries: Queries, name: string): Promise<void> {
  await queries.query(
    `insert into retention (name, done_at) values ($1, clock_timestamp())
     on conflict (name) do update set done_at = excluded.done_at`,
    [name],
  );
}

/** A time that is before the last trusted time, or long after it, is in doubt. */
type ClockSide = 'behind' | 'ahead';

/** Times in milliseconds, by the clock of the database. */
interface ClockDoubt {
  /** The last check. */
  checked: number;
  /** The end of the doubt, if Millrace runs until then. */
  until: number;
}

/** Times in milliseconds, by the clock of the database. */
interface ClockTimes {
  now: number;
  /** The last time that was trusted. */
  trusted: number | undefined;
  doubts: Record<ClockSide, ClockDoubt | undefined>;
}

const trustedName = 'clock';
const checkedNames = { behind: 'clock behind checked', ahead: 'clock checked' };
const untilNames = { behind: 'clock behind in doubt until', ahead: 'clock in doubt until' };
const doubtNames = [...Object.values(checkedNames), ...Object.values(untilNames)];

export async function readClockTimes(queries: Queries): Promise<ClockTimes> {
  const ms = (time: string) => `(extract(epoch from ${time}) * 1000)::float8`;
  const rows = await queries.query<{ now: number; name: string | null; ms: number | null }>(
    `select ${ms('clock_timestamp()')} as now, name, ${ms('done_at')} as ms
       from (values (1)) as one left join retention on name = any($1)`,
    [[trustedName, ...doubtNames]],
  );
  const noted = new Map(rows.map(({ name, ms }) => [name, ms!]));
  const doubt = (side: ClockSide): ClockDoubt | undefined => {
    const [checked, until] = [noted.get(checkedNames[side]), noted.get(untilNames[side])];
    return checked === undefined || until === undefined ? undefined : { checked, until };
  };
  const doubts = { behind: doubt('behind'), ahead: doubt('ahead') };
  return { now: rows[0]!.now, trusted: noted.get(trustedName), doubts };
}

/**
 * Sets the trusted time and ends both doubts. Locks rows in the order of their names, as every writer of the table
 * does.
 */
export async function setTrustedTime(queries: Queries, ms: number): Promise<void> {
  await note(queries, [trustedName], [ms]);
  await queries.query(
    `delete from retention where name in
       (select name from retention where name = any($1) order by name for update)`,
    [doubtNames],
  );
}

export async function setClockDoubt(queries: Queries, side: ClockSide, { checked, until }: ClockDoubt): Promise<void> {
  await note(queries, [checkedNames[side], untilNames[side]], [checked, until]);
}

async function note(queries: Queries, names: string[], times: number[]): Promise<void> {
  await queries.query(
    `insert into retention (name, done_at)
     select name, to_timestamp(ms / 1000) from unnest($1::text[], $2::float8[]) as given (name, ms)
     on conflict (name) do update set done_at = excluded.done_at`,
    [names, times],
  );
}
