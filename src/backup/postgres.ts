/** The embedded PostgreSQL of a backup: one file of COPY data for each table. */
import { createReadStream } from 'node:fs';
import { join } from 'node:path';
import { loadTables, type PostgresDump } from '../postgres/dump.ts';

/** The running state of the saved instance's hosts: a restored instance has new journals and processes. */
export const tablesLeftOut = ['instance', 'journals', 'lease'];

export function tablePath(table: string): string {
  return `postgres/${table}.copy`;
}

export async function loadDump(url: string, backupDir: string, dump: PostgresDump): Promise<void> {
  await loadTables(url, dump, (table) => createReadStream(join(backupDir, tablePath(table))));
}
