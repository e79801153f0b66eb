/**
 * The settings of the benchmarks: config/bench.yaml, single numbers overridden as `http.seconds=3` on the command line.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';
import { root } from '../test/harness/engine.ts';
import type { CrashOptions } from './crash.ts';
import { conflictOf, faultOf } from './setting-rules.ts';

export interface BenchSettings {
  quick: { rounds: number; warmupSeconds: number; seconds: number; targets: number; record: number };
  http: {
    devices: number;
    sockets: number;
    processes: number;
    warmupSeconds: number;
    seconds: number;
    workers: number;
    latencySeconds: number;
  };
  autocannon: { connections: number; seconds: number; rate: number };
  visibility: { samples: number; loadSeconds: number };
  storeAcks: {
    rate: number;
    seconds: number;
    warmupSeconds: number;
    lateRate: number;
    lateDays: number;
    wideDays: number;
  };
  latest: { devices: number; keys: number; samples: number };
  lists: { devices: number; samples: number };
  api: {
    devices: number;
    keys: number;
    connections: number;
    latestRate: number;
    historyRate: number;
    seconds: number;
    users: number;
    signInRate: number;
    wrongPercent: number;
  };
  attributes: { devices: number; sockets: number; seconds: number; samples: number };
  longpoll: { polls: number; samples: number; pauseMs: number };
  ota: { fileBytes: number; chunkBytes: number; devices: number; step: number };
  rpc: { devices: number; rate: number; seconds: number };
  hosts: {
    hosts: number;
    devices: number;
    rate: number;
    seconds: number;
    idleSeconds: number;
    events: number;
    commands: number;
    commandRate: number;
    statements: number;
  };
  mqtt: {
    connections: number;
    window: number;
    processes: number;
    workers: number;
    rounds: number;
    warmupSeconds: number;
    seconds: number;
    latencySeconds: number;
  };
  peers: {
    brokers: number;
    sessions: number;
    blocks: number;
    blockDevices: number;
    rate: number;
    blockRate: number;
    settleSeconds: number;
    workers: number;
    warmupSeconds: number;
    seconds: number;
    latencySeconds: number;
  };
  gateway: {
    gateways: number;
    children: number;
    window: number;
    processes: number;
    workers: number;
    warmupSeconds: number;
    seconds: number;
    siteChildren: number;
    siteSeconds: number;
    siteCommandsPerSecond: number;
  };
  connections: {
    devices: number;
    stormDevices: number;
    workers: number;
    processes: number;
    stormRounds: number;
    othersConnections: number;
    othersRate: number;
    settleSeconds: number;
    quietSeconds: number;
    targets: number;
    overRedis: number;
  };
  fleet: {
    devices: number;
    many: number;
    most: number;
    gateways: number;
    window: number;
    sockets: number;
    processes: number;
    workers: number;
    rounds: number;
    warmupSeconds: number;
    seconds: number;
    firstSeconds: number;
    everySeconds: number;
    steadySeconds: number;
    settleSeconds: number;
    keep: number;
    targets: number;
  };
  billion: {
    points: number;
    turns: number;
    keys: number;
    gateways: number;
    messageDevices: number;
    window: number;
    processes: number;
    workers: number;
    samples: number;
    deletes: number;
    settleSeconds: number;
    mergeSeconds: number;
    targets: number;
  };
  tails: {
    rounds: number;
    warmupSeconds: number;
    seconds: number;
    rate: number;
    points: number;
    reportClients: number;
    readConnections: number;
    readRate: number;
    targets: number;
  };
  report: { devices: number; points: number; samples: number; clients: number; seconds: number; ackRate: number };
  versions: {
    http: number;
    mqtt: number;
    gateway: number;
    rounds: number;
    warmupSeconds: number;
    seconds: number;
    workers: number;
  };
  levels: {
    http: number;
    mqtt: number;
    gateway: number;
    rounds: number;
    warmupSeconds: number;
    seconds: number;
    latencyWarmupSeconds: number;
    latencySeconds: number;
    workers: number;
    targets: number;
  };
  day: {
    devices: number;
    gateways: number;
    children: number;
    commandDevices: number;
    httpRate: number;
    mqttRate: number;
    gatewayRate: number;
    attributeRate: number;
    commandRate: number;
    readRate: number;
    reportClients: number;
    phaseSeconds: number;
    slowSeconds: number;
  };
  hostile: { warmupSeconds: number; seconds: number; samples: number; points: number; floorMs: number; only: number };
  world: { seed: number; seeds: number };
  soak: { minutes: number; sampleSeconds: number; growthMiBPerMinuteMax: number };
  crash: { minutes: number } & Pick<
    CrashOptions,
    'seed' | 'devices' | 'sockets' | 'rate' | 'mqttRate' | 'lateRate' | 'turnDevices' | 'turnRate' | 'doomed'
  >;
}

/** A wrong argument on the command line: only the message is printed, without a stack. */
export class UsageError extends Error {}

type Groups = Record<string, Record<string, number>>;

/**
 * Returns the checked settings: those of the file, changed by `overrides`. `scenario`: a name without a group means a
 * setting of this scenario.
 */
export function loadBenchSettings(overrides: string[], scenario: string): BenchSettings {
  const settings = readGroups();
  for (const [group, each] of Object.entries(settings))
    for (const [name, value] of Object.entries(each)) {
      const fault = faultOf(group, name, value);
      if (fault !== '') throw new UsageError(`config/bench.yaml: ${group}.${name} ${fault}, not ${value}.`);
    }
  for (const override of overrides) {
    const [path = '', text = ''] = override.split('=');
    const [group = '', name = ''] = path.split('.');
    if (settings[group]?.[name] === undefined)
      throw new UsageError(`config/bench.yaml has no ${path}.${hint(settings, override, scenario)}`);
    const value = text.trim() === '' ? Number.NaN : Number(text);
    const fault = faultOf(group, name, value);
    if (fault !== '') throw new UsageError(`${path} ${fault}, not "${text}".`);
    settings[group][name] = value;
  }
  const checked = settings as unknown as BenchSettings;
  const conflict = conflictOf(checked);
  if (conflict !== '') throw new UsageError(conflict);
  return checked;
}

/** Returns the settings of a scenario as they are in the file; none when it has no settings. */
export function groupOf(scenario: string): { name: string; settings: Record<string, number> } {
  const groups = readGroups();
  const name = Object.keys(groups).find((each) => each.toLowerCase() === scenario) ?? scenario;
  return { name, settings: groups[name] ?? {} };
}

const sizesOfLoads = ['http', 'mqtt', 'gateway'];

/** Groups of settings that a scenario reads beside its own. */
export const otherGroups: Record<string, string[]> = {
  api: ['http'],
  attributes: ['http'],
  http: ['autocannon'],
  levels: [...sizesOfLoads, 'storeAcks'],
  longpoll: ['http'],
  peers: sizesOfLoads,
  quick: sizesOfLoads,
  report: ['http'],
  soak: ['http'],
  storeacks: ['http'],
  tails: ['http'],
  versions: sizesOfLoads,
  visibility: ['http'],
};

/**
 * Returns the settings that a scenario reads: its own group, and those of `otherGroups`. A result has these, and a
 * group that is missing here would be missing in the scenario, too.
 */
export function settingsReadBy(scenario: string, settings: BenchSettings): BenchSettings {
  const names = [groupOf(scenario).name, ...(otherGroups[scenario] ?? [])];
  const read = Object.entries(settings).filter(([group]) => names.includes(group));
  return Object.fromEntries(read) as unknown as BenchSettings;
}

function readGroups(): Groups {
  return parse(readFileSync(join(root, 'config', 'bench.yaml'), 'utf8')) as Groups;
}

/** Names the settings that were probably meant: those of the scenario first. */
function hint(settings: Groups, override: string, scenario: string): string {
  const [path = ''] = override.split('=');
  const [group, name = group] = path.split('.') as [string, string | undefined];
  const groups = Object.keys(settings);
  const own = groups.find((each) => each === group) ?? groups.find((each) => each.toLowerCase() === scenario);
  if (own !== undefined && settings[own]![name] !== undefined)
    return ` Write ${own}.${override.slice(path.length - name.length)}.`;
  if (own !== undefined) return ` ${own} has ${Object.keys(settings[own]!).join(', ')}.`;
  const others = groups.filter((each) => settings[each]![name] !== undefined);
  return others.length > 0 ? ` Did you mean ${others.map((each) => `${each}.${name}`).join(' or ')}?` : '';
}
