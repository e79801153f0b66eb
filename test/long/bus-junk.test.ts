/**
 * No message of the bus ends a process: junk, and messages of every kind with each member removed or replaced, on every
 * channel to which a worker or the analytics process subscribes.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { MqttClient } from '../harness/mqtt-client.ts';
import { freePort } from '../harness/ports.ts';
import { RedisServer } from '../harness/stores.ts';

let directory: string;
let redis: RedisServer;
let engine: Engine;
let link: Redis;

beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'millrace-bus-junk-'));
  redis = new RedisServer(directory, await freePort());
  await redis.start();
  engine = await startEngine({
    workers: 2,
    env: {
      REDIS_URL: redis.url,
      RATE_LIMITS_DEVICE_MESSAGES: '100000:1',
      RATE_LIMITS_REST_TENANT: '100000:1',
      WRONG_CREDENTIALS_PER_MINUTE_MAX: '30',
    },
  });
  link = new Redis(redis.url);
  // Redis disconnects a subscriber that has 32 MB to read.
  await link.config('SET', 'client-output-buffer-limit', 'pubsub 0 0 0');
});

afterAll(async () => {
  link?.disconnect();
  await engine?.destroy();
  await redis?.stop();
  rmSync(directory, { recursive: true, force: true });
});

/** An example of each message, by the channel without its prefix; `*` is the id of a worker, or a device's number. */
const uuid = '6f0b3a52-7e0f-4b43-9d52-0d7f1a3a9c11';
const from = uuid;
const shapesOf = (device: number): Record<string, unknown[]> => {
  const down = [
    { kind: 'send', from, device, topic: 'attributes', message: { kind: 'changes', version: 1, json: '{"a":1}' } },
    { kind: 'send', from, device, topic: 'attributes', message: { kind: 'deletions', version: 9 } },
    { kind: 'send', from, device, topic: 'rpc', message: { id: 1, method: 'm', params: '{}', confirm: true } },
    { kind: 'send', from, device, topic: 'rpc-climb', message: { kind: 'reply', id: 1, text: '{}' } },
    {
      kind: 'send',
      from,
      device,
      topic: 'rpc-climb',
      message: { kind: 'confirm', id: 1, delivered: false, error: 'e' },
    },
    { kind: 'send', from, device, topic: 'rpc-climb', message: { kind: 'withdraw', id: 1 } },
    { kind: 'send', from, device, topic: 'rpc-climb', message: { kind: 'held', id: 1, isNew: true } },
    { kind: 'send', from, device, topic: 'rpc-climb', message: { kind: 'gone', id: 1 } },
    { kind: 'opened', from, opened: [[device, 'rpc']] },
    { kind: 'ask', from, id: 1, device, topic: 'rpc' },
    { kind: 'have', from, id: 1, heardAt: 1 },
    { kind: 'answer', from, id: 1, taken: true },
    {
      ...{ kind: 'grant', from, id: 1, heardAt: 1e12, device, topic: 'rpc' },
      message: { id: 1, method: 'm', params: '{}', confirm: true },
    },
  ];
  const gathering = (question: unknown, answer: unknown) => [
    { kind: 'here', from, isAsking: true },
    { kind: 'ask', from, id: 1, question },
    { kind: 'answer', from, id: 1, answer },
    { kind: 'gone', from },
  ];
  const outcome = {
    ...{ event: 'refused', door: 'http', reason: 'r', message: 'm', address: 'a', excerpt: 'e' },
    ...{ since: 1, ts: 1, count: 1 },
  };
  const diagnosis = {
    ...{ since: 1, oddTimes: [], refusals: { count: 1, outcomes: [outcome] }, connections: [outcome] },
    session: { connectedAt: 1, address: 'a', gateway: null },
  };
  const point = { device, key: 'k', ts: 1, seq: 0 };
  const topics = (bucket: unknown[], network: unknown[]) => ({
    'rate-limits': [['device', '', device, ...bucket]],
    'rest-limits': [['tenant', '', uuid, ...bucket]],
    'wrong-device-credentials': [['192.0.2.1', ...network]],
    'wrong-provisioning-keys': [['192.0.2.1', ...network]],
  });
  return {
    'd*': [...down, { kind: 'session', from, number: 1, sessions: [[device, 1, 0, 0]] }],
    'worker-*': down,
    credentials: [[{ id: 1, credentialsId: 't', deviceId: uuid, deviceNumber: device, deleted: false }]],
    'api-keys': ['a'.repeat(43)],
    'home-reports': [{ from, number: 1, topics: topics(['taken', [1]], [1]) }],
    'home-sums': [{ from, confirmed: [[uuid, 1]], topics: topics([[1.5], 2, '', 0.5], [1, 1000, 0]) }],
    'tenant-limits': [{ from, version: 1 }],
    'right-credentials': [{ from, network: '192.0.2.1', digests: ['d'] }],
    diagnostics: gathering({ device }, { device: diagnosis }),
    'diagnostics-*': gathering({ tenant: uuid, order: 'newest' }, { strangers: [] }),
    'refused-points': gathering({ order: '1', points: [point] }, { isOwner: true, found: [] }),
    'refused-points-*': gathering({ order: '1', points: [point] }, { isOwner: true, found: [] }),
  };
};

const strange: unknown[] = [
  ...[
    null,
    true,
    -1,
    1.5,
    2 ** 53,
    Number.MAX_SAFE_INTEGER,
    1e300,
    '',
    'x',
    '-1',
    '9'.repeat(400),
    '\u0000\ud800',
    [],
    [[]],
    [null],
    {},
  ],
  ...[{ a: {} }, { __proto__: null, constructor: 1 }, 'k'.repeat(70_000), Array.from({ length: 2_000 }, () => null)],
];

/** Returns copies of a value, in each of which one member, at any depth, is removed or replaced. */
function* mutations(value: unknown): Generator<unknown> {
  yield* strange;
  if (typeof value !== 'object' || value === null) return;
  const isList = Array.isArray(value);
  for (const name of Object.keys(value)) {
    const rest: Record<string, unknown> = { ...value };
    delete rest[name];
    yield isList ? Object.values(rest) : rest;
    for (const other of mutations((value as Record<string, unknown>)[name])) {
      yield isList ? Object.values({ ...value, [name]: other }) : { ...value, [name]: other };
    }
  }
}

/** Returns bytes that are no message of any kind. */
const noise = [
  ...['', ' ', '{', '[', 'null', '1e999', '"', '{"from":"x"', '\ufeff{}', '['.repeat(100_000), '{"a":'.repeat(100_000)],
  ...[Buffer.from([0xff, 0xfe, 0x00, 0x80]), Buffer.alloc(1_000, 0xff), Buffer.alloc(25 * 1024 * 1024, '[')],
];

async function channels(): Promise<string[]> {
  return (await link.pubsub('CHANNELS', 'millrace:*')) as string[];
}

function kindOf(channel: string): string {
  const name = channel.split(':').slice(3).join(':');
  return name.replace(/-[0-9a-f]{8}-[0-9a-f-]{27}$/, '-*').replace(/^d\d+$/, 'd*');
}

/** A session that listens to commands and attributes: messages to it are not dropped before they are read. */
async function listener(device: Device): Promise<MqttClient> {
  const client = await MqttClient.open({ port: engine.mqttPort });
  await client.connect({ token: device.token });
  await client.subscribe({ 'v1/devices/me/rpc/request/+': 0, 'v1/devices/me/attributes': 0 });
  return client;
}

test('junk on every channel ends no process, is counted, and what follows is served', async () => {
  const device = await engine.api.createDevice('listens');
  expect(await engine.api.postTelemetry(device.token, '{"a":1}')).toBe(200);
  const number = await eventually(async () => {
    const [row] = await engine.clickhouse("SELECT DISTINCT device FROM telemetry WHERE key = 'a'");
    return row ? Number(row[0]) : undefined;
  }, 20_000);
  const junked = await listener(device);
  const pids = [...engine.pids()].sort();
  const all = await channels();
  const shapes = shapesOf(number);
  expect(new Set(all.map(kindOf))).toEqual(new Set(Object.keys(shapes)));

  let sent = 0;
  for (const channel of all) {
    const pipeline = link.pipeline();
    for (const bytes of noise) pipeline.publish(channel, bytes);
    for (const shape of shapes[kindOf(channel)]!) {
      for (const value of [shape, ...mutations(shape)]) pipeline.publish(channel, JSON.stringify(value));
    }
    sent += pipeline.length;
    await pipeline.exec();
    // Checks that each worker has read all of the junk and that none has ended.
    await eventually(async () => (await engine.readiness()) === 200, 20_000);
  }
  expect(sent).toBeGreaterThan(5_000);
  const unread = await eventually(async () => {
    const metrics = await engine.api.metrics();
    return Number(/^bus_unread_total (\d+)$/m.exec(metrics)?.[1] ?? 0) > 1_000 ? metrics : undefined;
  }, 20_000);
  expect(unread).toMatch(/^bus_bugs_total 0$/m);
  expect(unread).toMatch(/^downlink_bugs_total 0$/m);
  expect([...engine.pids()].sort()).toEqual(pids);
  junked.cut();

  // Checks that a command from one worker to a session of any worker, a change of attributes and a question to all
  // workers still work.
  const after = await engine.api.createDevice('after');
  const clients = [await listener(after)];
  for (let n = 0; n < 8; n += 1) {
    const command = await engine.api.send('POST', `/api/rpc/oneway/${after.id}`, {
      method: 'm',
      params: {},
      timeout: 5_000,
    });
    expect(command.status).toBe(200);
  }
  // A question waits once for the workers that junk has announced.
  await eventually(async () => {
    const diagnostics = await engine.api.send('GET', `/api/device/${after.id}/diagnostics`);
    const { workers } = (await diagnostics.json()) as { workers: { asked: number; answered: number } };
    return workers.asked === 2 && workers.answered === 2;
  }, 10_000);
  // One session for each device, over all workers.
  for (let n = 0; n < 8; n += 1) {
    const former = clients.at(-1)!;
    clients.push(await listener(after));
    await former.closed();
  }
  clients.at(-1)!.cut();
}, 180_000);
