/**
 * Two hosts over a Redis that misbehaves: it is frozen, accepts connections and answers nothing, is emptied, full, or
 * read-only. Telemetry does not notice, each command ends and none is executed twice, and soon after the fault commands
 * and updates cross between the hosts again.
 */
import { once } from 'node:events';
import { createServer, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngines } from '../harness/engine.ts';
import { connectMqtt, type MqttClient } from '../harness/mqtt-client.ts';
import { type RedisNode, RedisNodes } from '../harness/redis-nodes.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';

let stores: Stores;
let here: Engine;
let there: Engine;
const nodes = new RedisNodes();
let redis: RedisNode;

beforeAll(async () => {
  stores = await startStores();
  redis = await nodes.one();
  const options = { workers: 1, env: { ...hostSettings(stores), REDIS_URL: redis.url } };
  [here, there] = await startEngines([options, options]);
});

afterAll(async () => {
  await Promise.all([here?.destroy(), there?.destroy()]);
  await nodes.remove();
  await stores?.stopAll();
});

const commands = 'v1/devices/me/rpc/request/';
/** Commands and updates cross again in this time after the fault. A busy machine adds to the 3 s that are usual. */
const backMsMax = 10_000;

/** A device that is connected to one host and replies to each command with its parameters. */
async function connectDevice(executed: string[]): Promise<{ device: Device; client: MqttClient }> {
  const device = await here.api.newDevice();
  const client = await connectMqtt({ port: there.mqttPort, token: device.token });
  await client.subscribe({ [`${commands}+`]: 0, 'v1/devices/me/attributes': 1 });
  const answer = async (): Promise<void> => {
    const { topic, json } = await client.message(undefined, { waitMsMax: 600_000 });
    if (topic.startsWith(commands)) {
      executed.push(json.params);
      await client.publishQos0(topic.replace('request', 'response'), JSON.stringify(json.params));
    } else updates.set(device.id, json.level);
    await answer();
  };
  // Ends with the connection.
  answer().catch(() => {});
  return { device, client };
}

/** Device → the last value of its shared attribute that reached it. */
const updates = new Map<string, number>();

async function send({ id }: Device, params: string): Promise<{ status: number; ms: number; isReplied: boolean }> {
  const begun = performance.now();
  const body = { method: 'turn', params, timeout: 5_000 };
  const response = await here.api.send('POST', `/api/rpc/twoway/${id}`, body);
  const isReplied = (await response.text()) === JSON.stringify(params);
  return { status: response.status, ms: performance.now() - begun, isReplied };
}

async function freeze(ms: number): Promise<void> {
  redis.process!.kill('SIGSTOP');
  await sleep(ms);
  redis.process!.kill('SIGCONT');
}

/** Another server takes the port, accepts every connection and answers nothing. */
async function beSilent(ms: number): Promise<void> {
  await redis.stop();
  const sockets = new Set<Socket>();
  const silent = createServer((socket) => {
    sockets.add(socket.on('error', () => {}));
  });
  silent.listen(redis.port, '127.0.0.1');
  await once(silent, 'listening');
  await sleep(ms);
  silent.close();
  for (const socket of sockets) socket.destroy();
  await redis.start();
}

async function asked(words: string[], after: string[]): Promise<void> {
  redis.cli(...words);
  await sleep(1_000);
  redis.cli(...after);
}

const faults: [string, () => Promise<void>][] = [
  ['is frozen for 0.3 s', () => freeze(300)],
  ['is frozen for 3 s', () => freeze(3_000)],
  ['accepts connections and answers nothing', () => beSilent(3_000)],
  ['is emptied', () => asked(['flushall'], ['flushdb'])],
  ['is full', () => asked(['config', 'set', 'maxmemory', '1'], ['config', 'set', 'maxmemory', '0'])],
  ['is read-only', () => asked(['replicaof', '127.0.0.1', '1'], ['replicaof', 'no', 'one'])],
  ['answers no command', () => asked(['client', 'pause', '2000', 'all'], ['client', 'unpause'])],
];

test.each(faults)(
  'a Redis that %s',
  async (_name, fault) => {
    const executed: string[] = [];
    const { device, client } = await connectDevice(executed);
    await eventually(async () => (await send(device, `before ${performance.now()}`)).isReplied, 20_000);
    const polled = await here.api.newDevice();
    const held = fetch(`${there.api.http}/api/v1/${polled.token}/rpc?timeout=120000`);
    let isOver = false;
    const [posts, calls]: [{ status: number; ms: number }[], { status: number; ms: number; isReplied: boolean }[]] = [
      [],
      [],
    ];
    const post = async (host: Engine) => {
      while (!isOver) {
        const begun = performance.now();
        const status = await host.api.postTelemetry(device.token, '{"n":1}');
        posts.push({ status, ms: performance.now() - begun });
        await sleep(20);
      }
    };
    const call = async (user: number) => {
      for (let n = 0; !isOver; n += 1) {
        calls.push(await send(device, `user ${user} ${n}`));
        await sleep(50);
      }
    };
    const load = [post(here), post(there), call(0), call(1), call(2)];
    try {
      await sleep(300);
      await fault();
      const ended = performance.now();
      await eventually(async () => (await send(device, `after ${performance.now()}`)).isReplied, backMsMax);
      const level = Math.round(ended);
      const shared = `/api/plugins/telemetry/DEVICE/${device.id}/attributes/SHARED_SCOPE`;
      expect((await here.api.send('POST', shared, { level })).status).toBe(200);
      await eventually(() => updates.get(device.id) === level, backMsMax);
      // The poll was held all the time, on the other host.
      const called = send(polled, 'polled');
      const request = (await (await held).json()) as { id: number; params: string };
      expect(request.params).toBe('polled');
      await fetch(`${there.api.http}/api/v1/${polled.token}/rpc/${request.id}`, { method: 'POST', body: '"polled"' });
      expect((await called).isReplied).toBe(true);
    } finally {
      isOver = true;
      await Promise.all(load);
      client.cut();
    }
    expect(new Set(posts.map(({ status }) => status))).toEqual(new Set([200]));
    expect(calls.filter(({ status }) => ![200, 503, 504].includes(status))).toEqual([]);
    expect(calls.filter(({ status, isReplied }) => isReplied !== (status === 200))).toEqual([]);
    expect(Math.max(...calls.map(({ ms }) => ms))).toBeLessThan(10_000);
    expect(new Set(executed).size).toBe(executed.length);
    for (const host of [here, there]) expect(host.output).not.toMatch(/"level":"(error|fatal)"/);
  },
  180_000,
);
