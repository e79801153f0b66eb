/**
 * What is watched beside a load: CPU and memory of processes by their role, and figures of the engine under load. A
 * scenario adds what it started; a target somewhere else shows nothing here.
 */

export interface Watched {
  /** Cores in use since the previous reading, by role. */
  cpu: Record<string, number>;
  memoryMiB: Record<string, number>;
  /** Other figures by name: the backlog of the journal, the number of parts. */
  gauges: Record<string, number>;
}

interface Watch {
  /** Milliseconds of CPU time by role; only differences of two readings count. */
  cpuMs(): Record<string, number>;
  memoryMiB(): Record<string, number>;
  gauges(): Record<string, number>;
}

const watches = new Map<Watch, { at: number; cpuMs: Record<string, number> }>();

/** Returns a function that ends the watch. */
export function watch(what: Watch): () => void {
  watches.set(what, { at: performance.now(), cpuMs: what.cpuMs() });
  return () => {
    watches.delete(what);
  };
}

/** Figures of two engines under one load are added up, because the idle one needs almost nothing. */
export function readWatched(): Watched {
  const read: Watched = { cpu: {}, memoryMiB: {}, gauges: {} };
  for (const [what, before] of watches) {
    const now = { at: performance.now(), cpuMs: what.cpuMs() };
    const elapsedMs = Math.max(1, now.at - before.at);
    // A process that took the place of a killed one has used less.
    addAll(read.cpu, now.cpuMs, (ms, role) => Math.max(0, ms - (before.cpuMs[role] ?? 0)) / elapsedMs);
    addAll(read.memoryMiB, what.memoryMiB(), (mib) => mib);
    addAll(read.gauges, what.gauges(), (value) => value);
    watches.set(what, now);
  }
  return read;
}

function addAll(
  sums: Record<string, number>,
  values: Record<string, number>,
  figureOf: (value: number, name: string) => number,
): void {
  for (const [name, value] of Object.entries(values)) sums[name] = (sums[name] ?? 0) + figureOf(value, name);
}
