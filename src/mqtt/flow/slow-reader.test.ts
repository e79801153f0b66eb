import { mkdtempSync, rmSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { connect as connectTls } from 'node:tls';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createCertificate } from '../../../test/harness/certificate.ts';
import { freePort } from '../../../test/harness/ports.ts';
import { silentLog as log } from '../../../test/harness/silent-log.ts';
import { limits } from '../../base/limits.ts';
import { ConnectionRoom } from '../transport/connection-room.ts';
import { type ListeningSocket, listenTcp, listenTls } from '../transport/listen.ts';
import type { Transport } from '../transport/transport.ts';
import { SlowReader } from './slow-reader.ts';

const host = '127.0.0.1';
const files = { cert: '', key: '' };
let directory: string;

beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), 'millrace-slow-reader-'));
  Object.assign(files, createCertificate(directory, 'server'));
});

afterAll(() => rmSync(directory, { recursive: true }));

/** A connection over real sockets: the client, and the transport of the server. */
async function connected(door: 'tcp' | 'tls'): Promise<{ client: Socket; transport: Transport; close(): void }> {
  const port = await freePort();
  let listening: ListeningSocket | undefined;
  let client: Socket | undefined;
  const transport = await new Promise<Transport>((resolve, reject) => {
    const deps = {
      open: (accepted: Transport) => {
        resolve(accepted);
        return { onData() {}, onOverflow() {}, onDrained() {}, onClosed() {} };
      },
      refused: reject,
      room: new ConnectionRoom({ connections: () => 0, connectionsMax: 1, hasFile: () => true, accepted() {} }),
      sendsProxyHeader: () => false,
      log,
    };
    const opening = door === 'tls' ? listenTls(host, port, files, deps) : listenTcp(host, port, deps);
    opening.then((opened) => {
      listening = opened;
      client = door === 'tls' ? connectTls({ host, port, rejectUnauthorized: false }) : connect({ host, port });
      client.on('error', reject);
    }, reject);
  });
  const close = () => {
    client?.destroy();
    transport.destroy();
    listening?.close();
  };
  return { client: client!, transport, close };
}

/** Checks twice a second for twice the longest stall. */
function isEverStalled(reader: SlowReader): boolean {
  for (let now = 1; now < 2 * limits.mqttStallMsMax; now += limits.mqttSweepMs) if (reader.isStalled(now)) return true;
  return false;
}

test('over TLS, where every write waits for a moment, a client that has read everything is not stalled', async () => {
  const { transport, close } = await connected('tls');
  const reader = new SlowReader(transport, { unreadOwners: () => [] });
  for (let n = 0; n < 2; n += 1) {
    transport.write(Buffer.alloc(4));
    expect(transport.bufferedBytes).toBeGreaterThan(0);
    expect(reader.verdict(() => 1)).toBe('fine');
    await nextTurn();
    await nextTurn();
    expect(transport.bufferedBytes).toBe(0);
    expect(isEverStalled(reader)).toBe(false);
  }
  close();
});

test('a client that reads again after a small write had to wait is not stalled, and one that does not is', async () => {
  const { client, transport, close } = await connected('tcp');
  const reader = new SlowReader(transport, { unreadOwners: () => [] });
  client.pause();
  while (transport.bufferedBytes === 0) {
    transport.write(Buffer.alloc(4096));
    // The kernel gets what it takes.
    await nextTurn();
  }
  expect(reader.verdict(() => 1)).toBe('fine');
  expect(isEverStalled(reader)).toBe(true);
  client.resume();
  while (transport.bufferedBytes > 0) await nextTurn();
  expect(isEverStalled(reader)).toBe(false);
  close();
});
