import { expect, test } from 'vitest';
import { readByName } from '../value/by-name.ts';
import { attributesOf } from './decode.ts';
import { packAttributes, unpackAttributes } from './packed-attributes.ts';

test('packed attributes are those of the message, for each device, and bad devices keep their fault', () => {
  const values =
    '{"a":1.5,"b":-9223372036854775808,"c":true,"d":false,"e":"x","f":"","g":{"h":[1.50]},"i":null,"j":"7"}';
  const text = `{"one":${values},"bad":5,"two":{},"worse":{"k":1e400},"three":{"only":1}}`;
  const message = readByName(Buffer.from(text));
  const packed = structuredClone(packAttributes(message, true));
  const expected = ['one', 'two', 'three'].map((name) => [name, attributesOf(message.get(name) as never, true)]);
  expect([...unpackAttributes(packed)]).toEqual(expected);
  expect(packed.refused.map(([name, { reason }]) => [name, reason])).toEqual([
    ['bad', 'wrong_shape'],
    ['worse', 'number_not_finite'],
  ]);
});
