/**
 * What an acknowledgement of each level costs: `INGEST_ACK` journal, store and stream in turn, over HTTP, MQTT and
 * through gateways, with one engine for each level and three nodes of NATS on this machine. First as fast as answers
 * come, then at a quarter of the peak of the level. Every acknowledged record is looked up in ClickHouse.
 */
import { NatsCluster } from '../../test/harness/nats-cluster.ts';
import { cpuMsOf, machineSettled } from '../cpu.ts';
import type { EngineUnderLoad, MeasuredLoad } from '../engine-under-load.ts';
import { figure, median, say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
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

interface Measured {
  level: Level;
  rounds: Round[];
  quarter: Round;
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
      results.push({ name: kind.name, measured: await measure(kind, nodes, settings.levels) });
    }
    print(results);
    const all = results.flatMap(({ measured }) => measured).flatMap(({ rounds, quarter }) => [...rounds, quarter]);
    const isVerified = all.every(({ verified }) => verified);
    for (const { invalid } of all) if (invalid !== '') say(`INVALID: ${invalid}`);
    say(`stored and verified in ClickHouse: ${isVerified ? 'every acknowledged record, once' : 'NO'}`);
    const missed = results.flatMap(missedTargets);
    for (const line of missed) say(`target missed: ${line}`);
    writeResult('levels', settings.levels, { workers, results, missed });
    return isVerified && (missed.length === 0 || targets === 0);
  } finally {
    await nodes.stop();
  }
}

/** The engines of all levels run side by side, so that the other load of the machine affects all of them. */
async function measure(kind: Kind, nodes: NatsCluster, settings: BenchSettings['levels']): Promise<Measured[]> {
  const { rounds, seconds, warmupSeconds, latencySeconds } = settings;
  const engines: { level: Level; engine: EngineUnderLoad; rounds: Round[] }[] = [];
  try {
    for (const level of levels) {
      const env = { LOG_LEVEL: 'warn', INGEST_ACK: level, ...(level === 'stream' && streamOf(kind, nodes)) };
      engines.push({ level, engine: await kind.start({ env }), rounds: [] });
    }
    for (let round = 0; round < rounds; round += 1) {
      for (const one of round % 2 === 0 ? engines : engines.toReversed()) {
        await machineSettled();
        const load = await loaded(one.engine, nodes, 0, seconds, warmupSeconds);
        one.rounds.push(load);
        say(`${kind.name}, round ${round + 1}, ${one.level}: ${figure(load.requestsPerSecond)} messages/s`);
      }
    }
    const measured: Measured[] = [];
    for (const { level, engine, rounds: peaks } of engines) {
      const quarterRate = Math.floor(median(peaks.map(({ requestsPerSecond }) => requestsPerSecond)) / 4);
      await machineSettled();
      const quarter = await loaded(engine, nodes, quarterRate, latencySeconds, warmupSeconds);
      measured.push({ level, rounds: peaks, quarter, quarterRate });
    }
    return measured;
  } finally {
    for (const { engine } of engines) await engine.close();
  }
}

function streamOf({ name }: Kind, { url, monitorUrls }: NatsCluster): Record<string, string> {
  const limits = { STREAM_BYTES_MAX: '1GiB' };
  return { STREAM_URL: url, STREAM_MONITOR_URLS: monitorUrls, STREAM_NAME: `levels-${name}`, ...limits };
}

async function loaded(
  engine: EngineUnderLoad,
  nodes: NatsCluster,
  rate: number,
  seconds: number,
  warmupSeconds: number,
): Promise<Round> {
  const cpuMs = () => nodes.pids.reduce((sum, pid) => sum + cpuMsOf(pid), 0);
  const before = cpuMs();
  const load = await engine.load(rate, seconds, warmupSeconds);
  return { ...load, natsMicroseconds: ((cpuMs() - before) * 1000) / load.accepted };
}

function print(results: KindResult[]): void {
  const rows = results.flatMap(({ name, measured }) =>
    measured.map(({ level, rounds, quarter, quarterRate }) => {
      const of = (figureOf: (round: Round) => number) => median(rounds.map(figureOf));
      const cpu = (role: string) => of(({ cpuMicrosecondsPerRequest }) => cpuMicrosecondsPerRequest[role] ?? 0);
      return [
        name,
        level,
        rateOf(rounds),
        rateOf(rounds) / rateOf(measured[0]!.rounds),
        of(({ storedRequestsPerSecond }) => storedRequestsPerSecond),
        of(({ latency }) => latency.p50Ms),
        of(({ latency }) => latency.p99Ms),
        cpu('workers'),
        cpu('clickhouse'),
        of(({ natsMicroseconds }) => natsMicroseconds),
        quarterRate,
        quarter.latency.p50Ms,
        quarter.latency.p99Ms,
      ];
    }),
  );
  const peak = ['acknowledged/s', 'to journal', 'stored/s', 'p50 ms', 'p99 ms'];
  const cpu = ['worker us', 'ClickHouse us', 'NATS us'];
  say('');
  table(['', 'level', ...peak, ...cpu, 'a quarter/s', 'its p50 ms', 'its p99 ms'], rows);
  say('');
}

function rateOf(rounds: Round[]): number {
  return median(rounds.map(({ requestsPerSecond }) => requestsPerSecond));
}

function missedTargets({ name, measured }: KindResult): string[] {
  const missed: string[] = [];
  const [journal] = measured;
  for (const { level, rounds, quarter } of measured) {
    const ratio = rateOf(rounds) / rateOf(journal!.rounds);
    if (level === 'stream' && ratio < streamRateMin) {
      missed.push(`${name}: the rate of a stream is ${figure(ratio)} of that of the journal (${streamRateMin})`);
    }
    const max = p99MsMax[level];
    const { p99Ms } = quarter.latency;
    if (max !== undefined && p99Ms > max) missed.push(`${name}, ${level}: p99 is ${figure(p99Ms)} ms (${max} ms)`);
    const refused = [...rounds, quarter].map((load) => JSON.stringify(load.refused)).find((text) => text !== '{}');
    if (refused) missed.push(`${name}, ${level}: refused ${refused}`);
  }
  return missed;
}
