/**
 * A fleet that is connected over MQTT and silent: the memory of a connection in the workers. Then a large part of it
 * loses the network and reconnects at once, several times: the time that takes, the attempts that are refused while the
 * workers have room, and the effect on other senders of telemetry.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { type Engine, startEngine } from '../../test/harness/engine.ts';
import { RedisNodes } from '../../test/harness/redis-nodes.ts';
import { type AcceptQueueCounts, acceptQueueCounts } from '../accept-queue.ts';
import { cpuBetween, cpuByRole, growthOf, machineCpu, residentBytesOfAll } from '../cpu.ts';
import { createDevices } from '../engine-under-load.ts';
import { refusedText } from '../load/counts.ts';
import { Fleet, type FleetConnected } from '../load/mqtt/fleet.ts';
import { runMqttLoad } from '../load/mqtt/mqtt.ts';
import type { LoadResult } from '../load/processes.ts';
import { WaitView } from '../load/wait-view.ts';
import { figure, say, table, workersText, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
import { Targets } from '../targets.ts';

const bytesPerConnectionMax = 6 * 1024;
const connectsPerSecondMin = 3_000;
const warmupConnections = 200;
const othersWindow = 4;
const beforeStormMs = 2_000;
/** The slowest storm that is still measured to its end. */
const stormConnectsPerSecondMin = 1_000;
/** Above this a process of the fleet has no time left to connect faster. */
const fleetShareMax = 0.97;
const machineIdleShareMin = 0.05;
const countedSecondsMax = 5;

/** An attempt that gets no answer in time waits in the kernel's queue, which is a delay and no refusal. */
const waited = 'timeout';
/** By the kernel, for an attempt that its full queue made it forget; or by a worker that closes a socket. */
const reset = 'ECONNRESET';
/** An attempt that found no free port on the side of the fleet. */
const noPort = 'EADDRINUSE';
/** Reasons in the engine's count of ended connections that are the work of the client, or of its next connection. */
const endedByClient = ['connection_lost', 'client_disconnect', 'taken_over'];

interface Storm {
  storm: FleetConnected;
  /** Milliseconds by role. */
  cpu: Record<string, number>;
  othersPerSecond: number;
  others: LoadResult;
  /** Connections that ended in the engine meanwhile, by reason. */
  ended: Record<string, number>;
  queue: AcceptQueueCounts;
  /** Of the processors, while devices reconnected. */
  machineIdleShare: number;
}

type ConnectionsSettings = BenchSettings['connections'];

/** Devices of the fleet that are connected and silent, and what each of them takes. */
interface Idle {
  /** The devices that lose the network in a storm, and the others. */
  first: OpenFleet;
  second: OpenFleet;
  /** Resident bytes of the workers before any device was connected. */
  fresh: number;
  bytesPerConnection: number;
  /** With what all connections share: heap growth, tables, code. */
  bytesPerConnectionFromStart: number;
}

type OpenFleet = Awaited<ReturnType<typeof Fleet.open>>;

export async function runConnections(settings: BenchSettings): Promise<boolean> {
  const { devices, workers, stormRounds, othersConnections, quietSeconds, targets, overRedis } = settings.connections;
  const redis = new RedisNodes();
  const bus = overRedis === 1 ? { REDIS_URL: (await redis.one()).url } : {};
  const engine = await startEngine({ workers, env: { LOG_LEVEL: 'warn', ...bus } });
  const fleets: Fleet[] = [];
  try {
    const creating = `creating ${figure(devices + othersConnections)} devices`;
    const tokens = await showing(creating, createDevices(engine.api, devices + othersConnections));
    const others = new Others(engine, tokens.splice(devices), settings.connections);
    // A heap that grew while devices were created would have room for connections already.
    await engine.restart();
    const idle = await connectAll(engine, tokens, settings.connections, fleets);
    const { first, second, fresh, bytesPerConnection, bytesPerConnectionFromStart } = idle;
    const quiet = await others.send(quietSeconds);
    const storms: Storm[] = [];
    for (let round = 0; round < stormRounds; round += 1) {
      storms.push(await measureStorm(engine, first.fleet, others, settings.connections));
    }
    const noticed = (await second.fleet.lost()) + Math.max(...storms.map(({ storm }) => storm.lost));
    // The kernel may drop the packet that tells a client of the end.
    const lost = Math.max(noticed, devices - (await openConnections(engine, devices)));
    const afterStorms = (residentBytesOfAll(engine.workers()) - fresh) / devices;
    say('');
    table(
      [
        `${figure(devices)} connections, ${workersText(workers)}`,
        'bytes each',
        'from a fresh start',
        'after the storms',
      ],
      [['idle', bytesPerConnection, bytesPerConnectionFromStart, afterStorms]],
    );
    say('');
    tellOthers(quiet, storms);
    for (const storm of storms) tellStorm(storm);
    const refused =
      [first.connected, second.connected].reduce((sum, { failed }) => sum + sumOf(failed, [waited]), 0) +
      storms.reduce((sum, storm) => sum + refusedIn(storm), 0);
    say(`connections that were refused or ended by themselves: ${refused + lost}`);
    say(
      `targets: ${figure(bytesPerConnectionMax)} bytes each, ${figure(connectsPerSecondMin)} connects/s, none refused`,
    );
    if (!(bytesPerConnection > 0)) say('INVALID: memory did not grow with the connections; open more of them');
    const judged = new Targets();
    judged.atMost('an idle connection:', growthOf(bytesPerConnection), bytesPerConnectionMax, ' bytes');
    for (const [n, { storm }] of storms.entries())
      judged.atLeast(`storm ${n + 1}:`, storm.connectsPerSecond, connectsPerSecondMin, ' connects/s');
    judged.none('connections that were refused or ended by themselves:', refused + lost);
    const holds = judged.tell();
    const connected = { first: first.connected, second: second.connected };
    const bytes = { bytesPerConnection, bytesPerConnectionFromStart, afterStorms };
    const { missed } = judged;
    writeResult('connections', settings, { ...bytes, ...connected, quiet, storms, lost, missed });
    return refused + lost === 0 && (targets === 0 || holds);
  } finally {
    for (const fleet of fleets) fleet.close();
    await engine.destroy();
    await redis.remove();
  }
}

/** Shows in a terminal what is waited for. */
async function showing<Value>(what: string, waited: Promise<Value>): Promise<Value> {
  const view = new WaitView(what);
  return await waited.finally(() => view.end());
}

/** Connects the fleet in two parts: the second one shows what one more connection takes. */
async function connectAll(
  engine: Engine,
  tokens: string[],
  { devices, stormDevices, processes, settleSeconds }: ConnectionsSettings,
  fleets: Fleet[],
): Promise<Idle> {
  const connect = async (part: string[], parts: number): Promise<OpenFleet> => {
    const connecting = `connecting ${figure(part.length)} devices`;
    const opened = await showing(connecting, Fleet.open('127.0.0.1', engine.mqttPort, part, parts));
    fleets.push(opened.fleet);
    return opened;
  };
  // Garbage of the connects is collected in idle time.
  const settledBytes = async () => {
    await showing('waiting until the memory has settled', sleep(settleSeconds * 1000));
    return residentBytesOfAll(engine.workers());
  };
  // Code and buffers that the first connections bring along are not counted.
  const warmup = await connect(tokens.slice(0, warmupConnections), 1);
  warmup.fleet.close();
  const fresh = await settledBytes();
  // The first part also includes costs that all connections share: heap growth, tables, code.
  const stormProcesses = Math.max(1, Math.round((processes * stormDevices) / devices));
  const first = await connect(tokens.slice(0, stormDevices), stormProcesses);
  const afterFirst = await settledBytes();
  const second = await connect(tokens.slice(stormDevices), Math.max(1, processes - stormProcesses));
  const afterAll = await settledBytes();
  for (const { connected } of [first, second]) {
    const { connections, connectsPerSecond, failed } = connected;
    say(`${figure(connections)} connected: ${figure(connectsPerSecond)}/s, failed attempts: ${refusedText(failed)}`);
  }
  const bytesPerConnection = (afterAll - afterFirst) / (devices - stormDevices);
  return { first, second, fresh, bytesPerConnection, bytesPerConnectionFromStart: (afterAll - fresh) / devices };
}

/** Devices that send telemetry while the others are silent or reconnect. */
class Others {
  readonly #engine: Engine;
  readonly #tokens: string[];
  readonly #rate: number;
  #nextTs = Date.now() - 3_600_000;

  constructor(engine: Engine, tokens: string[], { othersRate }: ConnectionsSettings) {
    this.#engine = engine;
    this.#tokens = tokens;
    this.#rate = othersRate;
  }

  send(seconds: number): Promise<LoadResult> {
    this.#nextTs += 600_000;
    const clients = this.#tokens.map((token) => ({ token, children: [] }));
    const place = { host: '127.0.0.1', port: this.#engine.mqttPort };
    const times = { rate: this.#rate, warmupSeconds: 1, seconds, firstTs: this.#nextTs, stepMs: 1 };
    return runMqttLoad({ ...place, ...times, clients, processes: 1, window: othersWindow, level: 4 });
  }
}

async function measureStorm(
  engine: Engine,
  fleet: Fleet,
  others: Others,
  { stormDevices, settleSeconds }: ConnectionsSettings,
): Promise<Storm> {
  const sending = others.send(stormDevices / stormConnectsPerSecondMin + beforeStormMs / 1000);
  await sleep(beforeStormMs);
  const endedBefore = await endedConnections(engine);
  const queueBefore = acceptQueueCounts();
  const before = cpuByRole(engine.pids());
  const machineBefore = machineCpu();
  const storm = await fleet.storm();
  const cpu = cpuBetween(before, cpuByRole(engine.pids()));
  const machineAfter = machineCpu();
  const queueAfter = acceptQueueCounts();
  const result = await sending;
  const stormMs = storm.endedAtMs - storm.startedAtMs;
  const acknowledged = result.between(storm.startedAtMs, storm.endedAtMs);
  // The processes of the workers report their counts once a second.
  await sleep(settleSeconds * 1000);
  return {
    storm,
    cpu,
    othersPerSecond: (acknowledged / stormMs) * 1000,
    others: result,
    ended: increases(endedBefore, await endedConnections(engine)),
    queue: {
      overflows: queueAfter.overflows - queueBefore.overflows,
      drops: queueAfter.drops - queueBefore.drops,
      packets: queueAfter.packets - queueBefore.packets,
    },
    machineIdleShare: (machineAfter.idle - machineBefore.idle) / (machineAfter.total - machineBefore.total),
  };
}

/** Prints what the others saw without a storm and in each. */
function tellOthers(quiet: LoadResult, storms: Storm[]): void {
  table(
    ['', 'connects/s', 'failed attempts', 'others: messages/s', 'p50 ms', 'p99 ms', 'max ms'],
    [
      ['quiet', 0, 0, quiet.requestsPerSecond, quiet.latency.p50Ms, quiet.latency.p99Ms, quiet.latency.maxMs],
      ...storms.map(({ storm, othersPerSecond, others: { latency } }, n) => [
        `storm ${n + 1}`,
        storm.connectsPerSecond,
        sumOf(storm.failed),
        othersPerSecond,
        latency.p50Ms,
        latency.p99Ms,
        latency.maxMs,
      ]),
    ],
  );
  for (const [name, { refused }] of [
    ['quiet', quiet] as const,
    ...storms.map(({ others }, n) => [`storm ${n + 1}`, others] as const),
  ])
    if (Object.keys(refused).length > 0) say(`others, ${name}: refused with ${refusedText(refused)}`);
}

function tellStorm({ storm, cpu, ended, queue, machineIdleShare }: Storm): void {
  const perConnect = (ms: number) => figure((ms * 1000) / storm.connections);
  const costs = Object.entries(cpu).map(([role, ms]) => `${role} ${perConnect(ms)}`);
  say(`CPU us/connect, with that of the others: ${costs.join(', ')}`);
  say(`  the fleet itself: ${perConnect(storm.cpuMs)}`);
  const { half, nineTenths, almostAll } = storm.connectedAfterMs;
  const seconds = [half, nineTenths, almostAll].map((ms) => figure(ms / 1000)).join(', ');
  say(`50, 90 and 99 % connected after ${seconds} s; the machine was idle for ${percent(machineIdleShare)} %`);
  if (storm.busiestShare > fleetShareMax && machineIdleShare > machineIdleShareMin) {
    const share = percent(storm.busiestShare);
    say(`INVALID: a process of the fleet used ${share} % of a core while the machine had time left`);
  }
  say(`failed attempts: ${refusedText(storm.failed)}; ended in the engine: ${refusedText(ended)}`);
  const { overflows, drops, packets } = queue;
  say(`full queues of the kernel: ${figure(overflows)} connections, ${figure(drops)} of their packets dropped`);
  say(`  ${figure(packets)} packets of any connection dropped`);
}

/**
 * Returns the attempts that were refused or closed before an answer, without those for which the fleet had no port.
 * Resets are not counted when the engine has ended no connection and the kernel's queue was full: then the kernel made
 * them.
 */
function refusedIn({ storm: { failed }, ended, queue }: Storm): number {
  const isKernel = sumOf(ended, endedByClient) === 0 && queue.overflows > 0;
  return sumOf(failed, [waited, noPort, ...(isKernel ? [reset] : [])]);
}

function percent(share: number): string {
  return (share * 100).toFixed(0);
}

function sumOf(counts: Record<string, number>, without: string[] = []): number {
  return Object.entries(counts).reduce((sum, [name, count]) => (without.includes(name) ? sum : sum + count), 0);
}

/** Returns how many connections have ended so far, by the engine's reason. */
async function endedConnections(engine: Engine): Promise<Record<string, number>> {
  const page = await engine.api.metrics();
  const lines = page.matchAll(/^mqtt_disconnects_total\{[^}]*reason="(\w+)"[^}]*\} (\d+)/gm);
  const counts: Record<string, number> = {};
  for (const [, reason, count] of lines) counts[reason!] = (counts[reason!] ?? 0) + Number(count);
  return counts;
}

/** Returns how many connections the engine has, when these are `expected`, or at the latest after some seconds. */
async function openConnections(engine: Engine, expected: number): Promise<number> {
  for (let seconds = 0; ; seconds += 1) {
    const [, count] = /^mqtt_connections (\d+)$/m.exec(await engine.api.metrics()) ?? [];
    if (Number(count) === expected || seconds === countedSecondsMax) return Number(count);
    await sleep(1_000);
  }
}

function increases(before: Record<string, number>, after: Record<string, number>): Record<string, number> {
  const grown = Object.entries(after).map(([name, count]) => [name, count - (before[name] ?? 0)] as const);
  return Object.fromEntries(grown.filter(([, count]) => count > 0));
}
