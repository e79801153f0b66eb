import { describe, expect, it } from 'vitest';
import { limits } from '../base/limits.ts';
import { hashStart, internKey, keyFault, keyOf } from './keys.ts';

describe('keys', () => {
  it('are one object for the same bytes', () => {
    expect(keyOf('temperature')).toBe(keyOf('temperature'));
    expect(keyOf('temperature')).not.toBe(keyOf('temperatures'));
    expect(keyOf('é')?.text).toBe('é');
    expect(keyOf('values')?.reserved).toBe(true);
    expect(keyOf('value')?.reserved).toBe(false);
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
    for (let i = 0; i < 3 * limits.keyCacheMax; i += 1)
      if (keyOf(`key${i}`)?.text !== `key${i}`) expect.fail(`key${i}`);
  });

  it('are refused when blank, over-long or no text', () => {
    for (const text of ['', ' ', '\t\n', '\u00a0', 'x'.repeat(256), 'é'.repeat(256), 'x'.repeat(100_000)]) {
      expect(keyOf(text)).toBeUndefined();
      expect(keyFault(text)).toMatch(/^The key "/);
    }
    expect(internKey(Buffer.from([0xff]), 0, 1, hashStart)).toBeUndefined();
  });
});
