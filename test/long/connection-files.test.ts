/**
 * The places of a worker for connections: its doors share them, so none takes the files that another one, the journal
 * or the stores need, and none accepts a connection for which there is no place.
 */
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect as openSocket, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { connect as openTls, type TLSSocket } from 'node:tls';
import { afterEach, expect, test } from 'vitest';
import { eventually } from '../harness/api.ts';
import { createCertificate, mqttsSettings } from '../harness/certificate.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { connectMqtt, MqttClient } from '../harness/mqtt-client.ts';
import { freePort } from '../harness/ports.ts';
import { RawWebSocket } from '../harness/web-socket.ts';

let engine: Engine | undefined;
let directory: string | undefined;
const sockets: Socket[] = [];

afterEach(async () => {
  for (const socket of sockets.splice(0)) socket.destroy();
  await engine?.destroy();
  engine = undefined;
  if (directory !== undefined) rmSync(directory, { recursive: true });
  directory = undefined;
});

/** Opens a socket that sends nothing. */
function open(port: number, localAddress = '127.0.0.1'): Socket {
  const socket = openSocket({ port, host: '127.0.0.1', localAddress }).on('error', () => {});
  sockets.push(socket);
  return socket;
}

test('connections of strangers at all doors leave a worker the files that it needs, and others a place', async () => {
  engine = await startEngine({ workers: 1, filesMax: 600, env: { JOURNAL_SEGMENT_BYTES: '4MiB' } });
  const { token } = await engine.api.newDevice();
  const isFlooding = { now: true };
  // Each stranger opens as many as it gets, and opens those again that the worker ends.
  const flood = async (port: number, address: string) => {
    let held: Socket[] = [];
    while (isFlooding.now) {
      held = held.filter(({ destroyed }) => !destroyed);
      while (held.length < 340) held.push(open(port, address));
      await sleep(300);
    }
    for (const socket of held) socket.destroy();
  };
  const floods = [flood(engine.port, '127.0.0.2'), flood(engine.mqttPort, '127.0.0.3')];
  try {
    await sleep(1_500);
    const statuses: number[] = [];
    for (let n = 0; n < 8; n += 1) {
      statuses.push(await engine.api.postTelemetry(token, JSON.stringify({ text: 'x'.repeat(200_000) })));
      // The kernel refuses while the sockets of the stranger are accepted and closed.
      const { mqttPort } = engine;
      const client = await eventually(() => connectMqtt({ port: mqttPort, token }));
      client.cut();
    }
    expect(statuses.filter((status) => status !== 200)).toEqual([]);
    const files = Number(/^process_open_fds\{[^}]*worker[^}]*\} (\d+)/m.exec(await engine.api.metrics())?.[1]);
    expect(files).toBeLessThan(600);
  } finally {
    isFlooding.now = false;
    await Promise.all(floods);
  }
});

test('a handshake that has begun keeps its place, and a full worker accepts at no door', async () => {
  directory = mkdtempSync(join(tmpdir(), 'millrace-places-'));
  const certificate = createCertificate(directory, 'server');
  const tlsPort = await freePort();
  engine = await startEngine({
    workers: 1,
    env: {
      MQTT_CONNECTIONS_MAX: '8',
      MQTT_CONNECTIONS_PER_ADDRESS_MAX: '8',
      ...mqttsSettings(tlsPort, certificate),
    },
  });
  const { mqttPort, port, api } = engine;
  const names = Array.from({ length: 8 }, (_, n) => ({ name: `place ${n}` }));
  const tokens = (await api.createDevices(names)).map(({ token }) => token);
  const begun = Array.from({ length: 3 }, () => open(tlsPort));
  await Promise.all(begun.map((socket) => once(socket, 'connect')));
  const webSocket = await RawWebSocket.open(port);
  sockets.push(webSocket.socket);
  const clients: MqttClient[] = [];
  for (const token of tokens.slice(0, 4)) clients.push(await connectMqtt({ port: mqttPort, token }));
  // The kernel refuses what no socket accepts.
  const codeOf = async (doorPort: number) => {
    const socket = openSocket({ port: doorPort, host: '127.0.0.1' });
    sockets.push(socket);
    return await new Promise((resolve) => {
      socket.on('error', (error: NodeJS.ErrnoException) => resolve(error.code));
      socket.on('connect', () => resolve('accepted'));
    });
  };
  await eventually(async () => (await codeOf(mqttPort)) === 'ECONNREFUSED');
  expect(await codeOf(tlsPort)).toBe('ECONNREFUSED');
  for (const [n, socket] of begun.entries()) {
    const tls: TLSSocket = openTls({ socket, rejectUnauthorized: false });
    await once(tls, 'secureConnect');
    const client = new MqttClient(tls);
    expect((await client.connect({ token: tokens[4 + n]! })).reasonCode).toBe(0);
    clients.push(client);
  }
  for (const client of clients) client.cut();
});
