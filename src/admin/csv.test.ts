import fc from 'fast-check';
import { expect, test } from 'vitest';
import { limits } from '../base/limits.ts';
import { type CsvRow, csvRows } from './csv.ts';

const rowsOf = (text: string, delimiter: string) =>
  [...csvRows(text, delimiter, 100)].filter((row): row is CsvRow => row !== undefined);
const cells = (text: string, delimiter = ',') => rowsOf(text, delimiter).map(({ line, cells }) => [line, ...cells]);

test('rows have their cells and their lines', () => {
  expect(cells('a,b\r\nc,"d,\n""e"""\n\n,\nf')).toEqual([
    [1, 'a', 'b'],
    [2, 'c', 'd,\n"e"'],
    [6, 'f'],
  ]);
  expect(cells('\ufeffa;b c;', ';')).toEqual([[1, 'a', 'b c', '']]);
  expect(cells('')).toEqual([]);
  expect(() => cells('a\nb,"c')).toThrow('Line 2: a quote is not closed.');
  expect(() => [...csvRows('a\nb', ',', 1)]).toThrow('more than 1 rows');
});

test('what is written is read', () => {
  const cell = fc.string({ unit: 'grapheme' });
  const table = fc.array(fc.array(cell, { minLength: 1, maxLength: 4 }), { maxLength: 6 });
  fc.assert(
    fc.property(table, fc.constantFrom(',', ';', '\t', '||'), (rows, delimiter) => {
      const text = rows.map((row) => row.map((each) => `"${each.replaceAll('"', '""')}"`).join(delimiter)).join('\n');
      const kept = rows.filter((row) => row.some((each) => each.trim() !== ''));
      expect(rowsOf(text, delimiter).map((row) => row.cells)).toEqual(kept);
    }),
  );
});

const chars = 8 * 1024 * 1024;

test.each([
  ['empty lines', '\n'.repeat(chars), true],
  ['empty cells', ','.repeat(chars), true],
  ['rows of empty cells', `${','.repeat(299)}\n`.repeat(chars / 300), true],
  ['doubled quotes', `"${'""'.repeat(chars / 2)}"`, true],
  ['a quote that is not closed', `"${'""'.repeat(chars / 2)}`, false],
])('a file of %s is read in turns of a quarter of a megabyte', (_, text, isClosed) => {
  let turns = 0;
  const read = () => {
    for (const row of csvRows(text, ',', 100)) if (!row) turns += 1;
  };
  if (isClosed) read();
  else expect(read).toThrow('Line 1: a quote is not closed.');
  expect(turns).toBeGreaterThanOrEqual(Math.floor(text.length / limits.importTurnChars) - 1);
});

test('a quoted cell longer than a turn is read whole, whichever of its characters ends the turn', () => {
  const pad = 'x'.repeat(limits.importTurnChars - 2);
  for (const start of ['', 'y', 'yy', 'yyy']) {
    const cell = `${start}${pad}"\n""${pad}`;
    expect(cells(`"${cell.replaceAll('"', '""')}",b\nc`)).toEqual([
      [1, cell, 'b'],
      [3, 'c'],
    ]);
  }
});

test('a row keeps as many cells as columns can be named', () => {
  const [row] = rowsOf(`a${',b'.repeat(2 * limits.importColumnsMax)}\nc`, ',');
  expect(row!.cells).toHaveLength(limits.importColumnsMax);
  expect(rowsOf(`a${',b'.repeat(2 * limits.importColumnsMax)}\nc`, ',')[1]!.cells).toEqual(['c']);
});
