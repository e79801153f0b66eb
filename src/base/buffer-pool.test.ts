import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { BufferPool } from './buffer-pool.ts';

const mebibyte = 1024 * 1024;

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

it('uses memory again that was given back, for any size that fits', () => {
  const pool = new BufferPool({ countMax: 2, bytesMax: 4 * mebibyte });
  const first = pool.take(mebibyte + 1);
  expect(first.length).toBe(mebibyte + 1);
  const second = pool.take(10);
  expect(second.buffer).not.toBe(first.buffer);
  pool.give(first.subarray(5, 7));
  const third = pool.take(2 * mebibyte);
  expect([third.length, third.buffer === first.buffer]).toEqual([2 * mebibyte, true]);
  expect(pool.take(10).buffer).not.toBe(first.buffer);
});

it('keeps few buffers, no large ones, and none for long', () => {
  const pool = new BufferPool({ countMax: 2, bytesMax: 4 * mebibyte });
  const taken = [1, 2, 3].map((size) => pool.take(size * mebibyte));
  pool.give(pool.take(5 * mebibyte));
  expect(pool.freeBytes).toBe(0);
  for (const buffer of taken) pool.give(buffer);
  expect(pool.freeBytes).toBe(5 * mebibyte);
  vi.advanceTimersByTime(9_000);
  pool.give(pool.take(1));
  vi.advanceTimersByTime(9_000);
  expect(pool.freeBytes).toBe(5 * mebibyte);
  vi.advanceTimersByTime(1_000);
  expect(pool.freeBytes).toBe(0);
});

it('takes memory that V8 does not count, but little of it in all: no large buffers, and few that are not given back', async () => {
  // Pools of other tests of this process have taken some.
  vi.resetModules();
  const { BufferPool: FreshPool } = await import('./buffer-pool.ts');
  const isShared = ({ buffer }: Buffer) => (buffer as ArrayBufferLike) instanceof SharedArrayBuffer;
  const sizes = { countMax: 2, bytesMax: 4 * mebibyte };
  expect(isShared(new FreshPool(sizes).take(5 * mebibyte))).toBe(false);
  const taken = Array.from({ length: 40 }, () => new FreshPool(sizes).take(4 * mebibyte));
  expect(taken.map(isShared)).toEqual([...new Array(32).fill(true), ...new Array(8).fill(false)]);
  // Memory that V8 has collected makes room for other memory.
  taken.length = 0;
  vi.useRealTimers();
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const isSharedAgain = () => {
    collect();
    return isShared(new FreshPool(sizes).take(4 * mebibyte));
  };
  await expect.poll(isSharedAgain).toBe(true);
});
