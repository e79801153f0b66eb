/**
 * Commands over Redis: from worker to worker as over IPC. While Redis is down a command is a clear error at once, polls
 * end as expired and telemetry is accepted; when it is up again, commands flow again without a restart.
 */
import { execFileSync } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { MqttClient } from '../harness/mqtt-client.ts';
import { connectMqttOn } from '../harness/mqtt-workers.ts';
import type { RawConnection, RawResponse } from '../harness/raw.ts';
import { type RedisEngine, startRedisEngine } from '../harness/redis-engine.ts';
import type { RedisServer } from '../harness/stores.ts';
import { connectToEachWorker, restOn } from '../harness/workers.ts';

let started: RedisEngine;
let redis: RedisServer;
let engine: Engine;

beforeAll(async () => {
  started = await startRedisEngine();
  ({ redis, engine } = started);
});

afterAll(async () => {
  await started?.destroy();
});

interface Ends {
  operators: RawConnection[];
  devices: RawConnection[];
  device: Device;
}

async function withEnds(use: (ends: Ends) => Promise<void>): Promise<void> {
  const operators = await connectToEachWorker(engine.port);
  const devices = await connectToEachWorker(engine.port);
  try {
    await use({ operators, devices, device: await engine.api.createDevice(`redis-${performance.now()}`) });
  } finally {
    for (const connection of [...operators, ...devices]) connection.close();
  }
}

async function command(connection: RawConnection, device: Device, kind = 'twoway', timeout = 5_000) {
  const path = `/api/rpc/${kind}/${device.id}`;
  return await restOn(connection, await engine.api.adminToken(), {
    path,
    body: JSON.stringify({ method: 'm', timeout }),
  });
}

async function ok({ api }: Engine, method: string, path: string, body: string): Promise<Response> {
  const headers = { 'x-authorization': `Bearer ${await api.adminToken()}`, 'content-type': 'application/json' };
  return await fetch(`${api.http}${path}`, { method, headers, body });
}

function poll(connection: RawConnection, device: Device, timeoutMs = 5_000): Promise<RawResponse> {
  return connection.ask({ method: 'GET', path: `/api/v1/${device.token}/rpc?timeout=${timeoutMs}` }, 20_000);
}

async function roundTrip({ operators, devices, device }: Ends): Promise<void> {
  const polling = poll(devices[1]!, device);
  await sleep(50);
  const calling = command(operators[0]!, device);
  const { id } = JSON.parse((await polling).body.toString()) as { id: number };
  const replied = await devices[0]!.ask({ path: `/api/v1/${device.token}/rpc/${id}`, body: '{"ok":true}' });
  expect(replied.status).toBe(200);
  const answer = await calling;
  expect(`${answer.status} ${answer.body}`).toBe('200 {"ok":true}');
}

test('a command crosses from worker to worker, and so does its reply', () => withEnds(roundTrip));

test('no message on any channel ends a worker', async () => {
  const cli = (...words: string[]) =>
    execFileSync('redis-cli', ['-u', redis.url, ...words], { encoding: 'utf8' })
      .trim()
      .split('\n');
  const restarts = (await engine.metric('worker_restarts_total')) ?? 0;
  const channels = cli('pubsub', 'channels');
  expect(channels.length).toBeGreaterThan(3);
  for (const channel of channels) {
    expect(channel).toMatch(/^millrace:[0-9a-f]{32}:1:[a-z0-9-]+$/);
    for (const text of ['', '{', '{}', '[]', 'null', '5', '{"kind":"new","from":"x"}', '[["customer",1,[1,0,0]]]']) {
      cli('publish', channel, text);
    }
    cli('eval', "return redis.call('publish', ARGV[1], string.rep('x', 4000000))", '0', channel);
  }
  await eventually(async () => ((await engine.metric('bus_unread_total')) ?? 0) > channels.length, 10_000);
  await withEnds(roundTrip);
  expect((await engine.metric('worker_restarts_total')) ?? 0).toBe(restarts);
  expect(await engine.metric('bus_bugs_total')).toBe(0);
});

test('another installation on the same Redis takes no sessions and gets no commands', async () => {
  // The other engine starts without the prepared data, because a copy of it would have the same installation id.
  const other = await startEngine({ workers: 1, firstStart: true, env: { REDIS_URL: redis.url } });
  const clients: MqttClient[] = [];
  try {
    // Both installations number their devices from 1, so some of these devices have the same numbers.
    const names = Array.from({ length: 12 }, (_, n) => `both-${n}`);
    const [ours, theirs] = await Promise.all(
      [engine, other].map(({ api }) => Promise.all(names.map((name) => api.createDevice(name)))),
    );
    const connect = async ({ mqttPort: port }: Engine, devices: Device[]) => {
      for (const { token } of devices) {
        const client = await MqttClient.open({ port, level: 4 });
        clients.push(client);
        await client.connect({ token });
        await client.subscribe('v1/devices/me/rpc/request/+');
      }
    };
    await connect(engine, ours!);
    await connect(other, theirs!);
    const channels = execFileSync('redis-cli', ['-u', redis.url, 'pubsub', 'channels'], { encoding: 'utf8' });
    expect(new Set(channels.match(/(?<=^millrace:)[0-9a-f]{32}/gm)).size).toBe(2);
    const body = JSON.stringify({ method: 'openValve', timeout: 5_000 });
    const send = async ({ id }: Device, n: number) => {
      const path = `/api/rpc/oneway/${id}`;
      const [answer, message] = await Promise.all([ok(engine, 'POST', path, body), clients[n]!.message()]);
      expect([answer.status, message.json.method]).toEqual([200, 'openValve']);
    };
    await Promise.all(ours!.map(send));
    for (const client of clients) await client.quiet();
  } finally {
    for (const client of clients) client.cut();
    await other.destroy();
  }
});

test('a device that comes later gets what waits, on the other worker', () =>
  withEnds(async ({ operators, devices, device }) => {
    const calling = command(operators[0]!, device, 'oneway');
    await sleep(600);
    expect((await poll(devices[1]!, device)).status).toBe(200);
    expect((await calling).status).toBe(200);
  }));

test('of two polls on two workers exactly one gets the command', () =>
  withEnds(async ({ operators, devices, device }) => {
    const polls = devices.map((connection) => poll(connection, device, 6_000));
    await sleep(100);
    expect((await command(operators[0]!, device, 'oneway')).status).toBe(200);
    expect((await Promise.all(polls)).map(({ status }) => status).sort()).toEqual([200, 408]);
  }));

test('without Redis commands are refused with the reason at once, polls expire, telemetry is accepted; with it commands work again', async () => {
  await withEnds(async ({ operators, devices, device }) => {
    const polling = poll(devices[1]!, device, 3_000);
    await sleep(100);
    await redis.kill();
    await sleep(300);
    const begin = performance.now();
    const refused = await command(operators[0]!, device, 'twoway', 20_000);
    // A call without an answer would last as long as its command.
    expect(performance.now() - begin).toBeLessThan(9_000);
    expect(refused.status).toBe(503);
    expect((JSON.parse(refused.body.toString()) as { message: string }).message).toContain('message bus');
    const reply = await devices[0]!.ask({ path: `/api/v1/${device.token}/rpc/77`, body: '{}' });
    expect(reply.status).toBe(503);
    expect(await engine.api.postTelemetry(device.token, '{"a":1}')).toBe(200);
    expect((await polling).status).toBe(408);
  });
  await eventually(async () => (await engine.status()).parts?.['redis'] === 'away');
  expect(await engine.metric('store_up{store="redis"}')).toBe(0);
  await redis.start();
  await eventually(async () => {
    await withEnds(roundTrip);
    return true;
  }, 20_000);
  await eventually(() => engine.events('store_back').some(({ store }) => store === 'redis'), 20_000);
  expect(engine.events('store_away').filter(({ store }) => store === 'redis')).toHaveLength(1);
});

/** Answers every command with its own parameters until the connection ends. */
async function answerAll(client: MqttClient): Promise<void> {
  for (;;) {
    const request = await client.message(undefined, { waitMsMax: 600_000 }).catch(() => undefined);
    if (!request) return;
    const id = request.topic.split('/').at(-1)!;
    await client.publishQos0(`v1/devices/me/rpc/response/${id}`, JSON.stringify(request.json.params));
  }
}

interface Answered {
  worker: number;
  device: number;
  status: number;
  isOwnReply: boolean;
  startedAt: number;
  ms: number;
}

test('Redis is killed under load: every command ends, no reply goes astray, and the same sessions get all commands again', async () => {
  const restarts = (await engine.metric('worker_restarts_total')) ?? 0;
  const [clients, operators]: [MqttClient[], RawConnection[]] = [[], []];
  const [devices, answers]: [Device[], Answered[]] = [[], []];
  let isOver = false;
  let sent = 0;
  async function operate(connection: RawConnection, worker: number, jwt: string): Promise<void> {
    while (!isOver) {
      const n = sent++;
      const device = n % devices.length;
      const body = JSON.stringify({ method: 'm', params: { n }, timeout: 5_000 });
      const startedAt = performance.now();
      const path = `/api/rpc/twoway/${devices[device]!.id}`;
      const answer = await restOn(connection, jwt, { path, body });
      const isOwnReply = answer.body.toString() === JSON.stringify({ n });
      const ms = performance.now() - startedAt;
      answers.push({ worker, device, status: answer.status, isOwnReply, startedAt, ms });
    }
  }
  /** Each worker has sent 10 commands to each device since `from`, and got the replies. */
  const allServed = (from: number) => () => {
    const good = answers.filter(({ status, startedAt }) => status === 200 && startedAt >= from);
    const pairs = [0, 1].flatMap((worker) => devices.map((_, device) => ({ worker, device })));
    return pairs.every((pair) => {
      return good.filter(({ worker, device }) => worker === pair.worker && device === pair.device).length >= 10;
    });
  };
  try {
    // Three devices on each worker.
    for (let n = 0; n < 6; n += 1) {
      const device = await engine.api.newDevice();
      const client = await connectMqttOn(n % 2, { port: engine.mqttPort, token: device.token });
      await client.subscribe('v1/devices/me/rpc/request/+');
      devices.push(device);
      clients.push(client);
    }
    const replying = clients.map(answerAll);
    const jwt = await engine.api.adminToken();
    const operating: Promise<void>[] = [];
    for (let n = 0; n < 4; n += 1) {
      const pair = await connectToEachWorker(engine.port);
      operators.push(...pair);
      operating.push(...pair.map((connection, worker) => operate(connection, worker, jwt)));
    }
    await eventually(allServed(0), 60_000);
    const killedAt = performance.now();
    await redis.kill();
    // Commands that were under way have ended, and later ones are refused.
    await eventually(() => answers.filter(({ status }) => status === 503).length >= 50, 60_000);
    await eventually(async () => (await engine.status()).parts?.['redis'] === 'away');
    expect(await engine.api.postTelemetry(devices[0]!.token, '{"a":1}')).toBe(200);
    await redis.start();
    await eventually(allServed(performance.now()), 60_000);
    // At first a command may still fail, because a subscription is not in force at every worker yet. Later there are no
    // failures.
    const settledAt = performance.now();
    await eventually(allServed(settledAt), 60_000);
    isOver = true;
    await Promise.all(operating);
    // 504: the command or its reply was on the bus when Redis ended.
    expect(answers.filter(({ status }) => ![200, 503, 504].includes(status))).toEqual([]);
    expect(answers.filter(({ status, isOwnReply }) => (status === 200) !== isOwnReply)).toEqual([]);
    expect(answers.filter(({ startedAt, ms, status }) => startedAt + ms < killedAt && status !== 200)).toEqual([]);
    expect(answers.filter(({ startedAt, status }) => startedAt >= settledAt && status !== 200)).toEqual([]);
    expect(Math.max(...answers.map(({ ms }) => ms))).toBeLessThan(20_000);
    expect(clients.filter(({ isClosed }) => isClosed)).toEqual([]);
    for (const client of clients) client.cut();
    await Promise.all(replying);
    expect((await engine.metric('worker_restarts_total')) ?? 0).toBe(restarts);
  } finally {
    isOver = true;
    for (const client of clients) client.cut();
    for (const connection of operators) connection.close();
  }
});
