/** A dump fails with the error of its target, also when it had to break the connection. */

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { startPostgres } from '../../test/harness/postgres-server.ts';
import { silentLog as log } from '../../test/harness/silent-log.ts';
import { openPostgres } from './client.ts';
import { dumpTables } from './dump.ts';

test('a full disk in the middle of a large table is the reason of the failure', async () => {
  const home = mkdtempSync(join(tmpdir(), 'millrace-dump-'));
  const server = await startPostgres(home);
  try {
    const postgres = openPostgres({ url: server.url, poolMax: 1, log });
    await postgres.query(`create table large as select repeat('x', 1000) as text from generate_series(1, 20000)`);
    await postgres.close();
    const full = Object.assign(new Error('ENOSPC: no space left on device, write'), { code: 'ENOSPC' });
    const open = async (table: string) => ({
      write: async () => {
        if (table === 'large') throw full;
      },
      end: async () => {},
    });
    await expect(dumpTables(server.url, open, [])).rejects.toBe(full);
  } finally {
    await server.stop();
    rmSync(home, { recursive: true, force: true });
  }
});
