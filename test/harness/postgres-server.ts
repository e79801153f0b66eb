/** For tests: a real embedded PostgreSQL in a temporary directory. */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { openPostgres, type Postgres } from '../../src/postgres/client.ts';
import { startEmbeddedPostgres } from '../../src/postgres/embedded/embedded.ts';
import { migrate } from '../../src/postgres/migrate.ts';
import { silentLog as log } from './clickhouse-server.ts';

export interface TestPostgres {
  postgres: Postgres;
  stop(): Promise<void>;
}

/** With the schema. */
export async function startTestPostgres(poolMax = 8): Promise<TestPostgres> {
  const home = mkdtempSync(join(tmpdir(), 'millrace-postgres-'));
  const dir = join(home, 'postgres');
  const server = await startEmbeddedPostgres({ dir, port: 0, password: 'secret', runDir: join(home, 'run'), log });
  const postgres = openPostgres({ url: server.url, poolMax, log });
  await migrate(postgres, { log });
  return {
    postgres,
    stop: async () => {
      await postgres.close();
      await server.stop();
      rmSync(home, { recursive: true, force: true });
    },
  };
}
