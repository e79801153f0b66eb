/**
 * `INGEST_ACK=stream` over the wire, with two hosts, stores of their own and three real nodes of NATS: every
 * acknowledged message is stored once, even when a host loses all of its data or one node is lost, and without a
 * majority of nodes nothing is acknowledged.
 */
import { randomBytes, randomUUID } from 'node:crypto';
import { rmSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, queryClickhouse, startEngine } from '../harness/engine.ts';
import { connectMqtt, type MqttClient } from '../harness/mqtt-client.ts';
import { NatsCluster } from '../harness/nats-cluster.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';

const losses = Number(process.env['STREAM_LOSSES'] ?? 3);
const redeliverSeconds = 4;
/** This host runs during all tests; the other host is the one that is lost. */
let stays: Engine;
let lost: Engine;
let stores: Stores;
let nodes: NatsCluster;
let device: Device;
let env: Record<string, string>;

beforeAll(async () => {
  [stores, nodes] = await Promise.all([startStores(), NatsCluster.start()]);
  env = {
    ...hostSettings(stores),
    INGEST_ACK: 'stream',
    STREAM_URL: nodes.url,
    STREAM_MONITOR_URLS: nodes.monitorUrls,
    STREAM_BYTES_MAX: '64MiB',
    STREAM_REDELIVER_SECONDS: String(redeliverSeconds),
    SHIP_LATE_SECONDS_MAX: '1',
    SHUTDOWN_DRAIN_MS_MAX: '3000',
  };
  stays = await startEngine({ workers: 1, env });
  lost = await startEngine({ workers: 1, env });
  device = await stays.api.createDevice(`stream-${randomUUID()}`, randomUUID().replaceAll('-', ''));
});

afterAll(async () => {
  await Promise.all([stays?.destroyAtOnce(), lost?.destroyAtOnce()]);
  await Promise.all([nodes?.stop(), stores?.stopAll()]);
});

interface Ledger {
  key: string;
  /** Values whose message was acknowledged. */
  values: number[];
}

/** Posts values until `stop` is called; remembers those that got 200. Half of them are of last week. */
function post(engine: Engine, key: string): { ledger: Ledger; stop(): Promise<void> } {
  const ledger: Ledger = { key, values: [] };
  let going = true;
  let value = 0;
  const one = async (): Promise<void> => {
    while (going) {
      const mine = (value += 1);
      const ts = (mine % 2 === 0 ? Date.now() : Date.now() - 7 * 86_400_000) - (mine % 1000);
      const body = JSON.stringify({
        ts: Math.floor(ts / 100_000) * 100_000 + (mine % 100_000),
        values: { [key]: mine },
      });
      const status = await engine.api.postTelemetry(device.token, body).catch(() => 0);
      if (status === 200) ledger.values.push(mine);
      else await sleep(5);
    }
  };
  const all = Promise.all(Array.from({ length: 4 }, one));
  return {
    ledger,
    stop: async () => {
      going = false;
      await all;
    },
  };
}

/** The same over MQTT with QoS 1. */
function publish(client: MqttClient, key: string): { ledger: Ledger; stop(): Promise<void> } {
  const ledger: Ledger = { key, values: [] };
  let going = true;
  const run = async (): Promise<void> => {
    for (let value = 1; going; value += 1) {
      try {
        const ack = await client.publish('v1/devices/me/telemetry', JSON.stringify({ [key]: value }));
        if (ack.reasonCode === 0) ledger.values.push(value);
      } catch {
        return;
      }
    }
  };
  const all = run();
  return {
    ledger,
    stop: async () => {
      going = false;
      await all;
    },
  };
}

/** Checks that every value of the ledger is stored, and none twice. */
async function expectStoredOnce({ key, values }: Ledger): Promise<void> {
  const rows = () =>
    queryClickhouse(
      stores.clickhouse.address(),
      `select int from telemetry final where key = '${key}' and kind != 0 order by int settings do_not_merge_across_partitions_select_final = 1`,
    );
  expect(values.length).toBeGreaterThan(0);
  await eventually(async () => {
    const stored = new Set((await rows()).map(([value]) => Number(value)));
    return values.every((value) => stored.has(value));
  }, 60_000);
  const stored = (await rows()).map(([value]) => Number(value));
  expect(stored.length).toBe(new Set(stored).size);
}

/** Resolves when the nodes have delivered every frame and every frame was confirmed. */
async function streamsAreEmpty(): Promise<void> {
  await eventually(
    () =>
      nodes.manage(async (manager) => {
        const infos = await Promise.all(
          ['live', 'late'].map((lane) => manager.consumers.info(`millrace-${lane}`, 'millrace')),
        );
        return infos.every(({ num_pending, num_ack_pending }) => num_pending + num_ack_pending === 0);
      }),
    60_000,
  );
}

test(`a host that is lost with its disk ${losses} times loses nothing that was acknowledged`, async () => {
  for (let round = 1; round <= losses; round += 1) {
    const isAway = round % 2 === 0;
    if (isAway) await stores.clickhouse.kill();
    const client = await connectMqtt({ port: lost.mqttPort, token: device.token });
    const http = post(lost, `http${round}`);
    const mqtt = publish(client, `mqtt${round}`);
    await eventually(() => http.ledger.values.length > 100 && mqtt.ledger.values.length > 20, 30_000);
    await lost.killAll();
    client.cut();
    await Promise.all([http.stop(), mqtt.stop()]);
    rmSync(lost.dataDir, { recursive: true, force: true });
    if (isAway) await stores.clickhouse.start();
    await expectStoredOnce(http.ledger);
    await expectStoredOnce(mqtt.ledger);
    await streamsAreEmpty();
    // Starts a new machine in place of the old one.
    lost = await startEngine({ workers: 1, env });
  }
  expect(stays.events('stream_lost')).toEqual([]);
}, 600_000);

const live = 'millrace-live';

function ask(engine: Engine, body: object): Promise<Response> {
  const path = `${engine.api.http}/api/v1/${device.token}/telemetry`;
  return fetch(path, { method: 'POST', body: JSON.stringify(body), signal: AbortSignal.timeout(30_000) });
}

/** Returns the values of a key, from ClickHouse. */
async function storedValues(key: string): Promise<number[]> {
  const sql = `select int from telemetry final where key = '${key}' and kind != 0 order by int`;
  return (await queryClickhouse(stores.clickhouse.address(), sql)).map(([value]) => Number(value));
}

async function expectStored(key: string, values: number[], msMax = 30_000): Promise<void> {
  await eventually(async () => (await storedValues(key)).join() === values.join(), msMax);
}

async function withoutClickHouse(use: () => Promise<void>): Promise<void> {
  await stores.clickhouse.kill();
  try {
    await use();
  } finally {
    await stores.clickhouse.start();
  }
}

/** Posts until it is accepted. */
async function accepted(engine: Engine, body: object, msMax = 40_000): Promise<void> {
  await eventually(async () => (await ask(engine, body)).status === 200, msMax);
}

test('a node that is killed, and one that is frozen, end nothing', async () => {
  const key = 'nodes';
  const running = post(stays, key);
  await eventually(() => running.ledger.values.length > 20);
  const killed = await nodes.leaderOf(live);
  await nodes.kill(killed);
  const beforeKill = running.ledger.values.length;
  await eventually(() => running.ledger.values.length > beforeKill + 50, 30_000);
  nodes.startAgain(killed);
  await nodes.ready();
  await eventually(async () => (await nodes.leaderOf(live)) >= 0, 30_000);
  const frozen = await nodes.leaderOf(live);
  nodes.signal(frozen, 'SIGSTOP');
  try {
    const beforeFreeze = running.ledger.values.length;
    await eventually(() => running.ledger.values.length > beforeFreeze + 50, 40_000);
  } finally {
    nodes.signal(frozen, 'SIGCONT');
  }
  await running.stop();
  await expectStoredOnce(running.ledger);
  expect(stays.events('stream_lost')).toEqual([]);
}, 180_000);

test('without a majority nothing is acknowledged, with the reason, and it ends by itself', async () => {
  const client = await connectMqtt({ port: stays.mqttPort, token: device.token });
  await accepted(stays, { majority: 1 });
  await nodes.kill(0);
  await nodes.kill(1);
  const refused = await eventually(async () => {
    const answer = await ask(stays, { majority: 2 });
    const body = await answer.text();
    return body.includes('does not accept frames') ? body : undefined;
  }, 40_000);
  expect(refused).toMatch(/The replicated stream does not accept frames \(.+\); send again/);
  await eventually(async () => (await stays.status()).status === 'refusing', 20_000);
  expect((await stays.status()).reasons?.join()).toMatch(/replicated stream/);
  const puback = await client.publish('v1/devices/me/telemetry', '{"majority":3}');
  expect(puback.reasonCode).toBe(0x97);
  client.cut();
  nodes.startAgain(0);
  nodes.startAgain(1);
  await accepted(stays, { majority: 4 }, 60_000);
  await eventually(async () => (await storedValues('majority')).includes(4), 30_000);
  expect(await storedValues('majority')).toContain(1);
  await eventually(async () => (await stays.status()).status === 'ready', 30_000);
  await eventually(() => stays.events('stream_back').length > 0);
  expect(stays.events('stream_away').length).toBeGreaterThan(0);
  expect(stays.events('stream_back').at(-1)).toMatchObject({ level: 'info', awayMs: expect.any(Number) });
}, 180_000);

test('a damaged message of the stream goes to quarantine, and what comes after it is stored', async () => {
  const connection = await nodes.connect();
  connection.publish('millrace.live.0', Buffer.from('no frame at all'));
  await connection.flush();
  await connection.close();
  await accepted(stays, { damaged: 1 });
  await expectStored('damaged', [1]);
  const damaged = () => [...stays.events('stream_frame_damaged'), ...lost.events('stream_frame_damaged')];
  await eventually(() => damaged().length === 1, 30_000);
  await eventually(async () => {
    const states = await Promise.all([stays.status(), lost.status()]);
    return states.some(({ reasons }) => reasons?.join().includes('rows in quarantine: 1 entry of worker-'));
  });
}, 90_000);

test('deletes wait for older frames in the stream, also for those of a host that is gone', async () => {
  await withoutClickHouse(async () => {
    const ts = Date.now() - 60_000;
    expect((await ask(lost, { ts, values: { deleted: 1, kept: 1 } })).status).toBe(200);
    await lost.killAll();
    rmSync(lost.dataDir, { recursive: true, force: true });
    const path = `/api/plugins/telemetry/DEVICE/${device.id}/timeseries/delete?keys=deleted&deleteAllDataForKeys=true`;
    expect((await stays.api.send('DELETE', path)).status).toBe(202);
  });
  await expectStored('kept', [1]);
  // The last report of the lost host delays the delete for half a minute.
  await expectStored('deleted', [], 90_000);
  // A message that is accepted after the delete stays stored.
  await accepted(stays, { deleted: 2 });
  await expectStored('deleted', [2]);
  lost = await startEngine({ workers: 1, env });
}, 240_000);

test('a stream that was removed is reported as a loss, made again, and accepts frames', async () => {
  await withoutClickHouse(async () => {
    await accepted(stays, { removed: 1 });
    await nodes.manage((manager) => manager.streams.delete(live));
  });
  await accepted(stays, { removed: 2 });
  const losses = () => [...stays.events('stream_lost'), ...lost.events('stream_lost')];
  const [loss] = await eventually(() => (losses().length > 0 ? losses() : undefined), 30_000);
  expect(loss).toMatchObject({ stream: live, kind: 'removed' });
  await eventually(async () => (await storedValues('removed')).includes(2), 30_000);
}, 120_000);

test('a delete does not wait for frames that went with a removed stream, also when no other frame comes', async () => {
  await withoutClickHouse(async () => {
    await accepted(stays, { gone: 1 });
    await nodes.manage((manager) => manager.streams.delete(live));
  });
  const path = `/api/plugins/telemetry/DEVICE/${device.id}/timeseries/delete?keys=gone&deleteAllDataForKeys=true`;
  await eventually(async () => (await stays.api.send('DELETE', path)).status === 200, 60_000);
}, 120_000);

test('frames that were purged by hand are reported as a gap', async () => {
  const gaps = () =>
    [...stays.events('stream_lost'), ...lost.events('stream_lost')].filter(({ kind }) => kind === 'gap');
  expect(gaps()).toEqual([]);
  await withoutClickHouse(async () => {
    for (let value = 1; value <= 3; value += 1) await accepted(stays, { purged: value });
    await nodes.manage((manager) => manager.streams.purge(live));
    await eventually(() => gaps().length > 0, 30_000);
  });
  expect(gaps()).toMatchObject([{ stream: live, kind: 'gap' }]);
  await accepted(stays, { purged: 4 });
  await eventually(async () => (await storedValues('purged')).includes(4), 30_000);
}, 120_000);

test('the level of an installation can be changed without losing a frame', async () => {
  // Lost hosts count as live for a while, and so does their level of acknowledgement.
  await eventually(async () => (await stays.metric('hosts{state="live"}')) === 2, 60_000);
  await withoutClickHouse(async () => {
    await accepted(stays, { level: 1 });
    await Promise.all([stays.stop(), lost.stop()]);
    await stays.start({ INGEST_ACK: 'journal' }, false);
    await accepted(stays, { level: 2 });
    await stays.stop();
    await stays.start({}, false);
    await accepted(stays, { level: 3 });
  });
  await expectStored('level', [1, 2, 3]);
  await lost.start();
}, 180_000);

test('a stream that is full is 503, and accepts again when ClickHouse has taken some of it', async () => {
  let full: string | undefined;
  await withoutClickHouse(async () => {
    // Servers get deflated frames, so the text is random.
    const text = randomBytes(150_000).toString('base64');
    for (let i = 0; i < 1_000 && full === undefined; i += 1) {
      const answer = await ask(stays, { filler: text });
      const body = await answer.text();
      if (answer.status === 503) full = body;
    }
  });
  expect(full).toMatch(/the stream holds its limit of 64 MiB \(STREAM_BYTES_MAX\)/);
  await accepted(stays, { full: 1 }, 60_000);
  await expectStored('full', [1]);
}, 180_000);

test('STREAM_FALLBACK=journal acknowledges without a majority, and says so', async () => {
  await lost.stop();
  await stays.stop();
  await stays.start({ STREAM_FALLBACK: 'journal' });
  await nodes.kill(1);
  await nodes.kill(2);
  await accepted(stays, { fallback: 1 });
  const isLocal = async () => {
    const { reasons = [] } = await stays.status();
    return reasons.join().includes('on the disk of this host only (STREAM_FALLBACK=journal)');
  };
  await eventually(isLocal, 20_000);
  await expectStored('fallback', [1]);
  nodes.startAgain(1);
  nodes.startAgain(2);
  await eventually(async () => !(await isLocal()), 60_000);
  await accepted(stays, { fallback: 2 });
  await expectStored('fallback', [1, 2]);
}, 180_000);
