/**
 * Accepts telemetry that a user writes for a device over the REST API, through the same decoder and the same journal as
 * telemetry of devices. Points with a time to live are a frame of their own, because their block has a column more.
 */
import type { Clock } from '../base/clock.ts';
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { LocalDevices } from '../device/local-devices.ts';
import type { CachedDevice, DeviceRow } from '../device/model/cached-device.ts';
import { chunkBytesOfStream } from '../telemetry/decode-options.ts';
import type { DecodeThread } from '../telemetry/decode-thread.ts';
import { Chunk, chunksOf } from '../telemetry/decoded-chunk.ts';
import { Rows } from '../telemetry/rows.ts';
import type { Decode, Ingest } from './accept.ts';

interface SeriesWriterDeps {
  devices: LocalDevices;
  ingest: Pick<Ingest, 'accept' | 'acceptDecoded'>;
  thread: DecodeThread;
  decode: Decode<CachedDevice>;
  clock: Clock;
}

/** `ttlSeconds`: time to live of the points; 0 = without end. */
export type SaveSeries = (device: DeviceRow, body: Buffer, ttlSeconds?: number) => Promise<void>;

/** The last second that the column of 32 bits holds, in 2106. A later end counts as no end. */
const expiresMax = 2 ** 32 - 1;

/** Resolves when the points are durable. Throws the fault of the decoder or of `Ingest`. */
export function seriesWriter({ devices, ingest, thread, decode, clock }: SeriesWriterDeps): SaveSeries {
  const decodeSome: Decode<CachedDevice> = (body, source, now, rows) => {
    const points = decode(body, source, now, rows);
    if (points === 0) throw nothing();
    return points;
  };
  async function chunksOfBody(body: Buffer, device: CachedDevice): Promise<Chunk[]> {
    if (body.length > limits.decodeInLoopBytesMax) return await thread.decode(body, device, clock.now());
    const rows = new Rows();
    decode(body, device, clock.now(), rows);
    return chunksOf(rows, chunkBytesOfStream).map((chunk) => new Chunk(chunk));
  }
  return async (row, body, ttlSeconds = 0) => {
    const device = devices.adopt(row);
    const expires = ttlSeconds === 0 ? 0 : Math.ceil(clock.now() / 1000) + ttlSeconds;
    const isExpiring = expires > 0 && expires <= expiresMax;
    try {
      if (body.length <= limits.decodeInLoopBytesMax && !isExpiring) {
        await new Promise<void>((resolve, reject) => {
          ingest.accept(decodeSome, body, device, { acknowledge: resolve, refuse: reject }, undefined, device);
        });
        return;
      }
      const chunks = await chunksOfBody(body, device);
      if (chunks.every(({ count }) => count === 0)) throw nothing();
      if (isExpiring) for (const chunk of chunks) chunk.expireAt(expires);
      await new Promise<void>((resolve, reject) => {
        void ingest.acceptDecoded(chunks, { acknowledge: resolve, refuse: reject }, device);
      });
    } finally {
      devices.release(device);
    }
  };
}

function nothing() {
  return badRequest('no_points', 'No time series data found in request body!');
}
