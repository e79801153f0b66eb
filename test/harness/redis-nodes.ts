/** Redis as its operators run it: a master with a replica that Sentinels watch, a cluster, and TLS. Real servers. */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { RedisSettings } from '../../src/bus/redis-address.ts';
import { eventually } from './api.ts';
import { CertificateMaker } from './certificates.ts';
import { freePort } from './ports.ts';

const knownMsMax = 60_000;

interface NodeOptions {
  args?: string[];
  /** The path of the configuration of a Sentinel. */
  sentinel?: string;
  tls?: boolean;
}

export class RedisNode {
  readonly port: number;
  /** The port of a node of a cluster for other nodes. */
  busPort = 0;
  readonly #dir: string;
  readonly #options: NodeOptions;
  process: ChildProcess | undefined;

  constructor(dir: string, port: number, options: NodeOptions = {}) {
    this.#dir = dir;
    this.port = port;
    this.#options = options;
  }

  get url(): string {
    return `redis://127.0.0.1:${this.port}`;
  }

  async start(): Promise<void> {
    const { args = [], sentinel, tls } = this.#options;
    const ports = tls ? ['--port', '0', '--tls-port', String(this.port)] : ['--port', String(this.port)];
    const own = ['--bind', '127.0.0.1', '--dir', this.#dir, ...args];
    const files = ['--save', '', '--appendonly', 'no', '--dbfilename', `${this.port}.rdb`];
    const words = sentinel === undefined ? [...ports, ...files, ...own] : [sentinel, '--sentinel', ...own];
    this.process = spawn('redis-server', words, { stdio: ['ignore', 'pipe', 'inherit'] });
    for await (const chunk of this.process.stdout!) if (/Ready to accept|Sentinel ID is/.test(String(chunk))) break;
    this.process.stdout!.resume();
  }

  /** Ends the server without notice to its clients. */
  async stop(): Promise<void> {
    if (!this.process || this.process.exitCode !== null || this.process.signalCode !== null) return;
    const gone = once(this.process, 'exit');
    this.process.kill('SIGCONT');
    this.process.kill('SIGKILL');
    await gone;
  }

  /** Returns the answer to a command. */
  cli(...words: (string | number)[]): string {
    return execFileSync('redis-cli', ['-p', String(this.port), ...words.map(String)], { encoding: 'utf8' });
  }
}

interface Watched {
  master: RedisNode;
  /** The Sentinels, the master and its replica. */
  nodes: RedisNode[];
  settings: RedisSettings;
}

/** The servers of one test, and their files. */
export class RedisNodes {
  readonly dir = mkdtempSync(join(tmpdir(), 'millrace-redis-'));
  readonly #nodes: RedisNode[] = [];
  #certificates: CertificateMaker | undefined;

  /** A process that was interrupted leaves no server behind. */
  readonly #onExit = (): void => {
    for (const node of this.#nodes) node.process?.kill('SIGKILL');
    this.#certificates?.remove();
    rmSync(this.dir, { recursive: true, force: true });
  };

  constructor() {
    process.once('exit', this.#onExit);
  }

  async one(options: NodeOptions = {}): Promise<RedisNode> {
    const node = new RedisNode(this.dir, await freePort(), options);
    this.#nodes.push(node);
    await node.start();
    return node;
  }

  async remove(): Promise<void> {
    await Promise.all(this.#nodes.map((node) => node.stop()));
    this.#certificates?.remove();
    rmSync(this.dir, { recursive: true, force: true });
    // A process that exits meanwhile removes the files.
    process.off('exit', this.#onExit);
  }

  /** Returns the path of an own authority, and the arguments of servers with a certificate of it. */
  tls(): { ca: string; args: string[] } {
    this.#certificates ??= new CertificateMaker();
    const authority = this.#certificates.make('authority', { isIssuer: true });
    const { cert, key } = this.#certificates.make('127.0.0.1', { issuer: authority, address: '127.0.0.1' });
    const path = (name: string, text: string) => {
      writeFileSync(join(this.dir, name), text);
      return join(this.dir, name);
    };
    const ca = path('ca.pem', authority.cert);
    const files = ['--tls-cert-file', path('redis.pem', cert), '--tls-key-file', path('redis.key', key)];
    return { ca, args: [...files, '--tls-ca-cert-file', ca, '--tls-auth-clients', 'no'] };
  }

  /** A master with a replica, and three Sentinels that ask for a password. */
  async sentinels({ isSecure = false } = {}): Promise<Watched> {
    const { ca, args: files } = isSecure ? this.tls() : { ca: '', args: [] };
    const args = ['--requirepass', 'inner', '--masterauth', 'inner', ...files];
    if (isSecure) args.push('--tls-replication', 'yes');
    const master = await this.one({ args, tls: isSecure });
    const replica = await this.one({ args: [...args, '--replicaof', '127.0.0.1', String(master.port)], tls: isSecure });
    const sentinels: RedisNode[] = [];
    for (let i = 0; i < 3; i += 1) sentinels.push(await this.#sentinel(master, isSecure ? files : []));
    const ask = ['-a', 'watch', '--no-auth-warning', ...(isSecure ? ['--tls', '--cacert', ca] : [])];
    // Each of them may lead the failover. One that does not know the replica could not learn of it after the failure.
    const knowsAll = (sentinel: RedisNode) =>
      /num-slaves\n1\n.*num-other-sentinels\n2\n/s.test(sentinel.cli(...ask, 'sentinel', 'master', 'main'));
    await eventually(() => sentinels.every(knowsAll), knownMsMax);
    const hosts = sentinels.map(({ port }) => `127.0.0.1:${port}`).join(',');
    const url = `${isSecure ? 'rediss' : 'redis'}+sentinel://:inner@${hosts}/main`;
    return { master, nodes: [...sentinels, master, replica], settings: { url, tlsCa: ca, sentinelPassword: 'watch' } };
  }

  async #sentinel(master: RedisNode, tlsArgs: string[]): Promise<RedisNode> {
    const port = await freePort();
    const file = join(this.dir, `sentinel-${port}.conf`);
    const isSecure = tlsArgs.length > 0;
    const lines = [
      ...(isSecure ? ['port 0', `tls-port ${port}`, 'tls-replication yes'] : [`port ${port}`]),
      `sentinel monitor main 127.0.0.1 ${master.port} 2`,
      'sentinel auth-pass main inner',
      'sentinel down-after-milliseconds main 1000',
      'sentinel failover-timeout main 5000',
      'requirepass watch',
      'sentinel sentinel-pass watch',
    ];
    writeFileSync(file, `${lines.join('\n')}\n`);
    const sentinel = new RedisNode(this.dir, port, { args: tlsArgs, sentinel: file });
    this.#nodes.push(sentinel);
    await sentinel.start();
    return sentinel;
  }

  /** The first three nodes are masters. Without replicas, the slots of a dead master return with it. */
  async cluster({ hasReplicas = false } = {}): Promise<{ nodes: RedisNode[]; url: string }> {
    const masters = [await this.#clusterNode(), await this.#clusterNode(), await this.#clusterNode()];
    masters.forEach((node, i) => {
      node.cli('cluster', 'set-config-epoch', i + 1);
      node.cli('cluster', 'addslotsrange', i * 5462, Math.min(16383, i * 5462 + 5461));
      if (i > 0) node.cli('cluster', 'meet', '127.0.0.1', masters[0]!.port, masters[0]!.busPort);
    });
    const isWhole = (node: RedisNode) => /cluster_state:ok.*cluster_size:3/s.test(node.cli('cluster', 'info'));
    await eventually(() => masters.every(isWhole), knownMsMax);
    const replicas: RedisNode[] = [];
    if (hasReplicas) for (const master of masters) replicas.push(await this.#replicaOf(master));
    return {
      nodes: [...masters, ...replicas],
      url: `redis+cluster://${masters.map(({ port }) => `127.0.0.1:${port}`).join(',')}`,
    };
  }

  async #replicaOf(master: RedisNode): Promise<RedisNode> {
    const replica = await this.#clusterNode();
    replica.cli('cluster', 'meet', '127.0.0.1', master.port, master.busPort);
    const id = master.cli('cluster', 'myid').trim();
    await eventually(() => replica.cli('cluster', 'nodes').includes(id), knownMsMax);
    replica.cli('cluster', 'replicate', id);
    await eventually(() => replica.cli('info', 'replication').includes('master_link_status:up'), knownMsMax);
    return replica;
  }

  async #clusterNode(): Promise<RedisNode> {
    const [port, busPort] = [await freePort(), await freePort()];
    const settings = { enabled: 'yes', port: busPort, 'config-file': `nodes-${port}.conf`, 'node-timeout': 1000 };
    const args = Object.entries(settings).flatMap(([name, value]) => [`--cluster-${name}`, String(value)]);
    const node = new RedisNode(this.dir, port, { args: [...args, '--cluster-require-full-coverage', 'no'] });
    node.busPort = busPort;
    this.#nodes.push(node);
    await node.start();
    return node;
  }
}
