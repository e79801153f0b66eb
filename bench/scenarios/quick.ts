/**
 * The main ratios in less than three minutes: one worker of Millrace over HTTP, MQTT and through gateways, in turn with
 * bare uWebSockets.js, Mosquitto and Aedes under the same load. Every acknowledged record must be found; the ratios are
 * compared with those of bench/baseline.json.
 */
import { loadavg } from 'node:os';
import { type Baseline, faultOfRatio, type Ratio, readBaseline, verdictOf, writeBaseline } from '../baseline.ts';
import { type Contender, engineContender, peerContender, type Turn } from '../contender.ts';
import { idleShare } from '../cpu.ts';
import { benchTokens, type LoadOrder } from '../engine-under-load.ts';
import type { LoadResult } from '../load/processes.ts';
import { thisMachine } from '../machine.ts';
import { type Peer, startAedes, startBare, startMosquitto } from '../peers/start.ts';
import { figure, median, rangeText, say, table, writeResult } from '../report.ts';
import { commitOf } from '../result/result-file.ts';
import type { BenchSettings } from '../settings.ts';
import { Targets } from '../targets.ts';
import { offer as offerGateways } from './gateway.ts';
import { offerBare } from './http.ts';
import { offer as offerMqtt } from './mqtt.ts';
import { type Kind, kindsOf } from './versions.ts';

const millrace = 'Millrace, 1 worker';
/** Below this share of idle CPU the figures say more about the other work on the machine. */
const idleShareMin = 0.8;

/** The results of all rounds of one server under one load. */
interface Row {
  name: string;
  turns: Turn[];
}

interface KindResult {
  name: Kind['name'];
  millrace: Row;
  peers: Row[];
  bytesPerPoint: number;
}

export async function runQuick(settings: BenchSettings): Promise<boolean> {
  const startedAt = performance.now();
  const loadBefore = { average: loadavg()[0]!, idleShare: await idleShare() };
  if (loadBefore.idleShare < idleShareMin)
    say(`The machine is busy (${figure(100 * loadBefore.idleShare)} % idle): the ratios say little.\n`);
  const versions: Record<string, string> = {};
  const kinds: KindResult[] = [];
  for (const kind of kindsOf(settings, 1)) kinds.push(await measure(kind, settings, versions));
  const ratios = ratiosOf(kinds);
  const rows = kinds.flatMap(({ name, millrace: own, peers }) => [...peers, own].map((row) => rowOf(name, row)));
  say('');
  table(['', '', 'messages/s', 'p50 ms', 'p99 ms', 'CPU us/message', 'generator CPU'], rows);
  const turns = kinds.flatMap(({ millrace: own, peers }) => [own, ...peers]).flatMap((row) => row.turns);
  const isVerified = turns.every(({ verified }) => verified !== false);
  const invalid = turns.map(({ load }) => load.invalid).filter((reason) => reason !== '');
  if (settings.quick.record !== 0) record({ loadBefore, versions, ratios }, isVerified && invalid.length === 0);
  const targets = compare(ratios, readBaseline());
  for (const reason of invalid) say(`INVALID: ${reason}`);
  say(`stored and verified in ClickHouse: ${isVerified ? 'every acknowledged record, once' : 'NO'}`);
  say(`took ${figure((performance.now() - startedAt) / 1000)} s`);
  const holds = targets.tell();
  writeResult('quick', settings, { loadBefore, versions, ratios, kinds, missed: targets.missed });
  return isVerified && (holds || settings.quick.targets === 0);
}

/** Makes the ratios the baseline, unless a load says nothing about its server or a record was not found. */
function record(figures: Pick<Baseline, 'loadBefore' | 'versions' | 'ratios'>, isSound: boolean): void {
  const [at, commit, machine] = [new Date().toISOString(), commitOf(), thisMachine()];
  if (isSound) say(`\nbaseline written to ${writeBaseline({ at, commit, machine, ...figures })}`);
  else say('\nthe baseline is not written: see below');
}

/** Runs the servers of one load in turn; the server that begins alternates from round to round. */
async function measure(kind: Kind, settings: BenchSettings, versions: Record<string, string>): Promise<KindResult> {
  const { rounds, seconds, warmupSeconds } = settings.quick;
  const contenders: Contender[] = [];
  try {
    for (const start of peersOf(kind.name)) {
      const peer = await start();
      versions[peer.name] = peer.version;
      contenders.push(peerContender(peer, offerOf(kind.name, peer, settings)));
    }
    const engine = await kind.start();
    contenders.push(engineContender(millrace, engine));
    const rows = contenders.map(({ name }): Row => ({ name, turns: [] }));
    for (let round = 0; round < rounds; round += 1) {
      const order = contenders.map((contender, n) => [contender, rows[n]!] as const);
      for (const [contender, row] of round % 2 === 0 ? order : order.reverse()) {
        const turn = await contender.run({ rate: 0, seconds, warmupSeconds });
        row.turns.push(turn);
        say(`${kind.name}, round ${round + 1}, ${contender.name}: ${figure(turn.messagesPerSecond)} messages/s`);
      }
    }
    const bytesPerPoint = (await engine.bytesPerPoint()).merged;
    return { name: kind.name, millrace: rows.at(-1)!, peers: rows.slice(0, -1), bytesPerPoint };
  } finally {
    for (const contender of contenders) await contender.close();
  }
}

function peersOf(kind: Kind['name']): (() => Promise<Peer>)[] {
  if (kind === 'http') return [startBare];
  return kind === 'mqtt' ? [startMosquitto, startAedes] : [startMosquitto];
}

function offerOf(kind: Kind['name'], { port }: Peer, settings: BenchSettings) {
  const { http, mqtt, gateway } = settings;
  return (order: LoadOrder): Promise<LoadResult> => {
    if (kind === 'http') return offerBare(port, http, order);
    if (kind === 'mqtt') return offerMqtt(port, benchTokens(mqtt.connections), settings, mqtt.window, order);
    return offerGateways(port, benchTokens(gateway.gateways), gateway, 4, order);
  };
}

/**
 * The CPU of Millrace is that of its workers, because the other servers have no store. The bytes of a point are no
 * ratio.
 */
function ratiosOf(kinds: KindResult[]): Record<string, Ratio> {
  const ratios: Record<string, Ratio> = {};
  for (const { name, millrace: own, peers } of kinds) {
    for (const peer of peers) {
      const pairs = own.turns.map((turn, n) => [turn, peer.turns[n]!] as const);
      const rates = pairs.map(([mine, other]) => mine.messagesPerSecond / other.messagesPerSecond);
      const costs = pairs.map(([mine, other]) => cpuOf(mine) / cpuOf(other));
      ratios[`${name}: rate / ${peer.name}`] = ratioOf(rates, 'higher');
      ratios[`${name}: CPU per message / ${peer.name}`] = ratioOf(costs, 'lower');
    }
  }
  ratios['bytes per point'] = ratioOf([kinds[0]!.bytesPerPoint], 'lower');
  return ratios;
}

function ratioOf(values: number[], better: 'higher' | 'lower'): Ratio {
  const [value, least, greatest] = [median(values), Math.min(...values), Math.max(...values)].map(rounded);
  return { value: value!, least: least!, greatest: greatest!, isHigherBetter: better === 'higher' };
}

function rounded(value: number): number {
  return Number(value.toPrecision(3));
}

function cpuOf({ cpuMicroseconds = {} }: Turn): number {
  return cpuMicroseconds['server'] ?? cpuMicroseconds['workers'] ?? Number.NaN;
}

function rowOf(kind: string, { name, turns }: Row): (string | number)[] {
  const of = (figureOf: (turn: Turn) => number) => median(turns.map(figureOf));
  return [
    kind,
    name,
    of(({ messagesPerSecond }) => messagesPerSecond),
    of(({ load }) => load.latency.p50Ms),
    of(({ load }) => load.latency.p99Ms),
    of(cpuOf),
    of(({ load }) => load.generatorCpuShare),
  ];
}

/** Prints the ratios beside those of the baseline. The target of each is that it is not far worse. */
function compare(ratios: Record<string, Ratio>, { at, machine, loadBefore, ratios: known }: Baseline): Targets {
  const verdicts = Object.entries(ratios).map(([name, ratio]) => {
    return { name, ratio, base: known[name], verdict: verdictOf(ratio, known[name]) };
  });
  const busy = loadBefore.idleShare < idleShareMin ? ', a busy machine: repeat it with --record 1' : '';
  const idle = `${figure(100 * loadBefore.idleShare)} % idle before${busy}`;
  say(`\nbaseline of ${at}: ${machine.cores} × ${machine.cpu}, ${idle}\n`);
  table(
    ['ratio', 'now', 'rounds', 'baseline', 'verdict'],
    verdicts.map(({ name, ratio, base, verdict }) => {
      const rounds = rangeText([ratio.least, ratio.greatest]);
      return [name, ratio.value, rounds, base?.value ?? Number.NaN, verdict];
    }),
  );
  say('');
  const targets = new Targets();
  for (const { name, ratio, base } of verdicts) targets.faultless(faultOfRatio(name, ratio, base));
  return targets;
}
