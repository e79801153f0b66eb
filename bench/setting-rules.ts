/**
 * Which numbers a setting of config/bench.yaml may have: counts are whole numbers from 1 on, times and rates are above
 * 0, and settings that may be 0 or have other bounds are listed. `settings.ts` checks all settings before a scenario
 * starts.
 */
import { recordPoints, recordPointsMax } from './load/moving-record.ts';
import type { BenchSettings } from './settings.ts';

interface Rule {
  isRight(value: number): boolean;
  /** Completes "must be …". */
  text: string;
}

const wholeFrom = (least: number): Rule => ({
  isRight: (value) => Number.isSafeInteger(value) && value >= least,
  text: `a whole number from ${least} on`,
});
const within = (least: number, most: number): Rule => ({
  isRight: (value) => Number.isInteger(value) && value >= least && value <= most,
  text: least + 1 === most ? `${least} or ${most}` : `a whole number from ${least} to ${most}`,
});
const positive: Rule = { isRight: (value) => value > 0 && Number.isFinite(value), text: 'a number above 0' };
const from0: Rule = { isRight: (value) => value >= 0 && Number.isFinite(value), text: 'a number from 0 on' };

const count = wholeFrom(1);
const isSwitch = within(0, 1);
/** 0 has a meaning of its own: a worker for each core, a part that is left out, all of them. */
const countOr0 = wholeFrom(0);

type Rules = { [Group in keyof BenchSettings]?: { [Name in keyof BenchSettings[Group]]?: Rule } };

const listed: Rules = {
  quick: { targets: isSwitch, record: isSwitch },
  http: { workers: countOr0 },
  autocannon: { rate: from0 },
  // The first half is measured alone, the second half beside a load.
  visibility: { samples: wholeFrom(2) },
  api: { wrongPercent: { ...within(0, 100), text: 'a whole number of percent, 0 to 100' } },
  mqtt: { workers: countOr0 },
  peers: { brokers: isSwitch, blocks: countOr0, workers: countOr0 },
  // Commands end two seconds before the messages.
  gateway: { workers: countOr0, siteSeconds: wholeFrom(3) },
  connections: { targets: isSwitch, overRedis: isSwitch },
  fleet: { many: countOr0, most: countOr0, workers: countOr0, keep: isSwitch, targets: isSwitch },
  billion: { keys: within(recordPoints, recordPointsMax), workers: countOr0, targets: isSwitch },
  tails: { targets: isSwitch },
  versions: { http: isSwitch, mqtt: isSwitch, gateway: isSwitch },
  levels: { http: isSwitch, mqtt: isSwitch, gateway: isSwitch, targets: isSwitch },
  // The victim has a tenth of the points.
  hostile: { points: wholeFrom(10), only: countOr0 },
  world: { seed: countOr0 },
  crash: { seed: countOr0 },
};

/** Returns what is wrong with the value of a setting, as in "must be a whole number from 1 on"; '' = nothing. */
export function faultOf(group: string, name: string, value: unknown): string {
  const { isRight, text } = ruleOf(group, name);
  return typeof value === 'number' && isRight(value) ? '' : `must be ${text}`;
}

function ruleOf(group: string, name: string): Rule {
  const rules: Record<string, Rule | undefined> = listed[group as keyof BenchSettings] ?? {};
  const own = rules[name];
  if (own !== undefined) return own;
  if (/[wW]armupSeconds$|^settleSeconds$|^mergeSeconds$|Ms$|PerMinuteMax$/.test(name)) return from0;
  if (/^seconds$|Seconds$|^minutes$|^rate$|Rate$|PerSecond$/.test(name)) return positive;
  return count;
}

/** Returns what is wrong with settings that depend on each other; '' = nothing. */
export function conflictOf({ connections, ota }: BenchSettings): string {
  if (connections.stormDevices >= connections.devices)
    return 'connections.stormDevices must be below connections.devices: the others stay connected.';
  if (ota.chunkBytes > ota.fileBytes) return 'ota.chunkBytes must be at most ota.fileBytes.';
  return '';
}
