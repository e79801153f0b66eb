/**
 * A record in the table `latest`: the points of one device and one time in one row. Inserts and merges cost ClickHouse
 * most by the number of rows, and in a large fleet each record of a unit is the only one of its device: rows of one
 * point cost three times as much. `pack-records.ts` writes records. `latest.ts` and `erase-in-clickhouse.ts` read the
 * table through this file, which makes points of all rows.
 *
 *   device, ts, seq, version: those of the points · kind = 6 · num = 0 · int = 0
 *   key   for each point: 255 | its key; no key has a byte 255, because a key is UTF-8
 *   text  for each point, in the same order: kind 1, and by kind
 *           boolean, long   int i64        double   num f64        string, json   length of text 1 | text
 *
 * A record replaces the earlier records of its device with the same keys in the same order, and no other rows. So a key
 * of a device may be in several rows, and the greatest `rank` counts.
 */
import { type LatestRow, recordKind } from '../clickhouse/latest-rows.ts';
import { Kind } from '../value/typed.ts';

/** The byte before each key. */
export const keyStart = 0xff;
/** The longest text of a point in a record: its length is one byte. */
export const recordTextBytesMax = 255;

/** A point of any row, as the columns of a row that has one point. */
interface StoredPoint {
  key: string;
  ts: string;
  kind: Kind;
  num: number;
  int: string;
  text: string;
}

/** Returns the latest point of each key, from all rows of one device. */
export function latestPointsOf(rows: readonly LatestRow[]): StoredPoint[] {
  const latest = new Map<string, { point: StoredPoint; rank: bigint }>();
  for (const row of rows) {
    for (const point of row.kind === recordKind ? pointsOfRecord(row) : [pointOfRow(row)]) {
      const known = latest.get(point.key);
      if (known === undefined || row.rank > known.rank) latest.set(point.key, { point, rank: row.rank });
    }
  }
  return [...latest.values()].map(({ point }) => point);
}

function pointOfRow({ key, ts, kind, num, int, text }: LatestRow): StoredPoint {
  return { key: key.toString(), ts, kind: kind as Kind, num, int, text: text.toString() };
}

function pointsOfRecord({ key, ts, text }: LatestRow): StoredPoint[] {
  let at = 0;
  return keysOfRecord(key).map((name) => {
    const kind = text[at] as Kind;
    const point: StoredPoint = { key: name, ts, kind, num: 0, int: '0', text: '' };
    at += 1;
    if (kind === Kind.string || kind === Kind.json) {
      const end = at + 1 + text[at]!;
      point.text = text.toString('utf8', at + 1, end);
      at = end;
      return point;
    }
    if (kind === Kind.double) point.num = text.readDoubleLE(at);
    else point.int = text.readBigInt64LE(at).toString();
    at += 8;
    return point;
  });
}

function keysOfRecord(bytes: Buffer): string[] {
  const keys: string[] = [];
  for (let start = 1; start <= bytes.length; ) {
    const next = bytes.indexOf(keyStart, start);
    const end = next < 0 ? bytes.length : next;
    keys.push(bytes.toString('utf8', start, end));
    start = end + 1;
  }
  return keys;
}
