/**
 * The library for programs that read the streams beside Millrace (docs/stream.md): frames as bytes become points.
 * `package.json` exports this file as `millrace/stream-points`. Its names and their meaning stay.
 */
import { frameHeaderBytes } from '../journal/segment.ts';
import { type BlockRow, readBlock } from '../telemetry/read-block.ts';
import { strictForm } from '../value/typed.ts';
import { decodeStreamFrame, streamFrameLength } from './stream-frame.ts';

export interface StreamPoint {
  /** The number of the device, which is unique in an installation. */
  device: number;
  key: string;
  /** Milliseconds since 1970. */
  ts: number;
  /** The value as JSON. Longs have all digits of their 64 bits, which a number of JavaScript may not hold. */
  json: string;
  /** 0: the message named its `ts`. Else the points of one device, key and `ts` differ in it. */
  seq: number;
  /** Of two points with the same device, key, `ts` and `seq`, the one with the larger order replaces the other. */
  order: bigint;
  /** When the frame was written; milliseconds since 1970. */
  arrivedMs: number;
}

/** Returns the points of one frame, in the order of sending; undefined when the bytes are no intact frame. */
export function pointsOf(bytes: Uint8Array): StreamPoint[] | undefined {
  const frame = decodeStreamFrame(Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength));
  const rows = frame && rowsOf(frame.payload);
  if (!rows) return undefined;
  const arrivedMs = frame.head.writtenMs;
  return rows.map(({ device, key, ts, kind, num, int, text, seq, order }) => {
    const json = strictForm({ kind, num, int: int.toString(), text });
    return { device, key, ts, json, seq, order, arrivedMs };
  });
}

/** Another program may have written a frame with right checksums around bytes that are no block. */
function rowsOf(payload: Buffer): BlockRow[] | undefined {
  try {
    return readBlock(payload);
  } catch {
    return undefined;
  }
}

/** A stretch of a file that holds no frame. */
interface NoFrame {
  from: number;
  bytes: number;
}

/**
 * Yields the frames of a file in which they follow each other, as `nats consumer next --raw` writes them: line ends
 * between them are passed over. Holds one frame in memory. After damage, reading continues at the next intact head.
 */
export async function* framesIn(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array | NoFrame> {
  let held = Buffer.alloc(0);
  /** The place of `held` in the file, and of the damage before it. */
  let heldAt = 0;
  let damagedAt: number | undefined;
  const drop = (bytes: number) => {
    held = held.subarray(bytes);
    heldAt += bytes;
  };
  const damage = function* (): Generator<NoFrame> {
    if (damagedAt !== undefined) yield { from: damagedAt, bytes: heldAt - damagedAt };
    damagedAt = undefined;
  };
  for await (const chunk of chunks) {
    held = held.length === 0 ? Buffer.from(chunk) : Buffer.concat([held, chunk]);
    while (held.length >= frameHeaderBytes) {
      const length = streamFrameLength(held);
      if (length !== undefined && length > held.length) break;
      if (length === undefined) {
        if (damagedAt !== undefined || !isLineEnd(held[0]!)) damagedAt ??= heldAt;
        drop(1);
        continue;
      }
      yield* damage();
      yield held.subarray(0, length);
      drop(length);
    }
  }
  if (!held.every(isLineEnd)) damagedAt ??= heldAt;
  drop(held.length);
  yield* damage();
}

function isLineEnd(byte: number): boolean {
  return byte === 0x0a || byte === 0x0d;
}
