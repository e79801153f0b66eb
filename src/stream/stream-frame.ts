/**
 * A frame as a message of the stream: the head of a frame in the journal's format (`journal/segment.ts`), with the seed
 * and the offset 0, and the payload after it, deflated when that makes it smaller. Every byte of a message is written
 * six times by three servers, and sent four times. A frame without rows is a probe of `stream-writer.ts`.
 */
import { promisify } from 'node:util';
import { deflateRaw, deflateRawSync, inflateRawSync } from 'node:zlib';
import type { JournalFrame } from '../journal/journal.ts';
import { crcOfParts, decodeFrameHead, encodeFrameHead, type FrameHead, frameHeaderBytes } from '../journal/segment.ts';

/**
 * The version of this form; kept with the stream, so that an older version refuses what it cannot read. A stream of
 * form 1 gets no deflated payloads, because hosts of the older version may read it.
 */
export const streamFormat = 2;
const deflatedFrom = 2;

/** A flag of the head, apart from those of the journal (`frameFlags`). */
const deflatedFlag = 0x80;
/** A smaller payload is not deflated: a message costs more than its bytes. */
const deflatedBytesMin = 1024;
/** A payload from this size on is deflated in a thread; a smaller one takes less time than the way there. */
const threadBytesMin = 64 * 1024;
/** The most that servers take in one message. */
const inflatedBytesMax = 64 * 1024 * 1024;
const deflate = promisify(deflateRaw);

interface StreamFrame {
  head: FrameHead;
  payload: Buffer;
}

export function payloadBytesOf({ parts }: JournalFrame): number {
  return parts.reduce((sum, part) => sum + part.length, 0);
}

/** The parts of the frame may change afterwards. */
export async function encodeStreamFrame(frame: JournalFrame, writtenMs: number, format: number): Promise<Buffer> {
  const length = payloadBytesOf(frame);
  if (format < deflatedFrom || length < deflatedBytesMin) return plainStreamFrame(frame, writtenMs);
  const plain = Buffer.concat(frame.parts, length);
  // With `memLevel` 9 a commit of gateways costs four fifths of the time, and becomes 8 % larger.
  const options = { level: 1, memLevel: 9, chunkSize: Math.ceil(length / 4) };
  const payload = length < threadBytesMin ? deflateRawSync(plain, options) : await deflate(plain, options);
  if (payload.length >= length) return plainStreamFrame(frame, writtenMs);
  return messageOf(frame, [payload], payload.length, writtenMs, deflatedFlag);
}

export function plainStreamFrame(frame: JournalFrame, writtenMs: number): Buffer {
  return messageOf(frame, frame.parts, payloadBytesOf(frame), writtenMs, 0);
}

function messageOf(
  { lane, order, rows }: JournalFrame,
  parts: readonly Uint8Array[],
  length: number,
  writtenMs: number,
  flags: number,
): Buffer {
  const bytes = Buffer.allocUnsafe(frameHeaderBytes + length);
  const head = { length, payloadCrc: crcOfParts(parts), order, writtenMs, rows, commit: 0, lane, flags };
  encodeFrameHead(bytes, 0, head, 0, 0);
  let at = frameHeaderBytes;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

/** Returns undefined for bytes that are no intact frame. The payload is as it was given to `encodeStreamFrame`. */
export function decodeStreamFrame(bytes: Buffer): StreamFrame | undefined {
  if (bytes.length < frameHeaderBytes) return undefined;
  const head = decodeFrameHead(bytes, 0, 0, 0);
  if (!head || head.length !== bytes.length - frameHeaderBytes) return undefined;
  const payload = bytes.subarray(frameHeaderBytes);
  if (crcOfParts([payload]) !== head.payloadCrc) return undefined;
  if ((head.flags & deflatedFlag) === 0) return { head, payload };
  const inflated = inflate(payload);
  return inflated && { head, payload: inflated };
}

function inflate(payload: Buffer): Buffer | undefined {
  // Most payloads become about ten times as large: few pieces need not be joined then.
  const chunkSize = Math.min(1024 * 1024, Math.max(4096, 16 * payload.length));
  try {
    return inflateRawSync(payload, { maxOutputLength: inflatedBytesMax, chunkSize });
  } catch {
    return undefined;
  }
}

/** Returns the length of the frame whose head is at the begin of the bytes; undefined when no head is there. */
export function streamFrameLength(bytes: Buffer): number | undefined {
  const head = decodeFrameHead(bytes, 0, 0, 0);
  return head && frameHeaderBytes + head.length;
}
