/**
 * The table `latest` of a world: a row is a point, or a record of several points. The table keeps the row of the
 * greatest rank of each device and key column, and returns points as reads do.
 */
import { type LatestRow, recordKind } from '../../src/clickhouse/latest-rows.ts';
import { endOfText, startOfText } from '../../src/telemetry/block.ts';
import { layoutOf } from '../../src/telemetry/block-layout.ts';
import { latestPointsOf } from '../../src/telemetry/latest-records.ts';
import { type BlockRow, blocksOf, readBlock } from '../../src/telemetry/read-block.ts';

/** A row of the table; `record`: key and text of a record in hexadecimal digits, undefined for a point. */
export type RowOfLatest = BlockRow & { record?: { key: string; text: string } };

export class LatestTable {
  readonly rows = new Map<string, RowOfLatest>();
  /** Records that were ever inserted. */
  records = 0;

  keep(rows: readonly RowOfLatest[]): void {
    for (const row of rows) {
      if (row.device === 0) continue;
      if (row.record) this.records += 1;
      const name = `${row.device} ${row.record?.key} ${row.key}`;
      const known = this.rows.get(name);
      if (!known || isLater(row, known)) this.rows.set(name, row);
    }
  }

  /** Returns the value of each key of each device, by device and key. */
  values(isRead: (row: BlockRow) => boolean): Map<string, bigint> {
    const ofDevices = grouped([...this.rows.values()].filter(isRead), ({ device }) => device);
    const found = new Map<string, bigint>();
    for (const [device, rows] of ofDevices) {
      for (const { key, int } of latestPointsOf(rows.map(latestRowOf))) found.set(`${device} ${key}`, BigInt(int));
    }
    return found;
  }
}

export function grouped<Item, Name>(items: Iterable<Item>, nameOf: (item: Item) => Name): Map<Name, Item[]> {
  const found = new Map<Name, Item[]>();
  for (const item of items) {
    const name = nameOf(item);
    const group = found.get(name);
    if (group) group.push(item);
    else found.set(name, [item]);
  }
  return found;
}

/** Returns the rows of one or more blocks of an insert into the table. */
export function rowsOfLatest(body: Uint8Array): RowOfLatest[] {
  return blocksOf(body).flatMap((block) => {
    const rows = readBlock(block);
    const { keys, keyCount, indexes, width, text } = layoutOf(block)!;
    if (rows.every(({ kind }) => Number(kind) !== recordKind)) return rows;
    const bytes = Buffer.from(block);
    const names = texts(bytes, keys, keyCount);
    const contents = texts(bytes, text, rows.length);
    const indexOf = (row: number) => bytes.readUIntLE(indexes + row * 2 ** width, 2 ** width);
    return rows.map((row, n) => {
      return { ...row, key: '', text: '', record: { key: names[indexOf(n)]!, text: contents[n]! } };
    });
  });
}

/** Returns texts in hexadecimal digits. */
function texts(bytes: Buffer, start: number, count: number): string[] {
  const found: string[] = [];
  let at = start;
  for (let n = 0; n < count; n += 1) {
    const end = endOfText(bytes, at);
    found.push(bytes.toString('hex', startOfText(bytes, at), end));
    at = end;
  }
  return found;
}

function latestRowOf(row: RowOfLatest): LatestRow {
  const { device, ts, num, int, record } = row;
  const rank = ((BigInt(ts) + (1n << 63n)) << 64n) + placeOf(row);
  const { key, text, kind } = record ? { ...record, kind: recordKind } : row;
  const bytesOf = (content: string) => Buffer.from(content, record ? 'hex' : 'utf8');
  return { device, key: bytesOf(key), ts: String(ts), kind, num, int: String(int), text: bytesOf(text), rank };
}

/** Orders two rows of a series as the table does. */
export function isLater(a: BlockRow, b: BlockRow): boolean {
  return a.ts !== b.ts ? a.ts > b.ts : placeOf(a) >= placeOf(b);
}

function placeOf({ seq, version }: BlockRow): bigint {
  return seq === 0 ? version : (BigInt(seq) << 25n) | (version & 33_554_431n) | 18_302_628_885_633_695_744n;
}
