/**
 * The HTTP load: starts generator processes, adds up what they saw, and says when the generator itself was the
 * bottleneck, because such a result says nothing about the server.
 */
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { fileURLToPath } from 'node:url';
import { machineCpu } from '../cpu.ts';
import { Histogram, type LatencySummary, summaryOf } from './histogram.ts';
import type { ProcessOrder, ProcessResult } from './http-process.ts';
import type { MessageKind } from './requests.ts';

export interface HttpLoad {
  host: string;
  port: number;
  tokens: string[];
  sockets: number;
  processes: number;
  /** Requests/s in all; 0 = closed loop. */
  rate: number;
  warmupSeconds: number;
  seconds: number;
  firstTs: number;
  stepMs: number;
  kind?: MessageKind;
}

export interface HttpLoadResult {
  accepted: number;
  requestsPerSecond: number;
  latency: LatencySummary;
  refused: Record<string, number>;
  broken: number;
  unsent: number;
  /** Of one core, the busiest generator process. */
  generatorCpuShare: number;
  machineIdleShare: number;
  /** `ts` of the last request of each device, by token. */
  lastTs: Map<string, number>;
  /** Empty, or why the figures say nothing about the server. */
  invalid: string;
}

/** Above this a generator process has no time left to be faster. */
const generatorShareMax = 0.97;
const machineIdleShareMin = 0.05;

const entry = fileURLToPath(new URL('./http-process.js', import.meta.url));

export async function runHttpLoad(load: HttpLoad): Promise<HttpLoadResult> {
  const idleBefore = machineCpu();
  const results = await Promise.all(Array.from({ length: load.processes }, (_, n) => runProcess(orderFor(load, n))));
  const idleAfter = machineCpu();
  const histogram = new Histogram();
  const refused: Record<string, number> = {};
  const lastTs = new Map(results.flatMap((result) => result.lastTs));
  const sum = { accepted: 0, requestsPerSecond: 0, broken: 0, unsent: 0 };
  for (const result of results) {
    const part = new Histogram(result.counts);
    part.max = result.maxMicroseconds;
    histogram.add(part);
    sum.accepted += result.accepted;
    sum.requestsPerSecond += (result.measured / result.measuredMs) * 1000;
    sum.broken += result.broken;
    sum.unsent += result.unsent;
    for (const [status, count] of Object.entries(result.refused)) refused[status] = (refused[status] ?? 0) + count;
  }
  const generatorCpuShare = Math.max(...results.map(({ cpuMs, elapsedMs }) => cpuMs / elapsedMs));
  const machineIdleShare = (idleAfter.idle - idleBefore.idle) / Math.max(1, idleAfter.total - idleBefore.total);
  const missedRate = load.rate > 0 && sum.requestsPerSecond < 0.98 * load.rate;
  const invalid =
    generatorCpuShare > generatorShareMax && machineIdleShare > machineIdleShareMin
      ? `the generator used ${(generatorCpuShare * 100).toFixed(0)} % of a core while the machine had time left`
      : missedRate
        ? `${sum.requestsPerSecond.toFixed(0)} of ${load.rate} requests/s were answered`
        : '';
  return { ...sum, latency: summaryOf(histogram), refused, generatorCpuShare, machineIdleShare, lastTs, invalid };
}

function orderFor(load: HttpLoad, n: number): ProcessOrder {
  const share = (amount: number) => Math.ceil(amount / load.processes);
  return {
    host: load.host,
    port: load.port,
    tokens: load.tokens.filter((_, device) => device % load.processes === n),
    sockets: Math.min(share(load.sockets), load.tokens.length),
    rate: load.rate / load.processes,
    warmupMs: load.warmupSeconds * 1000,
    durationMs: load.seconds * 1000,
    firstTs: load.firstTs,
    stepMs: load.stepMs,
    kind: load.kind ?? 'telemetry',
  };
}

async function runProcess(order: ProcessOrder): Promise<ProcessResult> {
  const child = fork(entry, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
  child.send(order);
  const ended = once(child, 'exit').then(([code]) => {
    throw new Error(`a generator process ended with ${code} before its result`);
  });
  const [result] = (await Promise.race([once(child, 'message'), ended])) as [ProcessResult];
  ended.catch(() => {});
  return result;
}
