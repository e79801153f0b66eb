import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { FifoMap } from './fifo-map.ts';

describe('FifoMap', () => {
  it('behaves like a map from which the oldest entry goes', () => {
    const key = fc.integer({ min: 0, max: 8 });
    const step = fc.oneof(
      { weight: 8, arbitrary: fc.record({ set: key }) },
      { weight: 3, arbitrary: fc.record({ delete: key }) },
      { weight: 1, arbitrary: fc.constant({ clear: true }) },
    );
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        const aged = new FifoMap<number, number>(3);
        const model = new Map<number, number>();
        for (const [i, each] of steps.entries()) {
          if ('set' in each) {
            let evicted: number | undefined;
            if (model.size === 3 && !model.has(each.set)) {
              const oldest = [...model.keys()][0]!;
              evicted = model.get(oldest);
              model.delete(oldest);
            }
            model.set(each.set, i);
            expect(aged.set(each.set, i)).toBe(evicted);
          } else if ('delete' in each) {
            model.delete(each.delete);
            aged.delete(each.delete);
          } else {
            model.clear();
            aged.clear();
          }
          expect([...aged.values()]).toEqual([...model.values()]);
        }
      }),
    );
  });
});
