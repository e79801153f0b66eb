import { expect, test } from 'vitest';
import { type ChecksumAlgorithm, checksumAlgorithms, newChecksum } from './checksums.ts';

function sum(algorithm: ChecksumAlgorithm, bytes: string | Buffer): string {
  const checksum = newChecksum(algorithm);
  checksum.update(Buffer.from(bytes as string));
  return checksum.hex();
}

const fox = 'The quick brown fox jumps over the lazy dog';

test.each([
  ['MD5', fox, '9e107d9d372bb6826bd81d3542a419d6'],
  ['SHA256', Buffer.from([1]), '4bf5122f344554c53bde2ebb8cd2b7e3d1600ad631c385a5d7cce23c7785459a'],
  ['CRC32', '123456789', '2639f4cb'],
  ['CRC32', fox, '39a34f41'],
  ['CRC32', '', '00000000'],
  ['MURMUR3_32', '', '00000000'],
  ['MURMUR3_32', fox, '23f74f2e'],
  ['MURMUR3_32', `${fox}.`, 'fc8bc4d5'],
  ['MURMUR3_128', '', '00000000000000000000000000000000'],
  ['MURMUR3_128', fox, '6c1b07bc7bbc4be347939ac4a93c437a'],
  ['MURMUR3_128', `${fox}.`, 'c902e99e1f4899cde7b68789a3a15d69'],
] as const)('%s of %s', (algorithm, bytes, hex) => {
  expect(sum(algorithm, bytes as string)).toBe(hex);
});

test('SHA384 and SHA512 have their lengths', () => {
  expect(sum('SHA384', fox)).toMatch(/^ca737f1014a48f4c0b6dd43cb177b0af/);
  expect(sum('SHA512', fox)).toMatch(/^07e547d9586f6a73f73fbac0435ed769/);
});

test('MURMUR3_128 agrees with the arithmetic of whole 64-bit numbers', () => {
  for (const length of [1, 7, 8, 9, 15, 16, 17, 31, 32, 100, 1000]) {
    const bytes = Buffer.from(Array.from({ length }, (_, i) => (i * 167 + length * 31) & 0xff));
    expect(sum('MURMUR3_128', bytes)).toBe(murmurByBigInt(bytes));
  }
});

test('the cut into pieces does not matter', () => {
  const bytes = Buffer.from(Array.from({ length: 777 }, (_, i) => (i * 31) & 0xff));
  for (const algorithm of checksumAlgorithms) {
    for (const size of [1, 3, 5, 13, 16, 100]) {
      const checksum = newChecksum(algorithm);
      for (let at = 0; at < bytes.length; at += size) checksum.update(bytes.subarray(at, at + size));
      expect(checksum.hex()).toBe(sum(algorithm, bytes));
    }
  }
});

function murmurByBigInt(bytes: Buffer): string {
  const wrap = (n: bigint) => BigInt.asUintN(64, n);
  const rotate = (n: bigint, bits: bigint) => wrap((n << bits) | (n >> (64n - bits)));
  const [c1, c2] = [0x87c37b91114253d5n, 0x4cf5ad432745937fn];
  const mix1 = (k: bigint) => wrap(rotate(wrap(k * c1), 31n) * c2);
  const mix2 = (k: bigint) => wrap(rotate(wrap(k * c2), 33n) * c1);
  const finish = (n: bigint) => {
    let k = wrap((n ^ (n >> 33n)) * 0xff51afd7ed558ccdn);
    k = wrap((k ^ (k >> 33n)) * 0xc4ceb9fe1a85ec53n);
    return k ^ (k >> 33n);
  };
  let [h1, h2] = [0n, 0n];
  const padded = Buffer.concat([bytes, Buffer.alloc(16)]);
  let at = 0;
  for (; at + 16 <= bytes.length; at += 16) {
    h1 ^= mix1(padded.readBigUInt64LE(at));
    h1 = wrap(wrap(rotate(h1, 27n) + h2) * 5n + 0x52dce729n);
    h2 ^= mix2(padded.readBigUInt64LE(at + 8));
    h2 = wrap(wrap(rotate(h2, 31n) + h1) * 5n + 0x38495ab5n);
  }
  h1 ^= mix1(padded.readBigUInt64LE(at)) ^ BigInt(bytes.length);
  h2 ^= mix2(padded.readBigUInt64LE(at + 8)) ^ BigInt(bytes.length);
  h1 = wrap(h1 + h2);
  h2 = wrap(h2 + h1);
  [h1, h2] = [finish(h1), finish(h2)];
  h1 = wrap(h1 + h2);
  h2 = wrap(h2 + h1);
  const out = Buffer.alloc(16);
  out.writeBigUInt64LE(h1, 0);
  out.writeBigUInt64LE(h2, 8);
  return out.toString('hex');
}
