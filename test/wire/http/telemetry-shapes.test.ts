/** The forms of a telemetry body (docs/http.md#telemetry). */
import { expect, test } from 'vitest';
import { at, clockErrorMs, withPoster } from '../../harness/stored.ts';

test('a flat object is stored at server time', () =>
  withPoster(async (poster) => {
    const before = Date.now();
    await poster.accept('{"temp":21.5}');
    const after = Date.now();
    const [point] = await poster.points('temp');
    expect(point!.value).toBe('21.5');
    expect(point!.ts).toBeGreaterThanOrEqual(before - clockErrorMs);
    expect(point!.ts).toBeLessThanOrEqual(after + clockErrorMs);
  }));

test('ts and values store each kind at that time', () =>
  withPoster(async (poster) => {
    const ts = 1_700_000_000_000;
    await poster.accept(`{"ts":${ts},"values":{"a":1,"b":true,"c":"x","d":{"e":[1]}}}`);
    expect(await poster.points('a', at(ts))).toEqual([{ ts, value: '1' }]);
    expect(await poster.points('b', at(ts))).toEqual([{ ts, value: 'true' }]);
    expect(await poster.points('c', at(ts))).toEqual([{ ts, value: '"x"' }]);
    expect(await poster.points('d', at(ts))).toEqual([{ ts, value: '{"e":[1]}' }]);
  }));

test('an array mixes timed and untimed elements', () =>
  withPoster(async (poster) => {
    await poster.accept('[{"ts":1,"values":{"a":1}},{"a":2}]');
    expect(await poster.points('a', at(1))).toEqual([{ ts: 1, value: '1' }]);
    expect(await poster.value('a')).toBe('2');
  }));

test('an empty object is accepted and stores nothing', () =>
  withPoster(async (poster) => {
    await poster.accept('{}');
    expect(await poster.keys()).toEqual([]);
  }));

test('an empty array is accepted and stores nothing', () =>
  withPoster(async (poster) => {
    await poster.accept('[]');
    expect(await poster.keys()).toEqual([]);
  }));

test('bodies that yield no data are accepted', () =>
  withPoster(async (poster) => {
    await poster.accept('[{}]');
    await poster.accept('{"ts":1,"values":{}}');
    await poster.accept('{"a":null}');
    expect(await poster.keys()).toEqual([]);
  }));

test('null skips its key and keeps the others', () =>
  withPoster(async (poster) => {
    await poster.accept('{"a":null,"b":1}');
    expect(await poster.keys()).toEqual(['b']);
  }));

test('ts alone is a key named ts', () =>
  withPoster(async (poster) => {
    await poster.accept('{"ts":5}');
    expect(await poster.value('ts')).toBe('5');
  }));

test('values alone is a key of kind JSON', () =>
  withPoster(async (poster) => {
    await poster.accept('{"values":{"a":1}}');
    expect(await poster.value('values')).toBe('{"a":1}');
    expect(await poster.keys()).toEqual(['values']);
  }));

test('members beside ts and values are ignored', () =>
  withPoster(async (poster) => {
    await poster.accept('{"ts":1,"values":{"a":1},"x":9}');
    expect(await poster.keys()).toEqual(['a']);
  }));
