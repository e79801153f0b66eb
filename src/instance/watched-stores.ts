/**
 * The stores that the primary watches (`stores/store-watch.ts`): how each is asked whether it answers, and what its
 * first answer brings up to date: schemas, the map of shards, the installation, the first tenant.
 */
import { findFirstDevice, seedDemoData, seedFirstTenant } from '../admin/seed.ts';
import { costOf, PasswordHasher } from '../auth/password.ts';
import { systemClock } from '../base/clock.ts';
import type { Log } from '../base/log.ts';
import { type Config, shardUrlsOf } from '../base/settings/config.ts';
import { migrateClickHouse } from '../clickhouse/migrate.ts';
import { checkShardNumber } from '../clickhouse/shard-number.ts';
import type { Shards } from '../clickhouse/shards.ts';
import type { Postgres } from '../postgres/client.ts';
import { inMigrationLock, migratePostgres } from '../postgres/migrate.ts';
import type { ClockWatch } from './clock/clock-watch.ts';
import type { Secrets } from './host/secrets.ts';
import { HostConflict, type Membership } from './membership/membership.ts';
import { type RunningEngines, shardName } from './stores/engines.ts';
import type { Installation } from './stores/installation.ts';
import type { RestoredStores } from './stores/restored-stores.ts';
import { checkShardMap, makeShardMap } from './stores/shard-map-store.ts';
import type { WatchedStore } from './stores/store-watch.ts';
import { clickHouseRefusal, hostOf, postgresRefusal } from './stores/wrong-store-settings.ts';

interface WatchedDeps {
  config: Config;
  shards: Shards;
  postgres: Postgres;
  engines: RunningEngines;
  clock: ClockWatch;
  restored: RestoredStores;
  membership: Membership;
  installation: Installation;
  secrets: Secrets;
  log: Log;
  /** Returns why a worker has no connection to Redis. */
  busFailure: () => string | undefined;
  /** Returns how long telemetry is accepted without ClickHouse, in a sentence. */
  safety: () => string | undefined;
  onSeeded: (seeded: Seeded) => void;
}

/** Returns the shards of ClickHouse, PostgreSQL and Redis, each with what its first answer brings up to date. */
export function watchedStores(deps: WatchedDeps): WatchedStore[] {
  const { config, shards, busFailure } = deps;
  return [
    ...shards.all.map((_, shard) => shardStore(deps, shard)),
    postgresStore(deps),
    ...(config.redis.url === '' ? [] : [redisStore(busFailure)]),
  ];
}

function shardStore(
  { config, shards, postgres, engines, restored, log, safety }: WatchedDeps,
  shard: number,
): WatchedStore {
  const { database, cluster, user } = config.clickhouse;
  const { migrate: apply } = config.stores;
  const urls = shardUrlsOf(config.clickhouse);
  const clickhouse = shards.all[shard]!;
  const title = clickHouseTitle(urls[shard]!, shard);
  return {
    name: shardName(shard),
    title,
    ping: async () => {
      const reason = await clickhouse.unavailability();
      if (reason === undefined) return;
      if (shard > 0) throw new Error(reason);
      restored.clickhouseUnavailable();
      throw new Error(engines.failure('clickhouse') ?? reason);
    },
    prepare: async () => {
      const lock = (work: () => Promise<void>) => inMigrationLock(postgres, work);
      await migrateClickHouse(clickhouse, { database, cluster, apply, lock, log });
      await restored.clickhousePrepared(clickhouse);
      if (shards.isDivided) await checkShardNumber(clickhouse, { shard, title, apply });
      if (shard === 0 && shards.isDivided) await makeShardMap(postgres, clickhouse, urls.length);
    },
    configurationError: (error) => clickHouseRefusal(error, title, user),
    ...(shard === 0 && { note: safety }),
  };
}

function postgresStore(deps: WatchedDeps): WatchedStore {
  const { config, postgres, engines, clock, restored, membership, installation, secrets, log, onSeeded } = deps;
  const title = config.postgres.url ? `PostgreSQL at ${postgres.address} (DATABASE_URL)` : 'The embedded PostgreSQL';
  return {
    name: 'postgres',
    title,
    ping: async () => {
      if (await clock.measure()) return;
      const failure = engines.failure('postgres');
      throw failure === undefined ? clock.failure : new Error(failure);
    },
    prepare: async () => {
      await migratePostgres(postgres, { log, apply: config.stores.migrate });
      await checkShardMap(postgres, shardUrlsOf(config.clickhouse).length);
      await membership.join();
      await installation.read();
      // Runs before this start creates its first device.
      await restored.postgresPrepared();
      onSeeded(await seed(config, postgres, secrets.adminPassword));
    },
    configurationError: (error) => postgresRefusal(error, title),
    isReported: (error) => error instanceof HostConflict,
  };
}

function clickHouseTitle(url: string, shard: number): string {
  if (shard > 0) return `ClickHouse shard ${shard} at ${hostOf(url)} (CLICKHOUSE_SHARDS)`;
  return url ? `ClickHouse at ${hostOf(url)} (CLICKHOUSE_URL)` : 'The embedded ClickHouse';
}

/** The workers have the connections to Redis; the primary has none. */
function redisStore(failure: () => string | undefined): WatchedStore {
  return {
    name: 'redis',
    title: 'Redis (REDIS_URL)',
    ping: async () => {
      const reason = failure();
      if (reason !== undefined) throw new Error(reason);
    },
    prepare: async () => {},
    configurationError: () => undefined,
  };
}

/** Creates the first content of a new installation; later starts find the demo device again. */
async function seed(config: Config, postgres: Postgres, generatedPassword: string): Promise<Seeded> {
  const passwords = new PasswordHasher(1, costOf(config.auth.passwordCost));
  try {
    const deps = { postgres, passwords, clock: systemClock };
    const { email, systemEmail, password } = config.admin;
    const admins = { email, systemEmail, password: password || generatedPassword };
    const adminCreated = await seedFirstTenant(deps, admins);
    if (config.demoData) await seedDemoData(deps);
    return { adminCreated, demoDevice: await findFirstDevice(postgres) };
  } finally {
    await passwords.close();
  }
}

export interface Seeded {
  adminCreated: boolean;
  demoDevice: { id: string; token: string } | undefined;
}
