import { expect, test } from 'vitest';
import { type BinaryRow, BinaryRows } from './row-binary.ts';

/** Two rows: UInt8, UInt32, Int64, UInt64, UInt128, Float64, String of 3 and of 300 bytes. */
const rows = Buffer.concat([rowOf(7, -2n, 2n ** 64n - 1n, 'abc'), rowOf(8, 2n ** 62n, 0n, 'é'.repeat(150))]);

function rowOf(small: number, signed: bigint, large: bigint, text: string): Buffer {
  const fixed = Buffer.alloc(45);
  fixed.writeUInt8(small, 0);
  fixed.writeUInt32LE(4_000_000_000, 1);
  fixed.writeBigInt64LE(signed, 5);
  fixed.writeBigUInt64LE(large, 13);
  fixed.writeBigUInt64LE(5n, 21);
  fixed.writeBigUInt64LE(large, 29);
  fixed.writeDoubleLE(-0.5, 37);
  const length = Buffer.byteLength(text);
  const varint = length < 128 ? [length] : [(length & 0x7f) | 0x80, length >> 7];
  return Buffer.concat([fixed, Buffer.from(varint), Buffer.from(text)]);
}

const decoded = (row: BinaryRow) => [
  ...[row.uint8(), row.uint32(), row.int64(), row.uint64(), row.uint128(), row.float64()],
  row.text().toString(),
];
const expected = [
  [7, 4_000_000_000, -2n, 2n ** 64n - 1n, ((2n ** 64n - 1n) << 64n) | 5n, -0.5, 'abc'],
  [8, 4_000_000_000, 2n ** 62n, 0n, 5n, -0.5, 'é'.repeat(150)],
];

test.each([1, 2, 3, 7, 46, 49, rows.length])('rows that come in pieces of %i bytes are whole', (size) => {
  const found: unknown[] = [];
  const cut = new BinaryRows((row) => found.push(decoded(row)));
  for (let at = 0; at < rows.length; at += size) {
    expect(cut.isWhole).toBe(at === 0 || at === 49);
    cut.add(rows.subarray(at, at + size));
  }
  expect(cut.isWhole).toBe(true);
  expect(found).toEqual(expected);
});

test('a long row is read again only when its text is there', () => {
  const row = rowOf(1, 0n, 0n, 'x'.repeat(16_000));
  let tries = 0;
  let text = '';
  const cut = new BinaryRows((binary) => {
    tries += 1;
    text = decoded(binary).at(-1) as string;
  });
  for (let at = 0; at < row.length; at += 100) cut.add(row.subarray(at, at + 100));
  expect([text.length, tries]).toEqual([16_000, 2]);
});

test('an error of the reader of a row is thrown', () => {
  const cut = new BinaryRows(() => {
    throw new Error('too many rows');
  });
  expect(() => cut.add(rows)).toThrow('too many rows');
});
