/** Starts and stops of the real embedded server, clean and not. */

import { type ChildProcess, spawn } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmdirSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, afterEach, describe, expect, it } from 'vitest';
import { silentLog as silent } from '../../../test/harness/silent-log.ts';
import { StartError } from '../../base/errors.ts';
import { startedTicksOf } from '../../base/process-file.ts';
import { openPostgres } from '../client.ts';
import { migratePostgres } from '../migrate.ts';
import { findBinaries, restoreLinks } from './binaries.ts';
import { type EmbeddedPostgres, startEmbeddedPostgres } from './embedded.ts';
import { chooseLauncher, launch, launchers, own, unprivileged } from './launch.ts';
import { servesDirectory } from './orphan.ts';

const root = mkdtempSync(join(tmpdir(), 'millrace-embedded-'));
const asRoot = process.getuid?.() === 0;
const dir = join(root, 'home', 'postgres');
const cluster = join(dir, 'cluster');
const lockFile = join(cluster, 'postmaster.pid');
mkdirSync(join(root, 'home'), { mode: 0o700 });

const running = new Set<EmbeddedPostgres>();
const start = async (changes: Partial<Parameters<typeof startEmbeddedPostgres>[0]> = {}) => {
  const options = { dir, port: 0, password: 'secret', runDir: join(root, 'run'), log: silent, ...changes };
  const server = await startEmbeddedPostgres(options);
  running.add(server);
  return server;
};
const select = async (server: EmbeddedPostgres, text: string) => {
  const postgres = openPostgres({ url: server.url, poolMax: 1, log: silent });
  try {
    return await postgres.query<Record<string, unknown>>(text);
  } finally {
    await postgres.close();
  }
};
const failure = async (promise: Promise<unknown>) => {
  try {
    await promise;
  } catch (error) {
    return error as Error;
  }
  throw new Error('it did not fail');
};

afterEach(async () => {
  for (const server of running) await server.stop();
  running.clear();
}, 60_000);
afterAll(() => rmSync(root, { recursive: true, force: true }));

describe('the embedded server', () => {
  it('is made on first start below a private directory, and keeps its data', async () => {
    // The directory as an initdb that was killed leaves it.
    mkdirSync(join(dir, 'init-dead', 'base'), { recursive: true });
    writeFileSync(join(dir, 'init-dead-password'), 'secret');
    const server = await start();
    expect(await select(server, 'show server_version_num')).toEqual([
      { server_version_num: expect.stringMatching(/^18/) },
    ]);
    await select(server, 'create table kept as select 7 as n');
    expect(readdirSync(dir)).toEqual(['cluster']);
    await server.stop();
    expect(startedTicksOf(server.pid)).toBeUndefined();
    expect(await select(await start(), 'select n from kept')).toEqual([{ n: 7 }]);
  }, 60_000);

  it('uses nothing in /dev/shm: systemd empties it when its user signs out, and no connection would be taken then', async () => {
    const server = await start();
    const postgres = openPostgres({ url: server.url, poolMax: 1, log: silent });
    const [{ backend } = {}] = await postgres.query<{ backend: number }>('select pg_backend_pid() as backend');
    const used = [server.pid, backend!].map((pid) => readFileSync(`/proc/${pid}/maps`, 'utf8'));
    await postgres.close();
    expect(used.join('').match(/\/dev\/shm\/PostgreSQL.*/g)).toBeNull();
  }, 60_000);

  it('reports its death, and starts again on the same port', async () => {
    const server = await start();
    const reason = new Promise<string>((resolve) => server.onExit(resolve));
    process.kill(server.pid, 'SIGKILL');
    expect(await reason).toBe('signal SIGKILL');
    const next = await start({ port: server.port });
    expect(next.url).toBe(server.url);
    expect(await select(next, 'select n from kept')).toEqual([{ n: 7 }]);
  }, 60_000);

  it('gives out no number again when it crashes right after the migrations', async () => {
    const server = await start();
    const postgres = openPostgres({ url: server.url, poolMax: 1, log: silent });
    await migratePostgres(postgres, { log: silent });
    await postgres.close();
    const insert = 'insert into device_outbox default values returning id';
    const [{ id } = {}] = await select(server, insert);
    const ended = new Promise<string>((resolve) => server.onExit(resolve));
    process.kill(server.pid, 'SIGKILL');
    await ended;
    const [{ id: next } = {}] = await select(await start(), insert);
    expect(next).toBeGreaterThan(id as number);
  }, 60_000);

  it('names the setting to change when its port is taken', async () => {
    const other = createServer();
    await new Promise<void>((resolve) => other.listen(0, '127.0.0.1', resolve));
    const { port } = other.address() as { port: number };
    expect(await failure(start({ port }))).toMatchObject({ name: 'StartError', message: /POSTGRES_EMBEDDED_PORT/ });
    other.close();
  }, 60_000);

  it('names the remedy when its password is lost', async () => {
    expect(await failure(start({ password: 'other' }))).toMatchObject({ name: 'StartError', message: /secrets\.json/ });
    expect(existsSync(lockFile)).toBe(false);
  }, 60_000);
});

describe('leftovers of a killed run', () => {
  it('an orphan server is stopped and its data kept', async () => {
    const launcher = chooseLauncher(findBinaries().postgres, dir);
    // Returns the command without the prefix that ends the server with its parent.
    const prefix = launcher.prefix.filter((word) => !['setpriv', '--pdeathsig', 'INT'].includes(word));
    const args = ['-D', cluster, '-c', 'unix_socket_directories=', '-c', `port=${await somePort()}`];
    const orphan = launch({ ...launcher, prefix }, findBinaries().postgres, args);
    await until(() => existsSync(lockFile) && servesDirectory(orphan.pid!, cluster));
    const server = await start();
    expect(startedTicksOf(orphan.pid!)).toBeUndefined();
    expect(await select(server, 'select n from kept')).toEqual([{ n: 7 }]);
  }, 60_000);

  it('an unrelated process with the old pid is not touched', async () => {
    const server = await start();
    const gone = new Promise((resolve) => server.onExit(resolve));
    process.kill(server.pid, 'SIGKILL');
    await gone;
    const stranger = spawn('sleep', ['60']);
    rewritePid(stranger);
    const next = await start();
    expect(await select(next, 'select n from kept')).toEqual([{ n: 7 }]);
    expect(startedTicksOf(stranger.pid!)).toBeDefined();
    stranger.kill();
  }, 60_000);

  it('a lock file of a dead process does not block a start', async () => {
    const server = await start();
    await server.stop();
    writeFileSync(lockFile, `999999\n${cluster}\n1700000000\n5432\n\n127.0.0.1\n\nready\n`);
    await start();
  }, 60_000);

  it('an empty lock file, as a kill or a full disk leaves it, does not block a start', async () => {
    const server = await start();
    await server.stop();
    writeFileSync(lockFile, '');
    expect(await select(await start(), 'select n from kept')).toEqual([{ n: 7 }]);
  }, 30_000);

  it('a lock file that the server cannot use ends the start with the reason, without further tries', async () => {
    const server = await start();
    await server.stop();
    mkdirSync(lockFile);
    const error = await failure(start());
    rmdirSync(lockFile);
    expect(error).toMatchObject({ name: 'StartError', message: /does not start: could not read lock file/ });
  }, 30_000);
});

describe('the launcher', () => {
  it('runs as user nobody where namespaces are off, if the path can be reached', async () => {
    if (!asRoot) return;
    const { postgres } = findBinaries();
    const asNobody = launchers().filter(({ uid }) => uid === unprivileged().uid);
    const open = mkdtempSync(join(root, 'open-'));
    chmodSync(root, 0o711);
    chmodSync(open, 0o755);
    if (!reachable(postgres)) return;
    const launcher = chooseLauncher(postgres, open, asNobody);
    expect(launcher.uid).toBe(unprivileged().uid);
    own(open, launcher);
    const child = launch(launcher, 'id', ['-u']);
    expect(await new Promise((resolve) => child.once('exit', resolve))).toBe(0);
    const error = await failure((async () => chooseLauncher(postgres, dir, asNobody))());
    expect(error).toBeInstanceOf(StartError);
    expect(error.message).toMatch(/as an ordinary user, or set DATABASE_URL/);
  });

  it('is taken over by a start as root after one as user nobody', async () => {
    if (!asRoot) return;
    own(dir, unprivileged());
    expect(await select(await start(), 'select n from kept')).toEqual([{ n: 7 }]);
  }, 60_000);
});

describe('library links', () => {
  it('are restored when npm skipped the script, and asked for when they cannot be', () => {
    const copy = mkdtempSync(join(root, 'package-'));
    mkdirSync(join(copy, 'native', 'lib'), { recursive: true });
    writeFileSync(join(copy, 'native/lib/liba.so.1.2'), 'library');
    const links = [
      { source: 'native/lib/liba.so.1.2', target: 'native/lib/liba.so.1' },
      { source: 'native/lib/liba.so.1.2', target: 'native/lib/liba.so' },
    ];
    writeFileSync(join(copy, 'native/pg-symlinks.json'), JSON.stringify(links));
    symlinkSync('liba.so.1.2', join(copy, 'native/lib/liba.so'));
    for (let i = 0; i < 2; i += 1) restoreLinks(copy);
    expect(readFileSync(join(copy, 'native/lib/liba.so.1'), 'utf8')).toBe('library');
    links.push({ source: 'native/lib/liba.so.1.2', target: 'native/missing/liba.so' });
    writeFileSync(join(copy, 'native/pg-symlinks.json'), JSON.stringify(links));
    expect(() => restoreLinks(copy)).toThrow(StartError);
  });
});

function rewritePid(stranger: ChildProcess): void {
  writeFileSync(lockFile, readFileSync(lockFile, 'utf8').replace(/^\d+/, String(stranger.pid)));
}

function reachable(path: string): boolean {
  try {
    chooseLauncher(path, '/', [unprivileged()]);
    return true;
  } catch {
    return false;
  }
}

async function somePort(): Promise<string> {
  const probe = createServer();
  await new Promise<void>((resolve) => probe.listen(0, '127.0.0.1', resolve));
  const { port } = probe.address() as { port: number };
  await new Promise((resolve) => probe.close(resolve));
  return String(port);
}

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 10));
}
