/**
 * Attribute posts of four keys over HTTP, each acknowledged after its commit in PostgreSQL: the peak, and latency at
 * half of it. Afterwards the attributes of a sample of devices are read over REST: each must be its last post.
 */
import { availableParallelism } from 'node:os';
import type { Api } from '../../test/harness/api.ts';
import { type Engine, startEngine } from '../../test/harness/engine.ts';
import { cpuBetween, cpuByRole } from '../cpu.ts';
import { createDevices } from '../engine-under-load.ts';
import { type HttpLoadResult, runHttpLoad } from '../load/http/http.ts';
import { failuresOf, sayFailures } from '../load/processes.ts';
import { figure, say, table, workersText, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
import { Targets } from '../targets.ts';

const postsPerSecondMin = 15_000;
const keysPerPost = 4;
const stepMs = 1;

interface Measured extends HttpLoadResult {
  cpuMicrosecondsPerPost: Record<string, number>;
  /** Posts that were refused or have no answer, and connections that broke. */
  failed: number;
  /** Undefined: posts failed, so that the last one of a device is unknown. */
  verified: boolean | undefined;
}

const readBackTexts = {
  true: 'the last post of every sampled device',
  false: 'NO',
  undefined: 'NO: posts failed, so that the last one of a device is unknown',
};

export async function runAttributes(settings: BenchSettings): Promise<boolean> {
  const { devices, seconds } = settings.attributes;
  const workers = settings.http.workers || availableParallelism();
  const engine = await startEngine({ workers, env: { LOG_LEVEL: 'warn' } });
  try {
    const tokens = await createDevices(engine.api, devices);
    const peak = await measure(engine, tokens, settings, 0, seconds);
    const half = await measure(engine, tokens, settings, Math.floor(peak.requestsPerSecond / 2), seconds);
    const row = (name: string, { requestsPerSecond, latency, generatorCpuShare, ...rest }: Measured) => {
      const { workers: own = 0, postgres = 0 } = rest.cpuMicrosecondsPerPost;
      return [name, requestsPerSecond, latency.p50Ms, latency.p99Ms, own, postgres, generatorCpuShare];
    };
    table(
      [
        `attributes, ${workersText(workers)}`,
        'posts/s',
        'p50 ms',
        'p99 ms',
        'CPU us/post',
        'PostgreSQL',
        'generator CPU',
      ],
      [row('peak', peak), row('half of peak', half)],
    );
    const verified = peak.verified && half.verified;
    say(`read back over REST: ${readBackTexts[`${verified}`]}`);
    say(`target: ${figure(postsPerSecondMin)} posts/s of ${keysPerPost} keys, each acknowledged after its commit`);
    for (const { invalid } of [peak, half]) if (invalid) say(`INVALID: ${invalid}`);
    const targets = new Targets();
    targets.atLeast('peak:', peak.requestsPerSecond, postsPerSecondMin, ' posts/s');
    targets.none('posts that failed:', peak.failed + half.failed);
    const holds = targets.tell();
    writeResult('attributes', settings, { workers, peak, half, verified, missed: targets.missed });
    return verified === true && holds;
  } finally {
    await engine.destroy();
  }
}

async function measure(
  engine: Engine,
  tokens: string[],
  { http, attributes }: BenchSettings,
  rate: number,
  seconds: number,
): Promise<Measured> {
  const pids = engine.pids();
  const cpuBefore = cpuByRole(pids);
  const result = await runHttpLoad({
    host: '127.0.0.1',
    port: engine.port,
    tokens,
    sockets: attributes.sockets,
    processes: http.processes,
    rate,
    warmupSeconds: http.warmupSeconds,
    seconds,
    firstTs: Date.now(),
    stepMs,
    kind: 'attributes',
  });
  const cpu = cpuBetween(cpuBefore, cpuByRole(pids));
  sayFailures(result);
  const perPost = Object.entries(cpu).map(([role, ms]) => [role, (ms * 1000) / result.accepted] as const);
  const failed = failuresOf(result);
  return {
    ...result,
    cpuMicrosecondsPerPost: Object.fromEntries(perPost),
    failed,
    verified: failed > 0 ? undefined : await isLastPostStored(engine.api, result.lastTs, attributes.samples),
  };
}

/** Devices are named after the number in their token (`createDevices`). */
async function isLastPostStored(api: Api, lastTs: Map<string, number>, samples: number): Promise<boolean> {
  const all = [...lastTs];
  for (let n = 0; n < samples; n += 1) {
    const [token, ts] = all[Math.floor((n * all.length) / samples)]!;
    const name = `bench-${Number(token.slice('bench'.length))}`;
    const device = (await (await api.send('GET', `/api/tenant/devices?deviceName=${name}`)).json()) as {
      id: { id: string };
    };
    const path = `/api/plugins/telemetry/DEVICE/${device.id.id}/values/attributes/CLIENT_SCOPE`;
    const rows = (await (await api.send('GET', path)).json()) as { key: string; value: unknown }[];
    const stored = new Map(rows.map(({ key, value }) => [key, value]));
    if (stored.size !== keysPerPost || stored.get('sequence') !== ts || stored.get('mode') !== 'auto') {
      say(`${name}: last acknowledged ${ts}, stored ${JSON.stringify(Object.fromEntries(stored))}`);
      return false;
    }
  }
  return true;
}
