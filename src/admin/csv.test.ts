import fc from 'fast-check';
import { expect, test } from 'vitest';
import { csvRows } from './csv.ts';

const cells = (text: string, delimiter = ',') =>
  [...csvRows(text, delimiter, 100)].map(({ line, cells }) => [line, ...cells]);

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
      const read = [...csvRows(text, delimiter, 100)];
      expect(read.map((row) => row.cells)).toEqual(kept);
      expect(read.every(({ end }, i) => end > (read[i - 1]?.end ?? 0))).toBe(true);
    }),
  );
});
