/**
 * Three hosts in network namespaces over real stores: a host loses its cable, or its way to one store. Packets vanish
 * instead of being refused, so no process gets an error. What was acknowledged is stored once, the other hosts do not
 * notice, and everything crosses again by itself when the network is back. Only root may make namespaces.
 */
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngine, startEngines } from '../harness/engine.ts';
import { HostNetwork, mayMakeNetworks } from '../harness/host-network.ts';
import { connectMqtt, type MqttClient } from '../harness/mqtt-client.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';

const hostCount = 3;
const posts = 20;
/** A connection that lost packets sends again after growing pauses of TCP. */
const backMsMax = 60_000;

let network: HostNetwork;
let stores: Stores;
let engines: Engine[] = [];
let devices: Device[] = [];
const addresses: Record<'clickhouse' | 'postgres' | 'redis', string> = { clickhouse: '', postgres: '', redis: '' };

describe.skipIf(!mayMakeNetworks)('hosts with a network each', () => {
  beforeAll(async () => {
    stores = await startStores({ empty: true });
    network = HostNetwork.open(hostCount);
    let settings = JSON.stringify(hostSettings(stores));
    for (const name of ['clickhouse', 'postgres', 'redis'] as const) {
      const port = new URL(stores[name].url).port;
      addresses[name] = await network.relay(Number(port));
      settings = settings.replace(`127.0.0.1:${port}`, `${addresses[name]}:${port}`);
    }
    const env = JSON.parse(settings) as Record<string, string>;
    const places = Array.from({ length: hostCount }, (_, host) => network.place(host));
    const options = places.map((place) => ({ workers: 1, env, place }));
    engines = await startEngines(options.slice(0, 2));
    devices = await Promise.all(Array.from({ length: 8 }, () => engines[0]!.api.newDevice()));
    // A host reads the whole fleet at its start, so it knows these devices without the database.
    engines.push(await startEngine(options[2]!));
  }, 180_000);

  // A failed test leaves no host without a network to the next one.
  afterEach(() => network.restore());

  afterAll(async () => {
    await Promise.all(engines.map((engine) => engine.destroyAtOnce()));
    await network?.close();
    await stores?.stopAll();
  }, 60_000);

  test('each host prints the addresses that it is bound to, and the one that made the administrators their password', async () => {
    for (const [host, engine] of engines.entries()) {
      const { address } = network.place(host);
      // A host may answer /readyz before this process has read its lines.
      await eventually(() => /^ {2}Administrator .*$/m.test(engine.output));
      const { output, port, mqttPort } = engine;
      expect(output).toMatch(new RegExp(`^  Devices and REST   http://${address}:${port}$`, 'm'));
      expect(output).toContain(`curl -sS -w '%{http_code}\\n' http://${address}:${port}/api/v1/`);
      expect(output).toMatch(new RegExp(`^  MQTT               mqtt://${address}:${mqttPort} `, 'm'));
      expect(output).toContain(`mosquitto_pub -h ${address} -p ${mqttPort}`);
    }
    const lines = engines.map(({ output }) => /^ {2}Administrator .*$/m.exec(output)![0]);
    expect(lines.filter((line) => /password as you set it \(ADMIN_PASSWORD\)|shown this once/.test(line))).toHaveLength(
      1,
    );
    const others = /password of the first start, .*secrets\.json in DATA_DIR of the host that started first/;
    expect(lines.filter((line) => others.test(line))).toHaveLength(hostCount - 1);
  });

  test('a host without a cable acknowledges, the others go on, and its device may move to another host', async () => {
    const [here, there, lost] = engines as [Engine, Engine, Engine];
    const device = devices.pop()!;
    const moving = await Connected.open(device, lost);
    const staying = await Connected.open(devices.pop()!, lost);
    await eventually(() => moving.executes(here, 'before'));
    await eventually(() => staying.executes(there, 'before'));

    network.cut(2);
    expect(await postInside(2, device)).toEqual(['200 ']);
    const moved = await Connected.open(device, here);
    await eventually(() => moved.executes(there, 'moved'), 20_000);
    const path = `/api/plugins/telemetry/DEVICE/${staying.device.id}/attributes/SHARED_SCOPE`;
    expect((await there.api.send('POST', path, { level: 7 })).status).toBe(200);
    expect(await here.api.postTelemetry(device.token, '{"beside":1}')).toBe(200);
    await eventually(() => seesSilent(here, 1), 30_000);

    network.restore();
    await eventually(() => storedOnce(there, device), backMsMax);
    await eventually(() => staying.changes.length > 0, backMsMax);
    await eventually(() => staying.executes(there, 'after'), backMsMax);
    await eventually(() => moved.executes(lost, 'after'), backMsMax);
    await eventually(() => moving.client.isClosed, backMsMax);
    for (const each of [moving, moved, staying]) each.checkExecuted();
    expect(staying.changes).toEqual([{ level: 7 }]);
    await eventually(() => seesSilent(here, 0), 30_000);
    for (const each of [moved, staying]) each.client.cut();
  }, 240_000);

  test.each(['redis', 'postgres', 'clickhouse'] as const)(
    'a host that has lost the way to %s alone acknowledges what known devices send, and all is as before with it',
    async (store) => {
      const [here, , partly] = engines as [Engine, Engine, Engine];
      const device = devices.pop()!;
      const connected = await Connected.open(device, partly);
      await eventually(() => connected.executes(here, 'before'));
      expect(await partly.api.postTelemetry(device.token, '{"before":1}')).toBe(200);

      network.lose(2, addresses[store]);
      expect(await postInside(2, device)).toEqual(['200 ']);
      const unknown = await partly.api.postTelemetry(`nobody-${store}`, '{"a":1}');
      expect(unknown).toBe(store === 'postgres' ? 503 : 401);
      const call = await command(partly, devices.pop()!, 'nobody');
      expect(call.status).toBe(store === 'clickhouse' ? 409 : 503);
      // The other hosts have all stores.
      expect(await here.api.postTelemetry(device.token, '{"beside":1}')).toBe(200);

      network.restore();
      await eventually(() => storedOnce(here, device), backMsMax);
      await eventually(() => connected.executes(here, 'after'), backMsMax);
      await eventually(
        async () => (await partly.api.postTelemetry(`still-nobody-${store}`, '{"a":1}')) === 401,
        backMsMax,
      );
      connected.checkExecuted();
      connected.client.cut();
    },
    180_000,
  );

  test('no worker ended, and nothing fatal was logged', () => {
    for (const { output } of engines) {
      expect(output).not.toMatch(/"level":"fatal"/);
      expect(output).not.toMatch(/worker-\d+ ended/);
    }
  });
});

/** A device over MQTT that answers each command with its params, and keeps the changes that arrive. */
class Connected {
  readonly device: Device;
  readonly client: MqttClient;
  readonly executed: string[] = [];
  readonly changes: unknown[] = [];

  private constructor(device: Device, client: MqttClient) {
    this.device = device;
    this.client = client;
  }

  /** Without a keep-alive time, because a host may be away for longer. */
  static async open(device: Device, at: Engine): Promise<Connected> {
    const { host } = at.api.address;
    const client = await connectMqtt({ host, port: at.mqttPort, token: device.token, keepAlive: 0 });
    await client.subscribe({ 'v1/devices/me/rpc/request/+': 1, 'v1/devices/me/attributes': 1 });
    const connected = new Connected(device, client);
    // Ends with the connection.
    void connected.#answerAll().catch(() => {});
    return connected;
  }

  /** True when a command that is given at this host was executed and answered. */
  async executes(from: Engine, word: string): Promise<boolean> {
    const params = `${word} ${(commands += 1)}`;
    const call = await command(from, this.device, params);
    return call.status === 200 && (await call.text()) === JSON.stringify({ turned: params });
  }

  /** Each command that arrived was executed once. */
  checkExecuted(): void {
    expect(new Set(this.executed).size).toBe(this.executed.length);
  }

  async #answerAll(): Promise<void> {
    for (;;) {
      const { topic, json } = await this.client.message(undefined, { waitMsMax: 300_000 });
      if (topic.endsWith('attributes')) {
        this.changes.push(json);
        continue;
      }
      this.executed.push(json.params);
      // Without an acknowledgement, which a cut cable may swallow.
      const answer = { topic: topic.replace('request', 'response'), payload: JSON.stringify({ turned: json.params }) };
      await this.client.write({ cmd: 'publish', qos: 0, dup: false, retain: false, ...answer });
    }
  }
}

let commands = 0;

function command(from: Engine, device: Device, params: string): Promise<Response> {
  return from.api.send('POST', `/api/plugins/rpc/twoway/${device.id}`, { method: 'turn', params, timeout: 3_000 });
}

/** Posts from inside of the host; returns the different answers. */
async function postInside(host: number, device: Device): Promise<string[]> {
  const { port } = engines[host]!;
  const answers = new Set<string>();
  for (let n = 0; n < posts; n += 1) {
    const body = JSON.stringify({ inside: n });
    const { status, text } = await network.askInside(host, port, 'POST', `/api/v1/${device.token}/telemetry`, body);
    answers.add(`${status} ${text}`);
  }
  return [...answers];
}

/** Every acknowledged value of `inside` is there once. */
async function storedOnce(reader: Engine, device: Device): Promise<boolean> {
  const range = { startTs: Date.now() - 600_000, endTs: Date.now() + 60_000 };
  const { inside = [] } = await reader.api.readSeries(device.id, ['inside'], range);
  expect(inside.length).toBeLessThanOrEqual(posts);
  return new Set(inside.map(({ value }) => value)).size === posts;
}

/** True when the host knows this number of hosts that send no heartbeat. */
async function seesSilent(host: Engine, count: number): Promise<boolean> {
  return new RegExp(`^hosts\\{state="silent"\\} ${count}$`, 'm').test(await host.api.metrics());
}
