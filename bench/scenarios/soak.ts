/** Minutes at peak: resident memory of every process must level off. The slope counts over the second half. */
import { availableParallelism } from 'node:os';
import { residentBytesOf } from '../cpu.ts';
import { EngineUnderLoad, httpGenerator } from '../engine-under-load.ts';
import { figure, measuring, say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
import { Targets } from '../targets.ts';

const mebibyte = 1024 * 1024;

interface Sample {
  minute: number;
  residentMiB: Record<string, number>;
}

export async function runSoak(settings: BenchSettings): Promise<boolean> {
  const { minutes, sampleSeconds, growthMiBPerMinuteMax } = settings.soak;
  const { http } = settings;
  const workers = http.workers || availableParallelism();
  const load = await EngineUnderLoad.start(workers, http.devices, httpGenerator(http));
  const samples: Sample[] = [];
  measuring('samples', () => samples);
  const startedAt = performance.now();
  const timer = setInterval(() => {
    const resident = [...load.engine.pids()].map(([role, pid]) => [role, residentBytesOf(pid) / mebibyte] as const);
    samples.push({ minute: (performance.now() - startedAt) / 60_000, residentMiB: Object.fromEntries(resident) });
  }, sampleSeconds * 1000);
  try {
    const result = await load.load(0, minutes * 60, http.warmupSeconds);
    clearInterval(timer);
    const roles = Object.keys(samples.at(-1)?.residentMiB ?? {});
    const growth = Object.fromEntries(roles.map((role) => [role, slopePerMinute(samples, role, minutes)]));
    table(
      ['process', 'start MiB', 'end MiB', 'highest MiB', 'MiB/minute, 2nd half'],
      roles.map((role) => {
        const series = samples.map(({ residentMiB }) => residentMiB[role] ?? 0);
        return [role, series[0] ?? 0, series.at(-1) ?? 0, Math.max(...series), growth[role]!];
      }),
    );
    say(`${figure(result.storedRequestsPerSecond)} requests/s over ${minutes} minutes`);
    say(`stored and verified in ClickHouse: ${result.verified ? 'every acknowledged record, once' : 'NO'}`);
    if (result.invalid) say(`INVALID: ${result.invalid}`);
    const targets = new Targets();
    for (const [role, slope] of Object.entries(growth))
      targets.atMost(`${role} grows by`, slope, growthMiBPerMinuteMax, ' MiB a minute');
    const holds = targets.tell();
    writeResult('soak', settings, { result, growth, samples, missed: targets.missed });
    return holds && result.verified;
  } finally {
    clearInterval(timer);
    await load.close();
  }
}

/** Least squares over the samples of the second half. */
function slopePerMinute(samples: Sample[], role: string, minutes: number): number {
  const points = samples
    .filter(({ minute }) => minute >= minutes / 2 && minute <= minutes)
    .map(({ minute, residentMiB }) => [minute, residentMiB[role] ?? 0] as const);
  const meanX = points.reduce((sum, [x]) => sum + x, 0) / points.length;
  const meanY = points.reduce((sum, [, y]) => sum + y, 0) / points.length;
  const covariance = points.reduce((sum, [x, y]) => sum + (x - meanX) * (y - meanY), 0);
  const variance = points.reduce((sum, [x]) => sum + (x - meanX) ** 2, 0);
  return variance === 0 ? 0 : covariance / variance;
}
