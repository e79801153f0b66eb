/**
 * Starts the insert relay of this host (`relay.ts`) in a process of its own: bodies of inserts would delay the
 * supervision by the primary. Workers that cannot reach the relay insert without it.
 */
import { fork } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { exitOf } from '../../base/child-exit.ts';
import { StartError } from '../../base/errors.ts';
import { removeProcessFile, writeProcessFile } from '../../base/process-file.ts';
import { systemScheduler } from '../../base/scheduler.ts';
import { type FromRelay, type RelaySettings, relaySettingsVariable, type ToRelay } from './relay-settings.ts';

interface InsertRelayDeps extends RelaySettings {
  processFile: string;
}

export interface InsertRelay {
  /** Sets, for each server, the least milliseconds between two inserts of one statement. */
  setPace(everyMs: readonly number[]): void;
  stop(): Promise<void>;
  onExit(callback: (reason: string) => void): void;
}

const portsOf = ({ servers }: RelaySettings): string => servers.map(({ port }) => port).join(', ');

const startMsMax = 10_000;
const stopMsMax = 8_000;

export async function startInsertRelay({ processFile, ...settings }: InsertRelayDeps): Promise<InsertRelay> {
  const { PATH, TZ } = process.env;
  const child = fork(fileURLToPath(new URL('./relay-process.js', import.meta.url)), [], {
    execArgv: [],
    env: { ...(PATH && { PATH }), ...(TZ && { TZ }), [relaySettingsVariable]: JSON.stringify(settings) },
    stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
  });
  const exited = exitOf(child);
  if (child.pid !== undefined) writeProcessFile(processFile, child.pid);
  const send = (message: ToRelay) => child.connected && child.send(message, () => {});
  const listens = new Promise<undefined>((resolve) => child.once('message', (_: FromRelay) => resolve(undefined)));
  const started = new AbortController();
  const late = systemScheduler.sleep(startMsMax, started.signal).then(() => 'it does not listen in time');
  const failure = await Promise.race([listens, exited, late]);
  started.abort();
  if (failure !== undefined) {
    child.kill('SIGKILL');
    removeProcessFile(processFile);
    throw new StartError(`The insert relay cannot start on port ${portsOf(settings)} of 127.0.0.1: ${failure}.`);
  }
  return {
    setPace: (everyMs) => void send({ everyMs }),
    stop: async () => {
      if (child.connected) send({ stop: true });
      else child.kill('SIGTERM');
      const stopTimer = systemScheduler.after(stopMsMax, () => child.kill('SIGKILL'));
      await exited;
      stopTimer();
      removeProcessFile(processFile);
    },
    onExit: (callback) => void exited.then(callback),
  };
}
