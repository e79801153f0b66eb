import { describe, expect, it } from 'vitest';
import { limits } from '../base/limits.ts';
import { hashStart, internKey, keyFault, keyOf, nextKey } from './keys.ts';

describe('keys', () => {
  it('are one object for the same bytes', () => {
    expect(keyOf('temperature')).toBe(keyOf('temperature'));
    expect(keyOf('temperature')).not.toBe(keyOf('temperatures'));
    expect(keyOf('é')?.text).toBe('é');
    expect(keyOf('values')?.reserved).toBe(true);
    expect(keyOf('value')?.reserved).toBe(false);
  });

  it('are guessed from the key before, never across a quote', () => {
    const guess = (key: string, body: string): string | undefined => {
      const previous = keyOf('previous')!;
      previous.next = keyOf(key)!.place;
      return nextKey(previous, Buffer.from(body), 0, body.length - 1)?.text;
    };
    expect(guess('abc', 'abc":1}')).toBe('abc');
    for (const body of ['abd":1}', 'abc:1}', 'ab":1}', 'abcd":1}', 'abc', 'a', ''])
      expect(guess('abc', body), body).toBeUndefined();
    for (const key of ['a"b', 'a\\b', 'a\tb']) expect(guess(key, `${key}":1}`), key).toBeUndefined();
  });

  it('outlive the body they came from', () => {
    const body = Buffer.from('pressure');
    const key = internKey(body, 0, body.length, hashStart)!;
    body.fill(0);
    expect(key.text).toBe('pressure');
  });

  it('are right when all of them collide', () => {
    const names = Array.from({ length: 50 }, (_, i) => Buffer.from(`collision${i}`));
    for (let round = 0; round < 2; round += 1) {
      for (const name of names) expect(internKey(name, 0, name.length, hashStart)!.text).toBe(name.toString());
    }
  });

  it('are right when there are more than are remembered', () => {
    for (let i = 0; i < 2 * limits.keyCacheMax; i += 1)
      if (keyOf(`key${i}`)?.text !== `key${i}`) expect.fail(`key${i}`);
  });

  it('are not remembered when very long', () => {
    const long = 'x'.repeat(200);
    expect(keyOf(long)?.text).toBe(long);
    expect(keyOf(long)).not.toBe(keyOf(long));
    expect(keyOf(long)?.place).toBe(-1);
  });

  it('are refused when blank, over-long or no text', () => {
    for (const text of ['', ' ', '\t\n', '\u00a0', 'x'.repeat(256), 'é'.repeat(256), 'x'.repeat(100_000)]) {
      expect(keyOf(text)).toBeUndefined();
      expect(keyFault(text)?.message).toMatch(/^The key "/);
    }
    expect(internKey(Buffer.from([0xff]), 0, 1, hashStart)).toBeUndefined();
  });
});
