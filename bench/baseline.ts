/**
 * The committed baseline: ratios of Millrace to servers that ran beside it, with the command, the machine and the
 * versions. A ratio moves little from machine to machine, so that `quick` compares any machine with it; the bounds are
 * wide, because other work on the machine moves even a ratio.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { root } from '../test/harness/engine.ts';
import type { Machine } from './machine.ts';

/** One figure of Millrace, divided by that of another server in the same run. */
export interface Ratio {
  value: number;
  /** The least ratio of the rounds. */
  least: number;
  greatest: number;
  isHigherBetter: boolean;
}

export interface Baseline {
  at: string;
  commit: string;
  machine: Machine;
  /** Before the run: the load average of a minute, and the share of the processors that had nothing to do. */
  loadBefore: { average: number; idleShare: number };
  versions: Record<string, string>;
  ratios: Record<string, Ratio>;
}

type Verdict = 'as before' | 'better' | 'WORSE' | 'no baseline';

/** How much worse, as a factor, a ratio may be on another machine or beside other work. */
const factorMax = 2;

const path = join(root, 'bench', 'baseline.json');

export function readBaseline(): Baseline {
  return JSON.parse(readFileSync(path, 'utf8')) as Baseline;
}

export function writeBaseline(baseline: Baseline): string {
  writeFileSync(path, `${JSON.stringify(baseline, undefined, 2)}\n`);
  return path;
}

export function verdictOf(ratio: Ratio, base: Ratio | undefined): Verdict {
  if (base === undefined) return 'no baseline';
  const gain = ratio.isHigherBetter ? ratio.value / base.value : base.value / ratio.value;
  // A figure that could not be measured is NaN, and counts as worse.
  if (!(gain >= 1 / factorMax)) return 'WORSE';
  return gain > factorMax ? 'better' : 'as before';
}

/** Says what makes a run with this ratio fail; '' = nothing does. */
export function faultOfRatio(name: string, ratio: Ratio, base: Ratio | undefined): string {
  const verdict = verdictOf(ratio, base);
  if (base === undefined) return `${name} has no baseline`;
  if (verdict !== 'WORSE') return '';
  const [side, bound] = ratio.isHigherBetter
    ? ['at least', base.value / factorMax]
    : ['at most', base.value * factorMax];
  return `${name} ${ratio.value}, ${side} ${Number(bound.toPrecision(3))}, which is ${factorMax} times worse than the baseline`;
}
