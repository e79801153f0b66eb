/** A package in chunks, for as many devices as ask at once after an update. */
import { testChunks } from '../harness/ota-chunks.ts';

testChunks({ fileMegabytes: 16, devices: 200, step: 64, megabytesMax: 64 });
