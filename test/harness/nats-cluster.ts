/**
 * For tests: three real nodes of NATS JetStream on free ports, with the sync of each message, in a temporary directory.
 * A node can be killed, frozen and started again on its ports.
 */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type JetStreamManager, jetstreamManager } from '@nats-io/jetstream';
import { connect as connectNats, type NatsConnection } from '@nats-io/transport-node';
import { eventually } from './api.ts';
import { freePort, inherited } from './engine.ts';

const nodeCount = 3;
const readyMsMax = 30_000;
/** Requests are lost while the nodes choose their leader, so each is repeated after this time. */
const electionMsMax = 250;

/** Returns the directory of the servers, which `test/packages.sh` has installed. */
function installed(): string {
  return execFileSync('sh', ['test/nats-server.sh'], { encoding: 'utf8' }).trim();
}

const natsServer = () => join(installed(), 'python', 'bin', 'nats-server');
/** Version 2.9 of Debian 12. */
export const oldNatsServer = () => join(installed(), 'old', 'usr', 'sbin', 'nats-server');

interface NatsOptions {
  /** The program to start, instead of that of the supported version. */
  program?: string;
  /** Lines of the settings of each node. */
  settings?: string;
  /** Lines of the block `jetstream`; absent: the sync of each message. */
  jetstream?: string;
  nodes?: number;
}

export class NatsCluster {
  readonly #directory = mkdtempSync(join(tmpdir(), 'millrace-nats-nodes-'));
  readonly #options: NatsOptions;
  readonly #processes: (ChildProcess | undefined)[] = [];
  #ports: { client: number; cluster: number; monitor: number }[] = [];

  private constructor(options: NatsOptions) {
    this.#options = options;
    process.once('exit', this.#onExit);
  }

  /** A process that was interrupted leaves no node behind. */
  readonly #onExit = (): void => {
    for (const child of this.#processes) child?.kill('SIGKILL');
    rmSync(this.#directory, { recursive: true, force: true });
  };

  static async start(options: NatsOptions = {}): Promise<NatsCluster> {
    const self = new NatsCluster(options);
    const { nodes = nodeCount } = options;
    const ports = await Promise.all(Array.from({ length: 3 * nodes }, () => freePort()));
    self.#ports = Array.from({ length: nodes }, (_, i) => ({
      client: ports[3 * i]!,
      cluster: ports[3 * i + 1]!,
      monitor: ports[3 * i + 2]!,
    }));
    try {
      for (let node = 0; node < nodes; node += 1) self.#spawn(node);
      await self.ready();
    } catch (error) {
      await self.stop();
      throw error;
    }
    return self;
  }

  get url(): string {
    return this.#ports.map(({ client }) => `nats://127.0.0.1:${client}`).join(',');
  }

  get monitorUrls(): string {
    return this.#ports.map(({ monitor }) => `http://127.0.0.1:${monitor}`).join(',');
  }

  /** The process ids of the nodes that run. */
  get pids(): number[] {
    return this.#processes.flatMap((child) => child?.pid ?? []);
  }

  /** Returns the number of the node that leads a stream; the nodes are named `n0`, `n1` and `n2`. */
  async leaderOf(stream: string): Promise<number> {
    const info = await this.manage((manager) => manager.streams.info(stream));
    return Number(info.cluster!.leader!.slice(1));
  }

  /** Calls with a connection to the nodes that run. */
  async manage<T>(call: (manager: JetStreamManager) => Promise<T>, timeout = 3_000): Promise<T> {
    const connection = await this.connect();
    try {
      return await call(await jetstreamManager(connection, { checkAPI: false, timeout }));
    } finally {
      await connection.close();
    }
  }

  connect(): Promise<NatsConnection> {
    const servers = this.#ports.filter((_, i) => this.#processes[i] !== undefined);
    return connectNats({ servers: servers.map(({ client }) => `127.0.0.1:${client}`), timeout: 1_000 });
  }

  async kill(node: number): Promise<void> {
    const child = this.#processes[node];
    this.#processes[node] = undefined;
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    child.kill('SIGKILL');
    await once(child, 'exit');
  }

  /** `SIGSTOP` freezes a node, `SIGCONT` lets it run on. */
  signal(node: number, signal: 'SIGSTOP' | 'SIGCONT'): void {
    this.#processes[node]?.kill(signal);
  }

  startAgain(node: number): void {
    this.#spawn(node);
  }

  get #data(): string {
    return join(this.#directory, 'data');
  }

  /** Resolves when the servers answer as a cluster that can make a stream. */
  async ready(): Promise<void> {
    const { nodes = nodeCount } = this.#options;
    await eventually(
      async () => {
        const states = await Promise.all(this.#ports.map(({ client }) => accepts(client)));
        return states.every((open) => open);
      },
      readyMsMax,
      10,
    );
    if (nodes === 1) return;
    await eventually(
      async () => {
        try {
          await this.manage(async (manager) => {
            await manager.streams.add({ name: 'probe', subjects: ['probe'], num_replicas: nodes });
            await manager.streams.delete('probe');
          }, electionMsMax);
          return true;
        } catch {
          return false;
        }
      },
      readyMsMax,
      20,
    );
  }

  async stop(): Promise<void> {
    process.off('exit', this.#onExit);
    await Promise.all(this.#processes.map((_, node) => this.kill(node)));
    rmSync(this.#directory, { recursive: true, force: true });
  }

  #spawn(node: number): void {
    const { program = natsServer(), settings = '', jetstream = 'sync_interval: always' } = this.#options;
    const { client, cluster, monitor } = this.#ports[node]!;
    const routes = this.#ports.map((each) => `nats://127.0.0.1:${each.cluster}`).join(', ');
    const file = join(this.#directory, `n${node}.conf`);
    const isCluster = this.#ports.length > 1;
    writeFileSync(
      file,
      `server_name: n${node}
host: 127.0.0.1
port: ${client}
http: "127.0.0.1:${monitor}"
jetstream { store_dir: "${join(this.#data, `n${node}`)}", max_file_store: 20GB
${jetstream} }
${isCluster ? `cluster { name: test, host: 127.0.0.1, port: ${cluster}, routes: [${routes}] }` : ''}
${settings}
`,
    );
    // `inherited` keeps settings of this process away from the child.
    this.#processes[node] = spawn(program, ['-c', file, '-l', join(this.#directory, `n${node}.log`)], {
      stdio: 'ignore',
      env: inherited(),
    });
  }
}

function accepts(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, '127.0.0.1');
    socket.once('connect', () => {
      socket.destroy();
      resolve(true);
    });
    socket.once('error', () => resolve(false));
  });
}
