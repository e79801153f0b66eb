/**
 * Two hosts over Redis as its operators run it: a master that Sentinels watch, over TLS with an own authority, and a
 * Redis Cluster with replicas. A master dies under load: telemetry never stops, and commands, sessions and credentials
 * cross between the hosts again without a restart.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngines } from '../harness/engine.ts';
import { connectMqtt, type MqttClient } from '../harness/mqtt-client.ts';
import { type RedisNode, RedisNodes } from '../harness/redis-nodes.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';

let stores: Stores;
let hosts: Engine[] = [];
let redis: RedisNodes;

beforeAll(async () => {
  stores = await startStores({ empty: true });
  redis = new RedisNodes();
}, 120_000);

afterEach(async () => {
  await Promise.all(hosts.map((host) => host.destroy()));
  hosts = [];
}, 60_000);

afterAll(async () => {
  await redis?.remove();
  await stores?.stopAll();
}, 60_000);

/** A Sentinel that has no processor for 2 s does nothing for 30 s. */
const failoverMsMax = 90_000;
const answeringMsMax = 200_000;
/** As many as several shards of the bus have, and so several masters of a cluster. */
const deviceCount = 12;

async function startHosts(env: Record<string, string>): Promise<[Engine, Engine]> {
  const options = { workers: 2, env: { ...hostSettings(stores), ...env } };
  const started = await startEngines([options, options]);
  hosts = started;
  return started;
}

/** A device that is connected to one host and answers each command that it gets, also one that comes late. */
class Answering {
  readonly device: Device;
  readonly #host: Engine;
  client!: MqttClient;
  readonly executed: string[] = [];
  #answers: Promise<void> | undefined;

  constructor(device: Device, host: Engine) {
    this.device = device;
    this.#host = host;
  }

  async connect(): Promise<this> {
    this.client = await connectMqtt({ port: this.#host.mqttPort, token: this.device.token });
    await this.client.subscribe('v1/devices/me/rpc/request/+');
    return this;
  }

  answerAll(): void {
    const next = async (): Promise<void> => {
      const { topic, json } = await this.client.message(undefined, { waitMsMax: answeringMsMax });
      this.executed.push(json.params);
      await this.client.publish(topic.replace('request', 'response'), { turned: json.params });
      await next();
    };
    // Ends with the connection.
    this.#answers = next().catch(() => {});
  }

  async answersEnd(): Promise<void> {
    await this.#answers;
  }

  /** True when a command that is given at the other host was executed once and answered. */
  async executes(from: Engine, params: string): Promise<boolean> {
    const body = { method: 'turn', params, timeout: 3_000 };
    const response = await from.api.send('POST', `/api/plugins/rpc/twoway/${this.device.id}`, body);
    const text = await response.text();
    return response.status === 200 && text === JSON.stringify({ turned: params });
  }
}

/** Posts until it is stopped; returns how many posts were answered otherwise than 200. */
function ingest(engines: Engine[], device: Device): () => Promise<{ accepted: number; refused: number }> {
  let sending = true;
  const counts = { accepted: 0, refused: 0 };
  const posts = (async () => {
    for (let n = 0; sending; n += 1) {
      const status = await engines[n % engines.length]!.api.postTelemetry(device.token, `{"n":${n}}`);
      if (status === 200) counts.accepted += 1;
      else counts.refused += 1;
      await sleep(5);
    }
  })();
  return async () => {
    sending = false;
    await posts;
    return counts;
  };
}

/** Commands, takeovers and credentials cross between the hosts before and after `fail`, and no worker restarts. */
async function survives([here, there]: [Engine, Engine], fail: () => Promise<void>): Promise<void> {
  const devices: Device[] = [];
  for (let n = 0; n < deviceCount; n += 1) devices.push(await here.api.newDevice());
  const connected = await Promise.all(devices.map((device) => new Answering(device, there).connect()));
  for (const each of connected) each.answerAll();
  const allExecute = async (word: string) =>
    (await Promise.all(connected.map((each) => each.executes(here, word)))).every((executed) => executed);
  await eventually(() => allExecute('before'), 30_000);

  const stop = ingest([here, there], await here.api.newDevice());
  await fail();
  let round = 0;
  try {
    await eventually(() => allExecute(`after ${(round += 1)}`), failoverMsMax);
  } finally {
    await stop();
  }
  const { accepted, refused } = await stop();
  expect(refused).toBe(0);
  expect(accepted).toBeGreaterThan(20);

  // The newer session of each device wins, whichever master its shard is at.
  const moved = await Promise.all(devices.map((device) => new Answering(device, here).connect()));
  await Promise.all(connected.map((each) => each.answersEnd()));
  for (const { executed } of connected) expect(new Set(executed).size).toBe(executed.length);
  for (const { client } of moved) {
    await client.quiet();
    client.cut();
  }
  for (const host of [here, there]) {
    expect(host.output).not.toMatch(/"level":"(error|fatal)"/);
    expect(host.output).not.toMatch(/worker-\d+ ended/);
  }
}

test('the master dies: a replica takes over, which Sentinels choose, over TLS with an own authority', async () => {
  const { master, settings } = await redis.sentinels({ isSecure: true });
  const env = {
    REDIS_URL: settings.url,
    REDIS_TLS_CA: settings.tlsCa!,
    REDIS_SENTINEL_PASSWORD: settings.sentinelPassword!,
  };
  await survives(await startHosts(env), () => master.stop());
}, 240_000);

test('a master of a Redis Cluster dies: its replica takes over, and the devices of all shards get commands', async () => {
  const { nodes, url } = await redis.cluster({ hasReplicas: true });
  const masters = nodes.slice(0, 3) as RedisNode[];
  await survives(await startHosts({ REDIS_URL: url }), () => masters[1]!.stop());
}, 240_000);

test('a server with a certificate of an unknown authority is not used: the host serves, and names the reason', async () => {
  const { args } = redis.tls();
  const node = await redis.one({ args, tls: true });
  const [here] = await startHosts({ REDIS_URL: `rediss://127.0.0.1:${node.port}` });
  const device = await here.api.newDevice();
  expect(await here.api.postTelemetry(device.token, '{"n":1}')).toBe(200);
  const call = await here.api.send('POST', `/api/plugins/rpc/twoway/${device.id}`, { method: 'turn', params: {} });
  expect(call.status).toBe(503);
  await eventually(() => /"(reason|error)":"[^"]*certificate/.test(here.output));
}, 120_000);
