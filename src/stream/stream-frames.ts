/**
 * Cuts the rows that were gathered for a commit into frames of the stream: one for each lane and subject, and more when
 * the servers would not take so large a message.
 */
import type { FramesOf } from '../ingest/commit.ts';
import type { JournalFrame } from '../journal/journal.ts';
import { cutRows } from '../telemetry/cut-rows.ts';
import { chunkBytesOfStream } from '../telemetry/decode-options.ts';
import { Chunk, chunksOf } from '../telemetry/decoded-chunk.ts';
import type { Rows } from '../telemetry/rows.ts';

/** The bucket of a device. The sender of a large message decides for all of its rows. */
export function bucketOf(device: number, buckets: number): number {
  return device % buckets;
}

export function framesOfStream(buckets: number): FramesOf {
  const ofDevice = (device: number) => bucketOf(device, buckets);
  return (rows, lane, stamp) => {
    if (rows.count === 0) return [];
    const isOne = buckets === 1 || isOneBucket(rows, ofDevice);
    if (isOne && rows.bytes <= chunkBytesOfStream) {
      const { order, ...rest } = stamp(0);
      return [
        { lane, order, rows: rows.count, parts: rows.encode({ order, ...rest }), device: rows.spans().device[0]! },
      ];
    }
    let firstPlace = 0;
    // Rows of one subject keep their order, so whole ranges of the columns are copied, not row by row.
    const chunks = isOne
      ? chunksOf(rows, chunkBytesOfStream).map((chunk) => new Chunk(chunk))
      : cutRows(rows, ofDevice, chunkBytesOfStream);
    return chunks.map((chunk): JournalFrame => {
      const frameStamp = stamp(firstPlace);
      firstPlace += chunk.records;
      const device = chunk.spans().device[0]!;
      return { lane, order: frameStamp.order, rows: chunk.count, parts: chunk.encode(frameStamp), device };
    });
  };
}

function isOneBucket(rows: Rows, ofDevice: (device: number) => number): boolean {
  const { count, device } = rows.spans();
  const first = ofDevice(device[0]!);
  for (let i = 1; i < count; i += 1) if (device[i] !== device[i - 1] && ofDevice(device[i]!) !== first) return false;
  return true;
}
