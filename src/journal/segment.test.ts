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

test('a segment name says epoch and sequence', () => {
  expect(parseSegmentName(segmentName(12, 3))).toEqual({ epoch: 12, seq: 3 });
  for (const name of ['spare-1', '1-2.seg.tmp', 'a-2.seg', '1-2', '-1-2.seg']) {
    expect(parseSegmentName(name)).toBeUndefined();
  }
});

test('a file header comes back, from either copy', () => {
  const header = { epoch: 4, seq: 2, salt, createdMs: 1_700_000_000_000, name: '/data/journal/worker-0' };
  const bytes = encodeSegmentHeader(header);
  expect(bytes.length).toBe(segmentHeaderBytes);
  expect(decodeSegmentHeader(bytes)).toEqual(header);
  for (let at = 0; at < segmentHeaderBytes; at += 97) {
    const spoiled = Buffer.from(bytes);
    spoiled[at]! ^= 16;
    expect(decodeSegmentHeader(spoiled)).toEqual(header);
  }
  expect(decodeSegmentHeader(Buffer.alloc(segmentHeaderBytes))).toBeUndefined();
  expect(decodeSegmentHeader(bytes.subarray(0, 100))).toBeUndefined();
});

test('a name too long for the header is cut', () => {
  const name = 'd'.repeat(3000);
  expect(decodeSegmentHeader(encodeSegmentHeader({ epoch: 1, seq: 1, salt, createdMs: 0, name }))?.name.length).toBe(
    512,
  );
});

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
