/**
 * `npm run bench` lists the scenarios; `npm run bench -- http` runs one, `-- all` runs all, `-- http --help` names what
 * can be changed. `http`, `mqtt` and `gateway` take `--target` for a server that runs already. `versions --against DIR`
 * measures this build beside that of another checkout. An error, Ctrl-C and SIGTERM end everything that a scenario has
 * started.
 */
import { destroyEngines, destroyEnginesForGood } from '../test/harness/running-engines.ts';
import { stopStores } from '../test/harness/stores.ts';
import { type CommandLine, helpOf, parseCommandLine } from './command-line.ts';
import { sentenceOf } from './error-sentence.ts';
import { endGenerators, GeneratorEnded } from './load/processes.ts';
import { beginScenario, say, writeUnfinished } from './report.ts';
import { compareHelp, compareResults } from './result/compare.ts';
import { checkResultDirectory } from './result/result-file.ts';
import { runApi } from './scenarios/api.ts';
import { runAttributes } from './scenarios/attributes.ts';
import { runBillion } from './scenarios/billion.ts';
import { runConnections } from './scenarios/connections.ts';
import { runCrash } from './scenarios/crash.ts';
import { runDay } from './scenarios/day.ts';
import { runFleet } from './scenarios/fleet.ts';
import { runGateway } from './scenarios/gateway.ts';
import { runHostile } from './scenarios/hostile.ts';
import { runHosts } from './scenarios/hosts.ts';
import { runHttp } from './scenarios/http.ts';
import { runLatest } from './scenarios/latest.ts';
import { runLevels } from './scenarios/levels.ts';
import { runLists } from './scenarios/lists.ts';
import { runLongPoll } from './scenarios/longpoll.ts';
import { runMicro } from './scenarios/micro.ts';
import { runMqtt } from './scenarios/mqtt.ts';
import { runOta } from './scenarios/ota.ts';
import { runPeers } from './scenarios/peers.ts';
import { runQuick } from './scenarios/quick.ts';
import { runReport } from './scenarios/report.ts';
import { runRpc } from './scenarios/rpc.ts';
import { runSoak } from './scenarios/soak.ts';
import { runStoreAcks } from './scenarios/store-acks.ts';
import { runTails } from './scenarios/tails.ts';
import { runVersions } from './scenarios/versions.ts';
import { runVisibility } from './scenarios/visibility.ts';
import { runWorlds } from './scenarios/world.ts';
import { type BenchSettings, loadBenchSettings, settingsReadBy, UsageError } from './settings.ts';
import { type TargetKind, targetKinds, targetOrder } from './target/order.ts';
import { abandonTargets, closeTargets, runTarget } from './target/run.ts';

const exitInterrupted = 130;
/** SIGHUP: the terminal was closed. SIGPIPE: what is printed is no longer read. */
const endSignals = ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGPIPE'] as const;
/**
 * `quick` repeats parts of other scenarios; `versions` needs another checkout; `micro` and `world` measure nothing that
 * is promised; `levels` needs the servers that the tests install.
 */
const notOfAll = ['quick', 'versions', 'micro', 'world', 'levels'];

interface Scenario {
  about: string;
  /** What a long run takes with the settings of `config/bench.yaml`, measured on two cores. */
  takes?: string;
  /** Returns false when the result breaks a promise of Millrace. */
  run(settings: BenchSettings, line: CommandLine): Promise<boolean>;
  /** True when `run` itself ends in order after Ctrl-C. */
  endsInOrder?: boolean;
}

const scenarios: Record<string, Scenario> = {
  quick: {
    about: 'main ratios to bare uWebSockets.js, Mosquitto and Aedes, compared with the baseline, in three minutes',
    run: runQuick,
  },
  http: { about: 'telemetry over HTTP beside a bare uWebSockets.js server: rate, latency, CPU, disk', run: runHttp },
  visibility: { about: 'time from acknowledgement to readable, idle and at half of peak', run: runVisibility },
  latest: { about: 'latest values of one device among a million series', run: runLatest },
  tails: {
    about: 'p99 of acknowledgements: low rate, parts of peak, with ClickHouse stopped, beside reports and reads',
    run: runTails,
  },
  attributes: {
    about: 'attribute posts over HTTP, acknowledged after the commit: rate, latency, CPU',
    run: runAttributes,
  },
  api: {
    about: 'reads of devices and telemetry among a million series, and sign-ins: idle, and beside half of peak',
    run: runApi,
  },
  lists: { about: 'lists of devices of a tenant with a million: p50 and p99 of each kind of page', run: runLists },
  longpoll: { about: 'many held long polls: memory of each, time from attribute write to answer', run: runLongPoll },
  ota: { about: 'a 16 MB package taken by 200 devices in 4 KB chunks: memory, rate', run: runOta },
  rpc: { about: 'commands from REST over the other worker to a polling device and back: round trips', run: runRpc },
  mqtt: { about: 'telemetry over MQTT beside Mosquitto and Aedes: rate, latency, CPU', run: runMqtt },
  gateway: { about: 'gateways that speak for many devices; one for 10 000, with commands', run: runGateway },
  connections: {
    about: '100 000 idle connections: memory of each; half of them reconnect at once',
    takes: 'It takes five minutes on two cores.',
    run: runConnections,
  },
  fleet: {
    about: '100 000 and a million devices beside a thousand: rate, cost of a message, memory, start, first minute',
    takes: 'It takes 25 minutes on two cores, the first time 30. 4.4 GB of devices stay on the disk for the next run.',
    run: runFleet,
  },
  billion: {
    about: 'a billion points through gateways; then history, latest values, reports, deletes, a restart',
    takes: 'It takes an hour on two cores.',
    run: runBillion,
  },
  report: {
    about:
      'reports over 10 million points: time of each kind, COMPLETENESS beside AVG, 20 clients at once, beside ingest',
    run: runReport,
  },
  versions: {
    about: 'this build beside that of another checkout (--against DIR), in turn: http, mqtt, gateway, bytes per point',
    run: (settings, { against }) => runVersions(settings, against),
  },
  peers: {
    about:
      'the same records to VictoriaMetrics, InfluxDB, PostgreSQL and brokers: rate, p99, CPU, bytes (--peer thingsboard=URL)',
    run: runPeers,
  },
  levels: {
    about: 'INGEST_ACK journal, store and stream (three nodes of NATS) in turn: rate, p50 and p99, CPU of a message',
    run: runLevels,
  },
  storeacks: {
    about: 'acknowledgements with INGEST_ACK=store: alone, beside late rows, beside one message of twenty years',
    run: runStoreAcks,
  },
  hostile: {
    about: 'an attacker beside a victim, for each resource that callers share: refusals and p99 of the victim',
    run: runHostile,
  },
  hosts: {
    about:
      'one, two and three hosts on the same stores: CPU of a message, deliveries of an event, statements, commands',
    run: runHosts,
  },
  day: {
    about: 'a mixed fleet beside reports, cut connections, a slow ClickHouse and a killed worker: what each event does',
    run: runDay,
  },
  micro: {
    about: 'parts of a worker alone: decoding, the journal on this disk, steps whose cost must not grow, known devices',
    run: runMicro,
  },
  soak: { about: 'memory of every process over minutes at peak', run: runSoak },
  crash: {
    about: 'processes killed, stopped and starved, the clock set, under load: what is lost, twice, resurrected, stuck',
    run: runCrash,
    endsInOrder: true,
  },
  world: {
    about: 'hosts and workers in virtual time, under faults of thousands of seeds: what is lost, twice, stuck',
    run: runWorlds,
  },
};

/** Called for an error that nothing awaits. */
let onFault: (error: unknown) => void = endWithFault;

async function main(): Promise<number> {
  const line = parseCommandLine(process.argv.slice(2));
  const { name } = line;
  if (name === '') {
    say('npm run bench -- <scenario> [--help] [setting=number …] [--flag value …]\n');
    for (const [key, { about }] of Object.entries(scenarios)) say(`  ${key.padEnd(12)}${about}`);
    say(`  ${'all'.padEnd(12)}all of them, but ${notOfAll.join(', ')}`);
    say(`  ${'compare'.padEnd(12)}differences of two results or more, with their noise: compare A.json B.json`);
    say(`\n${targetKinds.join(', ')} --target URL measure a server that runs already.`);
    say(
      'Settings: config/bench.yaml. Results: bench/results/, or the directory that the variable BENCH_RESULTS names.',
    );
    return 0;
  }
  if (name === 'compare') {
    if (!line.isHelp) return compareResults(line.overrides) ? 0 : 1;
    for (const text of compareHelp) say(text);
    return 0;
  }
  const chosen = name === 'all' ? Object.keys(scenarios).filter((key) => !notOfAll.includes(key)) : [name];
  const unknown = chosen.find((key) => scenarios[key] === undefined);
  if (unknown !== undefined) {
    say(`There is no scenario ${unknown}. Run without an argument for the list.`);
    return 2;
  }
  if (line.isHelp) {
    for (const key of chosen) {
      const { about, takes } = scenarios[key]!;
      for (const text of helpOf(key, about)) say(text);
      if (takes !== undefined) say(`\n${takes}`);
    }
    return 0;
  }
  if (line.flags.target !== undefined) return await runAgainstTarget(line);
  const settings = loadBenchSettings(line.overrides, name);
  checkResultDirectory();
  let failed = 0;
  for (const key of chosen) {
    beginScenario();
    say(`\n== ${key}: ${scenarios[key]!.about}\n`);
    const good = await runToTheEnd(key, settingsReadBy(key, settings), line);
    if (!good) failed += 1;
  }
  return Number(process.exitCode ?? (failed === 0 ? 0 : 1));
}

async function runAgainstTarget({ name, flags, overrides }: CommandLine): Promise<number> {
  const kind = targetKinds.find((each) => each === name);
  if (kind === undefined) throw new UsageError(`--target goes with ${targetKinds.join(', ')}, not with ${name}.`);
  if (overrides.length > 0) throw new UsageError(`With --target, ${overrides[0]} has no effect: give flags.`);
  onFault = (error) => {
    say(sentenceOf(error));
    void closeTargets().finally(() => process.exit(1));
  };
  const order = targetOrder(kind satisfies TargetKind, flags);
  if (!order.isDryRun) checkResultDirectory();
  const good = await runTarget(order);
  return good ? 0 : Number(process.exitCode ?? 1);
}

/**
 * Returns false also after an error: of several scenarios the others are still measured. Engines have process groups of
 * their own, so that Ctrl-C in a terminal does not reach them. A rejection that nothing awaits would end this process
 * without them.
 */
async function runToTheEnd(name: string, settings: BenchSettings, line: CommandLine): Promise<boolean> {
  const scenario = scenarios[name]!;
  let ending: Promise<void> | undefined;
  const end = (exitCode: number) => {
    endGenerators();
    ending ??= endServers(destroyEnginesForGood).finally(() => process.exit(exitCode));
  };
  const interrupted = (signal: NodeJS.Signals) => {
    if (!ending) {
      say(`\nended by ${signal}, before its result.`);
      writeUnfinished(name, settings);
    } else {
      abandonTargets();
    }
    end(exitInterrupted);
  };
  // A failure that the end of the engine has caused is not reported.
  const tell = (error: unknown) => {
    if (!ending) say(`\nended with an error: ${sentenceOf(error)}`);
  };
  const failed = (error: unknown) => {
    tell(error);
    end(1);
  };
  const signals = scenario.endsInOrder ? [] : endSignals;
  for (const signal of signals) process.on(signal, interrupted);
  // Node would end this process without a word, with code 13.
  const idle = () => failed(new Error('nothing is left that could continue it: a promise will never settle'));
  process.on('beforeExit', idle);
  onFault = failed;
  try {
    return await scenario.run(settings, line);
  } catch (error) {
    if (error instanceof UsageError) throw error;
    tell(error);
    return false;
  } finally {
    endGenerators();
    await (ending ?? endServers());
    for (const signal of signals) process.off(signal, interrupted);
    process.off('beforeExit', idle);
    onFault = endWithFault;
  }
}

function endWithFault(error: unknown): void {
  say(sentenceOf(error));
  process.exit(1);
}

// Each further line would fail with the same error, which `say` of that error repeats.
process.stdout.on('error', () => process.emit('SIGPIPE', 'SIGPIPE'));

/** A load that went on beside a scenario that failed is ended with it, and nothing awaits that load any more. */
process.on('uncaughtException', (error) => {
  if (!(error instanceof GeneratorEnded)) onFault(error);
});

/** Engines end before their stores. */
async function endServers(endEngines = destroyEngines): Promise<void> {
  await Promise.all([closeTargets(), endEngines()]);
  await stopStores();
}

process.exitCode = await main().catch((error: unknown) => {
  say(sentenceOf(error));
  return error instanceof UsageError ? 2 : 1;
});
