/**
 * Brings the database to the current schema: numbered SQL files, applied in order, each recorded in
 * `schema_migrations`. A lock of the caller lets one host migrate while other hosts wait. Every statement is idempotent
 * (IF NOT EXISTS), so a crash in the middle, or a lock that is lost, is repaired by the next start. Names in braces are
 * filled in for one server or for a cluster.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { ClickHouseSettings } from '@clickhouse/client';
import { StartError } from '../base/errors.ts';
import type { Log } from '../base/log.ts';
import type { ClickHouse } from './client.ts';
import { isWithoutDatabase, isWithoutTables } from './errors/clickhouse-error.ts';
import { localTable } from './local-tables.ts';

/** Names that the statements of a migration contain. */
interface SchemaNames {
  database: string;
  /** Empty: one server. */
  cluster: string;
}

interface MigrateDeps extends SchemaNames {
  /** False: nothing is changed, and a missing migration is an error. */
  apply?: boolean;
  /** Runs `work` while no other host migrates. Called only when a migration is missing. */
  lock?: (work: () => Promise<void>) => Promise<void>;
  onApplied?: (name: string) => void;
  log: Log;
}

interface Migration {
  version: number;
  name: string;
  /**
   * The oldest version whose program works with this schema. A file with which older programs can work contains a line
   * `-- compatible from: N`; otherwise only this version and newer ones can.
   */
  compatibleFrom: number;
  statements: string[];
}

const directory = fileURLToPath(new URL('./migrations/', import.meta.url));

/**
 * Reads first and applies only missing migrations: a start without any takes no lock, and sends no statement that other
 * servers of a cluster must confirm.
 */
export async function migrateClickHouse(clickhouse: ClickHouse, deps: MigrateDeps): Promise<void> {
  const { apply = true, lock = (work) => work() } = deps;
  const missing = await missingMigrations(clickhouse, deps);
  if (missing.length > 0) {
    if (!apply) {
      throw new Error(
        `the migration ${missing[0]!.name} is not applied yet, and MIGRATE is false: run npm run migrate with this version`,
      );
    }
    await lock(() => applyMissing(clickhouse, deps));
  }
  if (apply) await removeTimeToLive(clickhouse, deps);
}

async function missingMigrations(clickhouse: ClickHouse, deps: MigrateDeps): Promise<Migration[]> {
  const applied = await appliedMigrations(clickhouse, deps);
  const migrations = readMigrations();
  checkNewer(applied, migrations.at(-1)?.version ?? 0, deps);
  return migrations.filter(({ version }) => !applied.has(version));
}

async function applyMissing(clickhouse: ClickHouse, deps: MigrateDeps): Promise<void> {
  const { cluster, log, onApplied } = deps;
  // Another host may have applied all of them while this one waited for the lock.
  const missing = await missingMigrations(clickhouse, deps);
  if (missing.length === 0) return;
  const run = changes(clickhouse, deps);
  await run('CREATE DATABASE IF NOT EXISTS {database} {on_cluster}');
  await run(`
    CREATE TABLE IF NOT EXISTS {database}.schema_migrations {on_cluster}
    (version UInt32, name String, applied DateTime64(3) DEFAULT now64(3))
    ENGINE = {replacing} ORDER BY version`);
  await run(
    'ALTER TABLE {database}.schema_migrations {on_cluster} ADD COLUMN IF NOT EXISTS compatible_from UInt32 DEFAULT version',
  );
  for (const { version, name, compatibleFrom, statements } of missing) {
    for (const statement of forThisSetup(statements, cluster)) await run(statement);
    await run(
      `INSERT INTO {database}.schema_migrations (version, name, compatible_from) VALUES (${version}, '${name}', ${compatibleFrom})`,
    );
    log.info('clickhouse_migrated', { version, name });
    onApplied?.(name);
  }
}

/**
 * Returns a function that sends the statements of one migration run. In a cluster a statement is queued for all
 * servers, and each runs its queue in order. A server that is down runs the statements later: all statements together
 * wait `onClusterSeconds` for such a server, then each waits one second for the servers that are up.
 */
function changes(clickhouse: ClickHouse, names: SchemaNames): (sql: string) => Promise<void> {
  const { cluster } = names;
  const deadline = performance.now() + onClusterSeconds * 1000;
  return async (sql) => {
    const text = fill(sql, names);
    if (cluster === '') return await clickhouse.exec(text, {}, { withoutDatabase: true });
    const seconds = Math.max(1, Math.ceil((deadline - performance.now()) / 1000));
    const settings: ClickHouseSettings = {
      distributed_ddl_task_timeout: String(seconds),
      distributed_ddl_output_mode: 'null_status_on_timeout',
    };
    await clickhouse.exec(text, {}, { withoutDatabase: true, settings, timeoutMs: onClusterMsMax });
  };
}

const onClusterSeconds = 10;
const onClusterMsMax = 30_000;

/**
 * Throws when a newer Millrace has migrated to a schema with which this older version does not work. A schema that
 * works with both versions allows a rolling upgrade.
 */
function checkNewer(applied: Map<number, number>, newest: number, { database, log }: MigrateDeps): void {
  const newer = [...applied].filter(([version]) => version > newest);
  if (newer.length === 0) return;
  const version = Math.max(...newer.map(([each]) => each));
  if (newer.every(([, compatibleFrom]) => compatibleFrom <= newest)) {
    log.warn('clickhouse_schema_is_newer', { version, known: newest });
    return;
  }
  throw new StartError(
    `The ClickHouse database ${database} was made by a newer Millrace (schema ${version}, ` +
      `this one knows ${newest}): start that version, or use another database (CLICKHOUSE_DATABASE).`,
  );
}

/** Returns every statement of the schema, so that an operator can read them before a start runs them. */
export function schemaStatements(names: SchemaNames): string[] {
  return readMigrations().flatMap(({ statements }) =>
    forThisSetup(statements, names.cluster).map((statement) => fill(statement, names)),
  );
}

/** Returns every version of the schema that this program knows, oldest first. */
export function schemaVersions(): number[] {
  return readMigrations().map(({ version }) => version);
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
      text: readFileSync(`${directory}${file}`, 'utf8'),
    }))
    .map(({ version, name, text }) => ({
      version,
      name,
      compatibleFrom: Number(/^-- compatible from: (\d+)$/m.exec(text)?.[1] ?? version),
      statements: splitStatements(text),
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

function fill(sql: string, { database, cluster }: SchemaNames): string {
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

/**
 * Returns the applied versions, each with the oldest version that works with it; empty without a database. In a cluster
 * each shard has the table, and each row was written on one server: what is missing here is asked of all servers.
 */
async function appliedMigrations(clickhouse: ClickHouse, deps: MigrateDeps): Promise<Map<number, number>> {
  const { database, cluster } = deps;
  const read = async (table: string) => {
    // Reads all columns, because `compatible_from` is newer than the table.
    const sql = `SELECT * FROM ${table}`;
    const settings: ClickHouseSettings = { skip_unavailable_shards: 1 };
    const rows = await clickhouse.rows<{ version: number; compatible_from?: number }>(sql, {}, { settings });
    return new Map(rows.map(({ version, compatible_from }) => [version, compatible_from ?? version]));
  };
  const tables = [`${database}.schema_migrations`];
  if (cluster !== '') tables.push(`clusterAllReplicas('${cluster}', ${database}.schema_migrations)`);
  const applied = new Map<number, number>();
  for (const table of tables) {
    try {
      for (const [version, compatibleFrom] of await read(table)) applied.set(version, compatibleFrom);
    } catch (error) {
      // A new server among the others has no table yet.
      if (!isMissing(error)) throw error;
    }
    if (schemaVersions().every((version) => applied.has(version))) break;
  }
  return applied;
}

function isMissing(error: unknown): boolean {
  return isWithoutTables(error) || isWithoutDatabase(error);
}

/**
 * Earlier versions gave the table a rule by which the store drops expired days. The store's clock may be wrong, so
 * `erase/retention.ts` alone drops days.
 */
async function removeTimeToLive(clickhouse: ClickHouse, deps: MigrateDeps): Promise<void> {
  const { database, cluster, log } = deps;
  const name = localTable('telemetry', cluster);
  const [table] = await clickhouse.rows<{ sql: string }>(
    'SELECT create_table_query AS sql FROM system.tables WHERE database = {database:String} AND name = {name:String}',
    { database, name },
  );
  if (!/\bTTL\b/.test(table?.sql ?? '')) return;
  await changes(clickhouse, deps)('ALTER TABLE {database}.telemetry{local} {on_cluster} REMOVE TTL');
  log.info('clickhouse_ttl_removed', {});
}
