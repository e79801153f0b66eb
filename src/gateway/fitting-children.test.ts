import fc from 'fast-check';
import { expect, test } from 'vitest';
import { FittingChildren } from './fitting-children.ts';

const bytesOf = (children: Record<string, unknown>) => Buffer.from(JSON.stringify(children));

test('counts the members that end within the limit, in any pieces', () => {
  const names = fc.uniqueArray(fc.string(), { maxLength: 20 });
  fc.assert(
    fc.property(
      names,
      fc.array(fc.jsonValue(), { minLength: 20, maxLength: 20 }),
      fc.nat(600),
      fc.integer({ min: 1, max: 50 }),
      (keys, values, bytesMax, pieceBytes) => {
        // A name that looks like a number would become the first member of the object.
        const children = keys.map((key, n) => [`${key}"\\x`, values[n]] as const);
        const body = bytesOf(Object.fromEntries(children));
        // Only the comma after a member shows that the member has ended.
        const ends = children.slice(1).map((_, n) => bytesOf(Object.fromEntries(children.slice(0, n + 1))).length);
        const counter = new FittingChildren(bytesMax);
        for (let at = 0; at < body.length; at += pieceBytes) counter.add(body.subarray(at, at + pieceBytes));
        expect(counter.count).toBe(ends.filter((end) => end <= bytesMax).length);
      },
    ),
  );
});
