/**
 * A whole engine as a child process: `node dist/main.js` on free loopback ports with a data directory of its own.
 * Knows how to kill any of its processes, start it again on the same data, and end it without leaving anything.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { appendFileSync, existsSync, readdirSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { endProcess, liveProcess, startedTicksOf } from '../../src/base/process-file.ts';
import { Api, eventually } from './api.ts';
import { askClickhouse, embeddedAddress, queryClickhouse } from './clickhouse-queries.ts';
import { makeDataDirectory, newDirectory, preparedData } from './data-directory.ts';
import type { Place } from './host-network.ts';
import { freePort } from './ports.ts';
import { enterEngine, leaveEngine, noteEnd, refuseAtTheEnd } from './running-engines.ts';

/** Kept short, so that a failing test shows the end of the story. */
const outputCharsMax = 200_000;
const readyMsMaxDefault = 110_000;
const stopMsMaxDefault = 30_000;

/** Settings that spare tests needless work: password hashes, and zeros for journals that stay small. */
const testSettings: Record<string, string> = process.env['VITEST']
  ? { SECURITY_PASSWORD_COST: '10', JOURNAL_SEGMENT_BYTES: '16MiB' }
  : {};

/** The clone, whatever the directory of the caller is. ENGINE_MAIN measures or tests another build. */
export const root = packageOf(dirname(fileURLToPath(import.meta.url)));
export const engineMain = process.env['ENGINE_MAIN'] ?? join(root, 'dist', 'main.js');

/** The directory of the package: compiled files are one level deeper in it than their sources. */
function packageOf(directory: string): string {
  return existsSync(join(directory, 'package.json')) ? directory : packageOf(dirname(directory));
}

export interface EngineOptions {
  env?: Record<string, string>;
  workers?: number;
  dataDir?: string;
  /** Begin with nothing, as a new user does. Else embedded stores are a copy of some that were started once. */
  firstStart?: boolean;
  /** Begin with a copy of this data directory, whose engine was stopped. */
  copyOf?: string | undefined;
  /** Starts the process of the reports, which few tests need. */
  reports?: boolean;
  readyMsMax?: number;
  stopMsMax?: number;
  /** Gathers all that the engine prints, over all starts. */
  logFile?: string | undefined;
  /** Another build to start: `dist/main.js` of its checkout. */
  main?: string;
  /** Files that each process may have open, by `ulimit`. */
  filesMax?: number;
  /** A network namespace, and an address of it. */
  place?: Place;
}

/** `workers`: every worker accepts telemetry; `all`: stores and reports are up, too. */
type AwaitedParts = 'workers' | 'all';

interface Readiness {
  code: number;
  status?: string;
  parts?: Record<string, string>;
  reasons?: string[];
}

/** One line of the log. */
export interface LogLine {
  level: string;
  event: string;
  [field: string]: unknown;
}

interface Exit {
  code: number | null;
  signal: NodeJS.Signals | null;
}

export async function startEngine(options: EngineOptions = {}): Promise<Engine> {
  const engine = await prepareEngine(options);
  try {
    await engine.start();
  } catch (error) {
    // The caller has no engine that it could end.
    await engine.destroyAtOnce();
    throw error;
  }
  return engine;
}

/** Starts several engines at the same time. When one does not start, none is left. */
export async function startEngines<Options extends EngineOptions[]>(
  options: [...Options],
): Promise<{ [N in keyof Options]: Engine }> {
  const starts = await Promise.allSettled(options.map((each) => startEngine(each)));
  const failed = starts.find((start) => start.status === 'rejected');
  const started = starts.flatMap((start) => (start.status === 'fulfilled' ? [start.value] : []));
  if (failed === undefined) return started as { [N in keyof Options]: Engine };
  await Promise.all(started.map((engine) => engine.destroyAtOnce()));
  throw failed.reason;
}

/** An engine with its ports and directory, not started. */
export async function prepareEngine(options: EngineOptions = {}): Promise<Engine> {
  const free = await Promise.all([freePort(), freePort(), freePort(), freePort()]);
  refuseAtTheEnd();
  const [http, mqtt, analytics, monitor] = free;
  const engine = new Engine({ http, mqtt, analytics, monitor }, options);
  enterEngine(engine);
  return engine;
}

/** Starts and stops an engine whose data other engines may begin with. The returned function removes it. */
export async function prepareData(): Promise<() => void> {
  const dataDir = newDirectory();
  const engine = await startEngine({ dataDir, workers: 1 });
  await engine.stop();
  process.env[preparedData] = dataDir;
  return () => rmSync(dataDir, { recursive: true, force: true });
}

interface Ports {
  http: number;
  mqtt: number;
  analytics: number;
  monitor: number;
}

export class Engine {
  readonly port: number;
  readonly mqttPort: number;
  readonly analyticsPort: number;
  readonly dataDir: string;
  readonly api: Api;
  output = '';
  /** The last answer of /readyz. */
  #readiness = '';
  readonly #environment: Record<string, string>;
  readonly #readyMsMax: number;
  readonly #stopMsMax: number;
  readonly #main: string;
  readonly #filesMax: number | undefined;
  readonly #place: Place | undefined;
  readonly #ownsDirectory: boolean;
  readonly #logFile: string | undefined;
  #child: ChildProcess | undefined;
  #exit: Promise<Exit> | undefined;
  /** True when this process has ended the engine. */
  #isEnded = false;

  constructor(
    { http: port, mqtt: mqttPort, analytics: analyticsPort, monitor: monitorPort }: Ports,
    options: EngineOptions,
  ) {
    this.port = port;
    this.mqttPort = mqttPort;
    this.analyticsPort = analyticsPort;
    this.dataDir = options.dataDir ?? makeDataDirectory(options);
    this.#ownsDirectory = options.dataDir === undefined;
    this.#logFile = options.logFile;
    this.#readyMsMax = options.readyMsMax ?? readyMsMaxDefault;
    this.#stopMsMax = options.stopMsMax ?? stopMsMaxDefault;
    this.#main = options.main ?? engineMain;
    this.#filesMax = options.filesMax;
    this.#place = options.place;
    const address = options.place?.address ?? '127.0.0.1';
    this.api = new Api({
      host: address,
      port,
      monitorPort,
      adminEmail: options.env?.['ADMIN_EMAIL'] ?? 'admin@millrace.local',
      adminPassword: options.env?.['ADMIN_PASSWORD'] ?? 'mill-wheel-42',
    });
    this.#environment = {
      ...inherited(),
      ...testSettings,
      DATA_DIR: this.dataDir,
      HTTP_BIND_ADDRESS: address,
      HTTP_BIND_PORT: String(port),
      MQTT_BIND_ADDRESS: address,
      MQTT_BIND_PORT: String(mqttPort),
      ANALYTICS_ENABLED: String(options.reports ?? false),
      ANALYTICS_BIND_ADDRESS: address,
      ANALYTICS_BIND_PORT: String(analyticsPort),
      MONITOR_BIND_ADDRESS: address,
      MONITOR_BIND_PORT: String(monitorPort),
      // Tests ask for old points soon after they were sent.
      SHIP_LATE_SECONDS_MAX: '1',
      // All clients of a test have one address.
      WRONG_CREDENTIALS_PER_MINUTE_MAX: '0',
      WORKERS: String(options.workers ?? 2),
      ADMIN_EMAIL: this.api.address.adminEmail,
      ADMIN_PASSWORD: this.api.address.adminPassword,
      ...options.env,
    };
  }

  /** The variables with which commands act on this engine. */
  get environment(): Record<string, string> {
    return { ...this.#environment };
  }

  get pid(): number | undefined {
    return this.#child?.pid;
  }

  /** True while the process that we spawned has not ended. */
  get running(): boolean {
    return this.#child !== undefined && this.#child.exitCode === null && this.#child.signalCode === null;
  }

  get hasEndedByItself(): boolean {
    return this.#child !== undefined && !this.running && !this.#isEnded;
  }

  /** Spawns the engine, with `extra` settings this time, and waits until it says that it is ready. */
  async start(extra: Record<string, string> = {}, awaited: AwaitedParts = 'all'): Promise<void> {
    this.spawn(extra);
    await this.ready(awaited);
  }

  /** Spawns without waiting: for starts that must fail, or be killed half way. */
  spawn(extra: Record<string, string> = {}): void {
    refuseAtTheEnd();
    this.output = '';
    const inside = this.#place === undefined ? [] : ['ip', 'netns', 'exec', this.#place.namespace];
    const node = [...inside, process.execPath, this.#main];
    const limited = ['sh', '-c', `ulimit -n ${this.#filesMax} && exec "$0" "$@"`, ...node];
    const [command, ...words] = this.#filesMax === undefined ? node : limited;
    const child = spawn(command!, words, {
      cwd: this.#main === engineMain ? root : dirname(dirname(this.#main)),
      env: { ...this.#environment, ...extra },
      stdio: ['ignore', 'pipe', 'pipe'],
      detached: true,
    });
    this.#child = child;
    this.#isEnded = false;
    const keep = (chunk: Buffer) => {
      this.output = (this.output + chunk.toString('utf8')).slice(-outputCharsMax);
      if (this.#logFile !== undefined) appendFileSync(this.#logFile, chunk);
    };
    child.stdout.on('data', keep);
    child.stderr.on('data', keep);
    this.#exit = once(child, 'exit').then(([code, signal]) => ({ code, signal }) as Exit);
  }

  async ready(awaited: AwaitedParts = 'all'): Promise<void> {
    const deadline = performance.now() + this.#readyMsMax;
    const needed = ['workers'];
    if (awaited === 'all') needed.push('clickhouse', 'postgres');
    if (awaited === 'all' && this.#environment['ANALYTICS_ENABLED'] === 'true') needed.push('analytics');
    while (performance.now() < deadline) {
      if (!this.running) throw new Error(`the engine ended before it was ready:\n${this.tail()}`);
      const { code, parts = {} } = await this.status();
      if (code === 200 && needed.every((part) => parts[part] === 'up')) return;
      await sleep(50);
    }
    throw new Error(`the engine is not ready after ${this.#readyMsMax} ms: ${this.#readiness}\n${this.tail()}`);
  }

  /** The status of /readyz, 0 when nothing answers. */
  async readiness(): Promise<number> {
    return (await this.status()).code;
  }

  /** Returns the answer of /readyz; code 0 when the port does not answer. */
  async status(): Promise<Readiness> {
    try {
      const response = await fetch(`${this.api.http}/readyz`, { signal: AbortSignal.timeout(2_000) });
      return { ...((await response.json()) as object), code: response.status };
    } catch {
      return { code: 0 };
    }
  }

  /** Resolves when the file of known devices has all that was committed before this call. */
  async knowsDevices(): Promise<void> {
    const calledAt = performance.now();
    await eventually(async () => {
      // The engine takes the age after this moment: a slow answer must not make the file appear newer.
      const askedAt = performance.now();
      const age = (await this.metric('known_devices_age_seconds')) ?? -1;
      return age >= 0 && age * 1000 < askedAt - calledAt;
    }, 30_000);
  }

  /** Returns the value of a metric without labels; undefined when there is none. */
  async metric(name: string): Promise<number | undefined> {
    const [, value] = new RegExp(`^${name} (.+)$`, 'm').exec(await this.api.metrics()) ?? [];
    return value === undefined ? undefined : Number(value);
  }

  /** Pids by role, from the marks in DATA_DIR/run: primary, worker-0, …, clickhouse, postgres. */
  pids(): Map<string, number> {
    const pids = new Map<string, number>();
    const directory = join(this.dataDir, 'run');
    if (!existsSync(directory)) return pids;
    for (const file of readdirSync(directory)) {
      const pid = file.endsWith('.pid') ? liveProcess(join(directory, file)) : undefined;
      if (pid !== undefined) pids.set(file.slice(0, -'.pid'.length), pid);
    }
    return pids;
  }

  workers(): number[] {
    return [...this.pids()].filter(([role]) => role.startsWith('worker-')).map(([, pid]) => pid);
  }

  /**
   * Sends SIGKILL to one process and resolves when it has ended. Returns the pid, undefined when the role was not
   * running.
   */
  async kill(role: string): Promise<number | undefined> {
    const pid = this.pids().get(role);
    if (pid === undefined) return undefined;
    await endProcess(pid, 'SIGKILL', 5_000);
    return pid;
  }

  /** Kills all processes of the engine, as a machine that loses power would. */
  async killAll(): Promise<void> {
    const pids = [...this.pids().values()];
    if (this.running) this.#isEnded = true;
    if (this.#child?.pid !== undefined && this.running) pids.push(this.#child.pid);
    for (const pid of pids) signalQuietly(pid, 'SIGKILL');
    await Promise.all(pids.map((pid) => endProcess(pid, 'SIGKILL', 5_000)));
    if (this.running) await this.#exit;
  }

  async exit(waitMsMax = this.#stopMsMax): Promise<Exit> {
    const timer = sleep(waitMsMax, undefined, { ref: false }).then(() => {
      throw new Error(`the engine has not ended after ${waitMsMax} ms:\n${this.tail()}`);
    });
    return Promise.race([this.#exit!, timer]);
  }

  /** Sends SIGTERM. Any exit that is not clean is an error. */
  async stop(): Promise<void> {
    if (!this.running) return;
    this.#isEnded = true;
    this.#child!.kill('SIGTERM');
    const { code, signal } = await this.exit();
    if (code !== 0) throw new Error(`SIGTERM: exit code ${code}, signal ${signal}:\n${this.tail()}`);
  }

  async restart(): Promise<void> {
    await this.stop();
    await this.start();
  }

  /** Removes everything, in any state. For `afterAll`. */
  async destroy(): Promise<void> {
    try {
      await this.stop();
    } finally {
      await this.destroyAtOnce();
    }
  }

  /** Removes everything as `destroy` does, without a clean stop. */
  async destroyAtOnce(): Promise<void> {
    noteEnd(this);
    await this.killAll();
    if (this.#ownsDirectory) rmSync(this.dataDir, { recursive: true, force: true });
    leaveEngine(this);
  }

  /** Returns rows of ClickHouse, read over its own interface, each an array of strings. */
  clickhouse(sql: string): Promise<string[][]> {
    return queryClickhouse(embeddedAddress(this.dataDir), sql);
  }

  /** A statement of ClickHouse that answers nothing. */
  async clickhouseCommand(sql: string): Promise<void> {
    await askClickhouse(embeddedAddress(this.dataDir), sql);
  }

  /** Returns the log lines since the last spawn with this event, of any event without one. */
  events(event?: string): LogLine[] {
    const lines = this.output.split('\n').filter((line) => line.startsWith('{') && line.endsWith('}'));
    const parsed = lines.map((line) => JSON.parse(line) as LogLine);
    return event === undefined ? parsed : parsed.filter((line) => line.event === event);
  }

  tail(lines = 30): string {
    return this.output.split('\n').slice(-lines).join('\n');
  }
}

/** The environment that a process needs; no setting of the test runner leaks into the engine. */
export function inherited(): Record<string, string> {
  const names = ['PATH', 'HOME', 'USER', 'TMPDIR', 'LANG'];
  return Object.fromEntries(names.flatMap((name) => (process.env[name] ? [[name, process.env[name]]] : [])));
}

function signalQuietly(pid: number, signal: NodeJS.Signals): void {
  if (startedTicksOf(pid) === undefined) return;
  try {
    process.kill(pid, signal);
  } catch {
    // The process ended between the check and the signal.
  }
}
