/**
 * Telemetry over HTTP, one record of four keys in each request, side by side in one run: the bare library, Millrace
 * with one worker, Millrace with all of them. A rate counts only what was found in ClickHouse afterwards.
 */
import { availableParallelism } from 'node:os';
import { runAutocannon } from '../autocannon.ts';
import { cpuMsOf } from '../cpu.ts';
import {
  benchTokens,
  EngineUnderLoad,
  httpGenerator,
  type LoadOrder,
  type MeasuredLoad,
} from '../engine-under-load.ts';
import { type HttpLoadResult, runHttpLoad } from '../load/http/http.ts';
import { sayFailures } from '../load/processes.ts';
import { startBare } from '../peers/start.ts';
import { figure, say, table, workersText, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
import { Targets } from '../targets.ts';

/** The least ratio of one worker to one process of the bare server. */
const ratioMin = 0.5;
const latencyP99MsMax = 25;

interface BareResult extends HttpLoadResult {
  version: string;
  cpuMicrosecondsPerRequest: number;
}

export async function runHttp(settings: BenchSettings): Promise<boolean> {
  const workers = settings.http.workers || availableParallelism();
  const bare = await measureBare(settings.http);
  say(`bare uWebSockets.js: ${figure(bare.requestsPerSecond)} requests/s`);
  sayFailures(bare);
  const one = await measureOneWorker(settings.http);
  say(`Millrace, 1 worker: ${figure(one.storedRequestsPerSecond)} requests/s stored`);
  const many = await measureAllWorkers(workers, settings);
  say('');
  table(
    ['', 'requests/s', 'of bare', 'drain s', 'p50 ms', 'p99 ms', 'CPU us/request', 'of it ClickHouse', 'generator CPU'],
    [
      [
        'bare uWebSockets.js',
        bare.requestsPerSecond,
        1,
        0,
        bare.latency.p50Ms,
        bare.latency.p99Ms,
        bare.cpuMicrosecondsPerRequest,
        0,
        bare.generatorCpuShare,
      ],
      peakRow('Millrace, 1 worker, peak', one, bare),
      peakRow(`Millrace, ${workersText(workers)}, peak`, many.peak, bare),
      halfRow(`Millrace, ${workersText(workers)}, half of peak`, many.half, bare),
    ],
  );
  say(
    `\ndisk: ${figure(many.bytesPerPoint.asIs)} bytes per data point, ${figure(many.bytesPerPoint.merged)} after OPTIMIZE`,
  );
  say(
    `autocannon at ${many.autocannon.rate} requests/s: p50 ${many.autocannon.p50Ms} ms, p99 ${many.autocannon.p99Ms} ms`,
  );
  const { non2xx, errors } = many.autocannon;
  if (non2xx + errors > 0) say(`autocannon: ${non2xx} answers were refusals, ${errors} connections failed`);
  const ratio = one.storedRequestsPerSecond / bare.requestsPerSecond;
  const verified = one.verified && many.peak.verified && many.half.verified;
  say(`stored and verified in ClickHouse: ${verified ? 'every acknowledged record, once' : 'NO'}`);
  say(
    `1 worker / bare: ${figure(ratio)} (target ${ratioMin}); p99 at half of peak ${figure(many.half.latency.p99Ms)} ms (target ${latencyP99MsMax})`,
  );
  for (const [name, { invalid }] of Object.entries({ bare, one, peak: many.peak, half: many.half })) {
    if (invalid) say(`INVALID ${name}: ${invalid}`);
  }
  const targets = new Targets();
  targets.atLeast('1 worker / bare:', ratio, ratioMin, '');
  targets.atMost('half of peak: p99', many.half.latency.p99Ms, latencyP99MsMax, ' ms');
  const holds = targets.tell();
  writeResult('http', settings, { bare, one, ...many, workers, ratio, verified, missed: targets.missed });
  return verified && holds;
}

function peakRow(name: string, load: MeasuredLoad, bare: HttpLoadResult): (string | number)[] {
  const { workers = 0, clickhouse = 0 } = load.cpuMicrosecondsPerRequest;
  return [
    name,
    load.storedRequestsPerSecond,
    load.storedRequestsPerSecond / bare.requestsPerSecond,
    load.drainSeconds,
    load.latency.p50Ms,
    load.latency.p99Ms,
    workers + clickhouse,
    clickhouse,
    load.generatorCpuShare,
  ];
}

/** The rate was asked for: it is no figure of the server, and the time until the last row is stored is none of it. */
function halfRow(name: string, load: MeasuredLoad, bare: HttpLoadResult): (string | number)[] {
  const [, , , ...others] = peakRow(name, load, bare);
  return [name, load.requestsPerSecond, Number.NaN, ...others];
}

async function measureBare(http: BenchSettings['http']): Promise<BareResult> {
  const peer = await startBare();
  try {
    const cpuBefore = cpuMsOf(peer.pid);
    const order = { rate: 0, seconds: http.seconds, warmupSeconds: http.warmupSeconds };
    const result = await offerBare(peer.port, http, { ...order, firstTs: Date.now(), stepMs: 100 });
    const cpuMs = cpuMsOf(peer.pid) - cpuBefore;
    return { ...result, version: peer.version, cpuMicrosecondsPerRequest: (cpuMs * 1000) / result.accepted };
  } finally {
    peer.close();
  }
}

/** The load of the settings on a server that knows no devices. */
export function offerBare(port: number, http: BenchSettings['http'], order: LoadOrder): Promise<HttpLoadResult> {
  const { devices, sockets, processes } = http;
  return runHttpLoad({ host: '127.0.0.1', port, tokens: benchTokens(devices), sockets, processes, ...order });
}

async function measureOneWorker(http: BenchSettings['http']): Promise<MeasuredLoad> {
  const load = await EngineUnderLoad.start(1, http.devices, httpGenerator(http));
  try {
    return await load.load(0, http.seconds, http.warmupSeconds);
  } finally {
    await load.close();
  }
}

async function measureAllWorkers(workers: number, settings: BenchSettings) {
  const { http } = settings;
  const load = await EngineUnderLoad.start(workers, http.devices, httpGenerator(http));
  try {
    const peak = await load.load(0, http.seconds, http.warmupSeconds);
    const half = await load.load(Math.floor(peak.storedRequestsPerSecond / 2), http.latencySeconds, http.warmupSeconds);
    const bytesPerPoint = await load.bytesPerPoint();
    const rate = settings.autocannon.rate || Math.floor(peak.storedRequestsPerSecond / 4);
    const autocannon = await runAutocannon(load.engine.port, load.tokens[0]!, { ...settings.autocannon, rate });
    return { peak, half, bytesPerPoint, autocannon };
  } finally {
    await load.close();
  }
}
