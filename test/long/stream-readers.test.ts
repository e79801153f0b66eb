/**
 * Other readers of the streams, over the wire, with three real nodes of NATS: telemetry as JSON, filtered by the
 * servers; `npm run stream`; the library. Whatever a reader does, telemetry is accepted and stored.
 */
import { spawn } from 'node:child_process';
import { randomBytes, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { AckPolicy, DeliverPolicy, jetstream } from '@nats-io/jetstream';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { queryClickhouse } from '../harness/clickhouse-queries.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { NatsCluster } from '../harness/nats-cluster.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';
import { streamSettings } from '../harness/stream-engine.ts';

const directory = mkdtempSync(join(tmpdir(), 'millrace-readers-'));
const [liveStream, jsonStream, jsonConsumer] = ['millrace-live', 'millrace-json', 'millrace-json'];
let engine: Engine;
let stores: Stores;
let nodes: NatsCluster;
let pump: Device;
let valve: Device;

beforeAll(async () => {
  stores = await startStores();
  nodes = await NatsCluster.start();
  engine = await startEngine({
    workers: 2,
    env: {
      ...hostSettings(stores),
      ...streamSettings(nodes),
      STREAM_JSON: 'true',
      STREAM_JSON_KEYS: 'temperature,count,state,filler',
      STREAM_JSON_BYTES_MAX: '16MiB',
    },
  });
  const token = () => randomUUID().replaceAll('-', '');
  pump = await engine.api.createDevice('pump', token());
  valve = await engine.api.createDevice('valve "7"', token(), { type: 'valve' });
});

afterAll(async () => {
  await engine?.destroyAtOnce();
  await Promise.all([nodes?.stop(), stores?.stopAll()]);
  rmSync(directory, { recursive: true, force: true });
});

/** Servers without a processor may refuse a message for a moment. */
async function post(device: Device, body: object): Promise<void> {
  const url = `${engine.api.http}/api/v1/${device.token}/telemetry`;
  await eventually(async () => {
    const answer = await fetch(url, {
      method: 'POST',
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(30_000),
    });
    if (answer.status !== 200) expect(await answer.text()).toMatch(/replicated stream/);
    return answer.status === 200;
  }, 60_000);
}

interface Message {
  subject: string;
  tenant: string;
  device: string;
  name: string;
  profile: string;
  ts: number;
  arrived: number;
  values: Record<string, unknown>;
}

/** The messages that the servers give to a reader of these subjects, once there are `count`. */
async function readJson(filter: string, count: number): Promise<Message[]> {
  const connection = await nodes.connect();
  try {
    const options = { filter_subjects: filter, deliver_policy: DeliverPolicy.All };
    const consumer = await jetstream(connection).consumers.get(jsonStream, options);
    const found: Message[] = [];
    // A request is refused ("no responders") while the servers do not know yet which of them has the new consumer.
    await eventually(async () => {
      for await (const message of await consumer.fetch({ max_messages: count - found.length, expires: 1_000 })) {
        found.push({ subject: message.subject, ...message.json<Omit<Message, 'subject'>>() });
      }
      return found.length >= count;
    }, 30_000);
    return found;
  } finally {
    await connection.close();
  }
}

async function storedCount(key: string): Promise<number> {
  const sql = `select count() from telemetry final where key = '${key}'`;
  return Number((await queryClickhouse(stores.clickhouse.address(), sql))[0]![0]);
}

async function waitingFrames(stream: string, consumer: string): Promise<number> {
  const { num_pending, num_ack_pending } = await nodes.manage((manager) => manager.consumers.info(stream, consumer));
  return num_pending + num_ack_pending;
}

test('each message is JSON once it is acknowledged, and the servers filter by tenant, profile and device', async () => {
  const ts = Date.now();
  await post(pump, { ts, values: { temperature: 21.5, count: 9_007_199_254_740_991, secret: 1 } });
  await post(valve, { ts: ts - 7 * 86_400_000, values: { state: 'open' } });
  const [ofPump] = await readJson(`millrace.json.*.*.${pump.id}`, 1);
  expect(ofPump).toMatchObject({ device: pump.id, name: 'pump', ts, values: { count: 9_007_199_254_740_991 } });
  // The key `secret` is not named.
  expect(Object.keys(ofPump!.values)).toEqual(['temperature', 'count']);
  expect(ofPump!.arrived).toBeGreaterThanOrEqual(ts);
  const [ofValve] = await readJson(`millrace.json.*.*.${valve.id}`, 1);
  expect(ofValve).toMatchObject({ name: 'valve "7"', ts: ts - 7 * 86_400_000, values: { state: 'open' } });
  expect(ofValve!.profile).not.toBe(ofPump!.profile);
  const ofProfile = await readJson(`millrace.json.${ofValve!.tenant}.${ofValve!.profile}.>`, 1);
  expect(ofProfile.map(({ subject }) => subject)).toEqual([ofValve!.subject]);
}, 120_000);

test('what comes while the stream of JSON is gone is given when it was made again', async () => {
  const made = async () => (await nodes.manage((manager) => manager.streams.info(jsonStream))).created;
  const before = await made();
  await nodes.manage((manager) => manager.streams.delete(jsonStream));
  await post(pump, { temperature: 1 });
  await eventually(async () => (await made()) !== before, 30_000);
  const message = await eventually(async () => (await readJson('millrace.json.>', 1))[0], 60_000);
  expect(message).toMatchObject({ device: pump.id, values: { temperature: 1 } });
}, 120_000);

test('a reader that takes nothing loses the oldest messages, and nothing else waits for it', async () => {
  await nodes.manage((manager) =>
    manager.consumers.add(jsonStream, { durable_name: 'slow', ack_policy: AckPolicy.Explicit }),
  );
  const before = await storedCount('filler');
  const filler = 'x'.repeat(200_000);
  for (let n = 0; n < 100; n += 1) await post(pump, { filler });
  await eventually(async () => (await storedCount('filler')) >= before + 100, 60_000);
  await eventually(async () => (await waitingFrames(liveStream, jsonConsumer)) === 0, 60_000);
  const { state } = await nodes.manage((manager) => manager.streams.info(jsonStream));
  expect(state.bytes).toBeLessThanOrEqual(16 * 1024 ** 2);
  expect(state.first_seq).toBeGreaterThan(1);
  expect(await engine.metric('stream_json_missed_total')).toBe(0);
}, 180_000);

test('frames that cannot be given as JSON leave the stream when it is half full, and are counted', async () => {
  const until = new Date(Date.now() + 600_000);
  await nodes.manage((manager) => manager.consumers.pause(liveStream, jsonConsumer, until));
  // Servers get deflated frames, so the text is random. Twice the half of 64 MiB: without a removal, the stream would
  // be full.
  const filler = randomBytes(150_000).toString('base64');
  for (let n = 0; n < 470; n += 1) await post(pump, { filler });
  expect(await engine.metric('stream_json_missed_total')).toBeGreaterThan(0);
  await nodes.manage((manager) => manager.consumers.resume(liveStream, jsonConsumer));
  await eventually(async () => (await waitingFrames(liveStream, jsonConsumer)) === 0, 60_000);
  await post(valve, { state: 'shut' });
  const given = await eventually(async () => {
    const messages = await readJson(`millrace.json.*.*.${valve.id}`, 1);
    return messages.find(({ values }) => values['state'] === 'shut');
  }, 60_000);
  expect(given).toBeDefined();
}, 240_000);

interface Run {
  code: number;
  lines: Record<string, unknown>[];
  errors: string;
}

async function stream(words: string[], until?: (lines: string) => boolean): Promise<Run> {
  const child = spawn(process.execPath, ['dist/stream.js', ...words], { env: engine.environment });
  let [output, errors] = ['', ''];
  child.stdout.on('data', (chunk) => {
    output += chunk;
    if (!child.killed && until?.(output)) child.kill('SIGTERM');
  });
  child.stderr.on('data', (chunk) => (errors += chunk));
  const [code] = await once(child, 'close');
  const lines = output.trim().split('\n').filter(Boolean);
  return { code: code as number, lines: lines.map((line) => JSON.parse(line) as Record<string, unknown>), errors };
}

test('`npm run stream -- follow` goes on when the server that holds its place dies', async () => {
  const text = 'after the death';
  let isFollowed = false;
  const following = stream(['follow'], (lines) => lines.includes(text)).finally(() => (isFollowed = true));
  const reader = await eventually(async () => {
    const consumers = await nodes.manage((manager) => manager.consumers.list(liveStream).next());
    return consumers.find(({ config }) => config.durable_name === undefined && config.mem_storage === true);
  }, 30_000);
  const holder = Number(reader.cluster!.leader!.slice(1));
  await nodes.kill(holder);
  try {
    await eventually(async () => {
      await post(pump, { state: text });
      return isFollowed;
    }, 60_000);
    const { code, errors } = await following;
    expect(code, errors).toBe(0);
  } finally {
    nodes.startAgain(holder);
    await nodes.ready();
  }
}, 180_000);

test('`npm run stream` prints what waits, what comes, and what is in a file or in a copy of the stream', async () => {
  await nodes.manage((manager) => manager.streams.add({ name: 'copy', mirror: { name: liveStream }, num_replicas: 1 }));
  const ts = Date.now();
  const expected = { name: 'pump', id: pump.id, key: 'count', ts, value: 7 };
  await stores.clickhouse.kill();
  try {
    const following = stream(['follow'], (lines) => lines.includes('"key":"count"'));
    // The reader begins at some moment: the message is repeated until it has come.
    let isFollowed = false;
    void following.finally(() => (isFollowed = true));
    await eventually(async () => {
      await post(pump, { ts, values: { count: 7, state: 'é' } });
      return isFollowed;
    }, 60_000);
    const followed = await following;
    expect(followed.lines.find(({ key }) => key === 'count')).toMatchObject(expected);
    expect(followed.code).toBe(0);
    const shown = await stream(['show', 'millrace.live.*']);
    expect(shown.lines.filter(({ key }) => key === 'count').at(-1)).toMatchObject(expected);
    expect(shown.code, shown.errors).toBe(0);
  } finally {
    await stores.clickhouse.start();
  }
  await eventually(async () => (await storedCount('count')) > 0, 60_000);
  // The copy has what left the stream.
  await eventually(async () => (await waitingFrames(liveStream, 'millrace')) === 0, 60_000);
  const copied = await stream(['show', '--from', 'copy']);
  expect(copied.lines.filter(({ key }) => key === 'state').at(-1)).toMatchObject({
    ts,
    value: 'é',
    device: expect.any(Number),
  });

  const frames: Buffer[] = [];
  const connection = await nodes.connect();
  const { state } = await nodes.manage((manager) => manager.streams.info('copy'));
  const consumer = await jetstream(connection).consumers.get('copy');
  while (frames.length < state.messages) {
    const messages = await consumer.fetch({ max_messages: state.messages - frames.length, expires: 1_000 });
    for await (const { data } of messages) frames.push(Buffer.from(data));
  }
  await connection.close();
  const file = join(directory, 'frames');
  writeFileSync(file, Buffer.concat(frames));
  const decoded = await stream(['decode', file]);
  expect(decoded.code, decoded.errors).toBe(0);
  expect(decoded.lines.filter(({ key }) => key === 'count').at(-1)).toMatchObject(expected);
  const noisy = join(directory, 'noisy');
  writeFileSync(noisy, Buffer.concat([frames[0]!, Buffer.from('noise'), frames[1]!]));
  const damaged = await stream(['decode', noisy]);
  expect(damaged.code).toBe(1);
  expect(damaged.errors).toContain(`5 bytes at byte ${frames[0]!.length} are no intact frame`);
  expect(damaged.lines.length).toBeGreaterThan(1);
  expect((await stream(['show', '--from', 'none'])).errors).toMatch(
    /^millrace: The servers at STREAM_URL have no stream none: "nats stream ls" lists/,
  );
  expect((await stream(['show', '--from', 'millrace-json'])).errors).toMatch(
    /^millrace: The stream millrace-json holds JSON, which needs no decoding: .*nats sub 'millrace\.json\.>'/,
  );
  expect((await stream(['decode', join(directory, 'missing')])).errors).toMatch(
    /^millrace: The file of frames cannot be read: ENOENT.*\n$/,
  );
  expect((await stream([])).errors).toMatch(/^millrace: usage: npm run stream/);
}, 180_000);

test('a program of its own reads frames with the exported library', async () => {
  const file = join(directory, 'frames');
  const program = `
    import { createReadStream } from 'node:fs';
    import { framesIn, pointsOf } from 'millrace/stream-points';
    for await (const frame of framesIn(createReadStream(${JSON.stringify(file)}))) {
      if (frame instanceof Uint8Array) for (const { key, json } of pointsOf(frame)) console.log(key, json);
    }`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', program]);
  let output = '';
  for (const each of [child.stdout, child.stderr]) each.on('data', (chunk) => (output += chunk));
  await once(child, 'close');
  expect(output).toMatch(/^count 7$/m);
});

test('the exported library has types for a program in TypeScript', async () => {
  const reader = join(directory, 'reader');
  mkdirSync(join(reader, 'node_modules'), { recursive: true });
  symlinkSync(process.cwd(), join(reader, 'node_modules', 'millrace'));
  const program = (type: string) => `
    import { pointsOf } from 'millrace/stream-points';
    export const keys: ${type}[] | undefined = pointsOf(new Uint8Array(0))?.map(({ key }) => key);`;
  writeFileSync(join(reader, 'right.ts'), program('string'));
  writeFileSync(join(reader, 'wrong.ts'), program('number'));
  const options = ['--noEmit', '--strict', '--module', 'nodenext', '--target', 'es2023', '--types', ''];
  const output = async (file: string) => {
    const words = [join(process.cwd(), 'node_modules/typescript/bin/tsc'), ...options, file];
    const child = spawn(process.execPath, words, { cwd: reader });
    let text = '';
    for (const each of [child.stdout, child.stderr]) each.on('data', (chunk) => (text += chunk));
    await once(child, 'close');
    return text;
  };
  expect(await output('right.ts')).toBe('');
  expect(await output('wrong.ts')).toMatch(/^wrong\.ts\(3,\d+\): error TS2322/);
});
