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

/** Times in milliseconds, by the clock of the database. */
interface ClockTimes {
  now: number;
  /** The last time that was trusted. */
  trusted: number | undefined;
  /** The last check while the time was in doubt. */
  checked: number | undefined;
  /** The end of the doubt, if Millrace runs until then. */
  doubtUntil: number | undefined;
}

const trustedName = 'clock';
const checkedName = 'clock checked';
const doubtName = 'clock in doubt until';

export async function readClockTimes(queries: Queries): Promise<ClockTimes> {
  const ms = (time: string) => `(extract(epoch from ${time}) * 1000)::float8`;
  const noted = (name: string) => `(select ${ms('done_at')} from retention where name = '${name}')`;
  type Row = Record<'trusted' | 'checked' | 'doubtUntil', number | null> & { now: number };
  const [row] = await queries.query<Row>(
    `select ${ms('clock_timestamp()')} as now, ${noted(trustedName)} as trusted, ${noted(checkedName)} as checked,
            ${noted(doubtName)} as "doubtUntil"`,
  );
  const { now, trusted, checked, doubtUntil } = row!;
  return { now, trusted: trusted ?? undefined, checked: checked ?? undefined, doubtUntil: doubtUntil ?? undefined };
}

/** Ends the doubt, too. */
export async function setTrustedTime(queries: Queries, ms: number): Promise<void> {
  await note(queries, [trustedName], [ms]);
  await queries.query('delete from retention where name = any($1)', [[checkedName, doubtName]]);
}

export async function setClockDoubt(queries: Queries, checked: number, until: number): Promise<void> {
  await note(queries, [checkedName, doubtName], [checked, until]);
}

async function note(queries: Queries, names: string[], times: number[]): Promise<void> {
  await queries.query(
    `insert into retention (name, done_at)
     select name, to_timestamp(ms / 1000) from unnest($1::text[], $2::float8[]) as given (name, ms)
     on conflict (name) do update set done_at = excluded.done_at`,
    [names, times],
  );
}
