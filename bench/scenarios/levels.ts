/**
 * What an acknowledgement of each level costs: `INGEST_ACK` journal, store and stream in turn, over HTTP, MQTT and
 * through gateways, with one engine for each level and three nodes of NATS on this machine. First as fast as answers
 * come. Then, when ClickHouse has stored and merged all of that, at a quarter of the rate that the level stored, for
 * `store` beside late rows. Every acknowledged record is looked up in ClickHouse.
 */
import { NatsCluster } from '../../test/harness/nats-cluster.ts';
import { cpuMsOf, machineSettled } from '../cpu.ts';
import type { EngineUnderLoad, MeasuredLoad } from '../engine-under-load.ts';
import { addedUp, refusedText, totalOf } from '../load/counts.ts';
import { summaryOf } from '../load/histogram.ts';
import { sendLateRows } from '../load/late-rows.ts';
import type { LoadResult } from '../load/processes.ts';
import { figure, median, say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
import { Targets } from '../targets.ts';
import { type Kind, kindsOf } from './versions.ts';

const levels = ['journal', 'store', 'stream'] as const;
type Level = (typeof levels)[number];

/** The least rate of a stream, as a part of the rate of the journal. */
const streamRateMin = 0.5;
/** At a quarter of peak. */
const p99MsMax: Partial<Record<Level, number>> = { store: 150, stream: 25 };

interface Round extends MeasuredLoad {
  /** CPU of the nodes of NATS, until the last record was stored. */
  natsMicroseconds: number;
}

interface Quarter extends LoadResult {
  /** Of late messages beside the load, which `store` has. */
  lateP99Ms: number;
  verified: boolean;
}

interface UnderLoad {
  level: Level;
  engine: EngineUnderLoad;
}

interface Measured {
  level: Level;
  rounds: Round[];
  quarters: Quarter[];
  quarterRate: number;
}

interface KindResult {
  name: Kind['name'];
  measured: Measured[];
}

export async function runLevels(settings: BenchSettings): Promise<boolean> {
  const { workers, targets } = settings.levels;
  const nodes = await NatsCluster.start();
  try {
    const results: KindResult[] = [];
    for (const kind of kindsOf(settings, workers).filter(({ name }) => settings.levels[name] !== 0)) {
      results.push({ name: kind.name, measured: await measure(kind, nodes, settings) });
    }
    print(results);
    const all = results.flatMap(({ measured }) => measured).flatMap(loadsOf);
    const isVerified = all.every(({ verified }) => verified);
    for (const { invalid } of all) if (invalid !== '') say(`INVALID: ${invalid}`);
    say(`stored and verified in ClickHouse: ${isVerified ? 'every acknowledged record, once' : 'NO'}`);
    const judged = new Targets();
    for (const result of results) judge(judged, result);
    const holds = judged.tell();
    writeResult('levels', settings, { workers, results, missed: judged.missed });
    return isVerified && (holds || targets === 0);
  } finally {
    await nodes.stop();
  }
}

/** The engines of all levels run side by side, so that the other load of the machine affects all of them. */
async function measure(kind: Kind, nodes: NatsCluster, settings: BenchSettings): Promise<Measured[]> {
  const { rounds, seconds, warmupSeconds } = settings.levels;
  const engines: (UnderLoad & { rounds: Round[] })[] = [];
  try {
    for (const level of levels) {
      const env = { LOG_LEVEL: 'warn', INGEST_ACK: level, ...(level === 'stream' && streamOf(kind, nodes)) };
      engines.push({ level, engine: await kind.start({ env }), rounds: [] });
    }
    for (let round = 0; round < rounds; round += 1) {
      for (const one of round % 2 === 0 ? engines : engines.toReversed()) {
        await machineSettled();
        const load = await atPeak(one.engine, nodes, seconds, warmupSeconds);
        one.rounds.push(load);
        say(`${kind.name}, round ${round + 1}, ${one.level}: ${figure(load.requestsPerSecond)} messages/s`);
      }
    }
    const measured = engines.map((one): UnderLoad & Measured => ({
      ...one,
      quarters: [],
      // For some seconds a journal acknowledges more than ClickHouse can store: that is no rate that a level can hold.
      quarterRate: Math.floor(storedRateOf(one.rounds) / 4),
    }));
    for (let round = 0; round < rounds; round += 1) {
      for (const one of round % 2 === 0 ? measured : measured.toReversed()) {
        await merged(engines);
        one.quarters.push(await quarter(one, one.quarterRate, settings));
      }
    }
    return measured.map(({ engine: _, ...figures }) => figures);
  } finally {
    for (const { engine } of engines) await engine.close();
  }
}

function streamOf({ name }: Kind, { url, monitorUrls }: NatsCluster): Record<string, string> {
  const limits = { STREAM_BYTES_MAX: '1GiB' };
  return { STREAM_URL: url, STREAM_MONITOR_URLS: monitorUrls, STREAM_NAME: `levels-${name}`, ...limits };
}

async function atPeak(
  engine: EngineUnderLoad,
  nodes: NatsCluster,
  seconds: number,
  warmupSeconds: number,
): Promise<Round> {
  const cpuMs = () => nodes.pids.reduce((sum, pid) => sum + cpuMsOf(pid), 0);
  const before = cpuMs();
  const load = await engine.load(0, seconds, warmupSeconds);
  return { ...load, natsMicroseconds: ((cpuMs() - before) * 1000) / load.accepted };
}

/** Waits until nothing is left of the loads before, which would count as the latency of the next one. */
async function merged(engines: UnderLoad[]): Promise<void> {
  const began = performance.now();
  for (const { level, engine } of engines) {
    const merges = await engine.mergesEnded();
    if (merges > 0) say(`${level}: ${merges} merges of earlier loads still run`);
  }
  await machineSettled();
  say(`stored and merged after ${((performance.now() - began) / 1000).toFixed(1)} s`);
}

async function quarter({ level, engine }: UnderLoad, rate: number, settings: BenchSettings): Promise<Quarter> {
  const { latencySeconds, latencyWarmupSeconds } = settings.levels;
  const { lateRate, lateDays } = settings.storeAcks;
  const device = level === 'store' ? await engine.engine.api.createDevice(`late-${performance.now()}`) : undefined;
  const forMs = (latencyWarmupSeconds + latencySeconds) * 1000;
  const sending = device && sendLateRows(engine.engine, device, { rate: lateRate, days: lateDays, forMs });
  const load = await engine.offer(rate, latencySeconds, latencyWarmupSeconds);
  const rows = await sending;
  engine.setMoreApart(rows?.acknowledgedRows ?? 0);
  await engine.stored();
  const refused = addedUp([load.refused, rows?.refused ?? {}]);
  const lateP99Ms = rows ? summaryOf(rows.histogram).p99Ms : Number.NaN;
  return { ...load, refused, lateP99Ms, verified: await engine.verify() };
}

function loadsOf({ rounds, quarters }: Measured): (Round | Quarter)[] {
  return [...rounds, ...quarters];
}

function print(results: KindResult[]): void {
  const rows = results.flatMap(({ name, measured }) =>
    measured.map(({ level, rounds, quarters, quarterRate }) => {
      const of = (figureOf: (round: Round) => number) => median(rounds.map(figureOf));
      const ofQuarters = (figureOf: (each: Quarter) => number) => median(quarters.map(figureOf));
      const cpu = (role: string) => of(({ cpuMicrosecondsPerRequest }) => cpuMicrosecondsPerRequest[role] ?? 0);
      return [
        name,
        level,
        rateOf(rounds),
        rateOf(rounds) / rateOf(measured[0]!.rounds),
        storedRateOf(rounds),
        of(({ latency }) => latency.p50Ms),
        of(({ latency }) => latency.p99Ms),
        cpu('workers'),
        cpu('clickhouse'),
        of(({ natsMicroseconds }) => natsMicroseconds),
        quarterRate,
        ofQuarters(({ latency }) => latency.p50Ms),
        ofQuarters(({ latency }) => latency.p99Ms),
        quarters.map(({ latency }) => figure(latency.p99Ms)).join(', '),
        ofQuarters(({ sentLateP99Ms }) => sentLateP99Ms),
        ofQuarters(({ machineIdleShare }) => machineIdleShare * 100),
        ofQuarters(({ lateP99Ms }) => lateP99Ms),
      ];
    }),
  );
  const peak = ['acknowledged/s', 'to journal', 'stored/s', 'p50 ms', 'p99 ms'];
  const cpu = ['worker us', 'ClickHouse us', 'NATS us'];
  say('');
  const ofQuarter = ['p50 ms', 'p99 ms', 'rounds', 'sent late p99 ms', 'idle %', 'late rows p99 ms'];
  table(['', 'level', ...peak, ...cpu, 'a quarter/s', ...ofQuarter], rows);
  say('');
}

function rateOf(rounds: Round[]): number {
  return median(rounds.map(({ requestsPerSecond }) => requestsPerSecond));
}

function storedRateOf(rounds: Round[]): number {
  return median(rounds.map(({ storedRequestsPerSecond }) => storedRequestsPerSecond));
}

function judge(targets: Targets, { name, measured }: KindResult): void {
  const [journal] = measured;
  for (const { level, rounds, quarters } of measured) {
    const ratio = rateOf(rounds) / rateOf(journal!.rounds);
    if (level === 'stream') targets.atLeast(`${name}: rate of a stream / journal`, ratio, streamRateMin, '');
    const max = p99MsMax[level];
    const p99Ms = median(quarters.map(({ latency }) => latency.p99Ms));
    if (max !== undefined) targets.atMost(`${name}, ${level}: p99`, p99Ms, max, ' ms');
    const refused = addedUp([...rounds, ...quarters].map((load) => load.refused));
    if (totalOf(refused) > 0) targets.fail(`${name}, ${level}: refused with ${refusedText(refused)}`);
  }
}
