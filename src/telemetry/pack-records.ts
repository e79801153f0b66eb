/**
 * Packs the rows of a unit into records for the table `latest` (`latest-records.ts`). Called by `insert.ts`. No row
 * costs an allocation.
 *
 * A run of rows becomes a record when enough records of the unit have the same keys in the same order. Otherwise a
 * device that sends other keys each time would have any number of records, and each read of its latest values would
 * read all these records. Runs of one device and time stay rows: ClickHouse keeps the later one of two rows with equal
 * ranks, but only when both rows have the same key.
 */
import { recordKind } from '../clickhouse/latest-rows.ts';
import { Kind } from '../value/typed.ts';
import { endOfText, columnHeads as heads, startOfText, varintBytesMax, writeSmall, writeVarint } from './block.ts';
import { layoutOf } from './block-layout.ts';
import { pickBlocks } from './read-block.ts';
import { KeyLists, KeyNumbers, none } from './record-keys.ts';
import { type Packed, type Part, Runs } from './record-runs.ts';

/** A unit with a greater share of rows that stay rows is not packed, because to pick such rows is slow. */
const unpackedShareMax = 1 / 8;
/** A unit whose records would have fewer points on average is not packed, because a record costs more than a row. */
const pointsPerRecordMin = 2;

/** Used again by the next unit. `packRecords` does not wait, so no two units use the runs at once. */
const runs = new Runs();

/** Names of the lists of keys that this process has packed, as digests. */
const packedLists = new Set<string>();

/**
 * Returns blocks with the rows of `blocks` for `latest`, in memory of `take`; undefined when rows are better. `known`:
 * the lists that were packed before. Without their limit a fleet that changes its keys with time, or their order, would
 * have a record of each list for each device, and no record replaces those of other lists.
 */
export function packRecords(
  blocks: readonly Uint8Array[],
  take: (bytes: number) => Buffer,
  known: Set<string> = packedLists,
): Buffer | undefined {
  const keys = new KeyNumbers();
  const parts: Part[] = [];
  for (const block of blocks) {
    const layout = layoutOf(block);
    const keyNumbers = layout && keys.of(block, layout);
    if (keyNumbers === undefined) return undefined;
    const view = new DataView(block.buffer, block.byteOffset, block.byteLength);
    parts.push({ block, view, keyNumbers, begin: 0, end: 0, ...layout! });
  }
  const lists = new KeyLists();
  runs.find(parts, lists);
  runs.excludeDoubled(parts);
  const added = lists.choose(runs.count, keys, known);
  const packed = runs.choose(parts, lists);
  const rows = parts.reduce((sum, part) => sum + part.rows, 0);
  if (rows - packed.rows > rows * unpackedShareMax) return undefined;
  if (packed.rows < packed.records * pointsPerRecordMin) return undefined;
  for (const name of added) known.add(name);
  const rest = restOf(parts);
  const restBytes = rest.reduce((sum, { length }) => sum + length, 0);
  const body = take(bytesMaxOf(parts, packed, lists.bytesMaxOf(keys)) + restBytes);
  let at = writeRecords(parts, packed.records, keys, lists, body);
  for (const block of rest) {
    body.set(block, at);
    at += block.length;
  }
  return body.subarray(0, at);
}

/** Returns the rows that stay rows, as blocks. */
function restOf(parts: readonly Part[]): Uint8Array[] {
  return parts.flatMap((part) => {
    const rows: number[] = [];
    for (let run = part.begin; run < part.end; run += 1) {
      if (runs.place[run] !== none) continue;
      for (let row = runs.first[run]!; row < runs.endOf(run, part); row += 1) rows.push(row);
    }
    return rows.length > 0 ? pickBlocks(part.block, [Uint32Array.from(rows)]) : [];
  });
}

/** Bytes of the heads of columns, of the numbers of columns and rows, and of three u64 of the column `key`. */
const headBytes = Object.values(heads).reduce((sum, { length }) => sum + length, 0) + 2 * varintBytesMax + 3 * 8;
/** Bytes of a record beside its text: device, place of its list, ts, seq, kind, num, version and length of the text. */
const recordBytes = 8 + 1 + 8 + 4 + 1 + 8 + 8 + varintBytesMax;
/** Bytes of a point that is a number, with its kind; no fewer than the kind and the length of a text. */
const pointBytes = 1 + 8;

function bytesMaxOf(parts: readonly Part[], { records, rows }: Packed, keyBytes: number): number {
  const texts = parts.reduce((sum, { text, textEnd }) => sum + textEnd - text, 0);
  return headBytes + keyBytes + records * recordBytes + rows * pointBytes + texts;
}

/** Writes the records as one block and returns the offset after it. */
function writeRecords(
  parts: readonly Part[],
  records: number,
  keys: KeyNumbers,
  lists: KeyLists,
  target: Buffer,
): number {
  const hasSeq = parts.some(({ seq }) => seq > 0);
  const view = new DataView(target.buffer, target.byteOffset, target.byteLength);
  // The columns `expires` and `int` are absent.
  let at = writeVarint(target, 0, hasSeq ? 8 : 7);
  at = writeVarint(target, at, records);
  const head = (column: keyof typeof heads) => {
    target.set(heads[column], at);
    at += heads[column].length;
  };
  const copied = (column: 'device' | 'ts' | 'version') => {
    head(column);
    for (const part of parts) at = copyFirst(part, part[column], view, at);
  };
  copied('device');
  head('key');
  // The place of a list is an index of one byte (`block.ts`).
  at = writeSmall(target, writeSmall(target, at, 1), 0x200);
  at = writeSmall(target, lists.write(keys, target, at), records);
  for (let run = 0; run < runs.count; run += 1) if (runs.place[run] !== none) target[at++] = runs.place[run]!;
  copied('ts');
  if (hasSeq) {
    head('seq');
    for (const part of parts) {
      const { seq, begin, end } = part;
      for (let run = begin; run < end; run += 1) {
        if (runs.place[run] === none) continue;
        view.setInt32(at, seq === 0 ? 0 : part.view.getInt32(seq + 4 * runs.first[run]!));
        at += 4;
      }
    }
  }
  head('kind');
  target.fill(recordKind, at, at + records);
  at += records;
  head('num');
  target.fill(0, at, at + 8 * records);
  at += 8 * records;
  head('text');
  for (const part of parts) {
    at = part.text === 0 ? writeNumbers(part, target, view, at) : writeTexts(part, target, view, at);
  }
  copied('version');
  return at;
}

/** Copies a column of eight bytes from the first row of each record, and returns the offset after the copies. */
function copyFirst({ view, begin, end }: Part, column: number, target: DataView, start: number): number {
  const { first, place } = runs;
  let at = start;
  for (let run = begin; run < end; run += 1) {
    if (place[run] === none) continue;
    const from = column + 8 * first[run]!;
    target.setInt32(at, view.getInt32(from));
    target.setInt32(at + 4, view.getInt32(from + 4));
    at += 8;
  }
  return at;
}

/** Writes the text of each record of a block that has no texts, and returns the offset after the last one. */
function writeNumbers(part: Part, target: Buffer, view: DataView, start: number): number {
  const { block, kind } = part;
  let at = start;
  for (let run = part.begin; run < part.end; run += 1) {
    if (runs.place[run] === none) continue;
    const end = runs.endOf(run, part);
    at = writeVarint(target, at, (end - runs.first[run]!) * pointBytes);
    for (let row = runs.first[run]!; row < end; row += 1) {
      target[at] = block[kind + row]!;
      copyNumber(part, row, view, at + 1);
      at += pointBytes;
    }
  }
  return at;
}

/** Does what `writeNumbers` does, for a block that has texts. */
function writeTexts(part: Part, target: Buffer, view: DataView, start: number): number {
  const { block, kind } = part;
  let at = start;
  let textAt = part.text;
  for (let run = part.begin; run < part.end; run += 1) {
    const isPacked = runs.place[run] !== none;
    const end = runs.endOf(run, part);
    if (isPacked) at = writeVarint(target, at, textBytesOf(part, runs.first[run]!, end, textAt));
    for (let row = runs.first[run]!; row < end; row += 1) {
      const from = startOfText(block, textAt);
      textAt = endOfText(block, textAt);
      if (!isPacked) continue;
      target[at] = block[kind + row]!;
      if (block[kind + row]! <= Kind.double) {
        copyNumber(part, row, view, at + 1);
        at += pointBytes;
        continue;
      }
      target[at + 1] = textAt - from;
      for (let i = from; i < textAt; i += 1) target[at + 2 + i - from] = block[i]!;
      at += 2 + textAt - from;
    }
  }
  return at;
}

function copyNumber({ block, view, kind, num, int }: Part, row: number, target: DataView, at: number): void {
  const column = block[kind + row] === Kind.double ? num : int;
  // In a block without the column `int` all longs and booleans are 0.
  const from = column + 8 * row;
  target.setInt32(at, column === 0 ? 0 : view.getInt32(from));
  target.setInt32(at + 4, column === 0 ? 0 : view.getInt32(from + 4));
}

/** Returns the length of the text of a record; `textAt`: the offset of the text of its first row. */
function textBytesOf({ block, kind }: Part, first: number, end: number, textAt: number): number {
  let bytes = 0;
  let at = textAt;
  for (let row = first; row < end; row += 1) {
    const next = endOfText(block, at);
    bytes += block[kind + row]! > Kind.double ? 2 + next - startOfText(block, at) : pointBytes;
    at = next;
  }
  return bytes;
}
