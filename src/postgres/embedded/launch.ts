/**
 * Runs PostgreSQL, which refuses to run as root. An ordinary user runs it directly. Root runs it in a user namespace
 * that maps root to "1000": no user is created, and a private home directory stays reachable. Where namespaces are
 * unavailable (many containers) it runs as Debian's unprivileged user, if that user can reach the files.
 */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { chownSync, lchownSync, readdirSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { StartError } from '../../base/errors.ts';

export interface Launcher {
  /** Words before the program and its arguments. */
  prefix: string[];
  /** The user on the host that runs it and must own its files. */
  uid: number;
  gid: number;
}

const namespace = ['unshare', '--user', '--map-user=1000', '--map-group=1000'];
/** PostgreSQL shuts down (fast) when this process is killed. Only a convenience: see orphan.ts. */
const dieWithParent = ['setpriv', '--pdeathsig', 'INT'];

/** Returns the first launcher that can run `postgres` here with its own files inside `dir`. */
export function chooseLauncher(postgres: string, dir: string, candidates = launchers()): Launcher {
  let complaint = '';
  for (const launcher of candidates) {
    complaint = probe(launcher, postgres, dir);
    if (complaint === '') return launcher;
  }
  if (process.getuid?.() !== 0) throw new StartError(`The embedded PostgreSQL does not run here: ${complaint}.`);
  throw new StartError(
    `PostgreSQL refuses to run as root, user namespaces are off here, and nobody (uid ${unprivileged().uid}) cannot use ${dir} and ${postgres} (${complaint}): run Millrace as an ordinary user, or set DATABASE_URL.`,
  );
}

export function launchers(): Launcher[] {
  const [uid, gid] = [process.getuid?.() ?? 0, process.getgid?.() ?? 0];
  const ways: Launcher[] = uid === 0 ? [{ prefix: namespace, uid, gid }, unprivileged()] : [{ prefix: [], uid, gid }];
  return ways.flatMap((way) => [{ ...way, prefix: [...way.prefix, ...dieWithParent] }, way]);
}

export function unprivileged(): Launcher {
  const nobody = readPasswd().find((fields) => fields[0] === 'nobody');
  return { prefix: [], uid: Number(nobody?.[2] ?? 65534), gid: Number(nobody?.[3] ?? 65534) };
}

function readPasswd(): string[][] {
  try {
    return readFileSync('/etc/passwd', 'utf8')
      .split('\n')
      .map((line) => line.split(':'));
  } catch {
    return [];
  }
}

/** Returns '' when the launcher can run the program and enter the directory. */
function probe(launcher: Launcher, postgres: string, dir: string): string {
  const { uid, gid } = launcher;
  const [program, ...words] = [...launcher.prefix, postgres, '--version'];
  const result = spawnSync(program!, words, {
    cwd: '/',
    env: environment,
    uid,
    gid,
    encoding: 'utf8',
    timeout: 10_000,
  });
  if (result.error) return result.error.message;
  if (result.status !== 0) return result.stderr.trim().split('\n')[0] || `exit code ${result.status}`;
  const entered = spawnSync('test', ['-x', dir], { cwd: '/', env: environment, uid, gid, timeout: 10_000 });
  return entered.status === 0 ? '' : `${dir} is not reachable`;
}

/** Passes no variables of this process: PGHOST, LD_PRELOAD or a locale of the caller must not change the server. */
const environment = { PATH: process.env['PATH'] ?? '/usr/bin:/bin', LC_ALL: 'C', TZ: 'UTC' };

/** Starts `program` in a new session, so that Ctrl-C in a terminal reaches only Millrace. */
export function launch(launcher: Launcher, program: string, args: string[]): ChildProcess {
  const [first, ...words] = [...launcher.prefix, program, ...args];
  return spawn(first!, words, {
    cwd: '/',
    env: environment,
    uid: launcher.uid,
    gid: launcher.gid,
    detached: true,
    stdio: ['ignore', 'ignore', 'pipe'],
  });
}

/** Gives `dir` to the launcher's user; an earlier start may have used another launcher. */
export function own(dir: string, { uid, gid }: Launcher): void {
  const owner = statSync(dir).uid;
  if (owner === uid) return;
  if (process.getuid?.() !== 0) {
    throw new StartError(
      `The directory ${dir} belongs to uid ${owner}, Millrace runs as uid ${uid}: run it as that user.`,
    );
  }
  for (const entry of readdirSync(dir, { recursive: true, encoding: 'utf8' })) lchownSync(join(dir, entry), uid, gid);
  // Last, so that a chown killed in the middle is done again.
  chownSync(dir, uid, gid);
}
