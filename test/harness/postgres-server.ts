/** A database with the schema for tests, in a real embedded PostgreSQL in a temporary directory. */

import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { openPostgres, type Postgres } from '../../src/postgres/client.ts';
import { startEmbeddedPostgres } from '../../src/postgres/embedded/embedded.ts';
import { migratePostgres } from '../../src/postgres/migrate.ts';
import { silentLog as log } from './silent-log.ts';

export interface TestPostgres {
  postgres: Postgres;
  stop(): Promise<void>;
}

/** Starts a separate server in `home`, with the schema. */
export async function startPostgres(home: string): Promise<{ url: string; stop(): Promise<void> }> {
  const dir = join(home, 'postgres');
  const server = await startEmbeddedPostgres({ dir, port: 0, password: 'secret', runDir: join(home, 'run'), log });
  const postgres = openPostgres({ url: server.url, poolMax: 1, log });
  await migratePostgres(postgres, { log });
  await postgres.close();
  return server;
}

/** Data that a database has beside the schema. It is written once for all test files of a run, and copied for each. */
export interface Template {
  /** A name in SQL; it identifies the content that `fill` writes. */
  name: string;
  fill(postgres: Postgres): Promise<void>;
}

/** A database of the server that unit tests share, or a server of its own where none is shared. */
export async function startTestPostgres(poolMax = 8, template?: Template): Promise<TestPostgres> {
  const { inject } = await import('vitest');
  const socket = inject('postgresSocket') as string | undefined;
  if (socket === undefined) {
    const home = mkdtempSync(join(tmpdir(), 'millrace-postgres-'));
    const server = await startPostgres(home);
    const postgres = openPostgres({ url: server.url, poolMax, log });
    await template?.fill(postgres);
    return {
      postgres,
      stop: async () => {
        await postgres.close();
        await server.stop();
        rmSync(home, { recursive: true, force: true });
      },
    };
  }
  const shared = await text(connect(socket));
  const urlOf = (database: string) => shared.replace(/[^/]*$/, database);
  const name = `test_${randomBytes(8).toString('hex')}`;
  const admin = openPostgres({ url: urlOf('postgres'), poolMax: 1, log });
  if (template) await makeTemplate(admin, template, urlOf);
  await admin.query(`create database ${name} template ${template?.name ?? schemaOnly}`);
  await admin.close();
  const postgres = openPostgres({ url: urlOf(name), poolMax, log });
  return { postgres, stop: () => postgres.close() };
}

const schemaOnly = 'millrace';

/**
 * The first test file that needs a template makes it. Others that need it meanwhile wait for the lock of that
 * connection.
 */
async function makeTemplate(
  admin: Postgres,
  { name, fill }: Template,
  urlOf: (database: string) => string,
): Promise<void> {
  await admin.query('select pg_advisory_lock(1)');
  if ((await admin.query('select 1 from pg_database where datname = $1', [name])).length === 0) {
    // A template that is not complete has another name.
    const begun = `begun_${randomBytes(8).toString('hex')}`;
    await admin.query(`create database ${begun} template ${schemaOnly}`);
    const postgres = openPostgres({ url: urlOf(begun), poolMax: 1, log });
    await fill(postgres).finally(() => postgres.close());
    await admin.query(`alter database ${begun} rename to ${name}`);
  }
  await admin.query('select pg_advisory_unlock(1)');
}
