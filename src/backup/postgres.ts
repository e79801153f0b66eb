/** The embedded PostgreSQL of a backup: one file of text for each table, and what a restored database needs beside. */
import { createReadStream } from 'node:fs';
import { join } from 'node:path';
import { loadTables, type PostgresDump } from '../postgres/dump.ts';

/**
 * Numbers of devices that the instance may have given out after the backup: a restore skips as many, so that no device
 * of the restored instance gets the number of one whose telemetry is kept elsewhere.
 */
const skippedDevices = 1_000_000;

export function tablePath(table: string): string {
  return `postgres/${table}.copy`;
}

export async function loadDump(url: string, backupDir: string, dump: PostgresDump): Promise<void> {
  const open = (table: string): AsyncIterable<Buffer> => createReadStream(join(backupDir, tablePath(table)));
  await loadTables(url, dump, open, async (client) => {
    await client.query(
      `select setval(name, nextval(name) + $1) from (select pg_get_serial_sequence('device', 'number') as name) s`,
      [skippedDevices],
    );
    // What was copied to ClickHouse for reports between the two snapshots is not in the restored ClickHouse.
    await client.query('insert into device_outbox default values');
    // A delete that was carried out between the two snapshots is not in the restored ClickHouse either. A backup of an
    // older schema has no such column: then every delete is carried out after the migration anyhow.
    await client.query(`
      do $$ begin
        if exists (select from information_schema.columns where table_name = 'tombstones' and column_name = 'applied_at')
        then update tombstones set applied_at = null, missing = '{}', handed_over = true;
        end if;
      end $$`);
  });
}
