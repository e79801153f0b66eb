/**
 * Brings the database to the current schema: numbered SQL files, applied in order, each recorded in
 * `schema_migrations`. Every statement is idempotent (IF NOT EXISTS), so two hosts may do this at once and a crash in
 * the middle is repaired by the next start. Names in braces are filled in for one server or for a cluster.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { StartError } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { ClickHouse } from './client.ts';

export interface MigrateOptions {
  database: string;
  /** Empty: one server. */
  cluster: string;
  /** 0: points are kept for ever. */
  ttlDays: number;
  log: Log;
}

interface Migration {
  version: number;
  name: string;
  statements: string[];
}

const directory = fileURLToPath(new URL('./migrations/', import.meta.url));

export async function migrate(clickhouse: ClickHouse, options: MigrateOptions): Promise<void> {
  const run = (sql: string) => clickhouse.exec(fill(sql, options), {}, { withoutDatabase: true });
  await run('CREATE DATABASE IF NOT EXISTS {database} {on_cluster}');
  await run(`
    CREATE TABLE IF NOT EXISTS {database}.schema_migrations {on_cluster}
    (version UInt32, name String, applied DateTime64(3) DEFAULT now64(3))
    ENGINE = {replacing} ORDER BY version`);

  const applied = await appliedVersions(clickhouse, options.database);
  const migrations = readMigrations();
  const newest = migrations.at(-1)?.version ?? 0;
  const unknown = [...applied].filter((version) => version > newest);
  if (unknown.length > 0) {
    throw new StartError(
      `The ClickHouse database ${options.database} was made by a newer Millrace (schema ${Math.max(...unknown)}, ` +
        `this one knows ${newest}): start that version, or use another database (CLICKHOUSE_DATABASE).`,
    );
  }
  for (const { version, name, statements } of migrations) {
    if (applied.has(version)) continue;
    for (const statement of forThisSetup(statements, options.cluster)) await run(statement);
    await run(`INSERT INTO {database}.schema_migrations (version, name) VALUES (${version}, '${name}')`);
    options.log.info('clickhouse_migrated', { version, name });
  }
  await setTimeToLive(clickhouse, options);
}

/** Every statement of the schema as it would run; for a look before it does. */
export function schemaStatements(options: Pick<MigrateOptions, 'database' | 'cluster'>): string[] {
  return readMigrations().flatMap(({ statements }) =>
    forThisSetup(statements, options.cluster).map((statement) => fill(statement, options)),
  );
}

function forThisSetup(statements: string[], cluster: string): string[] {
  return statements.filter((statement) => cluster !== '' || !statement.includes('{cluster_only}'));
}

function readMigrations(): Migration[] {
  return readdirSync(directory)
    .filter((file) => /^\d{4}_\w+\.sql$/.test(file))
    .sort()
    .map((file) => ({
      version: Number(file.slice(0, 4)),
      name: file.slice(5, -4),
      statements: splitStatements(readFileSync(`${directory}${file}`, 'utf8')),
    }));
}

/** Statements end with a semicolon at the end of a line; the migrations have none anywhere else. */
function splitStatements(text: string): string[] {
  return text
    .replace(/^\s*--.*$/gm, '')
    .split(/;\s*$/m)
    .map((statement) => statement.trim())
    .filter((statement) => statement !== '');
}

function fill(sql: string, { database, cluster }: Pick<MigrateOptions, 'database' | 'cluster'>): string {
  const clustered = cluster !== '';
  const replicated = `ReplicatedReplacingMergeTree('/clickhouse/tables/{shard}/{database}/{table}', '{replica}'`;
  const values: Record<string, string> = {
    database,
    cluster,
    local: clustered ? '_local' : '',
    on_cluster: clustered ? `ON CLUSTER '${cluster}'` : '',
    cluster_only: '',
    deduplication_off: clustered ? 'replicated_deduplication_window = 0,' : 'non_replicated_deduplication_window = 0,',
  };
  return sql
    .replace(/\{(\w+)\}/g, (whole, name: string) => values[name] ?? whole)
    .replace(/\{replacing\}\(/g, clustered ? `${replicated}, ` : 'ReplacingMergeTree(')
    .replace(/\{replacing\}/g, clustered ? `${replicated})` : 'ReplacingMergeTree')
    .trim();
}

async function appliedVersions(clickhouse: ClickHouse, database: string): Promise<Set<number>> {
  const rows = await clickhouse.rows<{ version: number }>(`SELECT DISTINCT version FROM ${database}.schema_migrations`);
  return new Set(rows.map(({ version }) => version));
}

/** Whole parts are dropped, a day at a time. `ts` may be any number, a DateTime only 1970 to 2105: it is clamped. */
async function setTimeToLive(clickhouse: ClickHouse, options: MigrateOptions): Promise<void> {
  const { database, ttlDays, cluster, log } = options;
  const name = cluster === '' ? 'telemetry' : 'telemetry_local';
  const expires = `toDateTime(least(greatest(intDiv(ts, 1000) + ${ttlDays * 86_400}, 0), 4294967295))`;
  const [table] = await clickhouse.rows<{ sql: string }>(
    'SELECT create_table_query AS sql FROM system.tables WHERE database = {database:String} AND name = {name:String}',
    { database, name },
  );
  const current = table?.sql ?? '';
  const alter = (change: string): Promise<void> =>
    clickhouse.exec(fill(`ALTER TABLE {database}.telemetry{local} {on_cluster} ${change}`, options));
  if (ttlDays === 0) {
    if (!/\bTTL\b/.test(current)) return;
    await alter('REMOVE TTL');
  } else {
    if (current.includes(`TTL ${expires}`)) return;
    // Old parts get their dates from the new rule when they merge; rewriting all of them now would block the start.
    await alter(`MODIFY TTL ${expires} SETTINGS materialize_ttl_after_modify = 0`);
    await alter('MODIFY SETTING ttl_only_drop_parts = 1');
  }
  log.info('clickhouse_ttl_changed', { ttlDays });
}
