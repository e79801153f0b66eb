/** The file of a result below bench/results: figures as JSON, and the same as a page. */
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { cpus, release, totalmem } from 'node:os';
import { join } from 'node:path';
import { root } from '../../test/harness/engine.ts';
import { pageOf } from './page.ts';

export interface Machine {
  cores: number;
  cpu: string;
  memoryGiB: number;
  kernel: string;
  node: string;
  /** The command that was called. */
  command: string;
}

export interface ResultFile {
  scenario: string;
  at: string;
  machine: Machine;
  /** The commit of the checkout; '' = unknown; a `+` at the end: with changes that are not committed. */
  commit: string;
  version: string;
  settings: object;
  /** The lines that the scenario has printed. */
  printed: string[];
  result: object;
}

/** Returns the path of the JSON file. The page lies beside it. */
export function writeResultFile(scenario: string, settings: object, printed: string[], result: object): string {
  const directory = join(root, 'bench', 'results');
  mkdirSync(directory, { recursive: true });
  const at = new Date().toISOString();
  const machine = thisMachine();
  const { version } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string };
  const file: ResultFile = { scenario, at, machine, commit: commitOf(), version, settings, printed, result };
  const path = join(directory, `${scenario}-${at.replace(/[:.]/g, '-')}.json`);
  writeFileSync(path, `${JSON.stringify(file, undefined, 2)}\n`);
  writeFileSync(path.replace(/json$/, 'html'), pageOf(file));
  return path;
}

export function thisMachine(): Machine {
  return {
    cores: cpus().length,
    cpu: cpus()[0]?.model ?? '',
    memoryGiB: Math.round(totalmem() / 2 ** 30),
    kernel: release(),
    node: process.version,
    command: `npm run bench -- ${process.argv.slice(2).filter(isPublic).join(' ')}`,
  };
}

/** False for passwords and tokens, because the file may be given to others. */
function isPublic(arg: string, n: number, args: string[]): boolean {
  const secrets = ['--password', '--token'];
  return !secrets.some((name) => arg === name || arg.startsWith(`${name}=`) || args[n - 1] === name);
}

export function commitOf(): string {
  const git = (...args: string[]) => {
    return execFileSync('git', args, { cwd: root, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim();
  };
  try {
    return `${git('rev-parse', '--short=12', 'HEAD')}${git('status', '--porcelain') === '' ? '' : '+'}`;
  } catch {
    // The directory is no clone of the repository, for instance in an image.
    return '';
  }
}
