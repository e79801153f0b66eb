/** Latest values of one device, chosen at random, while the store knows a million series; nothing else runs. */
import { availableParallelism } from 'node:os';
import { startEngine } from '../../test/harness/engine.ts';
import { machineSettled } from '../cpu.ts';
import { type Call, judged, makeCalls } from '../load/rest/calls.ts';
import { latestCall, readFleet } from '../load/rest/latest-values.ts';
import { say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
import { Targets } from '../targets.ts';

const p99MsMax = 10;
/** The number of calls that warm up the code of all workers. */
const warmupCalls = 200;
const warmupConnections = 8;

export async function runLatest(settings: BenchSettings): Promise<boolean> {
  const { devices, keys, samples } = settings.latest;
  const engine = await startEngine({ workers: availableParallelism(), env: { LOG_LEVEL: 'warn' } });
  try {
    const fleet = await readFleet(engine, devices, keys);
    await machineSettled();
    const apiKey = await engine.api.createKey();
    const someKeys = await measure(engine.port, samples, () => latestCall(fleet, apiKey, fleet.keys.slice(0, 4)));
    const allKeys = await measure(engine.port, samples, () => latestCall(fleet, apiKey));
    const rows = [
      ['4 keys', someKeys],
      [`all ${keys} keys`, allKeys],
    ] as const;
    table(
      [`latest among ${devices * keys} series`, 'p50 ms', 'p99 ms', 'max ms'],
      rows.map(([name, { p50Ms, p99Ms, maxMs }]) => [name, p50Ms, p99Ms, maxMs]),
    );
    say(`target: p99 ${p99MsMax} ms`);
    const targets = new Targets();
    targets.atMost('latest values of 4 keys: p99', someKeys.p99Ms, p99MsMax, ' ms');
    const holds = targets.tell();
    writeResult('latest', settings, { series: devices * keys, someKeys, allKeys, missed: targets.missed });
    return holds;
  } finally {
    await engine.destroy();
  }
}

/** Makes the calls one after the other on one connection. */
async function measure(port: number, samples: number, call: () => Call) {
  const calls = (count: number, connections: number) => {
    const callOf = (n: number) => (n < count ? call() : undefined);
    return makeCalls({ port, connections, rate: 0, warmupSeconds: 0, seconds: Number.POSITIVE_INFINITY, callOf });
  };
  await calls(warmupCalls, warmupConnections);
  const result = await calls(samples, 1);
  const { answered, failed } = judged(result);
  if (failed > 0) throw new Error(`latest was answered ${JSON.stringify(result.outcomes)}`);
  return answered;
}
