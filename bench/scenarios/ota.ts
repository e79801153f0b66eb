/** A package taken by many devices in small chunks: memory of each worker, reads of the store, chunks a second. */
import { availableParallelism } from 'node:os';
import { startWithFirmware } from '../firmware.ts';
import { takeChunks, watchMemory } from '../load/chunks.ts';
import { say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';

const mebibyte = 1024 * 1024;
const growthMiBMax = 64;
const pieceBytes = 32 * 1024;

export async function runOta(settings: BenchSettings): Promise<boolean> {
  const { fileBytes, chunkBytes, devices, step } = settings.ota;
  const workers = availableParallelism();
  const { engine, paths, pieceLoads } = await startWithFirmware(workers, fileBytes, devices);
  try {
    const memory = watchMemory(engine.workers());
    const { host, port } = engine.api.address;
    const { requests, bytes, seconds } = await takeChunks({ host, port, paths, fileBytes, chunkBytes, step });
    const used = await memory.stop();
    const loads = await pieceLoads();
    const growthMiB = used.map(({ before, peak }) => (peak - before) / mebibyte);
    table(
      [`${devices} devices, ${chunkBytes} B chunks`, 'chunks', 'chunks/s', 'MiB/s', 'pieces read', 'MiB more at most'],
      [
        [
          'whole file',
          requests,
          requests / seconds,
          bytes / mebibyte / seconds,
          loads,
          growthMiB.reduce((most, each) => Math.max(most, each)),
        ],
      ],
    );
    say(`target: at most ${growthMiBMax} MiB more in each worker, and each piece read once in each`);
    writeResult('ota', settings.ota, { requests, seconds, loads, used, growthMiB });
    return growthMiB.every((each) => each <= growthMiBMax) && loads <= workers * Math.ceil(fileBytes / pieceBytes);
  } finally {
    await engine.destroy();
  }
}
