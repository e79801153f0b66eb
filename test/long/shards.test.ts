/**
 * An engine whose telemetry is spread over two ClickHouse servers. The servers are processes of the embedded engine
 * behind ClickHouse's HTTP interface, so the SQL and the faults of connections are real; a server of ClickHouse itself
 * is not tested here.
 */
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { askClickhouse, type ClickhouseAddress, queryClickhouse } from '../harness/clickhouse-queries.ts';
import { type Engine, engineMain, prepareEngine, startEngine } from '../harness/engine.ts';
import { Link } from '../harness/link.ts';
import { withMqtt } from '../harness/mqtt-client.ts';
import { proveSuspects } from '../harness/receipts.ts';
import { ask, preview, value } from '../harness/reports.ts';
import { hostSettings, type Stores, startShard, startStores } from '../harness/stores.ts';

const shardCount = 2;
let stores: Stores;
let other: Awaited<ReturnType<typeof startShard>>;
let engine: Engine;
let devices: Device[];
/** The devices by their shard. */
const ofShard: Device[][] = [[], []];
let nextTs = Date.now() - 3_600_000;

beforeAll(async () => {
  stores = await startStores();
  other = await startShard(stores);
  const env = { ...hostSettings(stores), CLICKHOUSE_SHARDS: other.url };
  engine = await startEngine({ workers: 2, env, reports: true });
  devices = await engine.api.createDevices(Array.from({ length: 8 }, (_, n) => ({ name: `sharded ${n}` })));
  const first = await post(devices);
  await eventually(async () => (await shardsOf('sent', first)).length === devices.length, 20_000);
  for (const [n, shard] of (await shardsOf('sent', first)).entries()) ofShard[shard]!.push(devices[n]!);
});

afterAll(async () => {
  await engine?.destroy();
  await other?.stop();
  await stores?.stopAll();
});

/** Sends one point of each device at one time, and returns this time. */
async function post(to: readonly Device[], key = 'sent'): Promise<number> {
  const ts = nextTs++;
  const statuses = await Promise.all(
    to.map(async ({ token }) => {
      const response = await fetch(`${engine.api.http}/api/v1/${token}/telemetry`, {
        method: 'POST',
        headers: { connection: 'close' },
        body: `{"ts":${ts},"values":{"${key}":${ts % 1000}}}`,
        signal: AbortSignal.timeout(15_000),
      });
      return `${response.status} ${await response.text()}`;
    }),
  );
  expect(statuses).toEqual(to.map(() => '200 '));
  return ts;
}

/** Sends one message of many keys of a device of shard 0, and one key of a device of shard 1; returns their time. */
async function postMixed(gateway: Device): Promise<number> {
  const ts = nextTs++;
  const many = Object.fromEntries(Array.from({ length: 12 }, (_, n) => [`mixed ${n}`, n]));
  const [first, second] = ofShard.map(([, device]) => `sharded ${devices.indexOf(device!)}`) as [string, string];
  const body = { [first]: [{ ts, values: many }], [second]: [{ ts, values: { mixed: 1 } }] };
  await withMqtt({ port: engine.mqttPort, token: gateway.token }, async (client) => {
    expect(await client.publish('v1/gateway/telemetry', body)).toMatchObject({ cmd: 'puback', reasonCode: 0 });
  });
  return ts;
}

const addresses = (): ClickhouseAddress[] => [stores.clickhouse.address(), other.address()];

/** Returns the shard of each device by its number, from the rows of one time. */
async function shardsOf(key: string, ts: number): Promise<number[]> {
  const found: [device: number, shard: number][] = [];
  for (const [shard, address] of addresses().entries()) {
    const rows = await queryClickhouse(
      address,
      `SELECT device FROM millrace.telemetry FINAL WHERE key = '${key}' AND ts = ${ts}`,
    ).catch(() => []);
    for (const [device] of rows) found.push([Number(device), shard]);
  }
  return found.sort(([a], [b]) => a - b).map(([, shard]) => shard);
}

/** Returns the points of one device by the REST API. */
async function history({ id }: Device, key = 'sent'): Promise<{ status: number; text: string; times: number[] }> {
  const range = `keys=${key}&startTs=0&endTs=${Date.now() + 60_000}&limit=10000`;
  const response = await engine.api.send('GET', `/api/plugins/telemetry/DEVICE/${id}/values/timeseries?${range}`);
  const text = await response.text();
  const points = response.status === 200 ? ((JSON.parse(text) as Record<string, { ts: number }[]>)[key] ?? []) : [];
  return { status: response.status, text, times: points.map(({ ts }) => ts).sort((a, b) => a - b) };
}

const previewPath = '/apiAnalytics/view/preview';

/** Makes a report of the points of each device, by the name of the device. */
async function counted(key: string): Promise<Response> {
  const name = { label: 'Name', source: 'ENTITY_FIELD', key: 'name', role: 'ROW' };
  const timeRange = { type: 'FIXED', startTs: Date.now() - 86_400_000, endTs: Date.now() + 86_400_000 };
  const view = { fields: [name, value(key, 'COUNT', 'points'), value(key, 'UNIQ', 'values')], timeRange };
  return await ask('POST', previewPath, view, await analytics());
}

const analytics = async () => ({
  url: `http://127.0.0.1:${engine.analyticsPort}`,
  token: await engine.api.adminToken(),
});

/** Returns the number of points of each device with points. */
async function counts(key: string): Promise<Map<string, number>> {
  const response = await counted(key);
  const text = await response.text();
  expect([response.status, text]).toEqual([200, expect.anything()]);
  const { dataTable } = JSON.parse(text) as { dataTable: { Name: string; points: number }[] };
  return new Map(dataTable.map(({ Name, points }) => [Name, points]));
}

async function removeAll({ id }: Device, key: string): Promise<number> {
  const path = `/api/plugins/telemetry/DEVICE/${id}/timeseries/delete?keys=${key}&deleteAllDataForKeys=true`;
  return (await engine.api.send('DELETE', path)).status;
}

test('devices are spread over the shards, and each is read from its own', async () => {
  expect(ofShard.map((own) => own.length)).toEqual([4, 4]);
  const times = await Promise.all([post(devices, 'spread'), post(devices, 'spread')]);
  for (const device of devices) {
    await eventually(async () => (await history(device, 'spread')).times.length === 2, 20_000);
    expect((await history(device, 'spread')).times).toEqual(times);
  }
  for (const address of addresses()) {
    const [row] = await queryClickhouse(
      address,
      `SELECT uniqExact(device), count() FROM millrace.telemetry FINAL WHERE key = 'spread'`,
    );
    expect(row).toEqual([String(devices.length / shardCount), String(devices.length)]);
  }
});

test('a report has the points of every shard, and leaves no tables', async () => {
  await post(devices, 'reported');
  const ts = await post(devices, 'reported');
  for (const device of devices) {
    await eventually(async () => (await history(device, 'reported')).times.length === 2, 20_000);
  }
  // Devices are copied for reports a moment after they were created.
  await eventually(async () => (await counts('reported')).size === devices.length, 20_000);
  expect([...(await counts('reported')).values()]).toEqual(devices.map(() => 2));
  const view = {
    fields: [value('reported', 'SUM', 'sum'), value('reported', 'LATEST', 'latest'), value('reported', 'UNIQ', 'uniq')],
    timeRange: { type: 'FIXED', startTs: ts, endTs: ts + 1 },
  };
  expect(await preview(view, await analytics())).toEqual({
    columnLabels: ['sum', 'latest', 'uniq'],
    dataTable: [{ sum: (ts % 1000) * devices.length, latest: ts % 1000, uniq: 1 }],
  });
  const left = `SELECT name FROM system.tables WHERE name LIKE 'report_%'`;
  expect(await Promise.all(addresses().map((address) => queryClickhouse(address, left)))).toEqual([[], []]);
});

/** Blocks that inserts have written on each shard: each is a new part. */
async function writtenParts(): Promise<number[]> {
  const query = `SELECT toUInt32(value) FROM system.events WHERE event = 'MergeTreeDataWriterBlocks'`;
  const answers = await Promise.all(addresses().map((address) => queryClickhouse(address, query)));
  return answers.map((rows) => Number(rows[0]![0]));
}

test('a shard with many parts gets rarer inserts, by its own count', async () => {
  const seconds = 8;
  const written = async () => {
    const before = await writtenParts();
    const until = performance.now() + 1_000 * seconds;
    while (performance.now() < until) await post(devices, 'paced');
    return (await writtenParts()).map((parts, shard) => parts - before[shard]!);
  };
  // Two tables, an insert of both workers each 500 ms, and those that ran when the time began.
  expect(Math.max(...(await written()))).toBeLessThanOrEqual(2 * (2 * seconds + 2));
  const { address } = other;
  await askClickhouse(address(), 'SYSTEM STOP MERGES millrace.telemetry');
  try {
    // A part for each row, all on the day of the epoch, which no other row has.
    const rows = `SELECT 4000000000, 'part', number, 3, 1, 1 FROM numbers(1500)`;
    const oneByOne = 'SETTINGS max_block_size = 1, min_insert_block_size_rows = 1, max_insert_threads = 1';
    await askClickhouse(address(), 'ALTER TABLE millrace.telemetry MODIFY SETTING fsync_after_insert = 0');
    await askClickhouse(address(), 'ALTER TABLE millrace.telemetry MODIFY SETTING parts_to_delay_insert = 10000');
    await askClickhouse(
      address(),
      `INSERT INTO millrace.telemetry (device, key, ts, kind, num, version) ${rows} ${oneByOne}`,
    );
    // Five times as long between two inserts with 1 500 parts: 2.5 s.
    await eventually(async () => (await written())[1]! <= 2 * (seconds / 2.5 + 1), 60_000);
    const ts = await post(devices, 'readable');
    for (const device of devices) await eventually(async () => (await history(device, 'readable')).times[0] === ts);
  } finally {
    await askClickhouse(address(), 'SYSTEM START MERGES millrace.telemetry');
  }
}, 180_000);

test('a start that names the servers in another order is refused', async () => {
  const { CLICKHOUSE_URL: url, ...settings } = hostSettings(stores);
  const swapped = { ...settings, CLICKHOUSE_URL: other.url, CLICKHOUSE_SHARDS: url! };
  const second = await prepareEngine({ workers: 1, env: swapped });
  try {
    second.spawn();
    expect(await second.exit(60_000)).toMatchObject({ code: 1 });
    expect(second.output).toMatch(/is shard 1 and not 0|is shard 0 and not 1/);
  } finally {
    await second.destroyAtOnce();
  }
});

test('a query of many entities merges the shards', async () => {
  const ts = await post(devices, 'merged');
  const query = {
    entityFilter: { type: 'entityType', entityType: 'DEVICE' },
    latestValues: [{ type: 'TIME_SERIES', key: 'merged' }],
    pageLink: { pageSize: 100, page: 0 },
  };
  const found = async () => {
    const response = await engine.api.send('POST', '/api/entitiesQuery/find', query);
    return (await response.text()).split(`"ts":${ts}`).length - 1;
  };
  await eventually(async () => (await found()) === devices.length, 20_000);
});

test('a dead shard stops only its own devices, over a kill of the whole host, and nothing is lost or stored twice', async () => {
  const times: number[] = [];
  for (let n = 0; n < 20; n += 1) times.push(await post(devices, 'dead'));
  await post(ofShard[0]!, 'removed');
  await eventually(async () => (await history(ofShard[0]![0]!, 'removed')).times.length === 1, 20_000);
  const gateway = await engine.api.createGateway('gateway of both shards');
  await other.kill();
  for (let n = 0; n < 20; n += 1) times.push(await post(devices, 'dead'));
  const mixedTs = await postMixed(gateway);
  // The devices of the other shard are readable all the time.
  for (const device of ofShard[0]!) {
    await eventually(async () => (await history(device, 'dead')).times.length === times.length, 20_000);
  }
  const dead = await history(ofShard[1]![0]!, 'dead');
  expect([dead.status, dead.text]).toEqual([503, expect.stringContaining('shard 1')]);
  const report = await counted('dead');
  expect([report.status, await report.text()]).toEqual([503, expect.stringContaining('shard 1')]);
  const { code, parts } = await engine.status();
  expect([code, parts?.['clickhouse'], parts?.['clickhouse-1']]).toEqual([200, 'up', 'away']);
  // Deletes of the other shard are carried out as well, once the rows of the dead one have left the lanes.
  await eventually(async () => (await removeAll(ofShard[0]![0]!, 'removed')) === 200, 20_000);
  expect((await history(ofShard[0]![0]!, 'removed')).times).toEqual([]);
  // A delete on the dead shard is kept. It covers rows that the shard does not have yet.
  expect(await removeAll(ofShard[1]![3]!, 'dead')).toBe(202);

  await engine.killAll();
  await engine.start();
  for (let n = 0; n < 20; n += 1) times.push(await post(devices, 'dead'));
  for (const device of ofShard[0]!) {
    await eventually(async () => (await history(device, 'dead')).times.length === times.length, 20_000);
  }

  await other.start();
  const late = times.slice(40);
  for (const [n, device] of ofShard[1]!.entries()) {
    const expected = n === 3 ? late : times;
    await eventually(
      async () => JSON.stringify((await history(device, 'dead')).times) === JSON.stringify(expected),
      60_000,
    );
  }
  await eventually(async () => (await history(ofShard[1]![1]!, 'mixed')).times[0] === mixedTs, 20_000);
  const query = `SELECT count(), uniqExact(device, ts) FROM millrace.telemetry FINAL WHERE key = 'dead' AND kind != 0`;
  const counts = await Promise.all(addresses().map((address) => queryClickhouse(address, query)));
  const [full, less] = [4 * times.length, 3 * times.length + late.length].map(String);
  expect(counts).toEqual([[[full, full]], [[less, less]]]);
  await eventually(async () => (await engine.status()).parts?.['clickhouse-1'] === 'up', 20_000);
});

test('with INGEST_ACK=store, messages of a live shard are acknowledged while another shard is dead', async () => {
  await engine.stop();
  await engine.start({ INGEST_ACK: 'store' });
  const gateway = await engine.api.createGateway('gateway that waits for shards');
  await other.kill();
  const ts = nextTs++;
  const headers = { 'content-type': 'application/json' };
  const body = `{"ts":${ts},"values":{"waited":1}}`;
  const send = async ({ token }: Device) => {
    const response = await fetch(`${engine.api.http}/api/v1/${token}/telemetry`, { method: 'POST', headers, body });
    return `${response.status} ${/"status":503/.test(await response.text())}`;
  };
  const [live, dead] = ofShard as [Device[], Device[]];
  const everyDevice = [...live, ...dead, ...live, ...dead];
  const round = () => Promise.all(everyDevice.map(send));
  const expected = everyDevice.map((device) => (live.includes(device) ? '200 false' : '503 true'));
  // Each worker notices within seconds that the shard is dead.
  await eventually(async () => JSON.stringify(await round()) === JSON.stringify(expected), 30_000);
  for (let n = 0; n < 20; n += 1) expect(await round()).toEqual(expected);
  // Children of a gateway, each in a message of its own.
  await withMqtt({ port: engine.mqttPort, token: gateway.token }, async (client) => {
    const publish = async (device: Device) => {
      const name = `sharded ${devices.indexOf(device)}`;
      const { reasonCode } = await client.publish('v1/gateway/telemetry', { [name]: [{ ts, values: { waited: 2 } }] });
      return reasonCode;
    };
    const codes = await Promise.all(live.map(publish));
    expect(codes).toEqual(live.map(() => 0));
  });
  // A rollout notifies the devices of both shards.
  const firmware = {
    type: 'FIRMWARE',
    title: 'waitedfw',
    version: '1',
    url: 'https://localhost/fw.bin',
    usesUrl: true,
  };
  const json = async (method: string, path: string, value?: unknown) => {
    const response = await engine.api.send(method, path, value);
    expect(response.status).toBe(200);
    return (await response.json()) as Record<string, { id: string }>;
  };
  const { id: firmwareId } = await json('POST', '/api/otaPackage', firmware);
  const { deviceProfileId } = await json('GET', `/api/device/${live[0]!.id}`);
  const profile = await json('GET', `/api/deviceProfile/${deviceProfileId!.id}`);
  await json('POST', '/api/deviceProfile', { ...profile, firmwareId });
  for (const { id } of devices) {
    const path = `/api/plugins/telemetry/DEVICE/${id}/values/attributes/SHARED_SCOPE?keys=fw_title`;
    await eventually(async () => (await (await engine.api.send('GET', path)).text()).includes('waitedfw'), 20_000);
  }
  await other.start();
  await eventually(async () => (await send(dead[0]!)) === '200 false', 60_000);
  await engine.restart();
}, 240_000);

test('with INGEST_ACK=store, no message of a live shard is refused when another shard freezes', async () => {
  await engine.stop();
  await engine.start({ INGEST_ACK: 'store' });
  const [live, frozen] = ofShard as [Device[], Device[]];
  const headers = { 'content-type': 'application/json' };
  const send = async ({ token }: Device) => {
    const body = `{"ts":${nextTs++},"values":{"frozen":1}}`;
    return (await fetch(`${engine.api.http}/api/v1/${token}/telemetry`, { method: 'POST', headers, body })).status;
  };
  const all = [...live, ...frozen];
  expect(await Promise.all(all.map(send))).toEqual(all.map(() => 200));
  let isOver = false;
  const statuses: number[] = [];
  const sendAlways = async (device: Device) => {
    while (!isOver) statuses.push(await send(device));
  };
  const sending = live.map(sendAlways);
  other.signal('SIGSTOP');
  try {
    // Each worker has rows of the frozen shard, and refuses them.
    for (let n = 0; n < 3; n += 1) expect(await Promise.all(frozen.map(send))).toEqual(frozen.map(() => 503));
    isOver = true;
    await Promise.all(sending);
    expect(new Set(statuses)).toEqual(new Set([200]));
  } finally {
    isOver = true;
    other.signal('SIGCONT');
  }
  await eventually(async () => (await send(frozen[0]!)) === 200, 60_000);
  await engine.restart();
}, 240_000);

test('a start refuses settings that lack a shard', async () => {
  await engine.stop();
  engine.spawn({ CLICKHOUSE_SHARDS: '' });
  await eventually(async () => !engine.running, 30_000);
  expect(engine.output).toContain('Telemetry is on 2 shards and the settings name 1');
  await engine.start();
});

/** Runs a command of an operator beside the engine. */
function command(name: string, words: string[], env: Record<string, string> = {}) {
  const child = spawn(process.execPath, [join(dirname(engineMain), name), ...words], {
    env: { ...engine.environment, CLICKHOUSE_SHARDS: other.url, ...env },
  });
  const run = { output: '', code: undefined as number | undefined, ended: once(child, 'close') };
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (run.output += chunk));
  child.on('close', (code) => (run.code = code ?? -1));
  return run;
}

test('rows that are replayed from the quarantine while their devices move are on the shard that is read', async () => {
  const alter = (what: string) =>
    Promise.all(addresses().map((address) => queryClickhouse(address, `ALTER TABLE millrace.telemetry ${what}`)));
  await alter(`ADD CONSTRAINT refused CHECK key != 'replayed'`);
  const ts = await post(devices, 'replayed');
  await eventually(async () => ((await engine.metric('ingest_suspect_rows_total')) ?? 0) >= devices.length, 30_000);
  await engine.stop();
  expect(await proveSuspects(engine)).toBe(devices.length);
  await alter('DROP CONSTRAINT refused');
  await engine.start();
  const link = await Link.to(Number(new URL(other.url).port));
  try {
    link.cut();
    const replay = command('quarantine.js', ['replay'], { CLICKHOUSE_SHARDS: `http://127.0.0.1:${link.port}` });
    const first = async () => (await history(ofShard[0]![0]!, 'replayed')).times;
    await eventually(async () => (await first()).length === 1, 30_000);
    const move = command('shards.js', ['empty', '1', '--without-silent']);
    await eventually(() => move.code !== undefined || move.output.includes('waiting for'), 60_000);
    link.join();
    await Promise.all([replay.ended, move.ended]);
    expect([replay.code, replay.output]).toEqual([0, expect.stringContaining(`${devices.length} rows stored`)]);
    expect([move.code, move.output]).toEqual([0, expect.stringContaining('the buckets have moved')]);
  } finally {
    link.close();
  }
  for (const device of devices) {
    await eventually(async () => (await history(device, 'replayed')).times.length === 1, 20_000);
    expect((await history(device, 'replayed')).times).toEqual([ts]);
  }
  const back = command('shards.js', ['balance', '--without-silent']);
  await back.ended;
  expect([back.code, back.output]).toEqual([0, expect.stringContaining('the buckets have moved')]);
}, 240_000);

test('a shard is added while devices send, delete and are read, and every answer is right at any time', async () => {
  const third = await startShard(stores);
  try {
    await engine.stop();
    await engine.start({ CLICKHOUSE_SHARDS: `${other.url},${third.url}` });
    const many = await engine.api.createDevices(Array.from({ length: 24 }, (_, n) => ({ name: `moving ${n}` })));
    /** Times that were acknowledged, with the moment of their acknowledgement. */
    const sent: { ts: number; at: number }[] = [];
    const send = async () => sent.push({ ts: await post(many, 'moving'), at: performance.now() });
    for (let n = 0; n < 30; n += 1) await send();
    await post(many, 'gone');
    let isMoving = true;
    /** A point is readable so many milliseconds after its acknowledgement, on a machine that does much else. */
    const visibleMs = 20_000;
    const sending = (async () => {
      while (isMoving) await send();
    })();
    let reads = 0;
    const reading = (async () => {
      for (let n = 0; isMoving; n += 1) {
        const due = sent.filter(({ at }) => performance.now() - at > visibleMs).map(({ ts }) => ts);
        const { status, text, times } = await history(many[n % many.length]!, 'moving');
        expect([status, text.slice(0, 100)]).toEqual([200, expect.anything()]);
        expect(new Set(times).size).toBe(times.length);
        const found = new Set(times);
        expect(due.filter((ts) => !found.has(ts))).toEqual([]);
        reads += 1;
      }
    })();
    let reports = 0;
    const reporting = (async () => {
      while (isMoving) {
        const due = sent.filter(({ at }) => performance.now() - at > visibleMs).length;
        const byDevice = await counts('moving');
        if (due > 0) expect(byDevice.size).toBe(many.length);
        for (const points of byDevice.values()) expect(points).toBeGreaterThanOrEqual(due);
        for (const points of byDevice.values()) expect(points).toBeLessThanOrEqual(sent.length + 1);
        reports += 1;
      }
    })();
    const deleting = (async () => {
      for (const device of many) expect(await removeAll(device, 'gone')).toBeLessThan(300);
    })();
    const command = join(dirname(engineMain), 'shards.js');
    const env = { ...engine.environment, CLICKHOUSE_SHARDS: `${other.url},${third.url}` };
    try {
      // The stores were made by an instance that has ended, whose journal reports no more.
      const moving = promisify(execFile)(process.execPath, [command, 'balance', '--without-silent'], {
        env,
        timeout: 240_000,
      });
      const [{ stdout }] = await Promise.all([moving, deleting]);
      expect(stdout).toContain('the buckets have moved');
    } finally {
      isMoving = false;
      await Promise.all([sending, reading, reporting]);
    }
    expect(reads).toBeGreaterThan(20);
    expect(reports).toBeGreaterThan(5);
    const all = [...addresses(), third.address()];
    for (const device of many) {
      const expected = sent.map(({ ts }) => ts);
      await eventually(async () => (await history(device, 'moving')).times.length === expected.length, 30_000);
      expect((await history(device, 'moving')).times).toEqual(expected);
      await eventually(async () => (await history(device, 'gone')).times.length === 0, 30_000);
    }
    // Each device is on one shard, in both tables, and some are on the new one.
    const holders = async (table: string) => {
      const query = `SELECT DISTINCT device FROM millrace.${table} FINAL WHERE key = 'moving' ORDER BY device`;
      return await Promise.all(all.map(async (address) => (await queryClickhouse(address, query)).map(([n]) => n!)));
    };
    for (const table of ['telemetry', 'latest']) {
      await eventually(async () => (await holders(table)).flat().length === many.length, 30_000);
      const found = await holders(table);
      expect(new Set(found.flat()).size).toBe(many.length);
      for (const own of found) expect(own.length).toBeGreaterThan(3);
    }
  } finally {
    await third.stop();
  }
}, 600_000);
