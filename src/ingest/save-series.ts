/**
 * Accepts telemetry that a user writes for a device over the REST API, through the same decoder and the same journal as
 * telemetry of devices.
 */
import type { Clock } from '../base/clock.ts';
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { CachedDevice, DeviceRow } from '../device/cached-device.ts';
import type { LocalDevices } from '../device/local-devices.ts';
import type { DecodeThread } from '../telemetry/decode-thread.ts';
import type { Decode, Ingest } from './accept.ts';

export interface SeriesWriterDeps {
  devices: LocalDevices;
  ingest: Pick<Ingest, 'accept' | 'acceptDecoded'>;
  thread: DecodeThread;
  decode: Decode<CachedDevice>;
  clock: Clock;
}

export type SaveSeries = (device: DeviceRow, body: Buffer) => Promise<void>;

/** Resolves when the points are durable. Throws the fault of the decoder or of `Ingest`. */
export function seriesWriter({ devices, ingest, thread, decode, clock }: SeriesWriterDeps): SaveSeries {
  const decodeSome: Decode<CachedDevice> = (body, source, now, rows) => {
    const points = decode(body, source, now, rows);
    if (points === 0) throw nothing();
    return points;
  };
  return async (row, body) => {
    const device = devices.adopt(row);
    try {
      if (body.length <= limits.decodeInLoopBytesMax) {
        await new Promise<void>((resolve, reject) => {
          ingest.accept(decodeSome, body, device, { acknowledge: resolve, refuse: reject }, undefined, device);
        });
        return;
      }
      const chunks = await thread.decode(body, device, clock.now());
      if (chunks.every(({ count }) => count === 0)) throw nothing();
      await new Promise<void>((resolve, reject) => {
        ingest.acceptDecoded(chunks, { acknowledge: resolve, refuse: reject }, device);
      });
    } finally {
      devices.release(device);
    }
  };
}

function nothing() {
  return badRequest('no_points', 'No time series data found in request body!');
}
