/**
 * `npm run migrate`: brings the schemas of PostgreSQL and ClickHouse to this version and ends, before hosts with
 * MIGRATE=false start or while they run. May run several times at once: one run migrates while the others wait.
 */
import { printLine, runCommand } from './base/command.ts';
import { causeMessageOf, StartError } from './base/errors.ts';
import { createLog } from './base/log.ts';
import { loadConfig, shardUrlsOf } from './base/settings/config.ts';
import { migrateClickHouse } from './clickhouse/migrate.ts';
import { checkShardNumber } from './clickhouse/shard-number.ts';
import { openPostgresOf, openShardsOf } from './instance/stores/engines.ts';
import { clickHouseRefusal, hostOf, postgresRefusal } from './instance/stores/wrong-store-settings.ts';
import { inMigrationLock, migratePostgres } from './postgres/migrate.ts';

const usage = 'usage: npm run migrate';

async function run(words: string[]): Promise<void> {
  if (words.length > 0) throw new StartError(usage);
  const config = loadConfig();
  const log = createLog('warn', 'migrate');
  const postgres = openPostgresOf(config, log);
  try {
    const shards = openShardsOf(config, log);
    try {
      const postgresTitle = config.postgres.url ? `PostgreSQL at ${postgres.address}` : 'The embedded PostgreSQL';
      await reported(
        postgresTitle,
        (onApplied) => migratePostgres(postgres, { log, onApplied }),
        (error) => postgresRefusal(error, postgresTitle),
      );
      const { database, cluster, user } = config.clickhouse;
      const lock = (work: () => Promise<void>) => inMigrationLock(postgres, work);
      for (const [shard, url] of shardUrlsOf(config.clickhouse).entries()) {
        const title = clickHouseTitle(url, cluster);
        await reported(
          title,
          async (onApplied) => {
            const clickhouse = shards.all[shard]!;
            await migrateClickHouse(clickhouse, { database, cluster, lock, log, onApplied });
            if (shards.isDivided) await checkShardNumber(clickhouse, { shard, title, apply: true });
          },
          (error) => clickHouseRefusal(error, title, user),
        );
      }
    } finally {
      await shards.close();
    }
  } finally {
    await postgres.close();
  }
}

function clickHouseTitle(url: string, cluster: string): string {
  if (url === '') return 'The embedded ClickHouse';
  return `ClickHouse at ${hostOf(url)}${cluster === '' ? '' : `, cluster ${cluster}`}`;
}

/** Prints each applied migration, then the outcome for this store. Throws one sentence when it fails. */
async function reported(
  title: string,
  migrate: (onApplied: (name: string) => void) => Promise<void>,
  refusal: (error: unknown) => StartError | undefined,
): Promise<void> {
  let applied = 0;
  try {
    await migrate((name) => {
      applied += 1;
      printLine(`${title}: applied ${name}`);
    });
  } catch (error) {
    throw refusal(error) ?? new StartError(`${title} is not migrated: ${causeMessageOf(error)}`);
  }
  printLine(`${title}: ${applied === 0 ? 'nothing to do' : `${applied} applied`}, the schema is up to date.`);
}

runCommand(run);
