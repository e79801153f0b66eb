/** A package in chunks: little memory, and no read of the whole file for a chunk. `test/long/ota-chunks.test.ts` has more. */
import { testChunks } from '../harness/ota-chunks.ts';

testChunks({ fileMegabytes: 16, devices: 40, step: 64, megabytesMax: 64 });
