/**
 * A frame as a message of the stream: the head of a frame in the journal's format (`journal/segment.ts`), with the seed
 * and the offset 0, and the payload after it. A frame without rows is a probe of `stream-writer.ts`.
 */
import type { JournalFrame } from '../journal/journal.ts';
import { crcOfParts, decodeFrameHead, encodeFrameHead, type FrameHead, frameHeaderBytes } from '../journal/segment.ts';

/** The version of this form; kept with the stream, so that an older version refuses what it cannot read. */
export const streamFormat = 1;

interface StreamFrame {
  head: FrameHead;
  payload: Buffer;
}

export function encodeStreamFrame({ lane, order, rows, parts }: JournalFrame, writtenMs: number): Buffer {
  const length = parts.reduce((sum, part) => sum + part.length, 0);
  const bytes = Buffer.allocUnsafe(frameHeaderBytes + length);
  const head = { length, payloadCrc: crcOfParts(parts), order, writtenMs, rows, commit: 0, lane, flags: 0 };
  encodeFrameHead(bytes, 0, head, 0, 0);
  let at = frameHeaderBytes;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

/** Returns undefined for bytes that are no intact frame. */
export function decodeStreamFrame(bytes: Buffer): StreamFrame | undefined {
  if (bytes.length < frameHeaderBytes) return undefined;
  const head = decodeFrameHead(bytes, 0, 0, 0);
  if (!head || head.length !== bytes.length - frameHeaderBytes) return undefined;
  const payload = bytes.subarray(frameHeaderBytes);
  return crcOfParts([payload]) === head.payloadCrc ? { head, payload } : undefined;
}

/** Returns the length of the frame whose head is at the begin of the bytes; undefined when no head is there. */
export function streamFrameLength(bytes: Buffer): number | undefined {
  const head = decodeFrameHead(bytes, 0, 0, 0);
  return head && frameHeaderBytes + head.length;
}
