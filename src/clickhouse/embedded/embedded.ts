/**
 * Starts the embedded ClickHouse in a separate process and waits until it answers. One process may open a data
 * directory, and an abort of the engine must not end a worker. The caller supervises restarts.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync } from 'node:fs';
import { get, type IncomingMessage } from 'node:http';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { exitOf } from '../../base/child-exit.ts';
import { StartError } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { endProcess, liveProcess, removeProcessFile, writeProcessFile } from '../../base/process-file.ts';
import { usableMemoryBytes } from '../../base/usable-memory.ts';
import type { StartMessage } from './server.ts';
import { type EmbeddedServerSettings, settingsVariable, stopMessage } from './settings.ts';

export interface EmbeddedClickHouseDeps {
  dir: string;
  /** 0 = any free port. A restart passes the port of the last run. */
  port: number;
  password: string;
  /** 0 = a quarter of the machine. */
  memoryBytesMax: number;
  /** The minimum of the journal; see `serverLimits` for the shares that the engine leaves free. */
  freeDiskBytesMin: number;
  sessions: number;
  nice: number;
  /** As in `EmbeddedServerSettings`. */
  calmCheckMs: number;
  /** Milliseconds that running statements may take after a stop. */
  drainMsMax?: number;
  /** Holds the process file. */
  runDir: string;
  log: Log;
  logLevel?: EmbeddedServerSettings['logLevel'];
  /** The built server, which is beside this file unless the sources run unbuilt, as in tests. */
  serverFile?: string;
}

export interface EmbeddedClickHouse {
  url: string;
  port: number;
  user: string;
  password: string;
  pid: number;
  stop(): Promise<void>;
  /** Called once, when the process ends or at once when it has ended; `reason` is ready for a log line. */
  onExit(callback: (reason: string) => void): void;
}

const user = 'default';
const startMsMax = 30_000;
const drainMsDefault = 5_000;
/** A process that runs longer than this after a stop must be killed: no drain takes so long. */
const endMsMax = 15_000;

export async function startEmbeddedClickHouse(deps: EmbeddedClickHouseDeps): Promise<EmbeddedClickHouse> {
  const { runDir, password, log } = deps;
  mkdirSync(runDir, { recursive: true });
  const processFile = join(runDir, 'clickhouse.pid');
  await endLeftover(processFile, log);

  const child = spawnServer(deps);
  const exited = exitOf(child);
  const pid = child.pid;
  if (pid === undefined) throw new StartError(`The embedded ClickHouse cannot be started: ${await exited}.`);
  writeProcessFile(processFile, pid);

  let port: number;
  try {
    port = await started(child, exited);
    await answersPing(port);
  } catch (error) {
    child.kill('SIGKILL');
    await exited;
    removeProcessFile(processFile);
    throw error;
  }
  return {
    url: `http://127.0.0.1:${port}`,
    port,
    user,
    password,
    pid,
    stop: async () => {
      if (child.connected) child.send(stopMessage, () => {});
      else child.kill('SIGTERM');
      const timer = setTimeout(() => child.kill('SIGKILL'), endMsMax);
      await exited;
      clearTimeout(timer);
      removeProcessFile(processFile);
    },
    onExit: (callback) => void exited.then(callback),
  };
}

/**
 * Passes no other variables of this process: NODE_OPTIONS, LD_PRELOAD or TZ of the caller must not change the server.
 */
const inherited = Object.fromEntries(
  ['PATH', 'HOME', 'TMPDIR', 'LD_LIBRARY_PATH'].flatMap((name) =>
    process.env[name] ? [[name, process.env[name]]] : [],
  ),
);

function spawnServer(deps: EmbeddedClickHouseDeps): ChildProcess {
  const { dir, port, password, memoryBytesMax, freeDiskBytesMin, sessions, nice, calmCheckMs } = deps;
  const { drainMsMax = drainMsDefault, logLevel = 'info', serverFile } = deps;
  const settings: EmbeddedServerSettings = {
    dir,
    port,
    user,
    password,
    memoryBytesMax: memoryBytesMax || Math.floor(usableMemoryBytes() / 4),
    freeDiskBytesMin,
    sessions,
    nice,
    calmCheckMs,
    drainMsMax,
    logLevel,
  };
  const file = serverFile ?? fileURLToPath(new URL('./server.js', import.meta.url));
  return fork(file, [], {
    execArgv: [],
    env: {
      ...inherited,
      [settingsVariable]: JSON.stringify(settings),
      // Each running statement occupies a thread of libuv's pool; a calm merge, kills and name lookups need some more.
      UV_THREADPOOL_SIZE: String(sessions + 5),
    },
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  });
}

/** A server that outlived its primary still holds the data directory. */
async function endLeftover(processFile: string, log: Log): Promise<void> {
  const pid = liveProcess(processFile);
  if (pid === undefined) return;
  log.warn('clickhouse_leftover_ended', { leftover: pid });
  if (await endProcess(pid, 'SIGTERM', endMsMax)) return;
  if (await endProcess(pid, 'SIGKILL', 5_000)) return;
  throw new StartError(`Process ${pid} is an embedded ClickHouse of an earlier run and does not end: kill it.`);
}

async function started(child: ChildProcess, exited: Promise<string>): Promise<number> {
  let timer: NodeJS.Timeout | undefined;
  const message = new Promise<StartMessage>((resolve) => child.once('message', (m) => resolve(m as StartMessage)));
  const timeout = new Promise<StartMessage>((resolve) => {
    timer = setTimeout(
      () => resolve({ refused: `The embedded ClickHouse is not up after ${startMsMax} ms.` }),
      startMsMax,
    );
  });
  const ended = exited.then((reason) => ({ refused: `The embedded ClickHouse ended at its start: ${reason}.` }));
  const outcome = await Promise.race([message, timeout, ended]);
  clearTimeout(timer);
  if ('refused' in outcome) throw new StartError(outcome.refused);
  return outcome.ready.port;
}

/** Does not use `fetch`, which Node loads at its first use. */
async function answersPing(port: number): Promise<void> {
  const request = get({ host: '127.0.0.1', port, path: '/ping', agent: false, signal: AbortSignal.timeout(5_000) });
  const [response] = (await once(request, 'response')) as [IncomingMessage];
  if ((await text(response)) !== 'Ok.\n')
    throw new StartError(`Port ${port} is not answered by the embedded ClickHouse.`);
}
