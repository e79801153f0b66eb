/**
 * Runs generator processes: starts each with an order, and adds up their results. Reports when the generator itself was
 * the bottleneck, because such a result shows nothing about the server.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { machineCpu } from '../cpu.ts';
import { beginNote, countBetween } from './generator-process.ts';
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
  /** Acknowledged in each tenth of a second, from `startedAtMs` (Unix time) on. */
  tenths: number[];
  startedAtMs: number;
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
  /** The first message of any process left not before this moment (Unix time). */
  startedAtMs: number;
  /** Acknowledged between two moments (Unix time), to a tenth of a second. */
  between(fromMs: number, toMs: number): number;
}

/** Above this a generator process has no time left to send faster. */
const generatorShareMax = 0.97;
const machineIdleShareMin = 0.05;

/** How a run begins: `rate` is that of all processes together, 0 = as fast as answers come. */
export interface RunOptions {
  rate: number;
  /** Called when every process is connected; none sends before it returns. */
  onConnected?: (() => void) | undefined;
}

export async function runProcesses<Result extends ProcessResult>(
  entry: string,
  orders: object[],
  { rate, onConnected }: RunOptions,
): Promise<{ results: Result[]; load: LoadResult }> {
  const children = orders.map(() => fork(entry, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] }));
  try {
    await Promise.all(children.map((child, n) => ask(child, orders[n]!)));
    onConnected?.();
    const idleBefore = machineCpu();
    const results = (await Promise.all(children.map((child) => ask(child, beginNote)))) as Result[];
    return { results, load: loadOf(results, rate, idleBefore) };
  } finally {
    // After a failure of one process the others end, too.
    for (const child of children) if (child.connected) child.kill('SIGKILL');
  }
}

function loadOf(results: ProcessResult[], rate: number, idleBefore: { idle: number; total: number }): LoadResult {
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
  const startedAtMs = Math.min(...results.map((result) => result.startedAtMs));
  const between = (fromMs: number, toMs: number) => countBetween(results, fromMs, toMs);
  return { ...sum, latency, refused, generatorCpuShare, machineIdleShare, invalid, startedAtMs, between };
}

/** Sends a message and returns the answer: a note, or the result. */
async function ask(child: ChildProcess, message: object | string): Promise<unknown> {
  const ended = once(child, 'exit').then(([code]) => {
    throw new Error(`a generator process ended with ${code} before its result`);
  });
  child.send(message);
  const [answer] = (await Promise.race([once(child, 'message'), ended])) as [unknown];
  ended.catch(() => {});
  return answer;
}
