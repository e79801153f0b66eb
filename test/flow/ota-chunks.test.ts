/** Many devices take a large package in small chunks: little memory, and no read of the whole file for a chunk. */
import { expect, test } from 'vitest';
import { startWithFirmware } from '../../bench/firmware.ts';
import { takeChunks, watchMemory } from '../../bench/load/http/chunks.ts';

test('16 MB, 200 devices, chunks of 4 KB: at most 64 MB more, and each worker reads each piece once', async () => {
  const fileBytes = 16 * 1024 * 1024;
  const { engine, paths, pieceLoads } = await startWithFirmware(2, fileBytes, 200);
  try {
    const memory = watchMemory(engine.workers());
    const { host, port } = engine.api.address;
    // Every 64th chunk, each device beginning elsewhere; `npm run bench -- ota` takes them all.
    const load = { host, port, paths, fileBytes, chunkBytes: 4096, step: 64 };
    expect((await takeChunks(load)).requests).toBe((200 * 4096) / 64);
    for (const { before, peak } of await memory.stop()) expect(peak - before).toBeLessThan(64 * 1024 * 1024);
    expect(await pieceLoads()).toBeLessThanOrEqual(2 * (fileBytes / (32 * 1024)));
  } finally {
    await engine.destroy();
  }
});
