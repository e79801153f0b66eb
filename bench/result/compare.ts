/**
 * `npm run bench -- compare A.json B.json [C.json …]`: the loads that all results have, with the difference of each
 * later one to the first. The noise is computed from the seconds of each load: a difference below twice the standard
 * error, or below two percent, does not count. Results of other settings or another machine are compared with a
 * warning.
 */
import { readFileSync } from 'node:fs';
import { type Cell, figure, say, table } from '../report.ts';
import { UsageError } from '../settings.ts';
import { type FoundLoad, loadsOf } from './loads.ts';
import type { ResultFile } from './result-file.ts';

const leastRatio = 0.02;
const errorsMin = 2;

interface Figure {
  name: string;
  value: number;
  /** Standard error; 0 = unknown. */
  error: number;
  isHigherBetter: boolean;
}

/** Returns false when a later result is worse in any figure. */
export function compareResults(paths: string[]): boolean {
  if (paths.length < 2) throw new UsageError('Give two files or more: npm run bench -- compare A.json B.json');
  const files = paths.map(read);
  const [first, ...others] = files as [ResultFile, ...ResultFile[]];
  for (const [n, file] of files.entries()) {
    const { at, commit, machine } = file;
    say(
      `${letterOf(n)}  ${at}  commit ${commit || 'unknown'}, Node ${machine.node}, ${machine.cores} × ${machine.cpu}`,
    );
  }
  for (const [n, { result }] of files.entries())
    if ('isInterrupted' in result) say(`WARNING: ${letterOf(n)} was interrupted: its loads include the warm-up`);
  for (const [n, file] of others.entries())
    for (const warning of warningsOf(first, file, letterOf(n + 1))) say(`WARNING: ${warning}`);
  const rows: Cell[][] = [];
  let isWorse = false;
  for (const { path, load } of loadsOf(first.result)) {
    for (const base of figuresOf(load)) {
      for (const [n, other] of others.entries()) {
        const found = loadsOf(other.result).find((each) => each.path === path);
        const compared = found && figuresOf(found.load).find(({ name }) => name === base.name);
        if (compared === undefined) continue;
        const verdict = verdictOf(base, compared);
        if (verdict === 'worse') isWorse = true;
        const change = compared.value / base.value - 1;
        const noise = `± ${(noiseOf(base, compared) * 100).toFixed(1)} %`;
        rows.push([
          `${path} ${base.name}`,
          base.value,
          `${letterOf(n + 1)} ${figure(compared.value)}`,
          `${change >= 0 ? '+' : ''}${(change * 100).toFixed(1)} %`,
          noise,
          verdict,
        ]);
      }
    }
  }
  if (rows.length === 0) throw new UsageError('These results have no load in common.');
  say('');
  table(['', 'A', 'compared', 'difference', 'noise', 'verdict'], rows);
  return !isWorse;
}

function figuresOf(load: FoundLoad['load']): Figure[] {
  const { requestsPerSecond, storedRequestsPerSecond, latency, cpuMicrosecondsPerRequest = {}, seconds } = load;
  const rateError = errorOf(seconds.map(({ rate }) => rate));
  const figures: Figure[] = [
    { name: 'acknowledged/s', value: requestsPerSecond, error: rateError, isHigherBetter: true },
    { name: 'p50 ms', value: latency.p50Ms, error: errorOf(seconds.map(({ p50Ms }) => p50Ms)), isHigherBetter: false },
    { name: 'p99 ms', value: latency.p99Ms, error: errorOf(seconds.map(({ p99Ms }) => p99Ms)), isHigherBetter: false },
  ];
  if (storedRequestsPerSecond !== undefined)
    figures.push({ name: 'stored/s', value: storedRequestsPerSecond, error: rateError, isHigherBetter: true });
  for (const [role, us] of Object.entries(cpuMicrosecondsPerRequest)) {
    const error = (us * rateError) / requestsPerSecond;
    if (us > 0) figures.push({ name: `CPU us/message ${role}`, value: us, error, isHigherBetter: false });
  }
  return figures.filter(({ value }) => Number.isFinite(value) && value > 0);
}

export function verdictOf(base: Figure, other: Figure): 'better' | 'worse' | 'same' {
  const change = other.value / base.value - 1;
  if (Math.abs(change) <= noiseOf(base, other)) return 'same';
  return change > 0 === base.isHigherBetter ? 'better' : 'worse';
}

/** The noise of a difference, relative to the first figure. */
function noiseOf(base: Figure, other: Figure): number {
  return Math.max(leastRatio, (errorsMin * Math.hypot(base.error, other.error)) / base.value);
}

/** The standard error of a mean. */
function errorOf(values: number[]): number {
  const known = values.filter((value) => Number.isFinite(value));
  if (known.length < 2) return 0;
  const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
  const variance = known.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (known.length - 1);
  return Math.sqrt(variance / known.length);
}

function warningsOf(first: ResultFile, other: ResultFile, letter: string): string[] {
  const warnings: string[] = [];
  const paths = new Set(loadsOf(first.result).map(({ path }) => path));
  if (!loadsOf(other.result).some(({ path }) => paths.has(path))) warnings.push(`${letter} has no load of A`);
  if (first.scenario !== other.scenario) warnings.push(`A is of ${first.scenario}, ${letter} of ${other.scenario}`);
  if (JSON.stringify(first.settings) !== JSON.stringify(other.settings))
    warnings.push(`the settings of A and ${letter} differ`);
  const machineOf = ({ machine: { cores, cpu } }: ResultFile) => `${cores} × ${cpu}`;
  if (machineOf(first) !== machineOf(other)) warnings.push(`the machines of A and ${letter} differ`);
  return warnings;
}

function letterOf(n: number): string {
  return String.fromCharCode('A'.charCodeAt(0) + n);
}

function read(path: string): ResultFile {
  try {
    const file = JSON.parse(readFileSync(path, 'utf8')) as ResultFile;
    if (typeof file.scenario === 'string' && typeof file.result === 'object') return file;
  } catch (error) {
    throw new UsageError(`${path}: ${(error as Error).message}`);
  }
  throw new UsageError(`${path} is not a result of \`npm run bench\`.`);
}
