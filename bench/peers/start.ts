/**
 * The servers without a store that the HTTP and MQTT benchmarks are measured against, on loopback: Mosquitto as Debian
 * packages it, with its limits on messages in flight lifted, and Aedes and uWebSockets.js in a Node process each.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { freePort, isPortOpen } from '../../test/harness/ports.ts';
import { within } from '../deadline.ts';
import { ownDirectory } from '../own-directory.ts';
import { daemonPath, packageVersion, printedVersion } from './versions.ts';

export interface Peer {
  name: string;
  version: string;
  port: number;
  pid: number;
  close(): void;
}

const readyMsMax = 10_000;

export async function startMosquitto(): Promise<Peer> {
  const port = await freePort();
  const directory = ownDirectory('millrace-mosquitto-');
  const config = join(directory.path, 'mosquitto.conf');
  const lines = [
    `listener ${port} 127.0.0.1`,
    'allow_anonymous true',
    'persistence false',
    'max_inflight_messages 0',
    'max_queued_messages 0',
    'set_tcp_nodelay true',
    'sys_interval 0',
    'log_dest none',
    'user root',
  ];
  writeFileSync(config, `${lines.join('\n')}\n`);
  const child = spawn('mosquitto', ['-c', config], {
    stdio: 'ignore',
    env: { PATH: daemonPath },
  });
  const failed = once(child, 'error').then(([error]) => {
    throw new Error(`mosquitto cannot be started (apt-get install mosquitto): ${(error as Error).message}`);
  });
  failed.catch(() => {});
  const close = () => {
    child.kill('SIGTERM');
    directory.remove();
  };
  // An interrupted run ends without the scenario.
  process.once('exit', close);
  await Promise.race([listening(port), failed]);
  return { name: 'Mosquitto', version: printedVersion('mosquitto', '-h'), port, pid: child.pid!, close };
}

export function startAedes(): Promise<Peer> {
  return startNode('Aedes', 'aedes', './aedes.js');
}

export function startBare(): Promise<Peer> {
  return startNode('bare uWebSockets.js', 'uWebSockets.js', './bare-uws.js');
}

/** Starts a server in a Node process that prints its port. */
async function startNode(name: string, library: string, file: string): Promise<Peer> {
  const entry = fileURLToPath(new URL(file, import.meta.url));
  const child: ChildProcess = spawn(process.execPath, [entry], { stdio: ['ignore', 'pipe', 'inherit'] });
  const close = () => void child.kill('SIGKILL');
  // An interrupted run ends without the scenario.
  process.once('exit', close);
  const ended = once(child, 'exit').then(([code]) => {
    throw new Error(`${name} ended with ${code} before it listened`);
  });
  ended.catch(() => {});
  const printed = Promise.race([once(child.stdout!, 'data'), ended]) as Promise<[Buffer]>;
  const [line] = await within(printed, readyMsMax, `${name} did not listen`).catch((error: unknown) => {
    close();
    throw error;
  });
  return { name, version: packageVersion(library), port: Number(line.toString()), pid: child.pid!, close };
}

async function listening(port: number): Promise<void> {
  const deadline = performance.now() + readyMsMax;
  while (!(await isPortOpen(port))) {
    if (performance.now() > deadline) throw new Error(`Mosquitto did not listen within ${readyMsMax / 1000} s`);
    await sleep(20);
  }
}
