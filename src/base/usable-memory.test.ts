/** The memory of a container with a limit counts, and that of the machine without one. */
import { totalmem } from 'node:os';
import { expect, test } from 'vitest';
import { usableMemoryBytes } from './usable-memory.ts';

const gigabyte = 1024 ** 3;

test('a limit of a container counts, and what is no limit does not', () => {
  expect(usableMemoryBytes(64 * gigabyte, 4 * gigabyte)).toBe(4 * gigabyte);
  expect(usableMemoryBytes(64 * gigabyte, 0)).toBe(64 * gigabyte);
  // Node's number where the limit is "max".
  expect(usableMemoryBytes(64 * gigabyte, 18_446_744_073_709_552_000)).toBe(64 * gigabyte);
  expect(usableMemoryBytes()).toBeLessThanOrEqual(totalmem());
  expect(usableMemoryBytes()).toBeGreaterThan(0);
});
