/** The load of COPYs on PostgreSQL: one order for each generator process, and the sum of their results. */
import { fileURLToPath } from 'node:url';
import { type LoadResult, runProcesses } from '../processes.ts';
import type { CopyOrder } from './copy-process.ts';

interface CopyLoad extends Omit<CopyOrder, 'rampMs' | 'warmupMs' | 'durationMs'> {
  warmupSeconds: number;
  seconds: number;
}

const entry = fileURLToPath(new URL('./copy-process.js', import.meta.url));

/** `rate`: COPYs/s; 0 = closed loop. */
export async function runCopyLoad({ warmupSeconds, seconds, ...load }: CopyLoad): Promise<LoadResult> {
  const order: CopyOrder = { ...load, rampMs: 0, warmupMs: warmupSeconds * 1000, durationMs: seconds * 1000 };
  return (await runProcesses(entry, [order], { rate: load.rate, leadSeconds: warmupSeconds, seconds })).load;
}
