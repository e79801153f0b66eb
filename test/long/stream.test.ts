/**
 * `INGEST_ACK=stream` over the wire, with two hosts, stores of their own and three real nodes of NATS: faults of the
 * nodes, of the streams and of frames, deletes, and a change of the level. `lost-hosts.test.ts` loses hosts.
 */
import { spawn } from 'node:child_process';
import { randomBytes, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { rmSync } from 'node:fs';
import { jetstream } from '@nats-io/jetstream';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openPostgres } from '../../src/postgres/client.ts';
import { readStreamPosition } from '../../src/stream/position-store.ts';
import { plainStreamFrame } from '../../src/stream/stream-frame.ts';
import { keyOf } from '../../src/telemetry/keys.ts';
import { Rows } from '../../src/telemetry/rows.ts';
import { expectStoredOnce, postValues } from '../harness/acknowledged.ts';
import { firing, scrape } from '../harness/alerts.ts';
import { type Device, eventually } from '../harness/api.ts';
import { queryClickhouse } from '../harness/clickhouse-queries.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { fillStream } from '../harness/full-stream.ts';
import { Link } from '../harness/link.ts';
import { connectMqtt } from '../harness/mqtt-client.ts';
import { NatsCluster } from '../harness/nats-cluster.ts';
import { silentLog } from '../harness/silent-log.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';
import { streamSettings } from '../harness/stream-engine.ts';

const redeliverSeconds = 4;
/** This host runs during all tests; the other host is the one that is lost. */
let stays: Engine;
let lost: Engine;
let stores: Stores;
let nodes: NatsCluster;
let device: Device;
let env: Record<string, string>;

beforeAll(async () => {
  stores = await startStores();
  nodes = await NatsCluster.start();
  env = {
    ...hostSettings(stores),
    ...streamSettings(nodes),
    STREAM_MONITOR_URLS: nodes.monitorUrls,
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

async function latestOf(key: string): Promise<number> {
  const sql = `select count() from latest final where key = '${key}'`;
  return Number((await queryClickhouse(stores.clickhouse.address(), sql))[0]![0]);
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
  const running = postValues(stays.api, device.token, key);
  await eventually(() => running.values.length > 20);
  const killed = await nodes.leaderOf(live);
  await nodes.kill(killed);
  const beforeKill = running.values.length;
  await eventually(() => running.values.length > beforeKill + 50, 30_000);
  const missing = `unavailable servers of the stream millrace-live: n${killed}; it accepts frames until 1 more`;
  await eventually(async () => (await stays.status()).reasons?.join().includes(missing), 20_000);
  expect(await stays.metric('stream_servers_missing{lane="live"}')).toBe(1);
  expect(await diagnosis({})).toContain(missing);
  nodes.startAgain(killed);
  await nodes.ready();
  await eventually(async () => (await stays.status()).status === 'ready', 20_000);
  await eventually(async () => (await nodes.leaderOf(live)) >= 0, 30_000);
  const frozen = await nodes.leaderOf(live);
  nodes.signal(frozen, 'SIGSTOP');
  try {
    const beforeFreeze = running.values.length;
    await eventually(() => running.values.length > beforeFreeze + 50, 40_000);
  } finally {
    nodes.signal(frozen, 'SIGCONT');
  }
  await running.stop();
  await expectStoredOnce(stores.clickhouse.address(), running);
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

test('nodes that are all killed at one moment lose no frame that was acknowledged', async () => {
  await withoutClickHouse(async () => {
    for (let value = 1; value <= 20; value += 1) await accepted(stays, { killed: value });
    // No host holds the frames while the nodes are unavailable.
    await Promise.all([stays.killAll(), lost.killAll()]);
    await Promise.all([0, 1, 2].map((node) => nodes.kill(node)));
    for (const node of [0, 1, 2]) nodes.startAgain(node);
    await nodes.ready();
    await Promise.all([stays.start({}, 'workers'), lost.start({}, 'workers')]);
  });
  await expectStored(
    'killed',
    Array.from({ length: 20 }, (_, i) => i + 1),
    90_000,
  );
  expect(stays.events('stream_lost')).toEqual([]);
}, 240_000);

/** The pages of metrics of both hosts: any of them may notice a fault of the stream. */
function scrapeBoth(): Promise<string[]> {
  return Promise.all([stays, lost].map(({ api }) => scrape(api)));
}

async function fires(alert: string, before: readonly string[]): Promise<void> {
  await eventually(async () => (await scrapeBoth()).some((page, i) => firing(page, before[i]).includes(alert)), 30_000);
}

test('a damaged message of the stream goes to quarantine, and what comes after it is stored', async () => {
  const before = await scrapeBoth();
  const connection = await nodes.connect();
  connection.publish('millrace.live.0', Buffer.from('no frame at all'));
  await connection.flush();
  await connection.close();
  await accepted(stays, { damaged: 1 });
  await expectStored('damaged', [1]);
  const damaged = () => [...stays.events('stream_frame_damaged'), ...lost.events('stream_frame_damaged')];
  await eventually(() => damaged().length === 1, 30_000);
  await fires('MillraceStreamDamaged', before);
  await eventually(async () => {
    const states = await Promise.all([stays.status(), lost.status()]);
    return states.some(({ reasons }) => reasons?.join().includes('rows in quarantine: 1 entry of worker-'));
  });
}, 90_000);

/** The bytes of all messages that the live stream holds, in its order. */
async function liveMessages(): Promise<Buffer[]> {
  const connection = await nodes.connect();
  try {
    const { state } = await nodes.manage((manager) => manager.streams.info(live));
    // A consumer has no leader for a moment while servers come back.
    return await eventually(async () => {
      const consumer = await jetstream(connection).consumers.get(live);
      const found: Buffer[] = [];
      const wanted = { max_messages: state.messages, expires: 1_000 };
      for await (const { data } of await consumer.fetch(wanted)) found.push(Buffer.from(data));
      return found.length === state.messages ? found : undefined;
    }, 30_000);
  } finally {
    await connection.close();
  }
}

async function publishTwice(messages: readonly Buffer[]): Promise<void> {
  const connection = await nodes.connect();
  try {
    const client = jetstream(connection);
    for (const message of [...messages, ...messages]) await client.publish('millrace.live.0', message);
  } finally {
    await connection.close();
  }
}

test('frames that come again, and in another order, change nothing', async () => {
  const ts = Date.now();
  let frames: Buffer[] = [];
  await withoutClickHouse(async () => {
    for (let value = 1; value <= 3; value += 1) await accepted(stays, { ts, values: { replaced: value } });
    for (let value = 1; value <= 3; value += 1) await accepted(stays, { repeated: value });
    frames = await liveMessages();
    expect(frames.length).toBeGreaterThanOrEqual(6);
    await publishTwice(frames.toReversed());
  });
  const expectOnce = async () => {
    await expectStored('replaced', [3]);
    await expectStored('repeated', [1, 2, 3]);
  };
  await expectOnce();
  await publishTwice(frames.toReversed());
  await accepted(stays, { repetition: 1 });
  await expectStored('repetition', [1]);
  await eventually(async () => (await stays.metric('stream_frames{lane="live"}')) === 0, 30_000);
  await expectOnce();
  expect(await stays.api.readLatest(device.id, ['replaced'])).toMatchObject({ replaced: [{ ts, value: 3 }] });
}, 120_000);

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

/** Starts a host that reaches the servers of the stream and ClickHouse over links. */
async function startLinked(): Promise<{ host: Engine; toNodes: Link[]; toClickHouse: Link }> {
  const portOf = (url: string) => Number(new URL(url).port);
  const toNodes = await Promise.all(nodes.url.split(',').map((url) => Link.to(portOf(url))));
  const toClickHouse = await Link.to(portOf(stores.clickhouse.url));
  const linked = {
    STREAM_URL: toNodes.map(({ port }) => `nats://127.0.0.1:${port}`).join(','),
    CLICKHOUSE_URL: `http://127.0.0.1:${toClickHouse.port}`,
  };
  return { host: await startEngine({ workers: 1, env: { ...env, ...linked } }), toNodes, toClickHouse };
}

test('a delete holds for frames that a host, cut off from the stream and ClickHouse, stores again later', async () => {
  const { host, toNodes, toClickHouse } = await startLinked();
  const links = [...toNodes, toClickHouse];
  try {
    await stores.clickhouse.kill();
    const ts = Date.now() - 60_000;
    for (let value = 0; value < 60; value += 1) await accepted(stays, { ts: ts + value, values: { again: value } });
    await eventually(async () => ((await host.metric('wal_lane_bytes{lane="live"}')) ?? 0) > 0, 30_000);
    for (const link of links) link.cut();
    await stores.clickhouse.start();
    // The other hosts get the frames after the time of a redelivery, and confirm them.
    await eventually(async () => (await stays.metric('stream_frames{lane="live"}')) === 0, 60_000);
    await expectStored(
      'again',
      Array.from({ length: 60 }, (_, value) => value),
    );
    expect(await host.metric('wal_lane_bytes{lane="live"}')).toBeGreaterThan(0);
    const path = `/api/plugins/telemetry/DEVICE/${device.id}/timeseries/delete?keys=again&deleteAllDataForKeys=true`;
    const deleted = await stays.api.send('DELETE', path);
    // The host may store the frames that it has taken at any moment, so the delete waits for it.
    expect(deleted.status).toBe(202);
    toClickHouse.join();
    await eventually(async () => (await host.metric('wal_lane_bytes{lane="live"}')) === 0, 60_000);
    await expectStored('again', [], 90_000);
    // A marker hides a point that is stored again. Nothing hides a latest value.
    await eventually(async () => (await latestOf('again')) === 0, 90_000);
  } finally {
    for (const link of links) link.join();
    await host.destroyAtOnce();
    for (const link of links) link.close();
  }
}, 300_000);

test('a frame with right checksums around bytes that are no block goes to quarantine, and stops nothing', async () => {
  const before = await scrapeBoth();
  const rows = new Rows();
  rows.addLong(keyOf('claim')!, 1);
  rows.endRecord(1, Date.now());
  const block = Buffer.concat(rows.encode({ order: 1n, micros: 0, firstPlace: 0 }));
  // The number of rows is after that of the columns.
  const claim = [block.subarray(0, 1), Buffer.from([0xff, 0xff, 0xff, 0xff, 0x0f]), block.subarray(2)];
  // ClickHouse answers this with an error whose text ends early.
  const name = Buffer.concat([block.subarray(0, 20), Buffer.from([0]), block.subarray(20)]);
  const found = [[randomBytes(300)], claim, [name], [Buffer.alloc(0)]];
  const connection = await nodes.connect();
  for (const parts of found)
    await jetstream(connection).publish('millrace.live.0', plainStreamFrame({ lane: 0, order: 1n, rows: 3, parts }, 1));
  await connection.close();
  await accepted(stays, { noise: 1 });
  await expectStored('noise', [1]);
  await eventually(async () => (await stays.metric('stream_frames{lane="live"}')) === 0, 30_000);
  await eventually(async () => {
    const counts = await Promise.all([stays, lost].map((host) => host.metric('ingest_no_blocks_total')));
    return counts.reduce<number>((sum, count) => sum + (count ?? 0), 0) === found.length;
  }, 30_000);
  await fires('MillraceNoBlocks', before);
  for (const host of [stays, lost]) {
    expect(await host.metric('ingest_suspect_rows')).toBe(0);
    expect(host.events('child_died')).toEqual([]);
  }
}, 120_000);

test('a stream that was removed is reported as a loss, made again, and accepts frames', async () => {
  const before = await scrapeBoth();
  await withoutClickHouse(async () => {
    await accepted(stays, { removed: 1 });
    await nodes.manage((manager) => manager.streams.delete(live));
  });
  await accepted(stays, { removed: 2 });
  const losses = () => [...stays.events('stream_lost'), ...lost.events('stream_lost')];
  const [loss] = await eventually(() => (losses().length > 0 ? losses() : undefined), 30_000);
  expect(loss).toMatchObject({ stream: live, kind: 'removed' });
  await fires('MillraceStreamLost', before);
  await eventually(async () => (await storedValues('removed')).includes(2), 30_000);
}, 120_000);

test('a consumer that somebody removed is made again, and every frame is stored', async () => {
  await withoutClickHouse(async () => {
    for (let value = 1; value <= 3; value += 1) await accepted(stays, { consumer: value });
    await nodes.manage((manager) => manager.consumers.delete(live, 'millrace'));
    await accepted(stays, { consumer: 4 });
  });
  await accepted(stays, { consumer: 5 });
  await expectStored('consumer', [1, 2, 3, 4, 5], 60_000);
  await eventually(async () => (await stays.metric('stream_frames{lane="live"}')) === 0, 60_000);
}, 120_000);

test('a stream that somebody removed and made again is reported as a loss, and accepts frames', async () => {
  const losses = () => [...stays.events('stream_lost'), ...lost.events('stream_lost')];
  const before = losses().length;
  await withoutClickHouse(async () => {
    await accepted(stays, { remade: 1 });
    await nodes.manage(async (manager) => {
      const { config } = await manager.streams.info(live);
      await manager.streams.delete(live);
      await manager.streams.add(config);
    });
  });
  await accepted(stays, { remade: 2 });
  await eventually(() => losses().length > before, 30_000);
  expect(losses().at(-1)).toMatchObject({ stream: live, kind: 'removed' });
  await eventually(async () => (await storedValues('remade')).includes(2), 30_000);
}, 120_000);

/** The newest message of the live stream that the hosts have noted in PostgreSQL. */
async function lastSeen(): Promise<number | undefined> {
  const postgres = openPostgres({ url: stores.postgres.url, poolMax: 1, log: silentLog });
  try {
    return (await readStreamPosition(postgres, live))?.last;
  } finally {
    await postgres.close();
  }
}

test('what all nodes lose because they had not synced it is reported as cut, and later frames are stored', async () => {
  const cuts = () =>
    [...stays.events('stream_lost'), ...lost.events('stream_lost')].filter(({ kind }) => kind === 'cut');
  expect(cuts()).toEqual([]);
  await accepted(stays, { cut: 1 });
  await expectStored('cut', [1]);
  await withoutClickHouse(async () => {
    const giveBack = await nodes.keepData();
    for (let value = 2; value <= 4; value += 1) await accepted(stays, { cut: value });
    const { state } = await nodes.manage((manager) => manager.streams.info(live));
    await eventually(async () => (await lastSeen()) === state.last_seq, 30_000);
    // No host holds the frames, whose only place is the stream now, and none publishes until the loss is noticed.
    await Promise.all([stays.stop(), lost.stop()]);
    await giveBack();
    await Promise.all([stays.start({}, 'workers'), lost.start({}, 'workers')]);
    await eventually(() => cuts().length > 0, 60_000);
    expect(cuts()).toMatchObject([{ stream: live, kind: 'cut', to: state.last_seq }]);
  });
  await accepted(stays, { cut: 5 });
  await expectStored('cut', [1, 5]);
}, 240_000);

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
    await stays.start({ INGEST_ACK: 'journal' }, 'workers');
    await accepted(stays, { level: 2 });
    await stays.stop();
    await stays.start({}, 'workers');
    await accepted(stays, { level: 3 });
  });
  await expectStored('level', [1, 2, 3]);
  await lost.start();
}, 180_000);

/** What `npm run doctor` says of the stream. */
async function diagnosis(changes: Record<string, string>): Promise<string | undefined> {
  const environment = { ...stays.environment, ...changes };
  const child = spawn(process.execPath, ['dist/doctor.js'], { env: environment, stdio: ['ignore', 'pipe', 'inherit'] });
  let output = '';
  child.stdout.on('data', (chunk) => (output += chunk));
  await once(child, 'close');
  return /^\w+ +stream .*$/m.exec(output)?.[0];
}

test('`npm run doctor` checks the servers of the stream', async () => {
  expect(await diagnosis({})).toMatch(/^ok .*NATS \(STREAM_URL\) is 2\.\d+\.\d+ and syncs each message\.$/);
  const [first = ''] = nodes.url.split(',');
  expect(await diagnosis({ STREAM_URL: first })).toMatch(/^warning .*STREAM_URL names one server: name all of them/);
  expect(await diagnosis({ STREAM_MONITOR_URLS: '' })).toMatch(/^warning .*name the monitoring pages of the servers/);
  expect(await diagnosis({ STREAM_BYTES_MAX: '65MiB' })).toMatch(
    /^fault .*STREAM_BYTES_MAX is 68157440, but .*: run "nats/,
  );
  expect(await diagnosis({ STREAM_URL: 'nats://127.0.0.1:1' })).toMatch(/^fault .*cannot be used: .*REFUSED/i);
}, 120_000);

test('a stream that is full is 503, and accepts again when ClickHouse has taken some of it', async () => {
  let full: string | undefined;
  await withoutClickHouse(async () => {
    await fillStream(nodes, 0, Date.now());
    const answer = await eventually(async () => {
      const asked = await ask(stays, { filler: 'x'.repeat(1_000) });
      return asked.status === 503 ? asked : undefined;
    }, 30_000);
    full = await answer.text();
  });
  expect(full).toMatch(/the stream of live rows holds its limit \(STREAM_BYTES_MAX\)/);
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
  // A crash before the stream is back: the disk has what was acknowledged, and the next start needs no stream.
  await withoutClickHouse(async () => {
    await accepted(stays, { fallback: 2 });
    await stays.killAll();
    await stays.start({ STREAM_FALLBACK: 'journal' }, 'workers');
    await accepted(stays, { fallback: 3 });
  });
  await expectStored('fallback', [1, 2, 3]);
  nodes.startAgain(1);
  nodes.startAgain(2);
  await eventually(async () => !(await isLocal()), 60_000);
  await accepted(stays, { fallback: 4 });
  await expectStored('fallback', [1, 2, 3, 4]);
}, 180_000);
