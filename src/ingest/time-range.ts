/** Compares the times of records with a range. Each message is compared, so both functions read the columns. */
import type { TimeRange } from '../journal/ship-notes.ts';
import type { Mark, Rows } from '../telemetry/rows.ts';

/** True when all records after `mark` are within the range. */
export function areIn(rows: Rows, mark: Mark, { from, to }: TimeRange): boolean {
  const { ts, count } = rows.spans();
  for (let i = mark.spans; i < count; i += 1) if (ts[i]! < from || ts[i]! >= to) return false;
  return true;
}

/** True when a record from `first` on is within the range. */
export function hasTimeIn(rows: Rows, first: number, { from, to }: TimeRange): boolean {
  const { ts, count } = rows.spans();
  for (let i = first; i < count; i += 1) if (ts[i]! >= from && ts[i]! < to) return true;
  return false;
}
