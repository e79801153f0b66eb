/** The settings of decoding, and the distances of times that follow from them. */
import { dayMs } from '../base/durations.ts';
import { type Fault, tooLarge } from '../base/errors.ts';
import type { Config } from '../base/settings/config.ts';
import { tsDistanceMsMax } from './block.ts';

export interface DecodeOptions {
  castNumericStrings: boolean;
  /** True: a message that is malformed is read again as lenient JSON. */
  lenientJson: boolean;
  pointsPerMessageMax: number;
  /** Accepted distance of a `ts` from now. */
  pastMsMax: number;
  futureMsMax: number;
  /** True: a `ts` that is obviously in another unit is converted. */
  convertsUnits: boolean;
  /** Accepted distance into the past of the fast reader; the exact reader reads older times. */
  fastPastMsMax: number;
  /** Bytes of a chunk of a large message; absent: rows alone limit it. */
  chunkBytesMax?: number;
}

/** Fits a message of the stream: its servers take at least 1 MiB. */
export const chunkBytesOfStream = 900_000;

/** With conversion of seconds: the fast reader passes on unchanged the times within this distance. */
const unconvertedPastMsMax = 20 * 365 * dayMs;

export function decodeOptions({ ingest, telemetry, values }: Config): DecodeOptions {
  const { pastDaysMax, futureDaysMax, pointsPerMessageMax, tsUnit } = telemetry;
  const convertsUnits = tsUnit === 'auto';
  const pastMsMax = distance(pastDaysMax);
  return {
    castNumericStrings: values.castNumericStrings,
    lenientJson: values.lenientJson,
    pointsPerMessageMax,
    pastMsMax,
    futureMsMax: distance(futureDaysMax),
    convertsUnits,
    fastPastMsMax: convertsUnits ? Math.min(pastMsMax, unconvertedPastMsMax) : pastMsMax,
    ...(ingest.ack === 'stream' && { chunkBytesMax: chunkBytesOfStream }),
  };
}

export function tooManyPoints({ pointsPerMessageMax }: DecodeOptions): Fault {
  return tooLarge('too_many_points', `The message holds more than ${pointsPerMessageMax} data points.`);
}

/** `days`: 0 = any distance that a block can have. */
function distance(days: number): number {
  return days === 0 ? tsDistanceMsMax : Math.min(days * dayMs, tsDistanceMsMax);
}
