/** Ports of this machine for the servers that a test starts. */
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { linkSync, mkdirSync, rmSync } from 'node:fs';
import { connect, createServer } from 'node:net';
import { userInfo } from 'node:os';
import { join } from 'node:path';
import { liveProcess, writeProcessFile } from '../../src/base/process-file.ts';

/** Belongs to all processes of a user: TMPDIR may differ between processes of one machine. */
const keptPorts = `/tmp/millrace-test-ports-${userInfo().uid}`;

/** `fetch` refuses this port with "bad port" (the Fetch standard, port blocking); it is the only one from 10 000 on. */
const refusedByFetch = 10_080;

/**
 * Returns a port below those that an engine chooses for its embedded stores, and below those that Linux assigns to
 * outgoing connections. Both could take the port before it is bound.
 */
export async function freePort(): Promise<number> {
  for (;;) {
    const port = randomInt(10_000, 20_000);
    if (port === refusedByFetch || !isKept(port)) continue;
    const server = createServer().listen(port, '127.0.0.1');
    try {
      await once(server, 'listening');
    } catch {
      continue;
    }
    server.close();
    await once(server, 'close');
    return port;
  }
}

/**
 * Keeps a port by a file until this process ends, also while an engine that has the port is stopped. False when a live
 * process, or this one, keeps the port.
 */
function isKept(port: number): boolean {
  mkdirSync(keptPorts, { recursive: true });
  const path = join(keptPorts, String(port));
  if (liveProcess(path) !== undefined) return false;
  rmSync(path, { force: true });
  // The link makes a file that is whole, or none when another process was faster.
  const own = `${path}-${process.pid}`;
  writeProcessFile(own, process.pid);
  try {
    linkSync(own, path);
    return true;
  } catch {
    return false;
  } finally {
    rmSync(own, { force: true });
  }
}

/** True when a server on this machine takes connections at the port. */
export function isPortOpen(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect({ port, host: '127.0.0.1' });
    const end = (isOpen: boolean) => {
      socket.destroy();
      resolve(isOpen);
    };
    socket.once('connect', () => end(true)).once('error', () => end(false));
  });
}
