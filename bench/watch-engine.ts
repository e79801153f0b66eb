/**
 * Watches an engine that a scenario started: CPU and memory of each process, the backlog of the journal, the parts of
 * ClickHouse. CPU and memory come from /proc each second, the rest from /metrics every five seconds.
 */
import type { Engine } from '../test/harness/engine.ts';
import { cpuBetween, cpuByRole, residentByRole } from './cpu.ts';
import { watch } from './load/watch.ts';

const scrapeMs = 5_000;
const mebibyte = 1_048_576;
const nothing = new Map<string, number>();

/** Returns a function that ends the watch. */
export function watchEngine(engine: Engine): () => void {
  let gauges: Record<string, number> = {};
  const scrape = async (): Promise<void> => {
    const page = await engine.api.metricsPage();
    gauges = {
      ...gaugeOf(page, 'millrace_journal_backlog_bytes', 'backlogBytes'),
      ...gaugeOf(page, 'millrace_clickhouse_parts', 'parts'),
    };
  };
  // An engine that a scenario has just ended does not answer.
  const timer = setInterval(() => void scrape().catch(() => {}), scrapeMs);
  timer.unref();
  const unwatch = watch({
    cpuMs: () => cpuBetween(nothing, cpuByRole(engine.pids())),
    memoryMiB: () => memoryByRole(engine.pids()),
    gauges: () => gauges,
  });
  return () => {
    clearInterval(timer);
    unwatch();
  };
}

function memoryByRole(pids: Map<string, number>): Record<string, number> {
  const bytes = Object.entries(residentByRole(pids));
  return Object.fromEntries(bytes.map(([role, each]) => [role, each / mebibyte]));
}

/** Empty for a metric that the page does not have, such as one of a store that does not answer. */
function gaugeOf(page: string, metric: string, name: string): Record<string, number> {
  const value = new RegExp(`^${metric} (\\S+)$`, 'm').exec(page)?.[1];
  return value === undefined ? {} : { [name]: Number(value) };
}
