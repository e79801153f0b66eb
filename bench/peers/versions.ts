/** The versions of what is measured beside Millrace, for results that others can reproduce. */
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { root } from '../../test/harness/engine.ts';

/** A PATH that includes the directories of daemons, which the PATH of a user may lack. */
export const daemonPath = `${process.env['PATH']}:/usr/sbin:/sbin`;

/** The version of an installed npm package. */
export function packageVersion(name: string): string {
  const path = join(root, 'node_modules', name, 'package.json');
  return (JSON.parse(readFileSync(path, 'utf8')) as { version: string }).version;
}

export function isInstalled(command: string, ...args: string[]): boolean {
  return spawnSync(command, args, { stdio: 'ignore', env: { PATH: daemonPath } }).error === undefined;
}

/** The version of an installed Debian package; '' = the program was installed in another way. */
export function debianVersion(name: string): string {
  const { status, stdout } = spawnSync('dpkg-query', ['-W', '-f=${Version}', name], { encoding: 'utf8' });
  return status === 0 ? stdout : '';
}

/** The first version number that a command prints; '' when the command is not installed or prints none. */
export function printedVersion(command: string, ...args: string[]): string {
  const { stdout, stderr } = spawnSync(command, args, { encoding: 'utf8', env: { PATH: daemonPath } });
  return /\d+\.\d+[\w.~+-]*/.exec(`${stdout ?? ''}\n${stderr ?? ''}`)?.[0] ?? '';
}
