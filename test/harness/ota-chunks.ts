/** Many devices take a large package in small chunks, as a test, short or long. */
import { expect, test } from 'vitest';
import { startWithFirmware } from '../../bench/firmware.ts';
import { takeChunks, watchMemory } from '../../bench/load/http/chunks.ts';

const megabyte = 1024 * 1024;
const chunkBytes = 4096;
const pieceBytes = 32 * 1024;

interface ChunksTest {
  fileMegabytes: number;
  devices: number;
  /**
   * Each device begins at another chunk and takes one of every `step` chunks. `npm run bench -- ota` takes all of them.
   */
  step: number;
  /** The memory that each worker may need in addition. */
  megabytesMax: number;
}

export function testChunks({ fileMegabytes, devices, step, megabytesMax }: ChunksTest): void {
  const name = `${fileMegabytes} MB, ${devices} devices, chunks of 4 KB: at most ${megabytesMax} MB more, and each worker reads each piece once`;
  test(name, async () => {
    const fileBytes = fileMegabytes * megabyte;
    const { engine, paths, pieceLoads } = await startWithFirmware(2, fileBytes, devices);
    try {
      const memory = watchMemory(engine.workers());
      const { host, port } = engine.api.address;
      const load = { host, port, paths, fileBytes, chunkBytes, step };
      expect((await takeChunks(load)).requests).toBe((devices * fileBytes) / chunkBytes / step);
      for (const { before, peak } of await memory.stop()) {
        expect(peak - before).toBeLessThan(megabytesMax * megabyte);
      }
      expect(await pieceLoads()).toBeLessThanOrEqual((2 * fileBytes) / pieceBytes);
    } finally {
      await engine.destroy();
    }
  });
}
