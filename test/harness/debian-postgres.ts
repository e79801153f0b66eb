/**
 * Servers of Debian's PostgreSQL in one temporary directory: a primary, standbys of it, and PgBouncer in front. As root
 * they run under the account `postgres`, because PostgreSQL and PgBouncer refuse to run as root.
 */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import {
  appendFileSync,
  chownSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { eventually } from './api.ts';
import { freePort, isPortOpen } from './ports.ts';

const run = promisify(execFile);
const startMsMax = 30_000;
const user = 'millrace';

interface Account {
  uid?: number;
  gid?: number;
}

function account(): Account {
  if (process.getuid?.() !== 0) return {};
  const [, , uid, gid] = (/^postgres:.*$/m.exec(readFileSync('/etc/passwd', 'utf8'))?.[0] ?? '').split(':');
  return { uid: Number(uid), gid: Number(gid) };
}

function binary(name: string): string {
  const versions = readdirSync('/usr/lib/postgresql').sort((a, b) => Number(a) - Number(b));
  return join('/usr/lib/postgresql', versions.at(-1)!, 'bin', name);
}

export class DebianPostgres {
  readonly #dir: string;
  readonly #account = account();
  readonly #children: ChildProcess[] = [];

  constructor() {
    this.#dir = mkdtempSync(join(tmpdir(), 'millrace-debian-postgres-'));
    this.#own(this.#dir);
  }

  /** Makes and starts a server with the database `millrace`. */
  async primary(): Promise<PostgresNode> {
    const dir = join(this.#dir, 'a');
    await run(binary('initdb'), ['-D', dir, '-U', user, '--auth=trust', '-E', 'UTF8', '--locale=C'], this.#account);
    const node = new PostgresNode(dir, await freePort(), this.#account);
    await node.start();
    await node.sql('create database millrace', 'postgres');
    return node;
  }

  /** Makes and starts a standby, which follows the primary. */
  async standbyOf(primary: PostgresNode): Promise<PostgresNode> {
    const dir = join(this.#dir, `standby-${randomUUID()}`);
    const from = ['-h', '127.0.0.1', '-p', String(primary.port), '-U', user];
    await run(binary('pg_basebackup'), ['-D', dir, '-R', '-X', 'stream', '-c', 'fast', ...from], this.#account);
    const node = new PostgresNode(dir, await freePort(), this.#account);
    await node.start();
    return node;
  }

  /** Starts PgBouncer in transaction mode; returns its port. */
  async pgBouncer(node: PostgresNode): Promise<number> {
    const port = await freePort();
    await this.#startPgBouncer(node, port);
    return port;
  }

  /** Kills PgBouncer, and starts it at the same port after `use`. */
  async withoutPgBouncer(node: PostgresNode, port: number, use: () => Promise<void>): Promise<void> {
    const bouncer = this.#children.pop()!;
    const exit = once(bouncer, 'exit');
    bouncer.kill('SIGKILL');
    await exit;
    await use();
    await this.#startPgBouncer(node, port);
  }

  async #startPgBouncer({ port: serverPort }: PostgresNode, port: number): Promise<void> {
    const file = join(this.#dir, 'pgbouncer.ini');
    const settings = [
      '[databases]',
      `* = host=127.0.0.1 port=${serverPort}`,
      '[pgbouncer]',
      `listen_addr = 127.0.0.1\nlisten_port = ${port}\nunix_socket_dir =`,
      `auth_type = any\npool_mode = transaction\nmax_client_conn = 500\ndefault_pool_size = 20`,
    ];
    writeFileSync(file, `${settings.join('\n').replace('* = ', `* = user=${user} `)}\n`);
    this.#own(file);
    const child = spawn('/usr/sbin/pgbouncer', ['-q', file], { ...this.#account, stdio: 'ignore' });
    this.#children.push(child);
    await eventually(() => isPortOpen(port), startMsMax);
  }

  async remove(nodes: (PostgresNode | undefined)[]): Promise<void> {
    for (const child of this.#children) child.kill('SIGKILL');
    for (const node of nodes) await node?.stop('immediate');
    rmSync(this.#dir, { recursive: true, force: true });
  }

  #own(path: string): void {
    const { uid, gid } = this.#account;
    if (uid !== undefined) chownSync(path, uid, gid!);
  }
}

export class PostgresNode {
  readonly port: number;
  readonly dir: string;
  readonly #account: Account;
  #child: ChildProcess | undefined;

  constructor(dir: string, port: number, owner: Account) {
    this.dir = dir;
    this.port = port;
    this.#account = owner;
  }

  get url(): string {
    return `postgres://${user}@127.0.0.1:${this.port}/millrace`;
  }

  async start(): Promise<void> {
    const listen = ['-p', String(this.port), '-c', 'listen_addresses=127.0.0.1', '-c', 'unix_socket_directories='];
    this.#child = spawn(binary('postgres'), ['-D', this.dir, ...listen], { ...this.#account, stdio: 'ignore' });
    const isReady = async () => {
      await run(binary('pg_isready'), ['-h', '127.0.0.1', '-p', String(this.port)]);
      return true;
    };
    await eventually(() => isReady().catch(() => false), startMsMax);
  }

  async stop(mode: 'fast' | 'immediate' = 'fast'): Promise<void> {
    const child = this.#child;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const exit = once(child, 'exit');
    child.kill(mode === 'fast' ? 'SIGINT' : 'SIGQUIT');
    await exit;
  }

  /** Sends a signal to the server and to every process of it. */
  signal(name: NodeJS.Signals): void {
    const server = this.#child!.pid!;
    const isOwn = (pid: string) => {
      try {
        const stat = readFileSync(`/proc/${pid}/stat`, 'utf8');
        return stat.slice(stat.lastIndexOf(')') + 2).split(' ')[1] === String(server);
      } catch {
        // The process has ended meanwhile.
        return false;
      }
    };
    const own = readdirSync('/proc').filter((pid) => /^\d+$/.test(pid) && isOwn(pid));
    for (const pid of [server, ...own.map(Number)]) process.kill(pid, name);
  }

  async promote(): Promise<void> {
    await run(binary('pg_ctl'), ['promote', '-w', '-D', this.dir], this.#account);
  }

  /** Called while the server is stopped: at its next start it follows `primary`. */
  follow(primary: PostgresNode): void {
    mkdirSync(this.dir, { recursive: true });
    writeFileSync(join(this.dir, 'standby.signal'), '');
    const from = `host=127.0.0.1 port=${primary.port} user=${user}`;
    appendFileSync(join(this.dir, 'postgresql.auto.conf'), `primary_conninfo = '${from}'\n`);
    const { uid, gid } = this.#account;
    if (uid !== undefined) chownSync(join(this.dir, 'standby.signal'), uid, gid!);
  }

  /** Runs a client program of PostgreSQL at this server. */
  async program(name: string, ...words: string[]): Promise<void> {
    await run(binary(name), ['-h', '127.0.0.1', '-p', String(this.port), '-U', user, ...words]);
  }

  async sql(text: string, database = 'millrace'): Promise<string> {
    const at = ['-h', '127.0.0.1', '-p', String(this.port), '-U', user, '-d', database];
    const { stdout } = await run(binary('psql'), [...at, '-X', '-A', '-t', '-v', 'ON_ERROR_STOP=1', '-c', text]);
    return stdout.trim();
  }
}
