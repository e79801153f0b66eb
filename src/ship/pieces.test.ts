/** Parts of units. */
import { expect, test } from 'vitest';
import type { ShipUnit } from '../journal/journal.ts';
import { framesOf } from './pieces.ts';

test('a part of a unit has the least order of its frames, which do not ascend in a stream', () => {
  const payloads = ['a', 'b', 'c'].map((text) => Buffer.from(text));
  const unit = { payloads, orders: [9n, 4n, 2n], orderMin: 2n } as unknown as ShipUnit;
  expect(framesOf(unit, (payload) => payload !== payloads[2])).toMatchObject({ orders: [9n, 4n], orderMin: 4n });
  expect(framesOf(unit, () => false)).toMatchObject({ orders: [], orderMin: 2n });
});
