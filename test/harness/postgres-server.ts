/** For tests: a database with the schema, in a real embedded PostgreSQL in a temporary directory. */
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import type { Log } from '../../src/base/log.ts';
import { openPostgres, type Postgres } from '../../src/postgres/client.ts';
import { startEmbeddedPostgres } from '../../src/postgres/embedded/embedded.ts';
import { migrate } from '../../src/postgres/migrate.ts';

export interface TestPostgres {
  postgres: Postgres;
  stop(): Promise<void>;
}

const log: Log = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };

/** A server of its own in `home`, with the schema. */
export async function startPostgres(home: string): Promise<{ url: string; stop(): Promise<void> }> {
  const dir = join(home, 'postgres');
  const server = await startEmbeddedPostgres({ dir, port: 0, password: 'secret', runDir: join(home, 'run'), log });
  const postgres = openPostgres({ url: server.url, poolMax: 1, log });
  await migrate(postgres, { log });
  await postgres.close();
  return server;
}

/** A database of the server that unit tests share, or a server of its own where none is shared. */
export async function startTestPostgres(poolMax = 8): Promise<TestPostgres> {
  const { inject } = await import('vitest');
  const socket = inject('postgresSocket') as string | undefined;
  if (socket === undefined) {
    const home = mkdtempSync(join(tmpdir(), 'millrace-postgres-'));
    const server = await startPostgres(home);
    const postgres = openPostgres({ url: server.url, poolMax, log });
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
  const name = `test_${randomBytes(8).toString('hex')}`;
  const admin = openPostgres({ url: shared.replace(/[^/]*$/, 'postgres'), poolMax: 1, log });
  await admin.query(`create database ${name} template millrace`);
  await admin.close();
  const postgres = openPostgres({ url: shared.replace(/[^/]*$/, name), poolMax, log });
  return { postgres, stop: () => postgres.close() };
}
