/**
 * Main module of the embedded ClickHouse process: chDB with ClickHouse's HTTP interface on loopback. The process sends
 * its parent the port when it is ready, drains when the parent requests it, and ends when the parent has ended.
 */
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import type { AddressInfo } from 'node:net';
import { join } from 'node:path';
import { messageOf, StartError } from '../../base/errors.ts';
import { createLog, type Log } from '../../base/log.ts';
import { startedTicksOf } from '../../base/process-file.ts';
import { BodyFiles } from './body.ts';
import { CalmMerges } from './calm-merges.ts';
import { attachDetached, readPartsOnDisk } from './detached.ts';
import { Engine } from './engine.ts';
import { createHttpServer } from './http.ts';
import { standBack } from './priority.ts';
import { setRolledBackPartsAside } from './rolled-back-parts.ts';
import {
  type EmbeddedServerSettings,
  engineArguments,
  querySlots,
  serverLimits,
  settingsVariable,
  stopMessage,
} from './settings.ts';
import { Slots } from './slots.ts';
import { setTornMutationsAside } from './torn-mutations.ts';
import { WriteCheck } from './write-check.ts';

const killMsMax = 2_000;
/** Without a parent no caller waits for answers, and a new primary may wait for the directory. */
const orphanDrainMsMax = 500;
/** Interval at which the writes of merges are checked; the sources of a merge live much longer. */
const mergesCheckedMs = 2_000;
/** The time in which statements with possibly damaged files get an answer before the process ends. */
const failedDrainMsMax = 1_000;

/** The parent receives exactly one of these messages. */
export type StartMessage = { ready: { port: number } } | { refused: string };

async function main(): Promise<void> {
  const settings = JSON.parse(process.env[settingsVariable] ?? '') as EmbeddedServerSettings;
  delete process.env[settingsVariable];
  // The library creates files with mode 0666, reduced by this mask.
  process.umask(0o077);
  const log = createLog(settings.logLevel, 'clickhouse');
  try {
    await serve(settings, log);
  } catch (error) {
    if (!(error instanceof StartError)) throw error;
    log.error('clickhouse_start_refused', { reason: error.message });
    process.send?.({ refused: error.message } satisfies StartMessage);
    process.exitCode = error.exitCode;
    if (process.connected) process.disconnect();
  }
}

async function serve(settings: EmbeddedServerSettings, log: Log): Promise<void> {
  standBack(settings.nice);
  setTornMutationsAside(settings.dir, log);
  setRolledBackPartsAside(settings.dir, log);
  const onDisk = readPartsOnDisk(settings.dir);
  const engine = openEngine(settings);
  const writeCheck = new WriteCheck(engine);
  await writeCheck.begin();
  await attachDetached(engine, log, onDisk);
  const files = new BodyFiles(settings.dir, serverLimits.rowsBytesMax);
  const slots = new Slots(
    settings.sessions,
    querySlots(settings.sessions),
    serverLimits.waitersMax,
    serverLimits.waitMsMax,
  );
  const server = createHttpServer({ engine, slots, files, settings, log, writeCheck });
  server.listen(settings.port, '127.0.0.1');
  try {
    await once(server, 'listening');
  } catch (error) {
    await engine.close();
    files.close();
    throw new StartError(`The embedded ClickHouse cannot listen on 127.0.0.1:${settings.port}: ${messageOf(error)}.`);
  }

  const { nice, freeDiskBytesMin, calmCheckMs } = settings;
  const calmMerges = new CalmMerges({ engine, nice, freeDiskBytesMin, log });
  if (calmCheckMs > 0) calmMerges.begin(calmCheckMs);
  let stopping = false;
  const stop = async (drainMsMax: number, exitCode = 0): Promise<void> => {
    if (stopping) return;
    stopping = true;
    calmMerges.stop();
    clearInterval(writesTimer);
    server.close();
    server.closeIdleConnections();
    await idle(slots, drainMsMax, () => server.closeIdleConnections());
    // Clients that are still served lose their connections, which kills their statements.
    server.closeAllConnections();
    await idle(slots, killMsMax, () => {});
    files.close();
    // Closing the engine under a running statement would abort it; its parts are on disk either way.
    if (slots.running === 0 && (await calmMerges.end(killMsMax))) {
      await engine.close().catch((error) => log.warn('clickhouse_merges_run_on', { reason: messageOf(error) }));
    }
    process.exit(exitCode);
  };
  const writesTimer = setInterval(() => {
    writeCheck.isIntact().catch((error) => log.warn('clickhouse_writes_unchecked', { reason: messageOf(error) }));
  }, mergesCheckedMs);
  void writeCheck.failed.then(() => {
    const reason = `A file in ${settings.dir} could not be written: free disk space there. ClickHouse starts again.`;
    log.error('clickhouse_write_failed', { reason });
    void stop(failedDrainMsMax, 1);
  });
  // Ctrl-C, and the stop of a service, may reach every process: while there is a parent, it decides.
  process.on('message', (message) => {
    if (message === stopMessage) void stop(settings.drainMsMax);
  });
  process.on('SIGTERM', () => {
    if (!process.connected) void stop(settings.drainMsMax);
  });
  process.on('SIGINT', () => {});
  process.on('disconnect', () => void stop(orphanDrainMsMax));
  const { port } = server.address() as AddressInfo;
  process.send?.({ ready: { port } } satisfies StartMessage);
}

/** Waits until no statement runs, at most `waitMsMax`. */
async function idle(slots: Slots, waitMsMax: number, each: () => void): Promise<void> {
  const deadline = performance.now() + waitMsMax;
  while (slots.running > 0 && performance.now() < deadline) {
    each();
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

function openEngine(settings: EmbeddedServerSettings): Engine {
  const { dir } = settings;
  try {
    return new Engine(dir, engineArguments(settings));
  } catch (error) {
    const holder = holderOf(dir);
    if (holder !== undefined) {
      throw new StartError(`The ClickHouse data in ${dir} is in use by another process, pid ${holder} (DATA_DIR).`);
    }
    throw new StartError(`The embedded ClickHouse cannot open ${dir}: ${messageOf(error)}`);
  }
}

/**
 * Returns the owner of the engine's lock, from the file `status`: the engine prints only on stderr why it does not
 * open.
 */
function holderOf(dir: string): number | undefined {
  try {
    const pid = Number(/^PID: (\d+)/.exec(readFileSync(join(dir, 'status'), 'utf8'))?.[1]);
    return pid !== process.pid && startedTicksOf(pid) !== undefined ? pid : undefined;
  } catch {
    return undefined;
  }
}

await main();
