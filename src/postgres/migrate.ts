/**
 * Brings the tables to this version: `migrations/NNNN_name.sql`, each in one transaction, in order, once. When several
 * hosts start at once, a lock inside the transaction lets one apply a file while the others wait. An applied file must
 * never be edited: its checksum is compared at every start.
 */
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { messageOf, StartError } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Log } from '../base/log.ts';
import type { Postgres, Queries } from './client.ts';
import { isAway } from './postgres-error.ts';

interface Migration {
  number: number;
  name: string;
  text: string;
  checksum: string;
}

interface Applied {
  number: number;
  name: string;
  checksum: string;
}

/** Any constants that no other program uses in this database. */
const lockKey = 7_155_720_361;
const otherStoreLockKey = 7_155_720_364;
const ownFiles = fileURLToPath(new URL('migrations', import.meta.url));

interface MigrateDeps {
  dir?: string;
  log: Log;
  /** Numbers of the files to apply: a restore applies those that made the dumped tables. Absent: all. */
  only?: number[];
  /** False: nothing is changed, and a missing migration is an error. */
  apply?: boolean;
  onApplied?: (name: string) => void;
}

/** Throws the 503 fault of the client when the server does not answer: the same again later is safe. */
export async function migratePostgres(postgres: Postgres, deps: MigrateDeps): Promise<void> {
  const { dir = ownFiles, log, only, apply: mayApply = true, onApplied } = deps;
  const files = readMigrations(dir);
  const unknown = only?.find((number) => !files.some((migration) => migration.number === number));
  if (unknown !== undefined) {
    throw new StartError(`The tables were made by a newer Millrace (migration ${unknown}): use that version.`);
  }
  const migrations = only ? files.filter(({ number }) => only.includes(number)) : files;
  const known = await appliedFiles(postgres, mayApply);
  for (const applied of known) checkApplied(applied, migrations, log);
  for (const migration of migrations) {
    if (known.some(({ number }) => number === migration.number)) continue;
    if (!mayApply) {
      throw new Error(
        `the migration ${migration.name} is not applied yet, and MIGRATE is false: run npm run migrate with this version`,
      );
    }
    if (!(await apply(postgres, migration))) continue;
    log.info('postgres_migrated', { migration: migration.name });
    onApplied?.(migration.name);
  }
}

function readMigrations(dir: string): Migration[] {
  const migrations: Migration[] = [];
  for (const file of readdirSync(dir).sort()) {
    if (!file.endsWith('.sql')) continue;
    const [, digits] = /^(\d{4})_[a-z0-9_]+\.sql$/.exec(file) ?? [];
    if (!digits) throw new StartError(`The migration ${join(dir, file)} must be named like 0001_what_it_does.sql.`);
    const number = Number(digits);
    if (migrations.at(-1)?.number === number) throw new StartError(`Two migrations in ${dir} have number ${digits}.`);
    const text = readFileSync(join(dir, file), 'utf8').replaceAll('\r\n', '\n');
    migrations.push({ number, name: file, text, checksum: createHash('sha256').update(text).digest('hex') });
  }
  return migrations;
}

async function appliedFiles(postgres: Postgres, mayApply: boolean): Promise<Applied[]> {
  const select = 'select number, name, checksum from schema_migrations order by number';
  const [table] = await postgres.query<{ found: boolean }>(
    `select to_regclass('schema_migrations') is not null as found`,
  );
  // A start that has nothing to do takes no lock, so it waits for no other host.
  if (table!.found) return await postgres.query<Applied>(select);
  if (!mayApply) return [];
  return await inLock(postgres, async (queries) => {
    await queries.query(`
      create table if not exists schema_migrations (
        number int primary key,
        name text not null,
        checksum text not null,
        applied_at timestamptz not null default now()
      )`);
    return await queries.query<Applied>(select);
  });
}

function checkApplied(applied: Applied, migrations: Migration[], log: Log): void {
  const migration = migrations.find(({ number }) => number === applied.number);
  if (!migration) {
    // A newer host has migrated: in a rolling upgrade the older hosts continue.
    log.warn('postgres_schema_is_newer', { migration: applied.name });
  } else if (migration.checksum !== applied.checksum) {
    throw new StartError(
      `The migration ${migration.name} was changed after it was applied (as ${applied.name}): restore it and put the change into a new file.`,
    );
  }
}

/** Applies one file. Returns false when another host was faster. */
async function apply(postgres: Postgres, { number, name, text, checksum }: Migration): Promise<boolean> {
  return await inLock(postgres, async (queries) => {
    const [known] = await queries.query('select 1 from schema_migrations where number = $1', [number]);
    if (known) return false;
    try {
      await queries.query(text);
    } catch (error) {
      if (isAway(error)) throw error;
      throw new StartError(`The migration ${name} failed: ${messageOf(error)}.`);
    }
    await queries.query('insert into schema_migrations (number, name, checksum) values ($1, $2, $3)', [
      number,
      name,
      checksum,
    ]);
    return true;
  });
}

/**
 * Runs `work`, which migrates another store, while no other host that shares this database does. When the connection
 * breaks, the lock is lost and `work` goes on: its statements must be idempotent.
 */
export async function inMigrationLock(postgres: Postgres, work: () => Promise<void>): Promise<void> {
  // The transaction takes an error of the other store for one of its own connection.
  let failure: { error: unknown } | undefined;
  const locked = postgres.transaction(
    async (queries) => {
      // A server may end a transaction that waits long for the other store.
      await queries.query('set local idle_in_transaction_session_timeout = 0');
      await queries.query('select pg_advisory_xact_lock($1)', [otherStoreLockKey]);
      await work().catch((error: unknown) => {
        failure = { error };
      });
    },
    { timeoutMs: limits.migrationMsMax },
  );
  await locked.catch((error: unknown) => {
    if (failure || !isAway(error)) throw error;
    throw new Error('its tables are changed under a lock in PostgreSQL, which does not answer');
  });
  if (failure) throw failure.error;
}

async function inLock<Result>(postgres: Postgres, work: (queries: Queries) => Promise<Result>): Promise<Result> {
  return await postgres.transaction(
    async (queries) => {
      await queries.query('select pg_advisory_xact_lock($1)', [lockKey]);
      return await work(queries);
    },
    { timeoutMs: limits.migrationMsMax },
  );
}
