/**
 * Live rows while the stream of late rows is full, or its servers choose a leader: nothing of the late lane delays or
 * refuses a live row. And a tenant that fills a stream leaves room to other tenants. Over the wire, with three real
 * nodes.
 */
import { randomBytes } from 'node:crypto';
import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { queryClickhouse } from '../harness/clickhouse-queries.ts';
import type { Engine } from '../harness/engine.ts';
import { fillStream } from '../harness/full-stream.ts';
import { connectMqtt } from '../harness/mqtt-client.ts';
import type { NatsCluster } from '../harness/nats-cluster.ts';
import type { Stores } from '../harness/stores.ts';
import { type StreamEngine, startStreamEngine } from '../harness/stream-engine.ts';
import { makeTenant } from '../harness/tenants.ts';

const mebibyte = 1024 ** 2;
const [live, late] = ['millrace-live', 'millrace-late'];
const daysAgo = () => Date.now() - 7 * 86_400_000;
let started: StreamEngine | undefined;
let engine: Engine;
let stores: Stores;
let nodes: NatsCluster;
let device: Device;

beforeAll(async () => {
  started = await startStreamEngine('lanes', { SHIP_LATE_SECONDS_MAX: '1', SHUTDOWN_DRAIN_MS_MAX: '3000' });
  ({ engine, stores, nodes, device } = started);
});

afterAll(() => started?.stop());

/** An operator may lower a limit while hosts run. */
async function limitTo(stream: string, max_bytes: number): Promise<void> {
  // Servers that choose a leader do not answer.
  await eventually(
    () =>
      nodes
        .manage((manager) => manager.streams.update(stream, { max_bytes }), 5_000)
        .then(
          () => true,
          () => false,
        ),
    60_000,
  );
}

afterEach(async () => {
  for (const stream of [live, late]) await limitTo(stream, 64 * mebibyte);
});

interface Answer {
  status: number;
  ms: number;
  message: string;
}

async function post({ token }: Pick<Device, 'token'>, body: object): Promise<Answer> {
  const begunAt = performance.now();
  const url = `${engine.api.http}/api/v1/${token}/telemetry`;
  const answer = await fetch(url, { method: 'POST', body: JSON.stringify(body), signal: AbortSignal.timeout(30_000) });
  const message = await answer.text();
  return { status: answer.status, ms: performance.now() - begunAt, message };
}

/** A device of a tenant that has sent nothing yet, so that no share of a stream is used up. */
async function ofNewTenant(): Promise<Device> {
  const { api } = engine;
  const system = (await api.login('sysadmin@millrace.local', api.address.adminPassword)).token;
  const { admin } = await makeTenant(api, system);
  const [created] = await api.createDevices([{ name: 'first of its tenant' }], admin.token);
  return created!;
}

/** Servers get deflated frames, so the text is random. */
const filler = () => randomBytes(60_000).toString('base64');

async function storedCount(key: string): Promise<number> {
  const sql = `select count() from telemetry final where key = '${key}'`;
  return Number((await queryClickhouse(stores.clickhouse.address(), sql))[0]![0]);
}

test('a stream of late rows that is full refuses late rows by name, and no live row', async () => {
  await limitTo(late, mebibyte);
  await stores.clickhouse.kill();
  try {
    const client = await connectMqtt({ port: engine.mqttPort, token: device.token });
    await fillStream(nodes, 1, daysAgo());
    const refused = await eventually(async () => {
      const answer = await post(await ofNewTenant(), { ts: daysAgo(), values: { lateFull: filler() } });
      return answer.status === 503 ? answer : undefined;
    }, 30_000);
    expect(refused.message).toMatch(/the stream of late rows holds its limit/);
    await eventually(async () => {
      const { status, reasons } = await engine.status();
      return status === 'degraded' && reasons?.join().includes('late rows are refused');
    }, 10_000);
    // More rounds than a commit tries again after the stream was full.
    for (let n = 0; n < 25; n += 1) {
      const [old, live] = await Promise.all([
        post(device, { ts: daysAgo(), values: { lateFull: filler() } }),
        post(device, { liveBesideFull: n }),
      ]);
      expect([429, 503], old.message).toContain(old.status);
      expect(live, live.message).toMatchObject({ status: 200 });
      const puback = await client.publish('v1/devices/me/telemetry', `{"liveOverMqtt":${n}}`);
      expect(puback.reasonCode ?? 0).toBe(0);
    }
    const puback = await client.publish('v1/devices/me/telemetry', `{"ts":${daysAgo()},"values":{"lateOverMqtt":1}}`);
    expect(puback.reasonCode).toBe(0x97);
    client.cut();
    // A client of MQTT 3 sends its queue in order after each connection, and live rows behind a late one get through:
    // the device has its share of the late stream, and after a frame that was not taken the stream refuses all senders.
    for (const of of [device, await ofNewTenant()]) {
      const old = await connectMqtt({ port: engine.mqttPort, token: of.token, level: 4 });
      const lateRow = { ts: daysAgo(), values: { lateOverMqtt3: randomBytes(20_000).toString('base64') } };
      const queue = [lateRow, { liveOverMqtt3: 1 }, { liveOverMqtt3: 2 }];
      const packets = queue.map((body, i) => {
        return old.publishPacket('v1/devices/me/telemetry', JSON.stringify(body), { qos: 1, messageId: i + 1 });
      });
      await old.write(...packets);
      for (const messageId of [2, 3]) expect(await old.expect('puback')).toMatchObject({ messageId });
      await old.closed();
    }
  } finally {
    await stores.clickhouse.start();
  }
  await eventually(
    async () => (await post(device, { ts: daysAgo(), values: { lateAgain: 1 } })).status === 200,
    60_000,
  );
  await eventually(async () => (await storedCount('liveOverMqtt')) === 25, 60_000);
  await eventually(
    async () => (await engine.status()).reasons?.join().includes('late rows are refused') !== true,
    20_000,
  );
}, 180_000);

test('live rows are acknowledged while the stream of late rows has no leader', async () => {
  // The leader of late rows leads no live rows, and the worker is connected to another node.
  await eventually(async () => {
    const [ofLive, ofLate] = await Promise.all([nodes.leaderOf(live), nodes.leaderOf(late)]);
    const hasWorker = (await nodes.clientsOf(ofLate)).some((name) => name.includes('worker-'));
    if (ofLive !== ofLate && !hasWorker) return true;
    const connection = await nodes.connect();
    await connection.request(`$JS.API.STREAM.LEADER.STEPDOWN.${late}`, '', { timeout: 5_000 }).catch(() => {});
    await connection.close();
    return false;
  }, 60_000);
  const leader = await nodes.leaderOf(late);
  nodes.signal(leader, 'SIGSTOP');
  const times: number[] = [];
  let lateAnswer: Answer | undefined;
  try {
    const waiting = post(device, { ts: daysAgo(), values: { lateLeader: 1 } }).then((answer) => (lateAnswer = answer));
    for (let n = 0; lateAnswer === undefined && n < 400; n += 1) {
      const answer = await post(device, { besideElection: n });
      expect(answer, answer.message).toMatchObject({ status: 200 });
      times.push(answer.ms);
    }
    await waiting;
  } finally {
    nodes.signal(leader, 'SIGCONT');
  }
  // While the late row waited for seconds, live ones did not.
  expect(lateAnswer!.ms).toBeGreaterThan(1_000);
  expect(times.filter((ms) => ms < 500).length).toBeGreaterThan(20);
}, 120_000);

test('a large message of both lanes that waits for the stream of late rows refuses no live row', async () => {
  // Whatever servers answer, a frame is published again until STREAM_ACK_MS_MAX.
  const takeMessagesOf = (max_msg_size: number) =>
    nodes.manage((manager) => manager.streams.update(late, { max_msg_size }));
  await takeMessagesOf(100);
  const answers: Answer[] = [];
  let waited: Answer | undefined;
  try {
    // Each record becomes a frame of its lane.
    const text = randomBytes(450_000).toString('base64');
    const records = [Date.now(), daysAgo()].map((ts) => ({ ts, values: { bothLanes: text } }));
    const waiting = post(device, records).then((answer) => (waited = answer));
    while (waited === undefined) answers.push(await post(device, { besideLarge: answers.length }));
    await waiting;
  } finally {
    await takeMessagesOf(-1);
  }
  expect(waited).toMatchObject({ status: 503, message: expect.stringMatching(/Only rows of other days/) });
  expect(waited!.ms).toBeGreaterThan(9_000);
  expect(answers.filter(({ status }) => status !== 200)).toEqual([]);
  await eventually(async () => (await post(device, { ts: daysAgo(), values: { late: 1 } })).status === 200, 60_000);
}, 120_000);

test('a tenant that fills the stream leaves room to another tenant, and the refusal names the stream', async () => {
  const { api } = engine;
  const system = (await api.login('sysadmin@millrace.local', api.address.adminPassword)).token;
  const { admin } = await makeTenant(api, system);
  const [other] = await api.createDevices([{ name: 'beside' }], admin.token);
  await limitTo(live, 4 * mebibyte);
  // The host has read the lowered limit, and nothing waits.
  await eventually(async () => {
    const [bytes, bytesMax] = await Promise.all(
      ['stream_bytes', 'stream_bytes_max'].map((name) => engine.metric(`${name}{lane="live"}`)),
    );
    return bytes === 0 && bytesMax === 4 * mebibyte;
  }, 30_000);
  await stores.clickhouse.kill();
  try {
    let refused: Answer | undefined;
    for (let n = 0; n < 100 && refused === undefined; n += 1) {
      const answer = await post(device, { fillsStream: filler() });
      if (answer.status === 429) refused = answer;
      else expect(answer, answer.message).toMatchObject({ status: 200 });
    }
    expect(refused?.message).toMatch(/this (device|tenant) has its share of the stream of live rows/);
    for (let n = 0; n < 5; n += 1) {
      const answer = await post(other!, { besideFill: n });
      expect(answer, answer.message).toMatchObject({ status: 200 });
    }
  } finally {
    await stores.clickhouse.start();
  }
  await eventually(async () => (await post(device, { afterFill: 1 })).status === 200, 60_000);
}, 180_000);
