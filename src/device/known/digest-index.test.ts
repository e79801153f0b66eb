import { randomBytes } from 'node:crypto';
import { expect, test } from 'vitest';
import { DigestIndex } from './digest-index.ts';

const count = 300_000;
const digests = randomBytes(count * 16);

test('each digest has the offset that was set last, also far beyond the expected number', () => {
  const index = new DigestIndex(10);
  const [first] = [digests.subarray(0, 16)];
  expect(index.get(first, 0)).toBeUndefined();
  for (let n = 0; n < count; n += 1) index.set(digests, n * 16, (n + 1) * 8);
  for (let n = 0; n < count; n += 3) index.set(digests, n * 16, (count + n + 1) * 8);
  expect(index.size).toBe(count);
  let wrong = 0;
  for (let n = 0; n < count; n += 1) {
    const expected = (n % 3 === 0 ? count + n + 1 : n + 1) * 8;
    if (index.get(digests, n * 16) !== expected) wrong += 1;
  }
  expect(wrong).toBe(0);
  expect(index.get(randomBytes(16), 0)).toBeUndefined();
});
