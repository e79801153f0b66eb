/** How JSON becomes typed values and comes back (docs/http.md#values). */
import { expect, test } from 'vitest';
import { withPoster } from '../../harness/stored.ts';

function stored(name: string, body: string, expected: Record<string, string>): void {
  test(name, () =>
    withPoster(async (poster) => {
      await poster.accept(body);
      for (const [key, value] of Object.entries(expected)) expect(await poster.value(key), key).toBe(value);
    }),
  );
}

stored(
  'strings that look like plain numbers are cast, others stay strings',
  '{"a":"5","b":"007","c":"1.0","d":"1e3","e":"5.","f":"+5","g":""}',
  { a: '5', b: '7', c: '1.0', d: '"1e3"', e: '"5."', f: '"+5"', g: '""' },
);
stored(
  'whole literals are longs, fractions doubles, exponents what they amount to',
  '{"a":42.0,"b":1e2,"c":1e-2,"d":-0}',
  {
    a: '42.0',
    b: '100',
    c: '0.01',
    d: '0',
  },
);
stored('the largest and the smallest long keep every digit', '{"a":9223372036854775807,"b":-9223372036854775808}', {
  a: '9223372036854775807',
  b: '-9223372036854775808',
});
stored('a whole number beyond 64 bits becomes the string of its digits', '{"a":9223372036854775808}', {
  a: '"9223372036854775808"',
});
stored('a double keeps all its digits', '{"a":0.30000000000000004}', { a: '0.30000000000000004' });
stored('a whole-valued double stays a double', '{"a":12345678.0}', { a: '12345678.0' });
stored('booleans and nested JSON come back as such', '{"t":true,"f":false,"j":{"z":1,"a":[1.0,"x",null]}}', {
  t: 'true',
  f: 'false',
  j: '{"z":1,"a":[1.0,"x",null]}',
});
stored('a leading byte order mark is tolerated', '\ufeff{"a":1}', { a: '1' });
stored('keys that name parts of JavaScript objects are plain data', '{"__proto__":1,"constructor":2,"toString":3}', {
  ['__proto__']: '1',
  constructor: '2',
  toString: '3',
});

test('of a repeated key the last value is stored, once', () =>
  withPoster(async (poster) => {
    await poster.accept('{"a":1,"a":2}');
    const points = await poster.points('a');
    expect(points.map(({ value }) => value)).toEqual(['2']);
  }));

test('the content type of the request does not matter', () =>
  withPoster(async (poster) => {
    await poster.accept('{"form":1}', { 'Content-Type': 'application/x-www-form-urlencoded' });
    await poster.accept('{"text":"Грüße 水車"}', { 'Content-Type': 'text/plain' });
    await poster.accept('{"latin":"é"}', { 'Content-Type': 'text/plain; charset=iso-8859-1' });
    expect(await poster.value('form')).toBe('1');
    expect(await poster.value('text')).toBe('"Грüße 水車"');
    expect(await poster.value('latin')).toBe('"é"');
  }));

test('an absurd exponent is refused without being computed', () =>
  withPoster(async (poster) => {
    await poster.accept('{}');
    // A billion digits would take longer than the answer is waited for.
    await poster.refuse('{"a":1e999999999}');
    await poster.refuse(`{"a":${'1'.repeat(1_000_000)}}`);
    await poster.refuse('{"a":1e400}');
    expect(await poster.keys()).toEqual([]);
  }));

test('a blank or over-long key is refused by name', () =>
  withPoster(async (poster) => {
    await poster.refuse('{"":1}');
    await poster.refuse('{"  ":1}');
    await poster.refuse(JSON.stringify({ ['k'.repeat(256)]: 1 }));
    await poster.accept(JSON.stringify({ ['k'.repeat(255)]: 1 }));
    expect(await poster.keys()).toEqual(['k'.repeat(255)]);
  }));
