/** Options of decoding for tests and benchmarks of decoders: every time that a block can have is accepted. */
import { tsDistanceMsMax } from '../../src/telemetry/block.ts';
import type { DecodeOptions } from '../../src/telemetry/decode-options.ts';

export const anyTime: DecodeOptions = {
  castNumericStrings: true,
  lenientJson: false,
  pointsPerMessageMax: 1000,
  pastMsMax: tsDistanceMsMax,
  fastPastMsMax: tsDistanceMsMax,
  convertsUnits: false,
  futureMsMax: tsDistanceMsMax,
};
