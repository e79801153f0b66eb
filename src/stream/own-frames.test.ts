/** The time until which deletes wait for frames of this process. */
import { expect, test } from 'vitest';
import { OwnFrames } from './own-frames.ts';

test('frames that a stream has lost wait no longer than what is left of the stream', () => {
  const own = new OwnFrames();
  own.add(100n, 5);
  own.add(200n, 9);
  own.lostAfter(5);
  own.confirmed(4, own.added);
  expect([own.orderMin, own.lastMax]).toEqual([100n, 5]);
  own.confirmed(5, own.added);
  expect(own.isEmpty).toBe(true);
});

test('neighbours that count as one keep waiting for the earlier of their frames', () => {
  const own = new OwnFrames();
  // One above the cap, so that two appends each count as one.
  for (let n = 1; n <= 1_025; n += 1) own.add(BigInt(n), n);
  own.lostAfter(3);
  own.confirmed(2, own.added);
  expect(own.orderMin).toBe(3n);
});

test('of a stream that was made again nothing is waited for', () => {
  const own = new OwnFrames();
  own.add(100n, 5);
  own.lostAfter(0);
  own.confirmed(0, own.added);
  expect(own.isEmpty).toBe(true);
});

test('a floor that was read before an append confirms none of its frames', () => {
  const own = new OwnFrames();
  own.add(100n, 5);
  const { added } = own;
  // The stream is made again, and the floor is that of the earlier one.
  own.add(200n, 7);
  own.confirmed(1_000, added);
  expect(own.orderMin).toBe(200n);
  own.reset();
  own.add(300n, 1);
  own.confirmed(1_000, added);
  expect(own.orderMin).toBe(300n);
  own.confirmed(1, own.added);
  expect(own.isEmpty).toBe(true);
});

test('of appends that ran at the same time, the lowest order waits for all of their frames', () => {
  const own = new OwnFrames();
  own.add(100n, 1);
  own.add(300n, 9);
  own.add(200n, 5);
  own.confirmed(5, own.added);
  expect([own.orderMin, own.lastMax]).toEqual([200n, 9]);
  own.confirmed(9, own.added);
  expect(own.isEmpty).toBe(true);
});
