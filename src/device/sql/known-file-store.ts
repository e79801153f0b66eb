/**
 * SQL of the marks of files of known devices. A mark is committed after the changes that the file gets with it. So a
 * database that has the mark of a file has every change that the file has: a store that was restored to an earlier
 * moment is noticed although its transactions have passed the cursor of the file meanwhile.
 */
import type { Queries } from '../../postgres/client.ts';
import { type Settled, type SettledRow, settledColumns, settledOf } from './credential-log-store.ts';

/**
 * A host writes its file every ten minutes at least while PostgreSQL answers, so a file without a write for this time
 * is not used any more.
 */
const keptDays = 30;

export interface SettledOfFile extends Settled {
  /** The last mark of the file; 0 = the database does not know the file. */
  mark: number;
}

export async function readSettledOfFile(queries: Queries, file: string): Promise<SettledOfFile> {
  const [row] = await queries.query<SettledRow & { mark: number }>(
    `select ${settledColumns}, coalesce((select mark from known_file where id = $1), 0) as mark`,
    [file],
  );
  return { ...settledOf(row!), mark: row!.mark };
}

/** Commits the first mark of a new file, and forgets the marks of files that are not used any more. */
export async function insertMark(queries: Queries, file: string): Promise<number> {
  await queries.query(`delete from known_file where written_time < now() - make_interval(days => $1::int)`, [keptDays]);
  await queries.query('insert into known_file (id, mark) values ($1, 1)', [file]);
  return 1;
}

/** Commits the next mark of a file. Returns undefined when the database does not have the last one. */
export async function nextMark(queries: Queries, file: string, last: number): Promise<number | undefined> {
  const [row] = await queries.query<{ mark: number }>(
    `update known_file set mark = mark + 1, written_time = now() where id = $1 and mark >= $2 returning mark`,
    [file, last],
  );
  return row?.mark;
}
