/**
 * Two hosts behind HAProxy and behind nginx, with the documented settings (docs/balancers.md): every protocol, polls
 * and idle connections, and a restart of one host after the other with few failures at the clients.
 */
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { connect as connectTls } from 'node:tls';
import { connectAsync } from 'mqtt';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { HttpDevice, hasStored, MqttDevice, telemetryPath } from '../harness/balanced-devices.ts';
import { Balancer } from '../harness/balancer.ts';
import { createCertificate, mqttsSettings } from '../harness/certificate.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { connectMqtt } from '../harness/mqtt-client.ts';
import { freePort } from '../harness/ports.ts';
import { RawConnection } from '../harness/raw.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';

const source = '127.0.0.2';
/** Longer than two failed checks of HAProxy, which are a second apart and take 2 s at most. */
const delayMs = 7_000;
const evictPerSecond = 10;

let stores: Stores;
let hosts: [Engine, Engine];
let directory: string;
let certificate: { cert: string; key: string; pem: string };
let mqttsPorts: number[];

beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'millrace-balancers-'));
  certificate = createCertificate(directory, 'server');
  stores = await startStores();
  mqttsPorts = [await freePort(), await freePort()];
  const start = (mqttsPort: number) =>
    startEngine({
      workers: 2,
      reports: true,
      stopMsMax: 60_000,
      env: {
        ...hostSettings(stores),
        TRUSTED_PROXIES: source,
        MQTT_PROXY_PROTOCOL_ENABLED: 'true',
        SHUTDOWN_DELAY_MS: String(delayMs),
        SHUTDOWN_EVICT_PER_SECOND: String(evictPerSecond),
        ...mqttsSettings(mqttsPort, certificate),
      },
    });
  hosts = [await start(mqttsPorts[0]!), await start(mqttsPorts[1]!)];
});

afterAll(async () => {
  await Promise.all((hosts ?? []).map((host) => host.destroy()));
  await stores?.stopAll();
  rmSync(directory, { recursive: true, force: true });
});

async function addressOf(device: Device): Promise<string | undefined> {
  const answer = await hosts[0].api.send('GET', `/api/device/${device.id}/diagnostics`);
  return ((await answer.json()) as { session: { address: string } | null }).session?.address;
}

const mqttConnections = async (host: Engine) => (await host.metric('mqtt_connections')) ?? 0;

/** Counts reads of attributes that the host has answered. */
async function answered(host: Engine): Promise<number> {
  const lines = (await host.api.metrics()).split('\n');
  const counted = lines.filter((line) => /^http_requests_total\{.*\/attributes"/.test(line));
  return counted.reduce((sum, line) => sum + Number(line.split(' ').at(-1)), 0);
}

describe.each(['haproxy', 'nginx'] as const)('behind %s', (kind) => {
  let balancer: Balancer;

  beforeAll(async () => {
    const [http, https, mqtt, mqtts] = await Promise.all(Array.from({ length: 4 }, freePort));
    const portsOf = (host: Engine, at: number) => {
      const monitor = Number(host.environment['MONITOR_BIND_PORT']);
      const reports = Number(host.environment['ANALYTICS_BIND_PORT']);
      return { http: host.port, mqtt: host.mqttPort, mqtts: mqttsPorts[at]!, reports, monitor };
    };
    balancer = await Balancer[kind]({
      source,
      ports: { http: http!, https: https!, mqtt: mqtt!, mqtts: mqtts! },
      hosts: [portsOf(hosts[0], 0), portsOf(hosts[1], 1)],
      directory: mkdtempSync(join(directory, kind)),
      certificate,
    });
  });

  afterAll(() => balancer?.stop());

  test('each protocol reaches the hosts, with the address of the client', async () => {
    const { ports } = balancer;
    const tls = { ca: certificate.pem, servername: 'localhost' };
    const device = await hosts[0].api.newDevice();
    const plain = await connectMqtt({ port: ports.mqtt, localAddress: '127.0.0.6', token: device.token });
    await eventually(async () => (await addressOf(device)) === '127.0.0.6');
    plain.cut();
    const secure = await connectMqtt({ port: ports.mqtts, localAddress: '127.0.0.7', tls, token: device.token });
    await eventually(async () => (await addressOf(device)) === '127.0.0.7');
    secure.cut();
    const overWebSocket = await connectAsync(`ws://127.0.0.1:${ports.http}/mqtt`, { username: device.token });
    await eventually(async () => (await addressOf(device)) === '127.0.0.1');
    await overWebSocket.endAsync(true);
    const securely = await connectAsync(`wss://127.0.0.1:${ports.https}/mqtt`, {
      username: device.token,
      ca: certificate.pem,
      servername: 'localhost',
    });
    await securely.publishAsync('v1/devices/me/telemetry', '{"over":"wss"}', { qos: 1 });
    await securely.endAsync(true);

    const socket = connectTls({ port: ports.https, host: '127.0.0.1', ...tls });
    await once(socket, 'secureConnect');
    socket.write(`POST ${telemetryPath(device)} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\r\n{"a":1}`);
    const [answer] = (await once(socket, 'data')) as [Buffer];
    expect(answer.toString()).toMatch(/^HTTP\/1\.1 200 /);
    socket.destroy();
  });

  test('reports have the address of the other calls, and the caller of a report is known', async () => {
    const base = `http://127.0.0.1:${balancer.ports.http}`;
    const page = await fetch(`${base}/apiAnalytics?jwt=${await hosts[0].api.adminToken()}`);
    expect([page.status, page.headers.get('content-type')]).toEqual([200, expect.stringContaining('text/html')]);
    const asset = /\/trendz\/assets\/[\w.]+/.exec(await page.text())![0];
    expect((await fetch(`${base}${asset}`)).status).toBe(200);
    const jwt = { 'X-Authorization': `Bearer ${await hosts[0].api.adminToken()}` };
    // Any host knows the user: requests of one user reach both hosts.
    for (let n = 0; n < 4; n += 1) {
      expect((await fetch(`${base}/apiAnalytics/views?pageSize=10&page=0`, { headers: jwt })).status).toBe(200);
    }
    expect((await fetch(`${base}/apiTrendz/publicApi/buildReport`, { method: 'POST', body: '{}' })).status).toBe(403);
  });

  test('a poll waits longer than any idle connection, and gets its update', async () => {
    const device = await hosts[0].api.newDevice();
    const poll = await RawConnection.open(balancer.ports.http);
    const path = `/api/v1/${device.token}/attributes/updates?timeout=60000`;
    const answer = poll.ask({ method: 'GET', path }, 60_000);
    // A host ends idle connections after 12 seconds at the latest.
    await sleep(14_000);
    const shared = `/api/plugins/telemetry/DEVICE/${device.id}/attributes/SHARED_SCOPE`;
    expect((await hosts[1].api.send('POST', shared, { level: 7 })).status).toBe(200);
    const { status, body } = await answer;
    expect([status, body.toString()]).toEqual([200, '{"level":7}']);
    poll.close();
  });

  test('clients that keep their connections and send seldom see no 502 and no 504', async () => {
    const device = await hosts[0].api.newDevice();
    // Pauses around the times at which the balancer and a host end idle connections.
    const pauses = Array.from({ length: 48 }, (_, at) => 5_500 + at * 150);
    const statuses = await Promise.all(
      pauses.map(async (pauseMs, at) => {
        const client = new HttpDevice(device, balancer.ports.http);
        const first = await client.send(2 * at);
        await sleep(pauseMs);
        // A message that arrives while the balancer ends its idle connection gets no answer, and is sent again.
        const again = (error: Error) => {
          expect(error.message).toMatch(/^closed before an answer; received: $/);
          return client.send(2 * at + 1);
        };
        const second = await client.send(2 * at + 1).catch(again);
        client.close();
        return [first, second];
      }),
    );
    expect(statuses).toEqual(pauses.map(() => ['200', '200']));
  });

  test('hosts are restarted one after the other: no refused request, and one reconnection of each MQTT client', async () => {
    const { ports } = balancer;
    let isRunning = true;
    const isOn = () => isRunning;
    const devices = await Promise.all(Array.from({ length: 18 }, () => hosts[0].api.newDevice()));
    const httpDevices = devices.slice(0, 6).map((device) => new HttpDevice(device, ports.http));
    const mqttDevices = await Promise.all(
      devices.slice(6).map((device, at) => {
        const url = at % 3 === 2 ? `ws://127.0.0.1:${ports.http}/mqtt` : `mqtt://127.0.0.1:${ports.mqtt}`;
        return MqttDevice.connect(device, url, at % 2 === 0 ? 5 : 4);
      }),
    );
    const refused: string[] = [];
    const counts = httpDevices.map(() => 0);
    const load = [
      ...httpDevices.map(async (each, at) => {
        while (isRunning) {
          const n = counts[at]!;
          const status = await each.send(n).catch((error: Error) => error.message);
          if (status !== '200') refused.push(`${new Date().toISOString()} ${status}`);
          else counts[at] = n + 1;
          await sleep(20);
        }
        each.close();
      }),
      ...mqttDevices.map((each) => each.publishWhile(isOn, 50)),
    ];
    try {
      for (const host of hosts) {
        await eventually(async () => {
          const counts = await Promise.all(hosts.map(mqttConnections));
          return counts[0]! + counts[1]! === mqttDevices.length;
        });
        const before = mqttDevices.map(({ connects }) => connects);
        const held = await mqttConnections(host);
        await host.stop();
        await host.start();
        await eventually(() => mqttDevices.every(({ isConnected }) => isConnected));
        const again = mqttDevices.map(({ connects }, at) => connects - before[at]!);
        expect(Math.max(...again)).toBeLessThanOrEqual(1);
        expect(again.filter((times) => times === 1)).toHaveLength(held);
        // The balancer uses the host again, for requests and for connections.
        const probe = await hosts[0].api.newDevice();
        const served = await answered(host);
        await eventually(async () => {
          const connection = await RawConnection.open(ports.http);
          const { status } = await connection.ask({ method: 'GET', path: `/api/v1/${probe.token}/attributes` });
          connection.close();
          expect(status).toBe(200);
          return (await answered(host)) > served;
        });
        await eventually(async () => {
          const client = await connectMqtt({ port: ports.mqtt, token: probe.token });
          const isThere = (await mqttConnections(host)) > 0;
          client.cut();
          return isThere;
        });
      }
    } finally {
      isRunning = false;
      await Promise.all(load);
      await Promise.all(mqttDevices.map((each) => each.end()));
    }
    expect(refused, balancer.output).toEqual([]);
    expect(mqttDevices.map(({ attempts }) => attempts)).toEqual(mqttDevices.map(({ connects }) => connects - 1));
    for (const [at, { device }] of httpDevices.entries()) await hasStored(hosts[0], device, counts[at]!);
    for (const { device, acknowledged } of mqttDevices) await hasStored(hosts[0], device, acknowledged);
  });
});
