/**
 * Three hosts behind HAProxy, restarted one after the other, while devices send 500 messages a second over HTTP and
 * MQTT and users send commands: no message is refused, what was acknowledged is stored, a command is executed once, and
 * no stored command is lost.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { HttpDevice, hasStored, MqttDevice } from '../harness/balanced-devices.ts';
import { Balancer } from '../harness/balancer.ts';
import { type Engine, startEngines } from '../harness/engine.ts';
import { freePort } from '../harness/ports.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';

const source = '127.0.0.2';
const [httpDevices, mqttDevices] = [15, 30];
/** Each device sends a message, waits for its answer, and then so long: all together send 500 messages a second. */
const pauseMs = 80;
const users = 4;

let stores: Stores;
let hosts: Engine[] = [];
let directory: string;
let balancer: Balancer;

beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'millrace-rolling-'));
  stores = await startStores();
  const env = {
    ...hostSettings(stores),
    TRUSTED_PROXIES: source,
    MQTT_PROXY_PROTOCOL_ENABLED: 'true',
    // As docs/balancers.md says for the checks of `ops/haproxy.cfg`.
    SHUTDOWN_DELAY_MS: '6000',
    SHUTDOWN_EVICT_PER_SECOND: '20',
  };
  const options = { workers: 1, stopMsMax: 60_000, env };
  hosts = await startEngines([options, options, options]);
  const [http, https, mqtt, mqtts] = (await Promise.all(Array.from({ length: 4 }, freePort))) as [
    number,
    number,
    number,
    number,
  ];
  balancer = await Balancer.haproxy({
    source,
    directory,
    ports: { http, https, mqtt, mqtts },
    hosts: hosts.map((host) => {
      const monitor = Number(host.environment['MONITOR_BIND_PORT']);
      // The test uses neither MQTT over TLS nor reports.
      return { http: host.port, mqtt: host.mqttPort, mqtts: host.mqttPort, reports: host.port, monitor };
    }),
  });
});

afterAll(async () => {
  await balancer?.stop();
  await Promise.all(hosts.map((host) => host.destroy()));
  await stores?.stopAll();
  rmSync(directory, { recursive: true, force: true });
});

/** Sends two-way commands to the devices in turn, until it is stopped. */
class User {
  readonly #devices: Device[];
  readonly #jwt: string;
  readonly #name: string;
  /** Parameters of each command, and its answer. */
  readonly answers = new Map<string, string>();

  constructor(devices: Device[], jwt: string, name: string) {
    this.#devices = devices;
    this.#jwt = jwt;
    this.#name = name;
  }

  async callWhile(isRunning: () => boolean): Promise<void> {
    for (let n = 0; isRunning(); n += 1) {
      const params = `${this.#name} ${n}`;
      const { id } = this.#devices[n % this.#devices.length]!;
      const response = await fetch(`http://127.0.0.1:${balancer.ports.http}/api/rpc/twoway/${id}`, {
        method: 'POST',
        headers: { 'x-authorization': `Bearer ${this.#jwt}`, 'content-type': 'application/json' },
        body: JSON.stringify({ method: 'turn', params, timeout: 5_000 }),
      });
      this.answers.set(params, `${response.status} ${await response.text()}`);
      await sleep(20);
    }
  }
}

/** Stores one-way commands for the devices in turn. Returns the parameters of those that are stored, with their ids. */
async function storeWhile(isRunning: () => boolean, devices: Device[], jwt: string): Promise<Map<string, string>> {
  const stored = new Map<string, string>();
  for (let n = 0; isRunning(); n += 1) {
    const params = `stored ${n}`;
    const response = await fetch(
      `http://127.0.0.1:${balancer.ports.http}/api/rpc/oneway/${devices[n % devices.length]!.id}`,
      {
        method: 'POST',
        headers: { 'x-authorization': `Bearer ${jwt}`, 'content-type': 'application/json' },
        body: JSON.stringify({ method: 'turn', params, persistent: true, timeout: 600_000 }),
      },
    );
    const answer = await response.text();
    if (response.status === 200) stored.set(params, (JSON.parse(answer) as { rpcId: string }).rpcId);
    await sleep(20);
  }
  return stored;
}

/** Returns each command with its status: a lost one is DELIVERED, one that is late is QUEUED or SENT. */
async function statesOf(commands: [params: string, id: string][], jwt: string): Promise<string[]> {
  const states = commands.map(async ([params, id]) => {
    const response = await fetch(`http://127.0.0.1:${balancer.ports.http}/api/rpc/persistent/${id}`, {
      headers: { 'x-authorization': `Bearer ${jwt}` },
    });
    return `${params}: ${response.status} ${await response.text()}`;
  });
  return await Promise.all(states);
}

/** 503: the host stops, and a session on it was to take the command; 504: no session took it, or no reply came. */
const documented = /^(503 \{.*"errorCode":.*(stopping|message bus)|504 (\{.*"errorCode":|$))/;

test('hosts are restarted one after the other under load', async () => {
  const { ports } = balancer;
  let isRunning = true;
  const isOn = () => isRunning;
  const [first] = hosts as [Engine];
  const jwt = await first.api.adminToken();
  const names = Array.from({ length: httpDevices + mqttDevices }, (_, n) => ({ name: `rolling ${n}` }));
  const devices = await first.api.createDevices(names);
  const overHttp = devices.slice(0, httpDevices).map((device) => new HttpDevice(device, ports.http));
  const overMqtt = await Promise.all(
    devices.slice(httpDevices).map((device, at) => {
      const url = at % 5 === 4 ? `ws://127.0.0.1:${ports.http}/mqtt` : `mqtt://127.0.0.1:${ports.mqtt}`;
      return MqttDevice.connect(device, url, at % 2 === 0 ? 5 : 4);
    }),
  );
  await Promise.all(overMqtt.map((each) => each.takeCommands()));
  const callers = Array.from({ length: users }, (_, n) => new User(devices.slice(httpDevices), jwt, `user ${n}`));
  const refused: string[] = [];
  const counts = overHttp.map(() => 0);
  const load = [
    ...overHttp.map(async (each, at) => {
      while (isRunning) {
        const answer = await each.send(counts[at]!).catch((error: Error) => error.message);
        if (answer === '200') counts[at]! += 1;
        else refused.push(`${new Date().toISOString()} ${answer}`);
        await sleep(pauseMs);
      }
      each.close();
    }),
    ...overMqtt.map((each) => each.publishWhile(isOn, pauseMs)),
    ...callers.map((each) => each.callWhile(isOn)),
  ];
  const storing = storeWhile(isOn, devices.slice(httpDevices), jwt);
  try {
    for (const host of hosts) {
      await host.stop();
      await host.start();
      await eventually(() => overMqtt.every(({ isConnected }) => isConnected));
      // HAProxy uses a host again after two checks, a second apart.
      await sleep(2_500);
    }
    isRunning = false;
    const stored = await storing;
    const missing = () => {
      const executed = new Set(overMqtt.flatMap((each) => each.executed));
      return [...stored].filter(([params]) => !executed.has(params));
    };
    // The pauses of the engine between the offers of a command are 39 s at most, together.
    await eventually(() => missing().length === 0, 45_000).catch(() => {});
    expect(await statesOf(missing(), jwt), `of ${stored.size} commands`).toEqual([]);
    expect(stored.size).toBeGreaterThan(0);
  } finally {
    isRunning = false;
    await Promise.all(load);
    await Promise.all(overMqtt.map((each) => each.end()));
  }
  expect(refused, balancer.output).toEqual([]);
  for (const [at, { device }] of overHttp.entries()) await hasStored(first, device, counts[at]!);
  for (const { device, acknowledged } of overMqtt) await hasStored(first, device, acknowledged);

  const executed = overMqtt.flatMap((each) => each.executed);
  expect(executed.length).toBe(new Set(executed).size);
  const answers = callers.flatMap((each) => [...each.answers]);
  const isReplied = ([params, answer]: [string, string]) => answer === `200 ${JSON.stringify(params)}`;
  const others = answers.filter((each) => !isReplied(each));
  expect(others.filter(([, answer]) => !documented.test(answer))).toEqual([]);
  const replied = answers.filter(isReplied);
  expect(replied.length).toBeGreaterThan(10 * others.length);
  expect(replied.filter(([params]) => !executed.includes(params))).toEqual([]);
}, 180_000);
