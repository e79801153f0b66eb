import { expect, it } from 'vitest';
import { limits } from '../base/limits.ts';
import { readJson } from '../value/json.ts';
import { type Attributes, ownValue, type ScopedRow } from './attributes.ts';
import { foundJson, keysOfText, readWanted, wantedOf } from './request.ts';

function f(body: string) {
  try {
    const { client, shared } = wantedOf(readJson(Buffer.from(body)));
    return { client, shared };
  } catch (error) {
    return (error as { status: number }).status;
  }
}

it('reads lists in texts and in arrays; a scope that is not named is not asked for', () => {
  expect(f('{"clientKeys":"a,b","sharedKeys":"c"}')).toEqual({ client: ['a', 'b'], shared: ['c'] });
  expect(f('{"sharedKeys":"c"}')).toEqual({ client: undefined, shared: ['c'] });
  expect(f('{"clientKeys":["a","b,c"]}')).toEqual({ client: ['a', 'b,c'], shared: undefined });
  expect(f('{"clientKeys":"a","allSharedKeys":true}')).toEqual({ client: ['a'], shared: 'all' });
  expect(f('{"allClientKeys":true,"clientKeys":"a"}')).toEqual({ client: 'all', shared: undefined });
});

it('takes nothing in particular for everything', () => {
  for (const body of ['{}', '{"clientKeys":""}', '{"clientKeys":[],"sharedKeys":null}', '{"allClientKeys":false}']) {
    expect(f(body)).toEqual({ client: 'all', shared: 'all' });
  }
});

it('ignores empty names and names that no key can have', () => {
  expect(f('{"clientKeys":",a,,b,","sharedKeys":["","c"]}')).toEqual({ client: ['a', 'b'], shared: ['c'] });
  expect(keysOfText('a,b\0,c')).toEqual(['a', 'c']);
});

it('refuses other shapes and longer lists than are allowed', () => {
  for (const body of ['[]', '"a"', '5', '{"clientKeys":5}', '{"sharedKeys":[1]}', '{"sharedKeys":{"a":1}}']) {
    expect(f(body)).toBe(400);
  }
  expect(f(`{"clientKeys":"${'a,'.repeat(limits.listedKeysMax + 1)}"}`)).toBe(400);
  expect(f(`{"clientKeys":"${'a,'.repeat(limits.listedKeysMax)}"}`)).toHaveProperty('client');
});

it('finds the keys of each scope apart, and leaves out a scope without any', async () => {
  const rows = [
    { scope: 'CLIENT_SCOPE', key: 'a', value: ownValue.long(1), ts: 0 },
    { scope: 'CLIENT_SCOPE', key: 'b', value: ownValue.long(2), ts: 0 },
    { scope: 'SHARED_SCOPE', key: 'a', value: ownValue.string('x"y'), ts: 0 },
  ];
  const readFor = (...[, , , , use]: Parameters<Attributes['readFor']>) => use(rows as unknown as ScopedRow[]);
  const attributes = { readFor } as unknown as Parameters<typeof readWanted>[0];
  const answer = async (body: string) =>
    foundJson(await readWanted(attributes, { number: 1, tenantId: 't' }, wantedOf(readJson(Buffer.from(body)))));
  expect(await answer('{}')).toBe('{"client":{"a":1,"b":2},"shared":{"a":"x\\"y"}}');
  expect(await answer('{"clientKeys":"b","sharedKeys":"b"}')).toBe('{"client":{"b":2}}');
  expect(await answer('{"clientKeys":"z","sharedKeys":"a"}')).toBe('{"shared":{"a":"x\\"y"}}');
  expect(foundJson({ client: [], shared: [] })).toBe('{}');
  expect(foundJson({ client: [], shared: [] }, true)).toBe('{"client":{}}');
});
