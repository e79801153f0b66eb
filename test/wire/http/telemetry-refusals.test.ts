/** A refused message stores nothing, and its answer names the reason (docs/http.md#errors). */
import { expect, test } from 'vitest';
import { expectError, withPoster } from '../../harness/stored.ts';

test('values that are not an object are refused', () =>
  withPoster(async (poster) => {
    for (const values of ['7', '"x"', 'null', 'true', '[1]']) await poster.refuse(`{"ts":1,"values":${values}}`);
    expect(await poster.keys()).toEqual([]);
  }));

test('an array with one wrong element stores none of the others', () =>
  withPoster(async (poster) => {
    for (const element of ['5', '"x"', 'null', '[]', '{"ts":"abc","values":{"b":1}}']) {
      await poster.refuse(`[{"a":1},${element}]`);
    }
    expect(await poster.keys()).toEqual([]);
  }));

test('a scalar at the root is refused', () =>
  withPoster(async (poster) => {
    for (const body of ['5', '"x"', 'null', 'true']) await poster.refuse(body);
    expect(await poster.keys()).toEqual([]);
  }));

test('what is not JSON is refused', () =>
  withPoster(async (poster) => {
    for (const body of [
      '{"a":',
      '{"a":NaN}',
      '{"a":Infinity}',
      '{a:-Infinity}',
      '{a:hot}',
      '{"a":01}',
      '{"a"=1}',
      '{"a":1;"b":2}',
      '{"a":1}x',
      '{"a":1}{"b":1}',
      '{"a":"\t"}',
      '/* {"a":1}',
      '{"a":"\\x"}',
      ')]}\'{"a":1}',
    ]) {
      await poster.refuse(body);
    }
    expect(await poster.keys()).toEqual([]);
  }));

test('bytes that are not UTF-8 are refused', () =>
  withPoster(async (poster) => {
    await poster.refuse(Buffer.from([0x7b, 0x22, 0x61, 0x22, 0x3a, 0x22, 0xff, 0xfe, 0x22, 0x7d]));
    await poster.refuse(Buffer.from('{"a":1}', 'utf16le'));
    expect(await poster.keys()).toEqual([]);
  }));

test('an absent or empty body is refused before the token is checked', () =>
  withPoster(async (poster) => {
    await poster.refuse('');
    expectError(await poster.ask({ path: '/api/v1/no-such-token/telemetry', body: '' }), 400);
    expectError(await poster.ask({ path: `/api/v1/${poster.device.token}/telemetry` }), 400);
  }));

test('an unknown token is 401, also when the body is not JSON', () =>
  withPoster(async (poster) => {
    expectError(await poster.ask({ path: '/api/v1/no-such-token/telemetry', body: '{"a":1}' }), 401);
    expectError(await poster.ask({ path: '/api/v1/no-such-token/telemetry', body: '{"a":' }), 401);
  }));

test('JSON nested 10 000 and 1 000 000 deep is refused', () =>
  withPoster(async (poster) => {
    for (const depth of [10_000, 1_000_000]) {
      await poster.refuse(`{"a":${'['.repeat(depth)}${']'.repeat(depth)}}`);
    }
    await poster.accept('{"b":[[[1]]]}');
    expect(await poster.keys()).toEqual(['b']);
  }));

test('700 000 keys are refused with the limit named', () =>
  withPoster(async (poster) => {
    const members = Array.from({ length: 700_000 }, (_, n) => `"k${n}":${n}`);
    const message = await poster.refuse(`{${members.join(',')}}`, 413);
    expect(message).toMatch(/200.?000/);
    expect(await poster.keys()).toEqual([]);
  }));

test('a message is stored next to refused ones on the same connection', () =>
  withPoster(async (poster) => {
    await poster.refuse('{"a":');
    await poster.accept('{"b":1}');
    await poster.refuse('[1]');
    expect(await poster.keys()).toEqual(['b']);
  }));
