/** The embedded PostgreSQL of a backup: one file of COPY data for each table. */
import { createReadStream } from 'node:fs';
import { join } from 'node:path';
import { forgetRestoredJournals } from '../ingest/journal-store.ts';
import type { Postgres } from '../postgres/client.ts';
import { loadTables, type PostgresDump } from '../postgres/dump.ts';

/** Tables with the state of the saved instance's processes: a restored instance has new ones. */
export const tablesLeftOut = ['instance', 'known_file', 'lease', 'shard_map_uses'];

export function tablePath(table: string): string {
  return `postgres/${table}.copy`;
}

/** `client` and `url` are of one server. */
export async function loadDump(client: Postgres, url: string, backupDir: string, dump: PostgresDump): Promise<void> {
  await loadTables(url, dump, (table) => createReadStream(join(backupDir, tablePath(table))));
  // Journals of a restored instance are new ones. Backups of earlier versions do not contain the saved ones.
  if (dump.tables.some(({ name }) => name === 'journals')) await forgetRestoredJournals(client);
}
