/**
 * `npm run bench -- compare A.json B.json [C.json …]`: the loads that results have in common, with the difference of
 * each later one to the first. The noise is computed from the seconds of each load: a difference that the seconds do
 * not prove with 95 % confidence, or one below two percent, does not count. Results of other settings or another
 * machine are compared with a warning, and so are loads that say nothing about the server. The rate of an open loop is
 * no figure of the server while the server keeps it.
 */
import { readFileSync } from 'node:fs';
import { callerPath } from '../caller-path.ts';
import { totalOf } from '../load/counts.ts';
import type { Second } from '../load/timeline.ts';
import { type Cell, figure, say, table } from '../report.ts';
import { groupOf, UsageError } from '../settings.ts';
import { serverName } from '../target/server.ts';
import { type FoundLoad, loadsOf } from './loads.ts';
import type { ResultFile } from './result-file.ts';

const leastRatio = 0.02;
/** A rate that is kept varies by this much, because messages of the last moment are answered after it. */
const otherRateRatio = 0.05;
/** CPU time is counted in hundredths of a second. */
const tickMicroseconds = 10_000;
const rateName = 'acknowledged/s';
const loadsNamedMax = 5;
/** Of Student's t, for the confidence of 95 %, by degrees of freedom from 1 on. */
const quantiles = [12.71, 4.3, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23];

export const compareHelp = [
  '\ncompare A.json B.json [C.json …]: the loads that results have in common, with the difference of each later one to A',
  '\nIt has no settings. It ends with 1 when a figure is worse than that of A by more than the noise of both.',
];

interface Figure {
  name: string;
  value: number;
  /** So far the mean of all seconds may be from the mean of these, with 95 % confidence; Infinity = unknown. */
  error: number;
  isHigherBetter: boolean;
}

/** Returns false when a later result is worse in any figure. */
export function compareResults(paths: string[]): boolean {
  if (paths.length < 2) throw new UsageError('Give two files or more: npm run bench -- compare A.json B.json');
  const files = paths.map(read);
  const [first, ...others] = files as [ResultFile, ...ResultFile[]];
  for (const [n, file] of files.entries()) {
    const { at, commit, machine, server } = file;
    const facts = `commit ${commit || 'unknown'}, Node ${machine.node}, ${machine.cores} × ${machine.cpu}`;
    const place = server ? `server ${serverName(server)}, its machine unknown; generator: ${facts}` : facts;
    say(`${letterOf(n)}  ${at}  ${place}`);
  }
  for (const [n, file] of files.entries()) {
    if (isInterrupted(file)) say(`WARNING: ${letterOf(n)} was interrupted: its unfinished load includes the warm-up`);
    for (const fault of loadsOf(file.result).flatMap(faultsOf)) say(`WARNING: ${letterOf(n)}: ${fault}`);
  }
  for (const [n, file] of others.entries())
    for (const warning of warningsOf(first, file, letterOf(n + 1))) say(`WARNING: ${warning}`);
  const rows: Cell[][] = [];
  let isWorse = false;
  for (const { path, load } of loadsOf(first.result)) {
    for (const base of figuresOf(load).filter(({ value }) => value > 0)) {
      for (const [n, other] of others.entries()) {
        const found = loadsOf(other.result).find((each) => each.path === path);
        const compared = found && figuresOf(found.load).find(({ name }) => name === base.name);
        if (found === undefined || compared === undefined || !Number.isFinite(compared.value)) continue;
        const isAsked = base.name === rateName && isRateKept(load) && isRateKept(found.load);
        const verdict = isAsked ? 'as asked' : verdictOf(base, compared);
        if (verdict === 'worse') isWorse = true;
        const change = compared.value / base.value - 1;
        const hasNoise = verdict !== 'unknown' && verdict !== 'as asked';
        const noise = hasNoise ? `± ${(noiseOf(base, compared) * 100).toFixed(1)} %` : '-';
        rows.push([
          `${path} ${base.name}`,
          base.value,
          `${letterOf(n + 1)} ${figure(compared.value)}`,
          percentText(change),
          noise,
          verdict,
        ]);
      }
    }
  }
  if (rows.length === 0) {
    const interrupted = files.flatMap((file, n) => (isInterrupted(file) ? [letterOf(n)] : []));
    if (interrupted.length > 0 && interrupted.length < files.length) throw new UsageError(interruptedText(interrupted));
    const lists = files.map(({ result }, n) => `${letterOf(n)} has ${loadNames(result)}`);
    throw new UsageError(`These results have no load in common: ${lists.join('; ')}.`);
  }
  say('');
  table(['', 'A', 'compared', 'difference', 'noise', 'verdict'], rows);
  return !isWorse;
}

function isInterrupted({ result }: ResultFile): boolean {
  return 'isInterrupted' in result;
}

function interruptedText(letters: string[]): string {
  const were = letters.length === 1 ? 'was' : 'were';
  return (
    `${letters.join(' and ')} ${were} interrupted before the result, and cannot be compared with a whole result: loads ` +
    'of an interrupted run are numbered, because their names are those of the result. Run it to its end, or compare ' +
    'interrupted results with each other.'
  );
}

/** Why the figures of a load say little about its server; the load of an interrupted run has no such counts. */
function faultsOf({ path, load }: FoundLoad): string[] {
  const { invalid = '', refused = {}, broken = 0, unanswered = 0, pauses = [], earlyEnd } = load;
  const faults = invalid === '' ? [] : [`${path} is INVALID: ${invalid}`];
  const failed = totalOf(refused) + broken;
  if (failed > 0) faults.push(`${path}: ${figure(failed)} messages were refused or lost their connection`);
  if (unanswered > 0) faults.push(`${path}: ${figure(unanswered)} messages were never answered`);
  const paused = pauses.reduce((sum, { seconds }) => sum + seconds, 0);
  if (paused > 0) faults.push(`${path}: nothing was acknowledged in ${figure(paused)} s of it`);
  if (earlyEnd) faults.push(`${path}: it ended early, because nothing was acknowledged any more`);
  return faults;
}

/** Returns true for a load of an open loop whose rate was answered: its rate is what the generator was asked for. */
function isRateKept(load: FoundLoad['load']): boolean {
  // JSON has no NaN: that of a closed loop is null in a file.
  return Number.isFinite(load.sentLateP99Ms) && faultsOf({ path: '', load }).length === 0;
}

function loadNames(result: unknown): string {
  const paths = loadsOf(result).map(({ path }) => path);
  return paths.length === 0 ? 'none' : listOf(paths);
}

/** Names the first loads, and the number of the others. */
function listOf(paths: string[]): string {
  const names = paths.map((path) => `"${path}"`);
  const others = names.length - loadsNamedMax;
  return others > 0 ? `${names.slice(0, loadsNamedMax).join(', ')} and ${others} others` : names.join(', ');
}

function percentText(change: number): string {
  const text = (change * 100).toFixed(1);
  if (Number(text) === 0) return '0.0 %';
  return `${change > 0 ? '+' : ''}${text} %`;
}

function figuresOf(load: FoundLoad['load']): Figure[] {
  const { accepted, requestsPerSecond, storedRequestsPerSecond, latency, cpuMicrosecondsPerRequest = {} } = load;
  const seconds = measuredSeconds(load);
  const rateError = errorOf(seconds.map(({ rate }) => rate));
  const figures: Figure[] = [
    { name: rateName, value: requestsPerSecond, error: rateError, isHigherBetter: true },
    { name: 'p50 ms', value: latency.p50Ms, error: errorOf(seconds.map(({ p50Ms }) => p50Ms)), isHigherBetter: false },
    { name: 'p99 ms', value: latency.p99Ms, error: errorOf(seconds.map(({ p99Ms }) => p99Ms)), isHigherBetter: false },
  ];
  if (storedRequestsPerSecond !== undefined)
    figures.push({ name: 'stored/s', value: storedRequestsPerSecond, error: rateError, isHigherBetter: true });
  for (const [role, us] of Object.entries(cpuMicrosecondsPerRequest)) {
    const error = Math.hypot((us * rateError) / requestsPerSecond, tickMicroseconds / accepted);
    if (us > 0) figures.push({ name: `CPU us/message ${role}`, value: us, error, isHigherBetter: false });
  }
  return figures;
}

/** Without those of the warm-up, and those after the measured time; all of them when the result does not say. */
function measuredSeconds({ seconds, leadSeconds = 0, measuredSeconds: count }: FoundLoad['load']): Second[] {
  const until = leadSeconds + (count ?? Number.POSITIVE_INFINITY);
  return seconds.filter(({ second }) => second > leadSeconds && second <= until);
}

export function verdictOf(base: Figure, other: Figure): 'better' | 'worse' | 'same' | 'unknown' {
  const change = other.value / base.value - 1;
  if (!Number.isFinite(noiseOf(base, other))) return 'unknown';
  if (Math.abs(change) <= noiseOf(base, other)) return 'same';
  return change > 0 === base.isHigherBetter ? 'better' : 'worse';
}

/** The noise of a difference, relative to the first figure. */
function noiseOf(base: Figure, other: Figure): number {
  return Math.max(leastRatio, Math.hypot(base.error, other.error) / base.value);
}

/** Half of the confidence interval of a mean: few seconds prove less than many. */
export function errorOf(values: number[]): number {
  const known = values.filter((value) => Number.isFinite(value));
  if (known.length < 2) return Number.POSITIVE_INFINITY;
  const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
  const variance = known.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (known.length - 1);
  const freedom = known.length - 1;
  // Beyond the table the approximation is off by less than a hundredth.
  const quantile = quantiles[freedom - 1] ?? 1.96 + 2.6 / freedom;
  return quantile * Math.sqrt(variance / known.length);
}

function warningsOf(first: ResultFile, other: ResultFile, letter: string): string[] {
  const warnings: string[] = [];
  const others = new Set(loadsOf(other.result).map(({ path }) => path));
  const paths = loadsOf(first.result).map(({ path }) => path);
  const missing = paths.filter((path) => !others.has(path));
  if (missing.length === paths.length) warnings.push(`${letter} has no load of A`);
  else if (missing.length > 0)
    warnings.push(`${letter} lacks ${missing.length} of ${paths.length} loads of A: ${listOf(missing)}`);
  if (first.scenario !== other.scenario) warnings.push(`A is of ${first.scenario}, ${letter} of ${other.scenario}`);
  // Each scenario writes other settings, so a list of them would say nothing.
  const isSame = first.scenario === other.scenario;
  const differing = isSame ? settingsThatDiffer(first, other) : [];
  if (differing.length > 0) warnings.push(`the settings of A and ${letter} differ: ${differing.join(', ')}`);
  const machineOf = ({ machine: { cores, cpu } }: ResultFile) => `${cores} × ${cpu}`;
  const whose = first.server || other.server ? ' of the generators' : '';
  if (machineOf(first) !== machineOf(other)) warnings.push(`the machines${whose} of A and ${letter} differ`);
  for (const { path, load } of loadsOf(first.result)) {
    const found = loadsOf(other.result).find((each) => each.path === path);
    if (found === undefined || !isRateKept(load) || !isRateKept(found.load)) continue;
    const [rate, otherRate] = [load.requestsPerSecond, found.load.requestsPerSecond];
    if (Math.abs(otherRate / rate - 1) <= otherRateRatio) continue;
    const rates = `${figure(rate)} messages/s in A, ${figure(otherRate)} in ${letter}`;
    warnings.push(`${path} had ${rates}: its latency and CPU are those of different rates`);
  }
  const [mine, theirs] = [first, other].map(({ server }) => (server ? serverName(server) : ''));
  if (mine !== theirs && mine && theirs) warnings.push(`the servers of A and ${letter} differ: ${mine} → ${theirs}`);
  return warnings;
}

/** Older results have their own group without its name, or the groups of all scenarios: common groups are compared. */
function settingsThatDiffer(first: ResultFile, other: ResultFile): string[] {
  const { name } = groupOf(first.scenario);
  const groupsOf = ({ settings }: ResultFile): Record<string, unknown> => {
    return name in settings ? (settings as Record<string, unknown>) : { [name]: settings };
  };
  const [mine, theirs] = [groupsOf(first), groupsOf(other)];
  const areNested = name in first.settings || name in other.settings;
  if (!areNested) return differencesOf(first.settings, other.settings);
  const common = Object.keys(mine).filter((group) => group in theirs);
  return common.flatMap((group) => differencesOf(mine[group], theirs[group], group));
}

/** The values that differ, for instance `rate 100 → 150`. */
function differencesOf(first: unknown, other: unknown, name = ''): string[] {
  if (JSON.stringify(first) === JSON.stringify(other)) return [];
  if (!isGroup(first) || !isGroup(other))
    return [`${name} ${JSON.stringify(first) ?? 'absent'} → ${JSON.stringify(other) ?? 'absent'}`.trimStart()];
  const keys = new Set([...Object.keys(first), ...Object.keys(other)]);
  return [...keys].flatMap((key) => differencesOf(first[key], other[key], name === '' ? key : `${name}.${key}`));
}

function isGroup(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function letterOf(n: number): string {
  return String.fromCharCode('A'.charCodeAt(0) + n);
}

function read(path: string): ResultFile {
  const advice = 'Give a JSON file that a benchmark has written, as in bench/results.';
  let text: string;
  try {
    text = readFileSync(callerPath(path), 'utf8');
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const reasons: Record<string, string> = { ENOENT: `There is no file ${path}`, EISDIR: `${path} is a directory` };
    throw new UsageError(`${reasons[code ?? ''] ?? message}. ${advice}`);
  }
  let file: unknown;
  try {
    file = JSON.parse(text);
  } catch (error) {
    throw new UsageError(`${path} is damaged, or no JSON: ${(error as Error).message}. ${advice}`);
  }
  if (isResult(file)) return file;
  throw new UsageError(`${path} is not a whole result of \`npm run bench\`. ${advice}`);
}

function isResult(file: unknown): file is ResultFile {
  if (!isGroup(file) || !isGroup(file['machine'])) return false;
  const { scenario, at, settings, result, machine } = file;
  const { cores, cpu, node } = machine as Record<string, unknown>;
  const areTexts = [scenario, at, cpu, node].every((each) => typeof each === 'string');
  return areTexts && typeof cores === 'number' && isGroup(settings) && typeof result === 'object' && result !== null;
}
