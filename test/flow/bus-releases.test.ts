/**
 * Hosts of the last release and of this version understand each other over Redis. The messages of the last release are
 * in `test/flow/bus-messages-1.json`, as its workers sent them (1 = the number of the bus protocol): workers of this
 * version read each of them, and what this version sends in the same scenario has all that the last release reads.
 *
 * `RECORD_BUS_MESSAGES=true` adds to the file what it lacks. Some messages depend on the moment: run it ten times. Do
 * that with the code of a release, without the file, for the version that follows. A message of another shape needs the
 * next number (docs/releases.md).
 */
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { busProtocol } from '../../src/bus/redis.ts';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, root, startEngine } from '../harness/engine.ts';
import { MqttClient } from '../harness/mqtt-client.ts';
import { freePort } from '../harness/ports.ts';
import { RedisServer } from '../harness/stores.ts';

interface Sent {
  /** The channel without its prefix; `*` is the id of a worker, or the number of a device. */
  channel: string;
  /** The message, of which every character counts. */
  text: string;
}

interface Release {
  protocol: number;
  /** The number of the device that the messages name. */
  device: number;
  messages: Sent[];
}

const file = join(root, `test/flow/bus-messages-${busProtocol.written}.json`);
const isRecording = process.env['RECORD_BUS_MESSAGES'] === 'true';
/** Messages of one kind that are recorded, whatever their shape. */
const perKindMax = 4;

let directory: string;
let redis: RedisServer;
let engine: Engine;
let link: Redis;
let device: Device;
let number: number;
const sent: Sent[] = [];

beforeAll(async () => {
  directory = mkdtempSync(join(tmpdir(), 'millrace-bus-releases-'));
  redis = new RedisServer(directory, await freePort());
  await redis.start();
  link = new Redis(redis.url);
  const listening = link.duplicate();
  listening.on('pmessage', (_: string, channel: string, text: string) => {
    sent.push({ channel: channelKind(channel), text });
  });
  await listening.psubscribe('millrace:*');
  engine = await startEngine({
    workers: 2,
    env: {
      REDIS_URL: redis.url,
      RATE_LIMITS_DEVICE_MESSAGES: '100000:1',
      RATE_LIMITS_REST_TENANT: '100000:1',
      WRONG_CREDENTIALS_PER_MINUTE_MAX: '30',
    },
  });
  device = await engine.api.createDevice('of both releases');
  expect(await engine.api.postTelemetry(device.token, '{"first":1}')).toBe(200);
  number = await eventually(async () => {
    const [row] = await engine.clickhouse("SELECT DISTINCT device FROM telemetry WHERE key = 'first'");
    return row ? Number(row[0]) : undefined;
  }, 20_000);
  await scenario();
  listening.disconnect();
}, 240_000);

afterAll(async () => {
  link?.disconnect();
  await engine?.destroy();
  await redis?.stop();
  rmSync(directory, { recursive: true, force: true });
});

function channelKind(channel: string): string {
  const name = channel.split(':').slice(3).join(':');
  return name.replace(/-[0-9a-f]{8}-[0-9a-f-]{27}$/, '-*').replace(/^(\D{1,2})\d+$/, '$1*');
}

interface Piece {
  /** The channel, and the words by which readers tell messages of one channel apart. */
  kind: string;
  value: unknown;
}

/** Returns the message, and what it has of each topic apart: which topics a message has depends on the moment. */
function piecesOf({ channel, text }: Sent): Piece[] {
  const value = parsed(text);
  const { kind, topic, message, topics } = (value ?? {}) as Record<string, unknown>;
  if (typeof topics === 'object' && topics !== null) {
    const ofTopics = Object.entries(topics).map(([name, entries]) => ({ kind: `${channel} ${name}`, value: entries }));
    return [{ kind: channel, value: { ...(value as object), topics: {} } }, ...ofTopics];
  }
  const words = [kind, topic, (message as { kind?: unknown } | undefined)?.kind];
  return [{ kind: [channel, ...words.filter((word) => typeof word === 'string')].join(' '), value }];
}

const kindsOf = (message: Sent): string[] => piecesOf(message).map(({ kind }) => kind);

function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

/** A session that answers commands. */
async function session(): Promise<MqttClient> {
  const client = await MqttClient.open({ port: engine.mqttPort });
  await client.connect({ token: device.token });
  await client.subscribe({ 'v1/devices/me/rpc/request/+': 0, 'v1/devices/me/attributes': 0 });
  return client;
}

async function call(method: string, path: string, body?: unknown, token?: string): Promise<unknown> {
  const response = await engine.api.send(method, path, body, token);
  const text = await response.text();
  expect([method, path, response.status, text]).toEqual([method, path, 200, text]);
  return text === '' ? undefined : parsed(text);
}

/** Everything that workers tell each other about: repeated, because only some of the events cross workers. */
async function scenario(): Promise<void> {
  const waiting = await engine.api.sendPersistent(device.id, { method: 'wait', params: {}, persistent: true });
  await call('DELETE', `/api/rpc/persistent/${waiting}`);
  for (let n = 0; n < 8; n += 1) {
    const client = await session();
    const answering = (async () => {
      const { topic } = await client.message(undefined, { waitMsMax: 20_000 });
      await client.publish(topic.replace('request', 'response'), '{"ok":true}');
    })();
    await Promise.all([
      call('POST', `/api/rpc/twoway/${device.id}`, { method: 'm', params: {}, timeout: 20_000 }),
      answering,
    ]);
    await call('POST', `/api/rpc/oneway/${device.id}`, { method: 'm', params: {}, timeout: 20_000 });
    await call('POST', `/api/plugins/telemetry/DEVICE/${device.id}/SHARED_SCOPE`, { [`set${n}`]: n });
    await call('DELETE', `/api/plugins/telemetry/DEVICE/${device.id}/SHARED_SCOPE?keys=set${n}`);
    await engine.api.postTelemetry('no such token', '{"a":1}');
    await engine.api.postTelemetry(device.token, '{"a":1}');
    await call('GET', `/api/device/${device.id}/diagnostics`);
    if (n < 7) {
      const next = session();
      await client.closed();
      (await next).cut();
    } else client.cut();
  }
  const user = (await call('GET', '/api/auth/user')) as { id: { id: string } };
  const key = { userId: user.id, description: 'program', enabled: true, expirationTime: 0 };
  const { id } = (await call('POST', '/api/apiKey', key)) as { id: { id: string } };
  await call('DELETE', `/api/apiKey/${id.id}`);
  const other = await engine.api.createDevice('deleted');
  await call('DELETE', `/api/device/${other.id}`);
}

test('workers read each message of the last release', async () => {
  if (isRecording) {
    const examples = new Map<string, unknown[]>();
    const before = existsSync(file) ? lastRelease().messages : [];
    const messages = [...before, ...sent].filter((message) => {
      const pieces = piecesOf(message);
      const isNew = pieces.some(({ kind, value }) => {
        const known = examples.get(kind) ?? [];
        return known.length < perKindMax || !known.some((example) => hasShapeOf(value, example));
      });
      if (isNew) for (const { kind, value } of pieces) examples.set(kind, [...(examples.get(kind) ?? []), value]);
      return isNew;
    });
    writeFileSync(file, `${JSON.stringify({ protocol: busProtocol.written, device: number, messages }, null, 2)}\n`);
  }
  expect(existsSync(file), `${file} is recorded with RECORD_BUS_MESSAGES=true`).toBe(true);
  const release = lastRelease();
  expect(busProtocol.read).toContain(release.protocol);
  expect(number, 'a device of a new installation has the recorded number').toBe(release.device);
  const counts = async () => {
    const metrics = await engine.api.metrics();
    const count = (name: string) => Number(new RegExp(`^${name} (\\d+)$`, 'm').exec(metrics)?.[1]);
    return {
      unread: count('bus_unread_total'),
      bugs: count('bus_bugs_total'),
      listeners: count('downlink_bugs_total'),
    };
  };
  expect(await counts()).toEqual({ unread: 0, bugs: 0, listeners: 0 });
  const received = new Set<string>();
  const publish = async (messages: Sent[]) => {
    // A subscription may be younger than the answer to the request that led to it.
    const all = await eventually(async () => {
      const channels = (await link.pubsub('CHANNELS', 'millrace:*')) as string[];
      const kinds = new Set(channels.map(channelKind));
      return messages.every(({ channel }) => kinds.has(channel)) ? channels : undefined;
    }, 20_000);
    for (const message of messages) {
      for (const channel of all.filter((each) => channelKind(each) === message.channel)) {
        const [, installation, , ...name] = channel.split(':');
        const released = `millrace:${installation}:${release.protocol}:${name.join(':')}`;
        if ((await link.publish(released, message.text)) === 0) continue;
        for (const kind of kindsOf(message)) received.add(kind);
      }
    }
  };
  // A worker subscribes to the channel of the owners of commands while one waits.
  const isOfOwners = ({ channel }: Sent) => channel === 'o*';
  await engine.api.sendPersistent(device.id, { method: 'wait', params: {} });
  await publish(release.messages.filter(isOfOwners));
  const client = await session();
  // Announcements of sessions come last: they end the session that reads the other messages.
  const isSession = (message: Sent) => Number(kindsOf(message).includes('d* session'));
  const others = release.messages.filter((message) => !isOfOwners(message));
  await publish(others.sort((a, b) => isSession(a) - isSession(b)));
  expect(new Set(release.messages.flatMap(kindsOf))).toEqual(received);
  expect(received.size).toBeGreaterThan(20);
  client.cut();
  const next = await session();
  await call('POST', `/api/rpc/oneway/${device.id}`, { method: 'after', params: {}, timeout: 20_000 });
  expect(await counts()).toEqual({ unread: 0, bugs: 0, listeners: 0 });
  next.cut();
});

test('each message that this version sends has all members that the last release reads', () => {
  const faults: string[] = [];
  const release = lastRelease();
  const known = new Map<string, unknown[]>();
  for (const { kind, value } of release.messages.flatMap(piecesOf)) {
    known.set(kind, [...(known.get(kind) ?? []), value]);
  }
  for (const { kind, value } of sent.flatMap(piecesOf)) {
    const examples = known.get(kind);
    if (examples === undefined) faults.push(`${kind}: the last release does not know this kind`);
    else if (!examples.some((example) => hasShapeOf(value, example))) {
      const texts = [value, examples[0]].map((each) => JSON.stringify(each).slice(0, 300));
      faults.push(`${kind}: ${texts.join(' is not as ')}`);
    }
  }
  expect([...new Set(faults)].slice(0, 10)).toEqual([]);
});

function lastRelease(): Release {
  return JSON.parse(readFileSync(file, 'utf8')) as Release;
}

/** True when the value has each member of the example, of the same type. Elements of a list have one of its shapes. */
function hasShapeOf(value: unknown, example: unknown): boolean {
  if (value === null || example === null) return true;
  if (typeof value !== typeof example || Array.isArray(value) !== Array.isArray(example)) return false;
  if (Array.isArray(value) && Array.isArray(example)) {
    const isList = example.every((element) => typeof element === 'object');
    if (isList)
      return value.every((each) => example.length === 0 || example.some((element) => hasShapeOf(each, element)));
    return value.length >= example.length && example.every((element, n) => hasShapeOf(value[n], element));
  }
  if (typeof value !== 'object') return true;
  return Object.entries(example as object).every(([name, of]) => {
    return name in value && hasShapeOf((value as Record<string, unknown>)[name], of);
  });
}
