/**
 * Starts three real nodes of NATS JetStream on free ports, with the sync of each message, in a temporary directory.
 * A node can be killed, frozen and started again on its ports.
 */
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type JetStreamManager, jetstreamManager } from '@nats-io/jetstream';
import { connect as connectNats, type NatsConnection } from '@nats-io/transport-node';
import { eventually } from './api.ts';
import { inherited } from './engine.ts';
import { Link } from './link.ts';
import { freePort, isPortOpen } from './ports.ts';

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
  /** Nodes that have JetStream; absent: all of them. */
  replicas?: number;
  /** Nodes reach each other through links that `cut` cuts. */
  linked?: boolean;
  /** A user that `settings` names, for the connections of the test itself. */
  login?: { user: string; pass: string };
  /** All lines of the settings of a node, in the place of those of this file. */
  linesOf?: (node: NodeOfCluster) => string;
}

export interface NodeOfCluster {
  name: string;
  client: number;
  cluster: number;
  monitor: number;
  /** Addresses with commas between them. */
  routes: string;
  directory: string;
}

export class NatsCluster {
  readonly #directory = mkdtempSync(join(tmpdir(), 'millrace-nats-nodes-'));
  #options: NatsOptions;
  readonly #processes: (ChildProcess | undefined)[] = [];
  /** The links, by the node that opens a link and the node to which the link leads. */
  #links: (Link | undefined)[][] = [];
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
    if (options.linked === true) await self.#link();
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

  /** Returns the number of the node with this address of clients. */
  nodeAt(server: string): number {
    return this.#ports.findIndex(({ client }) => server.endsWith(`:${client}`));
  }

  /** Returns the number of the node that leads a stream; the nodes are named `n0`, `n1` and `n2`. */
  async leaderOf(stream: string): Promise<number> {
    // The servers choose a leader after they have answered that the stream is made.
    const info = () => this.manage((manager) => manager.streams.info(stream));
    const leader = await eventually(async () => (await info()).cluster?.leader, readyMsMax);
    return Number(leader.slice(1));
  }

  /** Returns the names of the clients that are connected to a node. */
  async clientsOf(node: number): Promise<string[]> {
    const answer = await fetch(`http://127.0.0.1:${this.#ports[node]!.monitor}/connz`);
    const { connections } = (await answer.json()) as { connections: { name?: string }[] };
    return connections.flatMap(({ name }) => name ?? []);
  }

  /** Calls with a connection to the nodes that run. */
  async manage<T>(call: (manager: JetStreamManager) => Promise<T>, timeout = 15_000): Promise<T> {
    const connection = await this.connect();
    try {
      return await call(await jetstreamManager(connection, { checkAPI: false, timeout }));
    } finally {
      await connection.close();
    }
  }

  connect(): Promise<NatsConnection> {
    const servers = this.#ports.filter((_, i) => this.#processes[i] !== undefined);
    const { login } = this.#options;
    return connectNats({ servers: servers.map(({ client }) => `127.0.0.1:${client}`), timeout: 5_000, ...login });
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

  /** Nothing passes between this node and the others any more; clients reach all of them. */
  cut(node: number): void {
    for (const link of this.#linksOf(node)) link.cut();
  }

  join(node: number): void {
    for (const link of this.#linksOf(node)) link.join();
  }

  #linksOf(node: number): Link[] {
    return [...this.#links[node]!, ...this.#links.map((links) => links[node])].filter((link) => link !== undefined);
  }

  async #link(): Promise<void> {
    const linksOf = (from: number) =>
      Promise.all(this.#ports.map(({ cluster }, to) => (from === to ? undefined : Link.to(cluster))));
    this.#links = await Promise.all(this.#ports.map((_, from) => linksOf(from)));
  }

  startAgain(node: number): void {
    this.#spawn(node);
  }

  /** Starts a node without its data, and resolves when it follows each stream again. */
  async replace(node: number): Promise<void> {
    await this.kill(node);
    rmSync(join(this.#data, `n${node}`), { recursive: true, force: true });
    this.startAgain(node);
    const areFollowed = () =>
      this.manage(async ({ streams }) => {
        const replicas = (await streams.list().next()).flatMap(({ cluster }) => cluster?.replicas ?? []);
        return replicas.length > 0 && replicas.every(({ current, offline }) => current && offline !== true);
      });
    await eventually(() => areFollowed().catch(() => false), readyMsMax);
  }

  /** Lets all nodes read other lines of settings, without a restart. */
  reloadWith(settings: string): void {
    this.#options = { ...this.#options, settings };
    for (const [node, child] of this.#processes.entries()) {
      this.#writeSettings(node);
      child?.kill('SIGHUP');
    }
  }

  /** Starts all nodes again, with other lines of settings. */
  async startWith(settings: string): Promise<void> {
    this.#options = { ...this.#options, settings };
    await this.#withoutNodes(() => {});
  }

  /**
   * Keeps what the nodes have on their disks now. The function that it returns gives that back to all of them, as when
   * all machines stop at one moment and their disks had promised more than they kept.
   */
  async keepData(): Promise<() => Promise<void>> {
    const kept = join(this.#directory, 'kept');
    await this.#withoutNodes(() => cpSync(this.#data, kept, { recursive: true }));
    return () =>
      this.#withoutNodes(() => {
        rmSync(this.#data, { recursive: true, force: true });
        cpSync(kept, this.#data, { recursive: true });
      });
  }

  async #withoutNodes(change: () => void): Promise<void> {
    const numbers = this.#ports.map((_, node) => node);
    await Promise.all(numbers.map((node) => this.kill(node)));
    change();
    for (const node of numbers) this.startAgain(node);
    await this.ready();
  }

  get #data(): string {
    return join(this.#directory, 'data');
  }

  /** Resolves when the servers answer as a cluster that can make a stream. */
  async ready(): Promise<void> {
    const { nodes = nodeCount, replicas = nodes } = this.#options;
    await eventually(
      async () => {
        const states = await Promise.all(this.#ports.map(({ client }) => isPortOpen(client)));
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
            await manager.streams.add({ name: 'probe', subjects: ['probe'], num_replicas: replicas });
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
    for (const link of this.#links.flat()) link?.close();
    rmSync(this.#directory, { recursive: true, force: true });
  }

  #spawn(node: number): void {
    const { program = natsServer() } = this.#options;
    const file = this.#writeSettings(node);
    // `inherited` keeps settings of this process away from the child.
    this.#processes[node] = spawn(program, ['-c', file, '-l', join(this.#directory, `n${node}.log`)], {
      stdio: 'ignore',
      env: inherited(),
    });
  }

  /** Returns the file. */
  #writeSettings(node: number): string {
    const { settings = '', jetstream = 'sync_interval: always' } = this.#options;
    const { client, cluster, monitor } = this.#ports[node]!;
    const ports = this.#ports.map((each, to) => (this.#links.length > 0 ? this.#links[node]![to]?.port : each.cluster));
    const routes = ports.filter((port) => port !== undefined).map((port) => `nats://127.0.0.1:${port}`);
    // Nodes tell each other where they are: nothing listens there, so that no route goes around the links.
    const advertise = this.#links.length > 0 ? 'advertise: "127.0.0.1:1",' : '';
    const file = join(this.#directory, `n${node}.conf`);
    const isCluster = this.#ports.length > 1;
    const own = ({ name, client, cluster, monitor, routes, directory }: NodeOfCluster) => `server_name: ${name}
host: 127.0.0.1
port: ${client}
http: "127.0.0.1:${monitor}"
jetstream { store_dir: "${directory}", max_file_store: 20GB
${jetstream} }
${isCluster ? `cluster { name: test, host: 127.0.0.1, port: ${cluster}, ${advertise} routes: [${routes}] }` : ''}
${settings}
`;
    const name = `n${node}`;
    const directory = join(this.#data, name);
    const lines = this.#options.linesOf ?? own;
    writeFileSync(file, lines({ name, client, cluster, monitor, routes: routes.join(', '), directory }));
    return file;
  }
}
