/**
 * The tails of acknowledgements over HTTP: p99 at a low rate, at a quarter and at half of peak, beside reports and
 * beside reads of latest values. The loads without reads are measured in turn with the same load while ClickHouse is
 * stopped: the ratio is what its inserts cost an acknowledgement. A round measures every load once, so that the other
 * load of the machine affects all of them.
 */
import { availableParallelism } from 'node:os';
import { type Engine, startEngine } from '../../test/harness/engine.ts';
import { machineSettled } from '../cpu.ts';
import { EngineUnderLoad, httpGenerator } from '../engine-under-load.ts';
import { addedUp, refusedText, totalOf } from '../load/counts.ts';
import type { LoadResult } from '../load/processes.ts';
import { type Call, judged, makeCalls } from '../load/rest/calls.ts';
import { latestCall, readFleet } from '../load/rest/latest-values.ts';
import { ReportClient } from '../load/rest/reports.ts';
import { type Cell, figure, median, rangeText, say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
import { Targets } from '../targets.ts';
import { fleetWithHistory, saveHourlyView } from './report.ts';

const readDevices = 2_000;
const readKeys = 10;
const fixedRateConnections = 8;
const readsP99MsMax = 40;

/** What goes on beside a load: reads whose p99 is measured, too. */
interface Beside {
  p99Ms: number;
  /** Reads without a right answer. */
  failed: number;
}

interface Kind {
  name: string;
  rate: number;
  p99MsMax: number;
  beside?: (seconds: number) => Promise<Beside>;
  readsP99MsMax?: number;
}

interface Measured extends Kind {
  loads: LoadResult[];
  /** Of the same load while ClickHouse was stopped; empty beside reads, which need it. */
  stopped: LoadResult[];
  reads: Beside[];
}

export async function runTails(settings: BenchSettings): Promise<boolean> {
  const { http, tails } = settings;
  const workers = http.workers || availableParallelism();
  const engine = await startEngine({ workers, reports: true, env: { LOG_LEVEL: 'warn' } });
  const asker = new ReportClient(engine);
  try {
    const tokens = await fleetWithHistory(engine, http.devices, tails.points);
    const fleet = await readFleet(engine, readDevices, readKeys);
    const key = await engine.api.createKey();
    const view = await saveHourlyView(asker);
    const load = new EngineUnderLoad(engine, tokens, httpGenerator(http));
    await load.setApart();
    await machineSettled();
    const peak = await load.load(0, 2 * tails.seconds, 2 * tails.seconds);
    const [quarter, half] = [4, 2].map((part) => Math.floor(peak.storedRequestsPerSecond / part)) as [number, number];

    const reports = async (seconds: number) => {
      const { p99Ms, failed } = await asker.crowd(view, tails.reportClients, seconds);
      return { p99Ms, failed: totalOf(failed) };
    };
    const latest = (connections: number, rate: number) => (seconds: number) => {
      return reading(engine, () => latestCall(fleet, key), { connections, rate, seconds });
    };
    const kinds: Kind[] = [
      { name: 'low rate', rate: tails.rate, p99MsMax: 5 },
      { name: 'a quarter of peak', rate: quarter, p99MsMax: 15 },
      { name: 'half of peak', rate: half, p99MsMax: 25 },
      { name: `low rate, ${tails.reportClients} report clients`, rate: tails.rate, p99MsMax: 15, beside: reports },
      {
        name: `low rate, ${tails.readConnections} readers in closed loop`,
        rate: tails.rate,
        p99MsMax: 25,
        beside: latest(tails.readConnections, 0),
      },
      {
        name: `half of peak, ${tails.readRate} reads/s`,
        rate: half,
        p99MsMax: Number.POSITIVE_INFINITY,
        beside: latest(fixedRateConnections, tails.readRate),
        readsP99MsMax,
      },
    ];
    const measured = kinds.map((kind): Measured => ({ ...kind, loads: [], stopped: [], reads: [] }));
    for (let round = 0; round < tails.rounds; round += 1) {
      for (const each of measured) await measure(load, each, tails, round % 2 === 1);
      say(`round ${round + 1} of ${tails.rounds}`);
    }
    await load.stored();
    const verified = await load.verify();
    const targets = tell(measured, peak.storedRequestsPerSecond);
    say(`stored and verified in ClickHouse: ${verified ? 'every acknowledged record, once' : 'NO'}`);
    const holds = targets.tell();
    const { missed } = targets;
    writeResult('tails', settings, { workers, peak, kinds: measured.map(shown), missed, verified });
    return verified && (holds || tails.targets === 0);
  } finally {
    asker.close();
    await engine.destroy();
  }
}

/**
 * Measures one round of a load, with ClickHouse and without, in this order or the other one. Merges of the load before
 * have ended.
 */
async function measure(
  load: EngineUnderLoad,
  { rate, beside, loads, stopped, reads }: Measured,
  { seconds, warmupSeconds }: BenchSettings['tails'],
  isReversed: boolean,
): Promise<void> {
  const usual = async () => {
    const running = beside?.(warmupSeconds + seconds);
    loads.push(await load.offer(rate, seconds, warmupSeconds));
    if (running) reads.push(await running);
  };
  const without = async () => {
    const pid = load.engine.pids().get('clickhouse')!;
    process.kill(pid, 'SIGSTOP');
    try {
      stopped.push(await load.offer(rate, seconds, warmupSeconds));
    } finally {
      process.kill(pid, 'SIGCONT');
    }
    await load.stored();
  };
  const turns = beside ? [usual] : [usual, without];
  for (const turn of isReversed ? turns.reverse() : turns) {
    await load.mergesEnded();
    await turn();
  }
}

async function reading(
  { port }: Engine,
  callOf: () => Call,
  order: { connections: number; rate: number; seconds: number },
): Promise<Beside> {
  const result = await makeCalls({ port, warmupSeconds: 0, callOf, ...order });
  const { answered, failed } = judged(result);
  return { p99Ms: answered.p99Ms, failed };
}

/** Prints the table. Returns the targets, of which some may be missed. */
function tell(measured: Measured[], peak: number): Targets {
  const targets = new Targets();
  const rows = measured.map(({ name, rate, p99MsMax, readsP99MsMax: readsMax, loads, stopped, reads }): Cell[] => {
    const p99s = loads.map(({ latency }) => latency.p99Ms);
    const p99 = median(p99s);
    const without = stopped.length > 0 ? median(stopped.map(({ latency }) => latency.p99Ms)) : Number.NaN;
    const readsP99 = reads.length > 0 ? median(reads.map(({ p99Ms }) => p99Ms)) : Number.NaN;
    targets.atMost(`${name}: p99`, p99, p99MsMax, ' ms');
    if (readsMax !== undefined) targets.atMost(`${name}: p99 of reads`, readsP99, readsMax, ' ms');
    const failed = reads.reduce((sum, each) => sum + each.failed, 0);
    if (failed > 0) targets.fail(`${name}: ${figure(failed)} reads failed`);
    const refused = addedUp([...loads, ...stopped].map((each) => each.refused));
    if (totalOf(refused) > 0) targets.fail(`${name}: refused with ${refusedText(refused)}`);
    for (const { invalid } of loads) if (invalid !== '') say(`INVALID ${name}: ${invalid}`);
    for (const { invalid } of stopped) if (invalid !== '') say(`INVALID ${name}, ClickHouse stopped: ${invalid}`);
    return [
      name,
      rate,
      median(loads.map(({ latency }) => latency.p50Ms)),
      p99,
      rangeText(p99s),
      without,
      p99 / without,
      readsP99,
    ];
  });
  say(`\npeak: ${figure(peak)} messages/s stored; p99 are medians of the rounds\n`);
  const own = ['messages/s', 'p50 ms', 'p99 ms', 'rounds', 'ClickHouse stopped: p99 ms', 'ratio', 'p99 ms of reads'];
  table(['acknowledgements', ...own], rows);
  say('');
  return targets;
}

/** What the result keeps: every p99, and the last load with its seconds. */
function shown({ name, rate, loads, stopped, reads }: Measured) {
  const p99s = (all: LoadResult[]) => all.map(({ latency }) => latency.p99Ms);
  const last = { last: loads.at(-1), lastStopped: stopped.at(-1) };
  return { name, rate, p99Ms: p99s(loads), stoppedP99Ms: p99s(stopped), reads, ...last };
}
