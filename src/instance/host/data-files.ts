/** The names of files and folders in the data directory that more than one file of the project reads or writes. */
export const runDirectory = 'run';
export const journalDirectory = 'journal';
export const clickhouseDirectory = 'clickhouse';
export const postgresDirectory = 'postgres';
export const secretsFile = 'secrets.json';
/** The last measurement of the database's clock. */
export const clockFile = 'clock.json';
/** The id by which other hosts know this directory. */
export const hostFile = 'host.id';
/** Present while a restore fills the directory: it must not be started. */
export const restoringFile = 'restoring';
/** Names the backup from which a restore made the directory. */
export const restoredFile = 'restored.json';

export function journalName(slot: number): string {
  return `worker-${slot}`;
}
