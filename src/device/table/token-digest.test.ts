import { describe, expect, it } from 'vitest';
import { TokenDigest } from './token-digest.ts';

const key = Buffer.from(Array.from({ length: 16 }, (_, i) => i));

function hex(token: string, digest = new TokenDigest(255, key)): string {
  expect(digest.of(token)).toBe(true);
  const bytes = Buffer.alloc(16);
  for (const [i, word] of [digest.d0, digest.d1, digest.d2, digest.d3].entries()) bytes.writeUInt32LE(word, i * 4);
  return bytes.toString('hex');
}

describe('TokenDigest', () => {
  it('is SipHash-2-4 of 128 bits, as OpenSSL computes it', () => {
    expect(hex('a')).toBe('0ea4f2fb02ad21d92d5fc91684f26426');
    expect(hex('abcdefg')).toBe('5594f7eaed3f0d1da681551476ccbede');
    expect(hex('abcdefgh')).toBe('8c93e201ac8e8396897e3133e447eda3');
    expect(hex('hTWuqLECFWOMTFiWuBCY')).toBe('43d76a4c2ee07ff7a8c67819cfb17dd6');
    expect(hex('x'.repeat(255))).toBe('652f14e415af5b941d3a0986432a2481');
  });

  it('depends on nothing but the token and the key', () => {
    const digest = new TokenDigest(255, key);
    const alone = hex('ab');
    hex('x'.repeat(255), digest);
    expect(hex('ab', digest)).toBe(alone);
    expect(hex('ab', new TokenDigest(255))).not.toBe(alone);
  });

  it('tells tokens apart whose characters have the same bytes', () => {
    const digests = ['ab', '扡', 'a\0b\0', 'ā', '\u0001\u0001', 'ā'.repeat(255)].map((token) => hex(token));
    expect(new Set(digests).size).toBe(digests.length);
  });

  it('is not computed for an empty or a long token', () => {
    const digest = new TokenDigest(20);
    expect([digest.of(''), digest.of('x'.repeat(20)), digest.of('x'.repeat(21))]).toEqual([false, true, false]);
  });
});
