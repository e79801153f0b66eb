import fc from 'fast-check';
import { expect, test } from 'vitest';
import { readCsv } from './csv.ts';

const cells = (text: string, delimiter = ',') =>
  readCsv(text, delimiter, 100).map(({ line, cells }) => [line, ...cells]);

test('rows have their cells and their lines', () => {
  expect(cells('a,b\r\nc,"d,\n""e"""\n\n,\nf')).toEqual([
    [1, 'a', 'b'],
    [2, 'c', 'd,\n"e"'],
    [6, 'f'],
  ]);
  expect(cells('\ufeffa;b c;', ';')).toEqual([[1, 'a', 'b c', '']]);
  expect(cells('')).toEqual([]);
  expect(() => cells('a\nb,"c')).toThrow('Line 2: a quote is not closed.');
  expect(() => readCsv('a\nb', ',', 1)).toThrow('more than 1 rows');
});

test('what is written is read', () => {
  const cell = fc.string({ unit: 'grapheme' });
  const table = fc.array(fc.array(cell, { minLength: 1, maxLength: 4 }), { maxLength: 6 });
  fc.assert(
    fc.property(table, fc.constantFrom(',', ';', '\t', '||'), (rows, delimiter) => {
      const text = rows.map((row) => row.map((each) => `"${each.replaceAll('"', '""')}"`).join(delimiter)).join('\n');
      const kept = rows.filter((row) => row.some((each) => each.trim() !== ''));
      expect(readCsv(text, delimiter, 100).map((row) => row.cells)).toEqual(kept);
    }),
  );
});
