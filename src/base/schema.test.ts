import fc from 'fast-check';
import { Compile } from 'typebox/schema';
import { Settings } from 'typebox/system';
import { expect, test } from 'vitest';
import * as Type from './schema.ts';

/** `path message` of the first fault, '' when the value fits. */
function faultText(schema: Type.Schema, value: unknown): string {
  const fault = Type.faultOf(schema, value);
  return fault ? `${fault.path.join('.')} ${fault.message}` : '';
}

const device = Type.Object({
  name: Type.String({ minLength: 1, maxLength: 5 }),
  label: Type.Optional(Type.Union([Type.String(), Type.Null()])),
  count: Type.Optional(Type.Integer({ minimum: 0, maximum: 9 })),
  owner: Type.Optional(Type.Union([Type.Object({ id: Type.Boolean() }), Type.Null()])),
  tags: Type.Optional(Type.Array(Type.Enum(['a', 'b']), { maxItems: 2 })),
  labels: Type.Optional(Type.Record(Type.Integer())),
  kind: Type.Optional(Type.Literal('pump')),
  anything: Type.Optional(Type.Unknown({ description: 'Any JSON' })),
});

test('a fault names the way to the value and what it must be', () => {
  const f = (value: unknown, expected: string) => expect(faultText(device, value)).toBe(expected);
  f({ name: 'pump' }, '');
  f({ name: 'pump', label: null, count: 9, owner: null, tags: ['a', 'b'], labels: { x: 1 }, kind: 'pump' }, '');
  f({ name: 'pump', of: 'no interest' }, '');
  f(null, ' must be object');
  f([], ' must be object');
  f({}, ' must have required properties name');
  f({ name: '' }, 'name must not have fewer than 1 characters');
  f({ name: 'pump-7' }, 'name must not have more than 5 characters');
  f({ name: '🚀🚀🚀🚀🚀' }, '');
  f({ name: 'pump', label: 1 }, 'label must be string');
  f({ name: 'pump', count: 1.5 }, 'count must be integer');
  f({ name: 'pump', count: -1 }, 'count must be >= 0');
  f({ name: 'pump', count: 10 }, 'count must be <= 9');
  f({ name: 'pump', owner: { id: 1 } }, 'owner.id must be boolean');
  f({ name: 'pump', tags: ['a', 'c'] }, 'tags.1 must be equal to one of the allowed values');
  f({ name: 'pump', tags: ['a', 'b', 'a'] }, 'tags must not have more than 2 items');
  f({ name: 'pump', labels: { x: 1, y: '1' } }, 'labels.y must be integer');
  f({ name: 'pump', kind: 'valve' }, 'kind must be equal to constant');
});

test('a member that only the prototype has is missing', () => {
  const schema = Type.Object({ toString: Type.Unknown(), constructor: Type.Optional(Type.String()) });
  expect(faultText(schema, {})).toBe(' must have required properties toString');
  expect(faultText(schema, { toString: 1 })).toBe('');
});

test('a closed object takes its own members only', () => {
  const schema = Type.Object({ a: Type.Optional(Type.Null()) }, { additionalProperties: false });
  expect(faultText(schema, { a: null })).toBe('');
  expect(faultText(schema, { a: null, b: 1 })).toBe(' must not have additional properties');
});

test('a partial object has the members of the whole one, and needs none of them', () => {
  expect(JSON.stringify(Type.Partial(Type.Object({ a: Type.String(), b: Type.Null() })))).toBe(
    '{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"null"}}}',
  );
});

Settings.Set({ maxErrors: 1_000 });

/** Schemas of every kind, nested, and values near to them. */
const schemas = fc.letrec<{ schema: Type.Schema }>((tie) => ({
  schema: fc.oneof(
    { maxDepth: 4, depthSize: 'small' },
    fc.record({ minLength: fc.nat(3), maxLength: fc.nat(3) }, { requiredKeys: [] }).map(Type.String),
    fc.record({ minimum: fc.nat(3), maximum: fc.nat(3) }, { requiredKeys: [] }).map(Type.Integer),
    fc.constantFrom(
      Type.Boolean(),
      Type.Number(),
      Type.Null(),
      Type.Unknown(),
      Type.Literal('a'),
      Type.Enum(['a', 'b']),
    ),
    fc.constant(Type.String({ pattern: '^a' })),
    fc.array(tie('schema'), { minLength: 1, maxLength: 3 }).map((each) => Type.Union(each)),
    tie('schema').map((items) => Type.Array(items, { maxItems: 2 })),
    tie('schema').map((values) => Type.Record(values)),
    fc
      .dictionary(fc.constantFrom('a', 'b', 'c'), fc.oneof(tie('schema'), tie('schema').map(Type.Optional)))
      .map((each) => Type.Object(each)),
  ),
})).schema;

const values = fc.letrec((tie) => ({
  value: fc.oneof(
    { maxDepth: 4, depthSize: 'small' },
    fc.constantFrom<unknown>(null, true, false, 0, 1, 3, 4, -1, 1.5, '', 'a', 'b', 'ab', 'abcd'),
    fc.array(tie('value'), { maxLength: 3 }),
    fc.dictionary(fc.constantFrom('a', 'b', 'c', 'd'), tie('value')),
  ),
})).value;

test('TypeBox agrees whether a value fits, and that a fault is one', () => {
  fc.assert(
    fc.property(schemas, fc.array(values, { minLength: 10, maxLength: 10 }), (schema, candidates) => {
      const oracle = Compile(schema as never);
      for (const value of candidates) {
        const faults = oracle
          .Errors(value)[1]
          .map(({ instancePath, message }) => `${instancePath.slice(1).replaceAll('/', '.')} ${message}`);
        expect(oracle.Check(value) ? [''] : faults).toContain(faultText(schema, value));
      }
    }),
    { numRuns: 1_000 },
  );
});
