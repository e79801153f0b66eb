/**
 * Runs generator processes: starts each with an order, and adds up their results. Reports when the generator itself was
 * the bottleneck, because such a result shows nothing about the server.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { machineCpu } from '../cpu.ts';
import { figure, measuring, say } from '../report.ts';
import type { ProcessSecond } from './counting.ts';
import { addedUp, type Counts, refusedText, totalOf } from './counts.ts';
import { beginNote, type ConnectedNote, countBetween, secondNote, stopNote } from './generator-process.ts';
import { Histogram, type LatencyBar, type LatencySummary, summaryOf } from './histogram.ts';
import { type EarlyEnd, lastSecond, type Pause, pausesOf } from './silence.ts';
import { type Second, Timeline } from './timeline.ts';
import { WaitView } from './wait-view.ts';

/** What every kind of generator process reports. */
export interface ProcessResult {
  /** Acknowledged in the whole run, warm-up included: these must be in the store. */
  accepted: number;
  /** Acknowledged inside the measured time. */
  measured: number;
  measuredMs: number;
  refused: Counts;
  /** Connections that broke. */
  broken: number;
  /** Messages that were in flight then, and those without an answer: they may or may not be stored. */
  unsure: number;
  /** Messages on unbroken connections that had no answer half a minute after the load. */
  unanswered: number;
  /** Messages of the fixed rate that were never sent because no socket came free. */
  unsent: number;
  counts: number[];
  /** Of the histogram of the microseconds by which messages left after they were due; zeros in a closed loop. */
  sentLateCounts: number[];
  maxMicroseconds: number;
  cpuMs: number;
  elapsedMs: number;
  /** The end of the time in which messages were due, from `startedAtMs` on. */
  dueMs: number;
  /** Acknowledged in each tenth of a second, from `startedAtMs` (Unix time) on. */
  tenths: number[];
  startedAtMs: number;
}

export interface LoadResult {
  accepted: number;
  requestsPerSecond: number;
  latency: LatencySummary;
  /** Messages left so much later than they were due, for which latencies count as well; NaN in a closed loop. */
  sentLateP99Ms: number;
  /** The latencies of the measured time as a bar chart. */
  bars: LatencyBar[];
  refused: Counts;
  broken: number;
  unsure: number;
  unanswered: number;
  unsent: number;
  /** What each second showed, warm-up included. */
  seconds: Second[];
  /** Seconds before the measured time: the ramp and the warm-up. */
  leadSeconds: number;
  measuredSeconds: number;
  /** Share of one core that the busiest generator process used. */
  generatorCpuShare: number;
  machineIdleShare: number;
  /** Empty, or why the figures say nothing about the server. */
  invalid: string;
  /** Connections that were open when the first message left. */
  connections: number;
  /** Times of a second and more in which nothing was acknowledged, after which the server went on. */
  pauses: Pause[];
  /** Present when the load was ended before its time, because nothing was acknowledged any more. */
  earlyEnd: EarlyEnd | undefined;
  /** No process has sent a message before this moment (Unix time). */
  startedAtMs: number;
  /** Messages that were acknowledged between two moments (Unix time), to a tenth of a second. */
  between(fromMs: number, toMs: number): number;
}

/** Above this a generator process has no time left to send faster. */
const generatorShareMax = 0.97;
/** Of the messages of a fixed rate; with fewer the server, or the generator, is too slow for that rate. */
const answeredShareMin = 0.98;
const machineIdleShareMin = 0.05;

/** How a run goes: `rate` is that of all processes together, 0 = as fast as answers come. */
interface RunOptions {
  rate: number;
  /** Of the ramp and the warm-up. */
  leadSeconds: number;
  /** Part of `leadSeconds` in which the rate grows from 0. */
  rampSeconds?: number;
  /** Of the measured time; 0 = not known. */
  seconds: number;
  /** The load ends when nothing was acknowledged for so long, or no connection was accepted; absent = it goes on. */
  giveUpSeconds?: number | undefined;
  /** Called when every process is connected; no process sends before this call has ended. */
  onConnected?: (() => void | Promise<void>) | undefined;
  /** Called with the number of accepted messages; the connections stay open until this call has ended. */
  onAnswered?: ((accepted: number) => Promise<void>) | undefined;
  /** True: shows no live view and nothing that is watched, because another load beside this one does. */
  isBeside?: boolean | undefined;
}

const running = new Set<Child>();
/** Loads that were begun. */
let begun = 0;

/** This process itself has ended a generator process, with the scenario that it belongs to. */
export class GeneratorEnded extends Error {}

/** Ends all generator processes; the runs that use them fail. */
export function endGenerators(): void {
  for (const child of running) child.end();
}

export async function runProcesses<Result extends ProcessResult>(
  entry: string,
  orders: object[],
  options: RunOptions,
): Promise<{ results: Result[]; load: LoadResult }> {
  const { rate, leadSeconds, seconds, giveUpSeconds, onConnected, onAnswered, isBeside = false } = options;
  const children = orders.map(() => new Child(fork(entry, { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] })));
  const lastsSeconds = seconds === 0 ? 0 : leadSeconds + seconds;
  const timeline = new Timeline({ processes: children.length, lastsSeconds, isClosedLoop: rate === 0, isBeside });
  for (const child of children) running.add(child);
  begun += 1;
  const name = `load ${begun}`;
  const ended = measuring(`${name}, unfinished`, () => timeline.soFar());
  const connecting = isBeside ? undefined : new WaitView('opening the connections');
  try {
    const notes = (await Promise.all(children.map((child, n) => child.ask(orders[n]!)))) as ConnectedNote[];
    connecting?.end();
    const connections = notes.reduce((sum, note) => sum + note.connected, 0);
    await onConnected?.();
    const idleBefore = machineCpu();
    let isStopped = false;
    const stop = () => {
      if (!isStopped) for (const child of children) child.send(stopNote);
      isStopped = true;
    };
    timeline.begin();
    for (const child of children)
      child.onSecond = (second) => {
        timeline.add(second);
        if (giveUpSeconds !== undefined && timeline.silentSeconds >= giveUpSeconds) stop();
      };
    const ending = Promise.all(children.map((child) => child.ask(beginNote)));
    if (giveUpSeconds !== undefined && connections === 0) stop();
    const results = (await ending) as Result[];
    const load = {
      ...loadOf(results, rate, idleBefore),
      ...silenceOf(results, options, isStopped ? connections > 0 : undefined),
      connections,
      seconds: timeline.end(),
      leadSeconds,
    };
    ended();
    measuring(name, () => load);
    await onAnswered?.(load.accepted);
    return { results, load };
  } finally {
    connecting?.end();
    timeline.end();
    // After one process has failed, the others end, too.
    for (const child of children) {
      child.end();
      running.delete(child);
    }
  }
}

/** `wasConnected` undefined: the load was not stopped. */
function silenceOf(
  results: ProcessResult[],
  { rate, rampSeconds = 0 }: RunOptions,
  wasConnected: boolean | undefined,
): Pick<LoadResult, 'pauses' | 'earlyEnd'> {
  const pace = { rate, rampMs: rampSeconds * 1000 };
  const begin = Math.min(...results.map(({ startedAtMs }) => startedAtMs));
  const sinceSecond = lastSecond(results);
  if (wasConnected === undefined) {
    const endedMs = Math.max(...results.map(({ startedAtMs, dueMs }) => startedAtMs + dueMs));
    return { pauses: pausesOf(results, pace, (endedMs - begin) / 1000), earlyEnd: undefined };
  }
  const seconds = Math.max(...results.map(({ elapsedMs }) => elapsedMs)) / 1000;
  const earlyEnd = { sinceSecond, sinceMs: begin + sinceSecond * 1000, seconds, wasConnected };
  return { pauses: pausesOf(results, pace, sinceSecond), earlyEnd };
}

function loadOf(
  results: ProcessResult[],
  rate: number,
  idleBefore: { idle: number; total: number },
): Omit<LoadResult, 'seconds' | 'leadSeconds' | 'connections' | 'pauses' | 'earlyEnd'> {
  const idleAfter = machineCpu();
  const [histogram, sentLate] = [new Histogram(), new Histogram()];
  const sum = { accepted: 0, requestsPerSecond: 0, broken: 0, unsure: 0, unanswered: 0, unsent: 0 };
  for (const result of results) {
    const part = new Histogram(result.counts);
    part.max = result.maxMicroseconds;
    histogram.add(part);
    sentLate.add(new Histogram(result.sentLateCounts));
    sum.accepted += result.accepted;
    // A load that was stopped in its warm-up has no measured time.
    if (result.measuredMs > 0) sum.requestsPerSecond += (result.measured / result.measuredMs) * 1000;
    sum.broken += result.broken;
    sum.unsure += result.unsure;
    sum.unanswered += result.unanswered;
    sum.unsent += result.unsent;
  }
  const generatorCpuShare = Math.max(...results.map(({ cpuMs, elapsedMs }) => cpuMs / elapsedMs));
  const machineIdleShare = (idleAfter.idle - idleBefore.idle) / Math.max(1, idleAfter.total - idleBefore.total);
  const answered = results.reduce((count, { measured }) => count + measured, 0);
  const measuredSeconds = Math.max(...results.map(({ measuredMs }) => measuredMs)) / 1000;
  // A message that was due at an end of the measured time may be answered outside.
  const missedRate = answered + results.length < answeredShareMin * rate * measuredSeconds;
  const invalid =
    generatorCpuShare > generatorShareMax && machineIdleShare > machineIdleShareMin
      ? `the generator used ${(generatorCpuShare * 100).toFixed(0)} % of a core while the machine had time left`
      : missedRate
        ? `${figure(Math.round(sum.requestsPerSecond))} of ${figure(rate)} messages/s were answered${waitedText(sum.unsent)}`
        : '';
  const [latency, bars] = [summaryOf(histogram), histogram.bars()];
  const startedAtMs = Math.min(...results.map((result) => result.startedAtMs));
  const between = (fromMs: number, toMs: number) => countBetween(results, fromMs, toMs);
  return {
    ...sum,
    latency,
    sentLateP99Ms: sentLate.percentileMs(99),
    bars,
    refused: addedUp(results.map(({ refused }) => refused)),
    generatorCpuShare,
    machineIdleShare,
    invalid,
    startedAtMs,
    between,
    measuredSeconds,
  };
}

/** A machine without idle time is the limit of its generators, when the server runs on another one. */
export function limitOfMachine({ machineIdleShare }: Pick<LoadResult, 'machineIdleShare'>): string {
  if (machineIdleShare > machineIdleShareMin) return '';
  return "the generator's machine had no time left, and the server runs on another one";
}

/** Too few connections look like a slow server. */
function waitedText(unsent: number): string {
  if (unsent === 0) return '';
  return `, and ${figure(unsent)} were due at the end while no connection was free: more connections or devices may answer more`;
}

/** Messages that were refused or never answered, and connections that broke. */
export function failuresOf({ refused, broken, unanswered }: LoadResult): number {
  return totalOf(refused) + broken + unanswered;
}

/** Prints what was refused, which connections broke and what was never answered, if any: all are results. */
export function sayFailures({ refused, broken, unsure, unanswered }: LoadResult): void {
  if (totalOf(refused) > 0) say(`refused: ${refusedText(refused)}`);
  if (broken > 0)
    say(`connections that broke: ${figure(broken)}, with ${figure(unsure - unanswered)} messages in flight`);
  if (unanswered > 0) say(`messages that were never answered: ${figure(unanswered)}`);
}

/** One generator process. */
class Child {
  onSecond: (second: ProcessSecond) => void = () => {};
  readonly #process: ChildProcess;
  #isEnded = false;
  #answered: (answer: unknown) => void = () => {};

  constructor(child: ChildProcess) {
    this.#process = child;
    child.on('message', (message: object | string) => {
      if (typeof message === 'object' && secondNote in message) this.onSecond(message[secondNote] as ProcessSecond);
      else this.#answered(message);
    });
  }

  /** Sends a message and returns the answer: a note, or the result. */
  async ask(message: object | string): Promise<unknown> {
    const ended = once(this.#process, 'exit').then(([code]) => {
      const message = `a generator process ended with ${code} before its result`;
      throw this.#isEnded ? new GeneratorEnded(message) : new Error(message);
    });
    const answer = new Promise<unknown>((resolve) => {
      this.#answered = resolve;
    });
    this.#process.send(message);
    try {
      return await Promise.race([answer, ended]);
    } finally {
      ended.catch(() => {});
    }
  }

  /** Sends a message without an answer of its own. */
  send(note: string): void {
    if (this.#process.connected) this.#process.send(note);
  }

  end(): void {
    this.#isEnded = true;
    if (this.#process.connected) this.#process.kill('SIGKILL');
  }
}
