/**
 * Stores the hosts of this installation: one row for each, in the table `instance`. All times are the database's, so
 * the clocks of hosts do not matter.
 */
import { limits } from '../../base/limits.ts';
import type { Postgres, Queries } from '../../postgres/client.ts';
import { type EqualSettings, mismatchOf } from './equal-settings.ts';

/** What a host writes about itself. */
export interface HostDescription {
  /** The id of the host's data directory. */
  id: string;
  name: string;
  /** The address of the host's HTTP port: `10.0.0.1:8080`. */
  address: string;
  zone: string;
  workers: number;
  version: string;
  settings: EqualSettings;
}

export interface FleetHost extends HostDescription {
  epoch: number;
  schemaVersion: number;
  startedMs: number;
  heartbeatMs: number;
  /** Null when the host takes no MQTT connections. */
  mqttConnections: number | null;
  /** Milliseconds since the last heartbeat. */
  ageMs: number;
}

/** A start of a host. Epochs count up: the order of starts, whatever the clock of the database shows. */
export interface HostStart {
  epoch: number;
  startedMs: number;
}

type Joining = HostStart | { mismatch: string };

const lockName = 'instance';

/**
 * Writes the row of a start and returns that start, or says which setting differs from that of a live host. Starts of
 * several hosts take turns, so two hosts with different settings never join both. `start`: what this process wrote
 * before; undefined at its first row.
 */
export async function joinFleet(postgres: Postgres, host: HostDescription, start?: HostStart): Promise<Joining> {
  return await postgres.transaction(async (queries) => {
    await queries.query('select pg_advisory_xact_lock(hashtextextended($1, 0))', [lockName]);
    for (const other of await readHosts(queries)) {
      if (other.id === host.id || !isLive(other)) continue;
      const mismatch = mismatchOf(host.settings, other);
      if (mismatch !== undefined) return { mismatch };
    }
    const { id, name, address, zone, workers, version, settings } = host;
    const [row] = await queries.query<HostStart>(
      `insert into instance (id, epoch, name, address, zone, workers, version, schema_version, settings, started_at)
       values ($1, coalesce($9::bigint, nextval('instance_epoch')), $2, $3, $4, $5, $6,
               (select coalesce(max(number), 0) from schema_migrations), $7,
               coalesce(to_timestamp($8::float8 / 1000), clock_timestamp()))
       on conflict (id) do update set epoch = excluded.epoch, name = excluded.name, address = excluded.address,
         zone = excluded.zone, workers = excluded.workers, version = excluded.version,
         schema_version = excluded.schema_version, settings = excluded.settings,
         started_at = excluded.started_at, heartbeat_at = excluded.heartbeat_at,
         mqtt_connections = null, surplus = null, surplus_per_second = null
       returning epoch, (extract(epoch from started_at) * 1000)::float8 as "startedMs"`,
      [
        id,
        name,
        address,
        zone,
        workers,
        version,
        JSON.stringify(settings),
        start?.startedMs ?? null,
        start?.epoch ?? null,
      ],
    );
    return row!;
  });
}

/** MQTT connections that a host is to hand over to other hosts. */
export interface Surplus {
  count: number;
  perSecond: number;
}

/**
 * Writes a heartbeat. Returns undefined when the row was removed, or belongs to a later start; else what an operator
 * wants handed over, once. Removes hosts without a heartbeat for long.
 */
export async function beat(
  queries: Queries,
  id: string,
  epoch: number,
  mqttConnections: number | undefined,
): Promise<Surplus | 'nothing' | undefined> {
  const [row] = await queries.query<{ count: number | null; perSecond: number | null }>(
    `with before as (
       select id, surplus, surplus_per_second from instance where id = $1 and epoch = $2 for update
     )
     update instance set heartbeat_at = clock_timestamp(), mqtt_connections = $3, surplus = null,
       surplus_per_second = null
     from before where instance.id = before.id
     returning before.surplus as count, before.surplus_per_second as "perSecond"`,
    [id, epoch, mqttConnections ?? null],
  );
  const gone = `delete from instance
     where heartbeat_at not between clock_timestamp() - make_interval(secs => $1)
                                and clock_timestamp() + make_interval(secs => $1)`;
  await queries.query(gone, [limits.hostKeptMs / 1000]);
  if (!row) return undefined;
  const { count, perSecond } = row;
  return count === null || perSecond === null ? 'nothing' : { count, perSecond };
}

/** The next heartbeat of the host takes the request. */
export async function requestHandOver(queries: Queries, id: string, { count, perSecond }: Surplus): Promise<void> {
  await queries.query('update instance set surplus = $2, surplus_per_second = $3 where id = $1', [
    id,
    count,
    perSecond,
  ]);
}

/** Removes the row of this start, and of no later one. */
export async function leaveFleet(queries: Queries, id: string, epoch: number): Promise<void> {
  await queries.query('delete from instance where id = $1 and epoch = $2', [id, epoch]);
}

/** Returns all hosts, in the order of their starts. */
export async function readHosts(queries: Queries): Promise<FleetHost[]> {
  return await queries.query<FleetHost>(
    `select id, name, address, zone, workers, version, settings, epoch, schema_version as "schemaVersion",
            (extract(epoch from started_at) * 1000)::float8 as "startedMs",
            (extract(epoch from heartbeat_at) * 1000)::float8 as "heartbeatMs",
            (extract(epoch from clock_timestamp() - heartbeat_at) * 1000)::float8 as "ageMs",
            mqtt_connections as "mqttConnections"
     from instance order by epoch`,
  );
}

/**
 * False for a host that has died, or does not reach PostgreSQL: its last heartbeat is too old. After the clock of the
 * database was set back, a live host has a new heartbeat within seconds, and only that of a dead host is in the future.
 */
export function isLive({ ageMs }: Pick<FleetHost, 'ageMs'>): boolean {
  return Math.abs(ageMs) <= limits.hostSilentMs;
}
