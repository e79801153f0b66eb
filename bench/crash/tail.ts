/**
 * Damages the tail of a journal as a power cut can, while no process runs: only after the last whole frame of the
 * newest segment, because every earlier byte may have been acknowledged.
 */
import { closeSync, fstatSync, ftruncateSync, openSync, readdirSync, readFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { crc32 } from 'node:zlib';
import {
  decodeFrameHead,
  decodeSegmentHeader,
  encodeFrameHead,
  type FrameHead,
  frameHeaderBytes,
  paddedBytes,
  parseSegmentName,
  saltSeed,
} from '../../src/journal/segment.ts';
import type { Random } from '../../test/harness/random.ts';

const damages = ['cut', 'garbage', 'torn frame', 'stale frame'] as const;

/** Returns a description for the log; undefined when there is no segment to damage. */
export function damageTail(journalDir: string, random: Random): string | undefined {
  const path = newestSegment(journalDir);
  if (!path) return undefined;
  const tail = tailOf(path);
  if (!tail) return undefined;
  const damage = random.pick(damages);
  const file = openSync(path, 'r+');
  try {
    switch (damage) {
      case 'cut':
        ftruncateSync(file, Math.min(fstatSync(file).size, tail.end + random.below(64)));
        break;
      case 'garbage':
        writeSync(file, randomBytes(random, 1 + random.below(8192)), 0, undefined, tail.end);
        break;
      case 'torn frame':
        writeSync(file, tornFrame(tail, random), 0, undefined, tail.end);
        break;
      case 'stale frame':
        // Bytes of a valid frame in the wrong place, as in a recycled file.
        if (tail.lastFrame) writeSync(file, tail.lastFrame, 0, undefined, tail.end);
        break;
    }
  } finally {
    closeSync(file);
  }
  return `${damage} at ${tail.end} of ${path}`;
}

function newestSegment(directory: string): string | undefined {
  const segments = readdirSync(directory)
    .map((name) => ({ name, id: parseSegmentName(name) }))
    .filter((segment) => segment.id !== undefined)
    .sort((a, b) => b.id!.epoch - a.id!.epoch || b.id!.seq - a.id!.seq);
  return segments[0] && join(directory, segments[0].name);
}

interface Tail {
  /** The offset of the next frame. */
  end: number;
  seed: number;
  last: FrameHead | undefined;
  lastFrame: Buffer | undefined;
}

function tailOf(path: string): Tail | undefined {
  const bytes = readFileSync(path);
  const header = decodeSegmentHeader(bytes);
  const id = parseSegmentName(path.slice(path.lastIndexOf('/') + 1))!;
  if (
    !header ||
    header === 'newer' ||
    header.packedEnd !== undefined ||
    header.epoch !== id.epoch ||
    header.seq !== id.seq
  )
    return undefined;
  const tail: Tail = { end: header.start, seed: saltSeed(header.salt), last: undefined, lastFrame: undefined };
  while (tail.end + frameHeaderBytes <= bytes.length) {
    const head = decodeFrameHead(bytes, tail.end, tail.seed, tail.end);
    if (!head) break;
    const payload = bytes.subarray(tail.end + frameHeaderBytes, tail.end + frameHeaderBytes + head.length);
    if (payload.length < head.length || crc32(payload) !== head.payloadCrc) break;
    const next = tail.end + paddedBytes(head.length);
    tail.last = head;
    tail.lastFrame = bytes.subarray(tail.end, next);
    tail.end = next;
  }
  return tail;
}

/** Returns a valid head whose payload did not reach the disk as a whole. */
function tornFrame({ seed, end, last }: Tail, random: Random): Buffer {
  const length = 64 + random.below(4096);
  const payload = randomBytes(random, length);
  const bytes = Buffer.alloc(frameHeaderBytes + length);
  const head: FrameHead = {
    length,
    payloadCrc: crc32(payload),
    order: (last?.order ?? 0n) + 1n,
    writtenMs: Date.now(),
    rows: 1,
    commit: (last?.commit ?? 0) + 1,
    lane: 0,
    flags: 1,
  };
  encodeFrameHead(bytes, 0, head, seed, end);
  payload.copy(bytes, frameHeaderBytes, 0, random.below(length));
  return bytes;
}

function randomBytes(random: Random, count: number): Buffer {
  return Buffer.from(Array.from({ length: count }, () => random.below(256)));
}
