/**
 * Clients behind proxies: PROXY headers before MQTT, before TLS and before HTTP, `X-Forwarded-For`, and HAProxy with
 * the documented settings (docs/balancers.md). Connections from 127.0.0.2 are those of the trusted proxy.
 */
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect as connectTls } from 'node:tls';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { Balancer } from '../harness/balancer.ts';
import { createCertificate, mqttsSettings } from '../harness/certificate.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { leastMs } from '../harness/least-time.ts';
import { connectBytes } from '../harness/mqtt-bytes.ts';
import { connectMqtt } from '../harness/mqtt-client.ts';
import { freePort } from '../harness/ports.ts';
import { proxyV1, proxyV2 } from '../harness/proxy-header.ts';
import { RawConnection, requestBytes } from '../harness/raw.ts';

const proxy = '127.0.0.2';

let engine: Engine;
let device: Device;
let directory: string;
let ca: string;
let mqttsPort: number;
const sockets: Socket[] = [];

beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'millrace-proxies-'));
  const certificate = createCertificate(directory, 'server');
  ca = certificate.pem;
  mqttsPort = await freePort();
  engine = await startEngine({
    workers: 1,
    env: {
      TRUSTED_PROXIES: `${proxy},10.0.0.0/8`,
      MQTT_PROXY_PROTOCOL_ENABLED: 'true',
      MQTT_CONNECTIONS_PER_ADDRESS_MAX: '3',
      WRONG_CREDENTIALS_PER_MINUTE_MAX: '5',
      ...mqttsSettings(mqttsPort, certificate),
    },
  });
  device = await engine.api.createDevice('proxied');
});

afterEach(() => {
  for (const socket of sockets.splice(0)) socket.destroy();
});

afterAll(async () => {
  await engine?.destroy();
  rmSync(directory, { recursive: true, force: true });
});

async function open(localAddress = proxy, port = engine.mqttPort): Promise<Socket> {
  const socket = connect({ port, host: '127.0.0.1', localAddress, noDelay: true });
  sockets.push(socket);
  socket.on('error', () => {});
  await once(socket, 'connect');
  return socket;
}

/** Returns the code of CONNACK; undefined when the connection ends without one. */
function connack(socket: Socket): Promise<number | undefined> {
  return new Promise((resolve) => {
    socket.on('data', (bytes: Buffer) => resolve(bytes[0] === 0x20 ? bytes[3] : undefined));
    socket.on('close', () => resolve(undefined));
  });
}

const signIn = () => connectBytes({ username: device.token });

/** Returns the address of the session of the device. */
async function sessionAddress(): Promise<string | undefined> {
  const answer = await engine.api.send('GET', `/api/device/${device.id}/diagnostics`);
  return ((await answer.json()) as { session: { address: string } | null }).session?.address;
}

const cases = [
  ['version 1, IPv4', Buffer.from(proxyV1('192.0.2.1')), '192.0.2.1'],
  ['version 1, IPv6', Buffer.from(proxyV1('2001:db8::1')), '2001:db8::1'],
  ['version 1, UNKNOWN', Buffer.from('PROXY UNKNOWN\r\n'), proxy],
  ['version 2, IPv4', proxyV2({ source: '192.0.2.2' }), '192.0.2.2'],
  ['version 2, IPv6', proxyV2({ source: '2001:db8::2' }), '2001:db8:0:0:0:0:0:2'],
  ['version 2 with more fields', proxyV2({ source: '192.0.2.3', tlvs: Buffer.alloc(2_000) }), '192.0.2.3'],
  ['version 2, LOCAL', proxyV2({ source: '192.0.2.4', command: 0 }), proxy],
] as const;

test.each(cases)('the client behind a PROXY header has its own address: %s', async (_name, header, address) => {
  const socket = await open();
  socket.write(Buffer.concat([header, signIn()]));
  expect(await connack(socket)).toBe(0);
  expect(await sessionAddress()).toBe(address);
});

test.each(cases)('the same before TLS: %s', async (_name, header, address) => {
  const socket = await open(proxy, mqttsPort);
  // The first bytes of the handshake may follow the header in one segment.
  socket.cork();
  socket.write(header);
  const secure = connectTls({ socket, ca, servername: 'localhost' });
  setImmediate(() => socket.uncork());
  sockets.push(secure);
  await once(secure, 'secureConnect');
  secure.write(signIn());
  expect(await connack(secure)).toBe(0);
  expect(await sessionAddress()).toBe(address);
});

test.each([
  ['version 1', Buffer.from(proxyV1('192.0.2.5')), '192.0.2.5'],
  ['version 2', proxyV2({ source: '192.0.2.6' }), '192.0.2.6'],
])('a header and its CONNECT byte by byte: %s', async (_name, header, address) => {
  const socket = await open();
  const code = connack(socket);
  for (const byte of Buffer.concat([header, signIn()])) {
    await new Promise<void>((resolve) => {
      socket.write(Buffer.from([byte]), () => setImmediate(resolve));
    });
  }
  expect(await code).toBe(0);
  expect(await sessionAddress()).toBe(address);
});

async function endedFor(reason: string): Promise<number> {
  return (await engine.metric(`mqtt_disconnects_total{reason="${reason}"}`)) ?? 0;
}

test.each([
  ['CONNECT without a header', () => signIn()],
  ['garbage', () => Buffer.from('\r\n\r\n\0\r\nQUIX\n')],
  ['a line that is too long', () => Buffer.from(`PROXY UNKNOWN ${'x'.repeat(200)}`)],
  ['a header that is too long', () => proxyV2({ source: '192.0.2.1', tlvs: Buffer.alloc(10_000) })],
  ['nothing in time', () => Buffer.alloc(0)],
  ['half a header in time', () => proxyV2({ source: '192.0.2.1' }).subarray(0, 20)],
])('a trusted proxy must send a valid header: %s', async (_name, bytes) => {
  const before = await endedFor('proxy_header');
  const socket = await open();
  socket.write(bytes());
  expect(await connack(socket)).toBe(undefined);
  await eventually(async () => (await endedFor('proxy_header')) === before + 1);
  expect(engine.events('mqtt_proxy_header')[0]).toMatchObject({ proxy });
});

test('a health check that connects and leaves is no fault of the proxy', async () => {
  const [faults, lost] = [await endedFor('proxy_header'), await endedFor('connection_lost')];
  (await open()).end();
  await eventually(async () => (await endedFor('connection_lost')) === lost + 1);
  expect(await endedFor('proxy_header')).toBe(faults);
});

test('a header of an untrusted address is no CONNECT', async () => {
  const before = await endedFor('not_mqtt');
  for (const header of [Buffer.from(proxyV1('192.0.2.1')), proxyV2({ source: '192.0.2.1' })]) {
    const socket = await open('127.0.0.3');
    socket.write(Buffer.concat([header, signIn()]));
    expect(await connack(socket)).toBe(undefined);
  }
  await eventually(async () => (await endedFor('not_mqtt')) === before + 2);
});

test('an untrusted address needs no header', async () => {
  const socket = await open('127.0.0.3');
  socket.write(signIn());
  expect(await connack(socket)).toBe(0);
  expect(await sessionAddress()).toBe('127.0.0.3');
});

test('the share of an address is that of the client, not of the proxy', async () => {
  // Connections that sign in with an unknown token would end: these wait before their CONNECT.
  const waiting = async (source: string) => (await open()).write(proxyV2({ source }));
  for (let n = 0; n < 3; n += 1) await waiting('192.0.2.20');
  for (let n = 21; n < 30; n += 1) await waiting(`192.0.2.${n}`);
  await eventually(async () => (await engine.metric('mqtt_connections')) === 12);
  const fourth = await open();
  fourth.write(Buffer.concat([proxyV2({ source: '192.0.2.20' }), signIn()]));
  expect(await connack(fourth)).toBe(undefined);
  const other = await open();
  other.write(Buffer.concat([proxyV2({ source: '192.0.2.30' }), signIn()]));
  expect(await connack(other)).toBe(0);
});

async function post(token: string, forwardedFor: string, header: Buffer = Buffer.alloc(0)): Promise<number> {
  const connection = await openHttp();
  await connection.send(
    Buffer.concat([
      header,
      requestBytes({
        path: `/api/v1/${token}/telemetry`,
        body: '{"a":1}',
        headers: forwardedFor === '' ? {} : { 'X-Forwarded-For': forwardedFor },
      }),
    ]),
  );
  return (await connection.response()).status;
}

async function openHttp(localAddress = proxy): Promise<RawConnection> {
  const connection = await RawConnection.open(engine.port, '127.0.0.1', localAddress);
  sockets.push(connection.socket);
  return connection;
}

test('wrong tokens count for the client behind X-Forwarded-For and behind a PROXY header', async () => {
  for (let n = 0; n < 5; n += 1) expect(await post('wrong', '192.0.2.40')).toBe(401);
  expect(await post('wrong', '192.0.2.40')).toBe(429);
  // What a client writes into the header is to the left of what its proxy adds.
  expect(await post('wrong', '192.0.2.99, 192.0.2.40')).toBe(429);
  expect(await post('wrong', '192.0.2.40, 10.0.0.9')).toBe(429);
  expect(await post('wrong', '192.0.2.41')).toBe(401);
  expect(await post('wrong', '', proxyV2({ source: '192.0.2.40' }))).toBe(429);
  expect(await post('wrong', '', proxyV2({ source: '192.0.2.42' }))).toBe(401);
  const mqtt = await open();
  mqtt.write(Buffer.concat([proxyV2({ source: '192.0.2.40' }), connectBytes({ username: 'wrong' })]));
  expect(await connack(mqtt)).not.toBe(0);
  // The proxy itself is still served, although its clients are refused.
  expect(await post(device.token, '')).toBe(200);
});

test('X-Forwarded-For of an untrusted address is not read', async () => {
  const connection = await openHttp('127.0.0.4');
  const wrong = (forwardedFor: string) =>
    connection.ask({ path: '/api/v1/wrong/telemetry', body: '{"a":1}', headers: { 'X-Forwarded-For': forwardedFor } });
  for (let n = 0; n < 5; n += 1) expect((await wrong(`192.0.2.${50 + n}`)).status).toBe(401);
  expect((await wrong('192.0.2.60')).status).toBe(429);
});

test('an untrusted PROXY header before HTTP is refused, and counted as no wrong token', async () => {
  const connection = await openHttp('127.0.0.5');
  const request = requestBytes({ path: `/api/v1/${device.token}/telemetry`, body: '{"a":1}' });
  await connection.send(Buffer.concat([proxyV2({ source: '192.0.2.1' }), request]));
  const answer = await connection.response();
  expect(answer.status).toBe(400);
  expect(answer.body.toString()).toContain('TRUSTED_PROXIES');
});

test('HAProxy with the documented settings', async () => {
  const [http, https, mqtt, mqtts, closed] = await Promise.all(Array.from({ length: 5 }, freePort));
  const ports = { http: http!, https: https!, mqtt: mqtt!, mqtts: mqtts! };
  const monitor = Number(engine.environment['MONITOR_BIND_PORT']);
  const here = { http: engine.port, mqtt: engine.mqttPort, mqtts: mqttsPort, reports: closed!, monitor };
  const absent = { http: closed!, mqtt: closed!, mqtts: closed!, reports: closed!, monitor: closed! };
  const balancer = await Balancer.haproxy({ source: proxy, ports, hosts: [here, absent], directory });
  const sessions = [];
  try {
    // The host that does not run fails its checks, in HTTP/1.1 and in HTTP/1.0; the other host passes both.
    const backends = ['hosts_http', 'hosts_mqtt', 'hosts_mqtts'];
    await eventually(() => backends.every((name) => balancer.output.includes(`Server ${name}/host2 is DOWN`)));
    expect(balancer.output).not.toContain('host1 is DOWN');

    const plain = await connectMqtt({ port: ports.mqtt, localAddress: '127.0.0.6', token: device.token });
    sessions.push(plain);
    expect(await sessionAddress()).toBe('127.0.0.6');
    const ack = await plain.publish('v1/devices/me/telemetry', '{"a":1}');
    expect(ack.reasonCode).toBe(0);
    const tls = { ca, servername: 'localhost' };
    sessions.push(await connectMqtt({ port: ports.mqtts, localAddress: '127.0.0.7', tls, token: device.token }));
    expect(await sessionAddress()).toBe('127.0.0.7');

    const answers = async (localAddress: string, count: number, token: string, headers = {}) => {
      const connection = await RawConnection.open(ports.http, '127.0.0.1', localAddress);
      sockets.push(connection.socket);
      const statuses: number[] = [];
      for (let n = 0; n < count; n += 1) {
        statuses.push((await connection.ask({ path: `/api/v1/${token}/telemetry`, body: '{"a":1}', headers })).status);
      }
      return statuses;
    };
    // A client that names another address in the header gains nothing.
    expect(await answers('127.0.0.8', 6, 'wrong', { 'X-Forwarded-For': '192.0.2.77' })).toEqual([
      ...Array<number>(5).fill(401),
      429,
    ]);
    expect(await answers('127.0.0.9', 1, 'wrong')).toEqual([401]);

    // HAProxy closes the connection of a client that rarely sends before the host closes the connection behind it.
    const closedMs = async () => {
      const seldom = await RawConnection.open(ports.http, '127.0.0.1', '127.0.0.10');
      sockets.push(seldom.socket);
      const request = { path: `/api/v1/${device.token}/telemetry`, body: '{"a":1}' };
      expect((await seldom.ask(request)).status).toBe(200);
      const begun = performance.now();
      expect(await seldom.untilClosed()).toBe('');
      return performance.now() - begun;
    };
    expect(await leastMs(7_900, closedMs)).toBeLessThan(7_900);
    expect(balancer.output).not.toContain('host1 is DOWN');
  } finally {
    for (const session of sessions) session.cut();
    await balancer.stop();
  }
});
