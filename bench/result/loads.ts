/** The loads inside a result of any scenario, each with its path in it: what the page draws and `compare` compares. */
import type { LoadResult } from '../load/processes.ts';

export interface FoundLoad {
  /**
   * For instance `many, peak` or `Mosquitto, window 16, round 2`. The same load has the same path in each result of its
   * scenario, also when a server was left out of one of them.
   */
  path: string;
  load: LoadResult & { storedRequestsPerSecond?: number; cpuMicrosecondsPerRequest?: Record<string, number> };
}

export function loadsOf(result: unknown, words: string[] = []): FoundLoad[] {
  if (typeof result !== 'object' || result === null) return [];
  if (isLoad(result)) return [{ path: words.join(', '), load: result }];
  return Object.entries(result).flatMap(([key, value]) => {
    if (Array.isArray(value)) return value.flatMap((item, n) => loadsOf(item, [...words, labelOf(key, item, n)]));
    return loadsOf(value, key === 'load' ? words : [...words, key]);
  });
}

/** Returns the name of an element of a list, or its number, as in `round 2`. */
function labelOf(list: string, item: unknown, n: number): string {
  const { name, level, window } = (item ?? {}) as Record<string, unknown>;
  const known = name ?? level;
  if (typeof known !== 'string') return `${list.replace(/s$/, '')} ${n + 1}`;
  return typeof window === 'number' ? `${known}, window ${window}` : known;
}

function isLoad(value: object): value is LoadResult {
  if (!('requestsPerSecond' in value && 'latency' in value && 'seconds' in value)) return false;
  return typeof value.latency === 'object' && value.latency !== null && Array.isArray(value.seconds);
}
