/** The loads inside a result of any scenario, each with its path in it: what the page draws and `compare` compares. */
import type { LoadResult } from '../load/processes.ts';

export interface FoundLoad {
  /** For instance `many.peak`; the same load has the same path in each result of its scenario. */
  path: string;
  load: LoadResult & { storedRequestsPerSecond?: number; cpuMicrosecondsPerRequest?: Record<string, number> };
}

export function loadsOf(result: unknown, path = ''): FoundLoad[] {
  if (typeof result !== 'object' || result === null) return [];
  if (isLoad(result)) return [{ path, load: result }];
  return Object.entries(result).flatMap(([name, value]) => loadsOf(value, path === '' ? name : `${path}.${name}`));
}

function isLoad(value: object): value is LoadResult {
  return 'requestsPerSecond' in value && 'latency' in value && 'seconds' in value && Array.isArray(value.seconds);
}
