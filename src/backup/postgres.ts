/** The embedded PostgreSQL of a backup: one file of text for each table. */
import { createReadStream } from 'node:fs';
import { join } from 'node:path';
import { loadTables, type PostgresDump } from '../postgres/dump.ts';

/** What the hosts of the saved instance were doing: a restored instance has journals and processes of its own. */
export const tablesLeftOut = ['journals', 'lease'];

export function tablePath(table: string): string {
  return `postgres/${table}.copy`;
}

export async function loadDump(url: string, backupDir: string, dump: PostgresDump): Promise<void> {
  await loadTables(url, dump, (table) => createReadStream(join(backupDir, tablePath(table))));
}
