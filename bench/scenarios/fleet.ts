/**
 * Does a message cost more among a million devices? Fleets of 100 000 and of a million are each compared with one of a
 * thousand that runs beside, in turn: each device sends its first message ever, then the engine starts again and its
 * first minute counts, then telemetry of devices drawn at random over HTTP and over MQTT at QoS 1, and devices that
 * send steadily. Over MQTT gateways speak for all devices, because a machine has not enough ports for a million
 * connections; the load begins when all sessions are written down. A rate counts only what was found in ClickHouse. It
 * begins after the warm-up, in which buffers grow and V8 collects the garbage of a million connects.
 */
import { existsSync, renameSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { join } from 'node:path';
import { copyDirectory } from '../../test/harness/data-directory.ts';
import { type Engine, startEngine } from '../../test/harness/engine.ts';
import { machineSettled, residentByRole } from '../cpu.ts';
import { createFleet, EngineUnderLoad, type Generator, type MeasuredLoad, tokenOf } from '../engine-under-load.ts';
import { runHttpLoad } from '../load/http/http.ts';
import { runMqttLoad } from '../load/mqtt/mqtt.ts';
import { ownDirectory } from '../own-directory.ts';
import { figure, median, say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
import { Targets } from '../targets.ts';

type FleetSettings = BenchSettings['fleet'];

const rateRatioMin = 0.75;
const readySecondsMax = 3;
const bytesPerDeviceMax = 200;
/** With fewer devices the growth of a worker is mostly other memory. */
const memoryDevicesMin = 1_000_000;
/** Of one core, while every device sends steadily. */
const postgresShareMax = 0.05;
/** The first minute is shown in this number of parts; all but the first part are compared. */
const firstParts = 6;
const prefix = 'fleet';
const gatewayPrefix = 'fleetgateway';

interface Fleet {
  devices: number;
  load: EngineUnderLoad;
  http: Generator;
  mqtt: Generator;
}

/** The cost of a start, and the rates after it. */
interface FirstMinute {
  readySeconds: number;
  /** Requests/s in each part of the minute. */
  rates: number[];
  load: MeasuredLoad;
  /** Resident bytes by process, after the fleet has sent. */
  resident: Record<string, number>;
}

interface Measured {
  devices: number;
  /** Each device connects through its gateway and sends its first message. */
  wake: MeasuredLoad;
  first: FirstMinute;
  http: MeasuredLoad[];
  mqtt: MeasuredLoad[];
}

interface Compared {
  small: Measured;
  large: Measured;
  steady: MeasuredLoad;
  steadyRate: number;
  postgresShare: number;
  bytesPerDevice: number;
  ratios: { afterStart: number; http: number; mqtt: number };
}

export async function runFleet(settings: BenchSettings): Promise<boolean> {
  const { fleet } = settings;
  const workers = fleet.workers || availableParallelism();
  const compared: Compared[] = [];
  const small = await openFleet(fleet, fleet.devices, workers);
  try {
    for (const devices of [fleet.many, fleet.most].filter((count) => count > 0)) {
      const large = await openFleet(fleet, devices, workers);
      try {
        compared.push(await compare(small, large, fleet, workers));
      } finally {
        await large.load.close();
      }
    }
  } finally {
    await small.load.close();
  }
  const verified = compared.every(({ small: one, large, steady }) =>
    [...loadsOf(one), ...loadsOf(large), steady].every(isWhole),
  );
  tell(compared, fleet);
  say(`stored and verified in ClickHouse: ${verified ? 'every acknowledged record, once; nothing was refused' : 'NO'}`);
  const targets = fleetTargets(compared);
  const holds = targets.tell();
  writeResult('fleet', settings, { workers, compared, verified, missed: targets.missed });
  return verified && (fleet.targets === 0 || holds);
}

/** Opens an engine with a fleet that this run creates or an earlier run has kept. */
async function openFleet(settings: FleetSettings, devices: number, workers: number): Promise<Fleet> {
  const { gateways, keep } = settings;
  const kept = join(tmpdir(), `millrace-bench-fleet-${devices}-${gateways}`);
  const isKept = keep !== 0 && existsSync(kept);
  const engine = await startEngine({ workers, env: { LOG_LEVEL: 'warn' }, copyOf: isKept ? kept : undefined });
  if (isKept) {
    say(`${figure(devices)} devices: a copy of ${kept}, which an earlier run kept`);
  } else {
    const startedAt = performance.now();
    const gateway = { additionalInfo: { gateway: true } };
    await createFleet(engine.api, gatewayPrefix, gateways, () => gateway);
    await createFleet(engine.api, prefix, devices, (n) => ({ name: nameOf(n) }));
    say(`${figure(devices)} devices made over REST in ${((performance.now() - startedAt) / 1000).toFixed(1)} s`);
    if (keep !== 0) {
      await engine.stop();
      // A copy that is not whole is not kept.
      const copy = ownDirectory('millrace-bench-copy-');
      copyDirectory(engine.dataDir, copy.path);
      renameSync(copy.path, kept);
      copy.remove();
      await engine.start();
      say(`kept for the next run: ${kept}`);
    }
  }
  const tokens = Array.from({ length: devices }, (_, n) => tokenOf(prefix, n));
  return {
    devices,
    load: new EngineUnderLoad(engine, tokens, httpOf(settings)),
    http: httpOf(settings),
    mqtt: mqttOf(settings),
  };
}

function nameOf(n: number): string {
  return `${prefix}-${String(n).padStart(9, '0')}`;
}

function httpOf({ sockets, processes }: FleetSettings): Generator {
  return (engine, tokens, order) => {
    return runHttpLoad({ host: '127.0.0.1', port: engine.port, tokens, sockets, processes, drawn: true, ...order });
  };
}

/** The gateways of a fleet, which speak for all its devices. */
function gatewaysOf({ gateways, window, processes }: FleetSettings, engine: Engine, tokens: string[]) {
  const clients = Array.from({ length: gateways }, (_, gateway) => {
    const count = Math.ceil((tokens.length - gateway) / gateways);
    const children = Array.from({ length: count }, (__, n) => nameOf(gateway + n * gateways));
    return { token: tokenOf(gatewayPrefix, gateway), children };
  });
  return { host: '127.0.0.1', port: engine.mqttPort, clients, window, processes, level: 5 } as const;
}

/** Each device sends one message. */
function wakeOf(settings: FleetSettings): Generator {
  return (engine, tokens, order) => {
    return runMqttLoad({ ...gatewaysOf(settings, engine, tokens), messageDevices: 1, turns: 1, ...order });
  };
}

function mqttOf(settings: FleetSettings): Generator {
  return (engine, tokens, order) => {
    const onConnected = async () => {
      await machineSettled(settings.settleSeconds * 1000);
      order.onConnected?.();
    };
    return runMqttLoad({ ...gatewaysOf(settings, engine, tokens), drawn: true, ...order, onConnected });
  };
}

async function compare(small: Fleet, large: Fleet, settings: FleetSettings, workers: number): Promise<Compared> {
  const { rounds, everySeconds, steadySeconds, warmupSeconds } = settings;
  say(`\n${figure(large.devices)} devices beside ${figure(small.devices)}`);
  const measured: Record<'small' | 'large', Measured> = {
    small: await begin(small, settings),
    large: await begin(large, settings),
  };
  for (let round = 0; round < rounds; round += 1) {
    for (const protocol of ['http', 'mqtt'] as const) {
      // The fleet that begins alternates from round to round.
      for (const which of round % 2 === 0 ? (['small', 'large'] as const) : (['large', 'small'] as const)) {
        const fleet = which === 'small' ? small : large;
        await machineSettled(settings.settleSeconds * 1000);
        const load = await fleet.load.load(0, settings.seconds, warmupSeconds, fleet[protocol]);
        measured[which][protocol].push(load);
        say(`${protocol}, ${figure(fleet.devices)} devices: ${figure(storedRate(load))} messages/s`);
        if (load.invalid) say(`INVALID: ${load.invalid}`);
      }
    }
  }
  const steadyRate = Math.floor(Math.min(large.devices / everySeconds, medianRate(measured.small.http) / 2));
  await machineSettled(settings.settleSeconds * 1000);
  const steady = await large.load.load(steadyRate, steadySeconds, warmupSeconds, large.http);
  const [first, then] = [measured.small.first, measured.large.first];
  const workerBytes = (of: FirstMinute) => (of.resident['workers'] ?? 0) / workers;
  return {
    ...measured,
    steady,
    steadyRate,
    postgresShare: ((steady.cpuMicrosecondsPerRequest['postgres'] ?? 0) * steady.requestsPerSecond) / 1e6,
    bytesPerDevice: (workerBytes(then) - workerBytes(first)) / (large.devices - small.devices),
    ratios: {
      afterStart: afterFirstPart(then) / afterFirstPart(first),
      http: medianRate(measured.large.http) / medianRate(measured.small.http),
      mqtt: medianRate(measured.large.mqtt) / medianRate(measured.small.mqtt),
    },
  };
}

/** Wakes the fleet, and starts its engine again. */
async function begin(fleet: Fleet, settings: FleetSettings): Promise<Measured> {
  await machineSettled(settings.settleSeconds * 1000);
  const wake = await fleet.load.load(0, 0, 0, wakeOf(settings));
  say(`${figure(fleet.devices)} devices: first messages of all, ${figure(wake.storedRequestsPerSecond)} messages/s`);
  return { devices: fleet.devices, wake, first: await firstMinute(fleet, settings), http: [], mqtt: [] };
}

async function firstMinute(fleet: Fleet, settings: FleetSettings): Promise<FirstMinute> {
  const { firstSeconds } = settings;
  const { engine } = fleet.load;
  await machineSettled(settings.settleSeconds * 1000);
  await engine.stop();
  const startedAt = performance.now();
  await engine.start();
  const readySeconds = (performance.now() - startedAt) / 1000;
  const load = await fleet.load.load(0, firstSeconds, 0, fleet.http);
  const partMs = (firstSeconds * 1000) / firstParts;
  const rates = Array.from({ length: firstParts }, (_, n) => {
    const from = load.startedAtMs + n * partMs;
    return load.between(from, from + partMs) / (partMs / 1000);
  });
  const resident = residentByRole(engine.pids());
  say(
    `${figure(fleet.devices)} devices: ready in ${readySeconds.toFixed(1)} s, then ${rates.map(figure).join(', ')} requests/s`,
  );
  return { readySeconds, rates, load, resident };
}

function afterFirstPart({ rates }: FirstMinute): number {
  return rates.slice(1).reduce((sum, rate) => sum + rate, 0) / (rates.length - 1);
}

/** Returns the messages that were acknowledged after the warm-up, divided by that time and the wait for ClickHouse. */
function storedRate({ requestsPerSecond, measuredSeconds, drainSeconds }: MeasuredLoad): number {
  return (requestsPerSecond * measuredSeconds) / (measuredSeconds + drainSeconds);
}

function medianRate(loads: MeasuredLoad[]): number {
  return median(loads.map(storedRate));
}

function loadsOf({ wake, first, http, mqtt }: Measured): MeasuredLoad[] {
  return [wake, first.load, ...http, ...mqtt];
}

function isWhole({ verified, refused, broken }: MeasuredLoad): boolean {
  return verified && broken === 0 && Object.keys(refused).length === 0;
}

/** Judges each large fleet by the targets of a million devices, except the memory of a device in a smaller fleet. */
export function fleetTargets(compared: Pick<Compared, 'ratios' | 'large' | 'bytesPerDevice' | 'postgresShare'>[]) {
  const targets = new Targets();
  for (const { ratios, large, bytesPerDevice, postgresShare } of compared) {
    const fleet = `${figure(large.devices)} devices`;
    targets.atLeast(`${fleet}: rate after a start, of the small fleet's`, ratios.afterStart, rateRatioMin, '');
    targets.atLeast(`${fleet}: HTTP rate, of the small fleet's`, ratios.http, rateRatioMin, '');
    targets.atLeast(`${fleet}: MQTT rate, of the small fleet's`, ratios.mqtt, rateRatioMin, '');
    targets.atMost(`${fleet}: ready after`, large.first.readySeconds, readySecondsMax, ' s');
    if (large.devices >= memoryDevicesMin)
      targets.atMost(`${fleet}: memory of a device`, bytesPerDevice, bytesPerDeviceMax, ' bytes');
    const percent = 100 * postgresShare;
    targets.atMost(`${fleet}: PostgreSQL uses`, percent, 100 * postgresShareMax, ' % of a core');
  }
  return targets;
}

function tell(compared: Compared[], { firstSeconds, everySeconds }: FleetSettings): void {
  const smallest = compared[0]!.small;
  const measured = [smallest, ...compared.map(({ large }) => large)];
  const ratioOf = (n: number, which: keyof Compared['ratios']) => (n === 0 ? 1 : compared[n - 1]!.ratios[which]);
  const part = firstSeconds / firstParts;
  say('');
  table(
    [
      'devices',
      'ready s',
      `first ${part} s`,
      `${part} to ${firstSeconds} s`,
      'ratio',
      'HTTP/s',
      'ratio',
      'MQTT/s',
      'ratio',
    ],
    measured.map(({ devices, first, http, mqtt }, n) => [
      devices,
      first.readySeconds,
      first.rates[0]!,
      afterFirstPart(first),
      ratioOf(n, 'afterStart'),
      medianRate(http),
      ratioOf(n, 'http'),
      medianRate(mqtt),
      ratioOf(n, 'mqtt'),
    ]),
  );
  say('');
  const roles = ['workers', 'primary', 'clickhouse', 'postgres'];
  table(
    ['CPU us/message', ...roles],
    measured.flatMap(({ devices, wake, first, http, mqtt }) => {
      const line = (name: string, loads: MeasuredLoad[]) => {
        const costs = roles.map((role) => median(loads.map((load) => load.cpuMicrosecondsPerRequest[role] ?? 0)));
        return [`${figure(devices)} devices, ${name}`, ...costs];
      };
      return [
        line('first messages', [wake]),
        line('after a start', [first.load]),
        line('HTTP', http),
        line('MQTT', mqtt),
      ];
    }),
  );
  say('');
  table(
    ['resident MiB', ...roles],
    measured.map(({ devices, first }) => {
      return [`${figure(devices)} devices`, ...roles.map((role) => (first.resident[role] ?? 0) / (1024 * 1024))];
    }),
  );
  say('');
  for (const { large, bytesPerDevice, steadyRate, steady, postgresShare } of compared) {
    say(
      `${figure(large.devices)} devices: ${figure(bytesPerDevice)} bytes of each in a worker; each sends every ${everySeconds} s or ` +
        `at ${figure(steadyRate)} messages/s: PostgreSQL ${(100 * postgresShare).toFixed(1)} % of a core, ack p99 ${figure(steady.latency.p99Ms)} ms`,
    );
    for (const load of [...loadsOf(large), steady]) if (load.invalid) say(`INVALID: ${load.invalid}`);
  }
  say(
    `targets: rates ${rateRatioMin} of the small fleet, ready in ${readySecondsMax} s, ${bytesPerDeviceMax} bytes of each of a million devices, ` +
      `PostgreSQL ${100 * postgresShareMax} % of a core`,
  );
}
