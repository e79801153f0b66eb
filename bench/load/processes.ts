/**
 * Runs generator processes: starts each with an order, and adds up their results. Reports when the generator itself was
 * the bottleneck, because such a result shows nothing about the server.
 */
import { fork } from 'node:child_process';
import { once } from 'node:events';
import { machineCpu } from '../cpu.ts';
import { Histogram, type LatencySummary, summaryOf } from './histogram.ts';

/** What every kind of generator process reports. */
export interface ProcessResult {
  /** Acknowledged in the whole run, warm-up included: these must be in the store. */
  accepted: number;
  /** Acknowledged inside the measured time. */
  measured: number;
  measuredMs: number;
  refused: Record<string, number>;
  /** Connections that broke; their messages in flight may or may not be stored. */
  broken: number;
  /** Messages of the fixed rate that were never sent because no socket came free. */
  unsent: number;
  counts: number[];
  maxMicroseconds: number;
  cpuMs: number;
  elapsedMs: number;
}

export interface LoadResult {
  accepted: number;
  requestsPerSecond: number;
  latency: LatencySummary;
  refused: Record<string, number>;
  broken: number;
  unsent: number;
  /** Share of one core that the busiest generator process used. */
  generatorCpuShare: number;
  machineIdleShare: number;
  /** Empty, or why the figures say nothing about the server. */
  invalid: string;
}

/** Above this a generator process has no time left to send faster. */
const generatorShareMax = 0.97;
const machineIdleShareMin = 0.05;

/** `rate`: messages/s that were offered in all; 0 = as fast as answers come. */
export async function runProcesses<Result extends ProcessResult>(
  entry: string,
  orders: object[],
  rate: number,
): Promise<{ results: Result[]; load: LoadResult }> {
  const idleBefore = machineCpu();
  const results = await Promise.all(orders.map((order) => runProcess<Result>(entry, order)));
  const idleAfter = machineCpu();
  const histogram = new Histogram();
  const refused: Record<string, number> = {};
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
  const missedRate = rate > 0 && sum.requestsPerSecond < 0.98 * rate;
  const invalid =
    generatorCpuShare > generatorShareMax && machineIdleShare > machineIdleShareMin
      ? `the generator used ${(generatorCpuShare * 100).toFixed(0)} % of a core while the machine had time left`
      : missedRate
        ? `${sum.requestsPerSecond.toFixed(0)} of ${rate} messages/s were answered`
        : '';
  const latency = summaryOf(histogram);
  return { results, load: { ...sum, latency, refused, generatorCpuShare, machineIdleShare, invalid } };
}

async function runProcess<Result>(entry: string, order: object): Promise<Result> {
  const child = fork(entry, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] });
  child.send(order);
  const ended = once(child, 'exit').then(([code]) => {
    throw new Error(`a generator process ended with ${code} before its result`);
  });
  const [result] = (await Promise.race([once(child, 'message'), ended])) as [Result];
  ended.catch(() => {});
  return result;
}
