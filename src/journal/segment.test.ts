import { crc32 } from 'node:zlib';
import { expect, test } from 'vitest';
import {
  decodeFrameHead,
  decodeLink,
  decodeSegmentHeader,
  encodeFrameHead,
  encodeLink,
  encodeSegmentHeader,
  type FrameHead,
  frameHeaderBytes,
  paddedBytes,
  parseSegmentName,
  saltSeed,
  segmentHeaderBytes,
  segmentName,
} from './segment.ts';

const salt = Buffer.from('0123456789abcdef');
const seed = saltSeed(salt);
const head: FrameHead = {
  length: 1000,
  payloadCrc: 0xdeadbeef,
  order: 2n ** 62n + 5n,
  writtenMs: 1_700_000_000_123,
  rows: 77,
  commit: 9,
  lane: 1,
  flags: 1,
};

test('a segment name contains epoch and sequence', () => {
  expect(parseSegmentName(segmentName(12, 3))).toEqual({ epoch: 12, seq: 3 });
  for (const name of ['spare-1', '1-2.seg.tmp', 'a-2.seg', '1-2', '-1-2.seg']) {
    expect(parseSegmentName(name)).toBeUndefined();
  }
});

const header = { epoch: 4, seq: 2, salt, createdMs: 1_700_000_000_000, name: '/data/journal/worker-0' };
const found = { ...header, start: segmentHeaderBytes };

test('a file header comes back when any one block of 4 096 bytes is lost', () => {
  const bytes = encodeSegmentHeader(header);
  expect(bytes.length).toBe(segmentHeaderBytes);
  expect(decodeSegmentHeader(bytes)).toEqual(found);
  for (let block = 0; block < segmentHeaderBytes; block += 4096) {
    const spoiled = Buffer.from(bytes).fill(0, block, block + 4096);
    expect(decodeSegmentHeader(spoiled)).toEqual(found);
  }
  for (let at = 0; at < segmentHeaderBytes; at += 97) {
    const spoiled = Buffer.from(bytes);
    spoiled[at]! ^= 16;
    expect(decodeSegmentHeader(spoiled)).toEqual(found);
  }
  expect(decodeSegmentHeader(Buffer.alloc(segmentHeaderBytes))).toBeUndefined();
  expect(decodeSegmentHeader(bytes.subarray(0, 100))).toBeUndefined();
});

test('a packed segment has the original end', () => {
  const packed = { ...header, packedEnd: 67_000_000 };
  expect(decodeSegmentHeader(encodeSegmentHeader(packed))).toEqual({ ...packed, start: segmentHeaderBytes });
});

test('a header of version 1 is read, and one of a later version is not taken for damage', () => {
  expect(decodeSegmentHeader(headerOfVersion(1))).toEqual({ ...header, start: 4096 });
  expect(decodeSegmentHeader(headerOfVersion(3))).toBe('newer');
  expect(decodeSegmentHeader(headerOfVersion(3).fill(0, 0, 4096))).toBe('newer');
  const magicOfLater = encodeSegmentHeader(header);
  for (const at of [0, 4096]) magicOfLater.write('MILLJRN2', at, 'latin1');
  expect(decodeSegmentHeader(magicOfLater)).toBe('newer');
});

test('a name too long for the header is cut', () => {
  const name = 'd'.repeat(3000);
  expect(decodeSegmentHeader(encodeSegmentHeader({ ...header, name }))).toMatchObject({ name: 'd'.repeat(512) });
});

/** Version 1 had its second copy at 2 048, and nothing that this version has beside it. */
function headerOfVersion(version: number): Buffer {
  const copy = encodeSegmentHeader(header).subarray(0, 2048);
  copy.writeUInt32LE(version, 8);
  copy.writeUInt32LE(crc32(copy.subarray(0, 2044)), 2044);
  const bytes = Buffer.alloc(segmentHeaderBytes);
  for (const at of version === 1 ? [0, 2048] : [0, 4096]) copy.copy(bytes, at);
  return bytes;
}

test('a frame head comes back only unspoiled, in its own file and at its own place', () => {
  const bytes = Buffer.alloc(64);
  encodeFrameHead(bytes, 8, head, seed, 8192);
  expect(decodeFrameHead(bytes, 8, seed, 8192)).toEqual(head);
  expect(decodeFrameHead(bytes, 8, seed, 8200)).toBeUndefined();
  expect(decodeFrameHead(bytes, 8, saltSeed(Buffer.alloc(16)), 8192)).toBeUndefined();
  for (let bit = 0; bit < frameHeaderBytes * 8; bit += 1) {
    const spoiled = Buffer.from(bytes);
    spoiled[8 + (bit >> 3)]! ^= 1 << (bit & 7);
    expect(decodeFrameHead(spoiled, 8, seed, 8192)).toBeUndefined();
  }
});

test('zeros are no frame', () => {
  expect(decodeFrameHead(Buffer.alloc(64), 0, seed, 4096)).toBeUndefined();
});

test('frames take whole multiples of 8', () => {
  expect([0, 1, 7, 8, 9].map(paddedBytes)).toEqual([40, 48, 48, 48, 56]);
});

test('a link comes back', () => {
  const share = { frames: 3, rows: 2 ** 40, bytes: 5e9, orderMin: 7n, orderMax: 2n ** 62n, writtenMsMin: 1.7e12 };
  const link = { epoch: 3, seq: 8, end: 67_000_000, shares: [share, { ...share, frames: 0 }] as [never, never] };
  expect(decodeLink(encodeLink(link))).toEqual(link);
});
