/**
 * Telemetry over MQTT at QoS 1, one record of four keys in each message, side by side in one run: Mosquitto and Aedes,
 * which store nothing, and Millrace with one worker and with all of them. Rounds alternate, so that the other load of
 * the machine affects all of them. A rate of Millrace counts only what was found in ClickHouse afterwards.
 */
import { availableParallelism } from 'node:os';
import { cpuMsOf, machineSettled } from '../cpu.ts';
import {
  benchTokens,
  EngineUnderLoad,
  type Generator,
  type LoadOrder,
  type MeasuredLoad,
} from '../engine-under-load.ts';
import { runMqttLoad } from '../load/mqtt/mqtt.ts';
import { type LoadResult, sayFailures } from '../load/processes.ts';
import { type Peer, startAedes, startMosquitto } from '../peers/start.ts';
import { figure, median, rangeText, say, table, workersText, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
import { Targets } from '../targets.ts';

/** The least ratio of one worker to the one process of Mosquitto. */
const ratioMin = 1.1;

/** A server under one form of the load. */
interface Contender {
  name: string;
  window: number;
  run(order: Pick<LoadOrder, 'rate' | 'seconds' | 'warmupSeconds'>): Promise<Round>;
}

interface Round {
  messagesPerSecond: number;
  cpuMicrosecondsPerMessage: Record<string, number>;
  load: LoadResult;
  drainSeconds: number;
  verified: boolean;
}

interface Row {
  name: string;
  window: number;
  rounds: Round[];
}

export async function runMqtt(settings: BenchSettings): Promise<boolean> {
  const { connections, window, rounds, seconds, warmupSeconds, latencySeconds } = settings.mqtt;
  const workers = settings.mqtt.workers || availableParallelism();
  const peers: Peer[] = [];
  const engines: EngineUnderLoad[] = [];
  try {
    peers.push(await startMosquitto(), await startAedes());
    const start = async (count: number) => {
      const engine = await EngineUnderLoad.start(count, connections, generatorOf(settings, window));
      engines.push(engine);
      return { name: `Millrace, ${workersText(count)}`, engine };
    };
    const millraces = [await start(1)];
    if (workers > 1) millraces.push(await start(workers));
    // A device that waits for each acknowledgement, and one that does not.
    const contenders = [...new Set([1, window])].flatMap((size): Contender[] => [
      ...peers.map((peer) => ({ name: peer.name, window: size, run: peerRun(peer, settings, size) })),
      ...millraces.map(({ name, engine }) => ({ name, window: size, run: engineRun(engine, settings, size) })),
    ]);
    const rows: Row[] = contenders.map(({ name, window: size }) => ({ name, window: size, rounds: [] }));
    for (let round = 0; round < rounds; round += 1) {
      for (const [n, contender] of contenders.entries()) {
        await machineSettled();
        const result = await contender.run({ rate: 0, seconds, warmupSeconds });
        rows[n]!.rounds.push(result);
        say(`${contender.name}, window ${contender.window}: ${figure(result.messagesPerSecond)} messages/s`);
        if (result.load.invalid) say(`INVALID: ${result.load.invalid}`);
      }
    }
    const peak = medianRate(rows.filter(({ window: size }) => size === window).at(-1)!);
    const half = { rate: Math.floor(peak / 2), seconds: latencySeconds, warmupSeconds };
    const atHalf: Row[] = [];
    for (const contender of contenders.filter(({ window: size }) => size === window)) {
      await machineSettled();
      const name = `${contender.name}, half of peak`;
      atHalf.push({ name, window, rounds: [await contender.run(half)] });
    }
    say(`half of peak of Millrace, offered to all: ${figure(half.rate)} messages/s`);
    const versions = Object.fromEntries(peers.map(({ name, version }) => [name, version]));
    return report(settings, { workers, versions, rows, atHalf });
  } finally {
    for (const peer of peers) peer.close();
    for (const engine of engines) await engine.close();
  }
}

export function generatorOf(settings: BenchSettings, window: number): Generator {
  return (engine, tokens, order) => offer(engine.mqttPort, tokens, settings, window, order);
}

export function offer(port: number, tokens: string[], settings: BenchSettings, window: number, order: LoadOrder) {
  const { processes } = settings.mqtt;
  const clients = tokens.map((token) => ({ token, children: [] }));
  return runMqttLoad({ host: '127.0.0.1', port, clients, processes, window, level: 4, ...order });
}

function peerRun(peer: Peer, settings: BenchSettings, window: number): Contender['run'] {
  const { connections } = settings.mqtt;
  const tokens = benchTokens(connections);
  return async (order) => {
    const cpuBefore = cpuMsOf(peer.pid);
    const load = await offer(peer.port, tokens, settings, window, { ...order, firstTs: Date.now(), stepMs: 100 });
    const cpuMs = cpuMsOf(peer.pid) - cpuBefore;
    sayFailures(load);
    const cpuMicrosecondsPerMessage = { broker: (cpuMs * 1000) / load.accepted };
    return {
      messagesPerSecond: load.requestsPerSecond,
      cpuMicrosecondsPerMessage,
      load,
      drainSeconds: 0,
      verified: true,
    };
  };
}

function engineRun(engine: EngineUnderLoad, settings: BenchSettings, window: number): Contender['run'] {
  return async ({ rate, seconds, warmupSeconds }) => {
    const measured: MeasuredLoad = await engine.load(rate, seconds, warmupSeconds, generatorOf(settings, window));
    return {
      messagesPerSecond: measured.storedRequestsPerSecond,
      cpuMicrosecondsPerMessage: measured.cpuMicrosecondsPerRequest,
      load: measured,
      drainSeconds: measured.drainSeconds,
      verified: measured.verified,
    };
  };
}

function medianRate({ rounds }: Row): number {
  return median(rounds.map(({ messagesPerSecond }) => messagesPerSecond));
}

interface Outcome {
  workers: number;
  /** Of the brokers. */
  versions: Record<string, string>;
  rows: Row[];
  atHalf: Row[];
}

/** Each figure is the median of its rounds. */
function report(settings: BenchSettings, { workers, versions, rows, atHalf }: Outcome): boolean {
  const { window } = settings.mqtt;
  const mosquittoOf = (size: number) =>
    medianRate(rows.find((row) => row.name === 'Mosquitto' && row.window === size)!);
  const line = (row: Row, isPeak: boolean) => {
    const of = (figureOf: (round: Round) => number) => median(row.rounds.map(figureOf));
    // At a rate that was asked for, the time until the last row is stored says nothing of the server's rate.
    const rateOf = ({ messagesPerSecond, load }: Round) => (isPeak ? messagesPerSecond : load.requestsPerSecond);
    return [
      row.name,
      row.window,
      of(rateOf),
      rangeText(row.rounds.map(rateOf)),
      isPeak ? medianRate(row) / mosquittoOf(row.window) : Number.NaN,
      of(({ drainSeconds }) => drainSeconds),
      of(({ load }) => load.latency.p50Ms),
      of(({ load }) => load.latency.p99Ms),
      of(({ cpuMicrosecondsPerMessage: { broker, workers: own = 0 } }) => broker ?? own),
      of(({ cpuMicrosecondsPerMessage: { clickhouse = 0 } }) => clickhouse),
      of(({ load }) => load.generatorCpuShare),
    ];
  };
  say('');
  const columns = ['window', 'messages/s', 'rounds', 'of Mosquitto', 'drain s', 'p50 ms', 'p99 ms', 'CPU us/message'];
  table(
    ['', ...columns, 'ClickHouse us', 'generator CPU'],
    [...rows.map((row) => line(row, true)), ...atHalf.map((row) => line(row, false))],
  );
  const all = [...rows, ...atHalf].flatMap((row) => row.rounds.map((round) => ({ name: row.name, round })));
  const verified = all.every(({ round }) => round.verified);
  const invalid = all.filter(({ round }) => round.load.invalid !== '');
  const one = rows.find((row) => row.name === 'Millrace, 1 worker' && row.window === window)!;
  const ratio = medianRate(one) / mosquittoOf(window);
  say(`\nstored and verified in ClickHouse: ${verified ? 'every acknowledged message, once' : 'NO'}`);
  say(`1 worker / Mosquitto, window ${window}: ${figure(ratio)} (target ${ratioMin})`);
  for (const { name, round } of invalid) say(`INVALID ${name}: ${round.load.invalid}`);
  const targets = new Targets();
  targets.atLeast(`1 worker / Mosquitto, window ${window}:`, ratio, ratioMin, '');
  const holds = targets.tell();
  writeResult('mqtt', settings, { workers, versions, rows, atHalf, ratio, verified, missed: targets.missed });
  return verified && holds;
}
