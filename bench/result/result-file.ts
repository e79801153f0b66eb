/** The file of a result below bench/results: figures as JSON, and the same as a page. */
import { execFileSync } from 'node:child_process';
import { accessSync, constants, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { root } from '../../test/harness/engine.ts';
import { callerPath } from '../caller-path.ts';
import { type Machine, thisMachine } from '../machine.ts';
import { UsageError } from '../settings.ts';
import type { ServerFacts } from '../target/server.ts';
import { pageOf } from './page.ts';

/** When a run began, and how busy the machine was then, with processes of others or of an earlier run. */
export interface RunBegin {
  startedAt: string;
  /** Processes that ran or waited for a processor, on average in the minute before. */
  loadAverageBefore: number;
}

/** Older results do not have the begin. */
export interface ResultFile extends Partial<RunBegin> {
  scenario: string;
  /** When the result was written. */
  at: string;
  /** The machine of the generators, and of every server that the suite has started. */
  machine: Machine;
  /** Present when a server was measured that ran already: `machine`, `commit` and `version` are not those of it. */
  server?: ServerFacts;
  /** The commit of the checkout; '' = unknown; a `+` at the end: with changes that are not committed. */
  commit: string;
  version: string;
  settings: object;
  /** The lines that the scenario has printed. */
  printed: string[];
  result: object;
}

/** The directory of all results, which the variable BENCH_RESULTS may name. */
export function resultDirectory(): string {
  const { BENCH_RESULTS: named } = process.env;
  return named ? callerPath(named) : join(root, 'bench', 'results');
}

/** Ends the command before it measures anything whose result could not be written. */
export function checkResultDirectory(): void {
  const directory = resultDirectory();
  try {
    mkdirSync(directory, { recursive: true });
    accessSync(directory, constants.W_OK);
  } catch (error) {
    throw new UsageError(
      `The results cannot be written: ${(error as Error).message}. The variable BENCH_RESULTS names another directory.`,
    );
  }
}

/** What a scenario has measured. */
interface Outcome {
  settings: object;
  begin: RunBegin;
  /** The lines that the scenario has printed. */
  printed: string[];
  result: object;
  server?: ServerFacts | undefined;
}

/** Returns the path of the JSON file. The page lies beside it. */
export function writeResultFile(scenario: string, { settings, begin, printed, result, server }: Outcome): string {
  const directory = resultDirectory();
  mkdirSync(directory, { recursive: true });
  const at = new Date().toISOString();
  const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string };
  const facts = {
    scenario,
    at,
    ...begin,
    machine: thisMachine(),
    ...(server && { server }),
    commit: commitOf(),
    version,
  };
  const file: ResultFile = { ...facts, settings, printed, result };
  const path = join(directory, `${scenario}-${at.replace(/[:.]/g, '-')}.json`);
  writeFileSync(path, `${JSON.stringify(file, undefined, 2)}\n`);
  writeFileSync(path.replace(/json$/, 'html'), pageOf(file));
  return path;
}

/** Also for a user to whom the checkout does not belong, which git refuses by default: its code runs already. */
export function commitOf(): string {
  const git = (...args: string[]) => {
    return execFileSync('git', ['-c', `safe.directory=${root}`, ...args], {
      cwd: root,
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    }).trim();
  };
  try {
    return `${git('rev-parse', '--short=12', 'HEAD')}${git('status', '--porcelain') === '' ? '' : '+'}`;
  } catch {
    // The directory is no clone of the repository, for instance in an image.
    return '';
  }
}
