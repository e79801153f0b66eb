import { expect, test } from 'vitest';
import { sizeText } from './size-text.ts';

test('a size has the unit in which it is short', () => {
  const sizes = [0, 1, 3_000, 10 * 1024 ** 2, 128 * 1024 ** 2, 1024 ** 3, 1.5 * 1024 ** 3, 16 * 1024 ** 3];
  const texts = ['0 KiB', '1 KiB', '3 KiB', '10 MiB', '128 MiB', '1 GiB', '1.5 GiB', '16 GiB'];
  expect(sizes.map(sizeText)).toEqual(texts);
});
