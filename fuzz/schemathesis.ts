/**
 * Schemathesis of PyPI in a virtual environment below the system's temporary directory: made once for each version,
 * found there by later runs.
 */
import { execFile } from 'node:child_process';
import { mkdtempSync, renameSync, rmSync, statSync } from 'node:fs';
import { tmpdir, userInfo } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { say } from './run.ts';

const version = '4.32.5';
const stepMsMax = 300_000;

/** Command and first parameters. Throws one line when Schemathesis cannot be installed. */
export async function schemathesisCommand(): Promise<string[]> {
  const { uid } = userInfo();
  const directory = join(tmpdir(), `millrace-schemathesis-${version}-${uid}`);
  const command = [join(directory, 'bin', 'python'), '-m', 'schemathesis.cli'];
  if (statSync(directory, { throwIfNoEntry: false })?.uid === uid && (await works(command))) return command;
  // Made under another name: a directory of that name is complete.
  const made = mkdtempSync(join(tmpdir(), 'millrace-schemathesis-'));
  say(`Installing schemathesis ${version} into ${directory}.`);
  try {
    await run(['python3', '-m', 'venv', made]);
    const install = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', `schemathesis==${version}`];
    await run([join(made, 'bin', 'python'), ...install]);
    rmSync(directory, { recursive: true, force: true });
    renameSync(made, directory);
    return command;
  } catch (error) {
    rmSync(made, { recursive: true, force: true });
    const reason = String(error instanceof Error ? error.message : error)
      .trim()
      .split('\n')
      .at(-1);
    throw new Error(`schemathesis cannot be installed; it needs PyPI, and on Debian python3-venv: ${reason}`);
  }
}

async function works(command: string[]): Promise<boolean> {
  return await run([...command, '--version']).then(
    () => true,
    () => false,
  );
}

async function run([command, ...parameters]: string[]): Promise<void> {
  await promisify(execFile)(command!, parameters, { timeout: stepMsMax });
}
