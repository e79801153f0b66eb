/**
 * A package taken by many devices in small chunks: memory of each worker, reads of the store, chunks a second. The heap
 * of a busy worker grows under any load. So the workers first serve the first piece of the file many times, before
 * memory is measured.
 */
import { availableParallelism } from 'node:os';
import { startWithFirmware } from '../firmware.ts';
import { refusedText } from '../load/counts.ts';
import { takeChunks, watchMemory } from '../load/http/chunks.ts';
import { say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
import { Targets } from '../targets.ts';

const mebibyte = 1024 * 1024;
const growthMiBMax = 64;
const pieceBytes = 32 * 1024;
const warmUpRounds = 100;

export async function runOta(settings: BenchSettings): Promise<boolean> {
  const { fileBytes, chunkBytes, devices, step } = settings.ota;
  const workers = availableParallelism();
  const { engine, paths, pieceLoads } = await startWithFirmware(workers, fileBytes, devices);
  try {
    const { host, port } = engine.api.address;
    const fresh = watchMemory(engine.workers());
    const firstPiece = { host, port, paths, fileBytes: pieceBytes, chunkBytes, step: 1 };
    for (let round = 0; round < warmUpRounds; round += 1) await takeChunks(firstPiece);
    const warmUp = await fresh.stop();
    const memory = watchMemory(engine.workers());
    const { requests, bytes, seconds, refused } = await takeChunks({ host, port, paths, fileBytes, chunkBytes, step });
    const used = await memory.stop();
    const loads = await pieceLoads();
    const growthMiB = used.map(({ before, peak }) => (peak - before) / mebibyte);
    const sinceStartMiB = used.map(({ peak }, n) => (peak - warmUp[n]!.before) / mebibyte);
    table(
      [
        `${devices} devices, ${chunkBytes} B chunks`,
        'chunks',
        'chunks/s',
        'MiB/s',
        'pieces read',
        'MiB more',
        'since the start',
      ],
      [
        [
          'whole file',
          requests,
          requests / seconds,
          bytes / mebibyte / seconds,
          loads,
          Math.max(...growthMiB),
          Math.max(...sinceStartMiB),
        ],
      ],
    );
    say(`target: at most ${growthMiBMax} MiB more in each worker, and each piece read once in each`);
    if (Object.keys(refused).length > 0) say(`refused with ${refusedText(refused)}`);
    const targets = new Targets();
    for (const [n, each] of growthMiB.entries()) targets.atMost(`worker ${n}:`, each, growthMiBMax, ' MiB more');
    targets.atMost('pieces read:', loads, workers * Math.ceil(fileBytes / pieceBytes), '');
    const holds = targets.tell();
    const { missed } = targets;
    writeResult('ota', settings, { requests, seconds, refused, loads, used, growthMiB, sinceStartMiB, missed });
    return holds;
  } finally {
    await engine.destroy();
  }
}
