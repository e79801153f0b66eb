/**
 * Worlds of the tests (`test/world/`) for as many seeds as there is time for: hosts and workers of the real classes in
 * virtual time, with devices and users. A seed that breaks a promise is shrunk, and its last events are printed.
 */
import { planOf, runWorld, shrink } from '../../test/world/world.ts';
import { figure, measuring, say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';

const saidEveryMs = 10_000;

export async function runWorlds(settings: BenchSettings): Promise<boolean> {
  const { seed, seeds } = settings.world;
  const failed: { seed: number; faults: string[] }[] = [];
  let acknowledged = 0;
  let saidAt = performance.now();
  let ran = 0;
  measuring('worlds', () => (ran === 0 ? undefined : { seed, seeds: ran, acknowledged, failed }));
  for (let n = 0; n < seeds; n += 1) {
    const plan = planOf(seed + n);
    const result = await runWorld(plan);
    ran = n + 1;
    acknowledged += result.acknowledged;
    if (result.faults.length > 0) {
      failed.push({ seed: plan.seed, faults: result.faults });
      const least = await shrink(plan);
      const { faults, events } = await runWorld(least);
      say([`seed ${plan.seed}: ${JSON.stringify(least)}`, ...faults.slice(0, 10), ...events].join('\n'));
    }
    if (performance.now() - saidAt > saidEveryMs) {
      saidAt = performance.now();
      say(`${n + 1} of ${seeds} seeds | ${figure(acknowledged)} records acknowledged | ${failed.length} seeds failed`);
    }
  }
  table(
    ['seeds', 'first', 'records acknowledged', 'seeds that broke a promise'],
    [[seeds, seed, acknowledged, failed.length]],
  );
  writeResult('world', settings, { seed, seeds, acknowledged, failed });
  return failed.length === 0;
}
