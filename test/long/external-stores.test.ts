/**
 * The engine on CLICKHOUSE_URL, DATABASE_URL and REDIS_URL alone, against processes it did not start; each is killed
 * once. Telemetry of known devices is acknowledged all the time, and stored once.
 */
import { execFile } from 'node:child_process';
import { cpSync, openSync, readdirSync, readFileSync, rmSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openPostgres } from '../../src/postgres/client.ts';
import { type Device, eventually } from '../harness/api.ts';
import { askClickhouse, queryClickhouse } from '../harness/clickhouse-queries.ts';
import { type Engine, inherited, root, startEngine } from '../harness/engine.ts';
import { silentLog } from '../harness/silent-log.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';

let stores: Stores;
let engine: Engine;
let device: Device;

beforeAll(async () => {
  stores = await startStores();
  engine = await startEngine({ workers: 2, env: hostSettings(stores) });
  device = await engine.api.createDevice('external');
  // A worker reads the creation once more from the list of changes and then drops its entry, so a device is known only
  // after a message that follows.
  await sleep(2_500);
  await accept('warm', 32);
});

afterAll(async () => {
  await engine?.destroy();
  await stores?.stopAll();
});

let nextTs = Date.now() - 3_600_000;

/** The status of one request on a connection of its own, so that all workers get their share. */
async function post(token: string, key: string, n: number): Promise<number> {
  return Number((await postText(token, key, n)).slice(0, 3));
}

async function accept(key: string, count: number): Promise<void> {
  for (let n = 0; n < count; n += 1) expect(await postText(device.token, key, n)).toBe('200 ');
}

async function postText(token: string, key: string, n: number): Promise<string> {
  const response = await fetch(`${engine.api.http}/api/v1/${token}/telemetry`, {
    method: 'POST',
    headers: { connection: 'close' },
    body: `{"ts":${nextTs++},"values":{"${key}":${n}}}`,
    signal: AbortSignal.timeout(15_000),
  });
  return `${response.status} ${await response.text()}`;
}

async function storedOnce(key: string, count: number): Promise<void> {
  const query = `SELECT count(), uniqExact(ts), sum(int) FROM telemetry FINAL WHERE key = '${key}'`;
  const expected = [[String(count), String(count), String((count * (count - 1)) / 2)]];
  await eventually(
    async () => {
      const rows = await queryClickhouse(stores.clickhouse.address(), query);
      return JSON.stringify(rows) === JSON.stringify(expected);
    },
    30_000,
    100,
  );
}

test('no embedded engine is started', () => {
  const roles = [...engine.pids().keys()].sort();
  expect(roles).toEqual(['inserts', 'primary', 'worker-0', 'worker-1']);
});

/** Blocks that inserts have written: each is a new part. */
async function writtenParts(): Promise<number> {
  const query = `SELECT toUInt32(value) FROM system.events WHERE event = 'MergeTreeDataWriterBlocks'`;
  const rows = await queryClickhouse(stores.clickhouse.address(), query);
  return Number(rows[0]![0]);
}

test('the workers of a host make two new parts a second in a table at most', async () => {
  const seconds = 4;
  const [before, start] = [await writtenParts(), performance.now()];
  let count = 0;
  while (performance.now() - start < seconds * 1000) {
    await Promise.all(Array.from({ length: 8 }, (_, n) => postText(device.token, 'joined', count + n)));
    count += 8;
  }
  await storedOnce('joined', count);
  const elapsed = (performance.now() - start) / 1000;
  // Two tables, and the insert that ran when the time began.
  expect((await writtenParts()) - before).toBeLessThanOrEqual(2 * (2 * elapsed + 2));
});

test('while a table has many parts, inserts are rarer', async () => {
  const address = stores.clickhouse.address();
  await askClickhouse(address, 'SYSTEM STOP MERGES millrace.telemetry');
  try {
    // A part for each row, all on the day of the epoch, which no other row has.
    const rows = `SELECT 1, 'part', number, 3, 1, 1 FROM numbers(900)`;
    const oneByOne = 'SETTINGS max_block_size = 1, min_insert_block_size_rows = 1, max_insert_threads = 1';
    await askClickhouse(address, 'ALTER TABLE millrace.telemetry MODIFY SETTING fsync_after_insert = 0');
    await askClickhouse(
      address,
      `INSERT INTO millrace.telemetry (device, key, ts, kind, num, version) ${rows} ${oneByOne}`,
    );
    const partsIn = async (ms: number) => {
      const before = await writtenParts();
      const until = performance.now() + ms;
      while (performance.now() < until) {
        expect(await engine.api.postTelemetry(device.token, `{"ts":${Date.now()},"values":{"rare":1}}`)).toBe(200);
        await sleep(20);
      }
      return (await writtenParts()) - before;
    };
    // Two tables, 500 ms as usual, and three times as long with 900 parts.
    await eventually(async () => (await partsIn(4_000)) <= 8, 40_000);
  } finally {
    await askClickhouse(address, 'SYSTEM START MERGES millrace.telemetry');
  }
}, 180_000);

test('without the relay telemetry is stored all the same, and the relay comes back', async () => {
  const relay = engine.pids().get('inserts')!;
  process.kill(relay, 'SIGKILL');
  await accept('without_relay', 50);
  await storedOnce('without_relay', 50);
  await eventually(async () => (engine.pids().get('inserts') ?? relay) !== relay, 10_000, 50);
});

test('without ClickHouse telemetry is accepted, and stored once when it is back', async () => {
  await stores.clickhouse.kill();
  await accept('without_clickhouse', 200);
  expect(await engine.readiness()).toBe(200);
  await sleep(1_000);
  await stores.clickhouse.start();
  await storedOnce('without_clickhouse', 200);
});

test('a history query while ClickHouse is unavailable is 503 with a time for the retry', async () => {
  await stores.clickhouse.kill();
  const path = `/api/plugins/telemetry/DEVICE/${device.id}/values/timeseries?keys=a&startTs=0&endTs=1`;
  const response = await engine.api.send('GET', path);
  expect(response.status).toBe(503);
  expect(Number(response.headers.get('retry-after'))).toBeGreaterThan(0);
  await stores.clickhouse.start();
  await eventually(async () => (await engine.api.send('GET', path)).status === 200, 20_000);
});

test('without PostgreSQL known devices are served and unknown ones are 503, not 401', async () => {
  // A retry of this test would find the device that the attempt before made known, so each attempt uses another token.
  const unseen = `never-seen-${Date.now()}`;
  await stores.postgres.kill();
  try {
    await accept('without_postgres', 50);
    const response = await fetch(`${engine.api.http}/api/v1/${unseen}/telemetry`, {
      method: 'POST',
      body: '{"a":1}',
    });
    expect(response.status).toBe(503);
    expect(Number(response.headers.get('retry-after'))).toBeGreaterThan(0);
    expect((await engine.api.send('POST', '/api/device', { name: 'x' })).status).toBe(503);
  } finally {
    await stores.postgres.start();
  }
  await storedOnce('without_postgres', 50);
  await eventually(async () => (await post(unseen, 'x', 1)) === 401, 20_000);
  const late = await eventually(() => engine.api.createDevice(`after ${unseen}`).catch(() => undefined), 20_000);
  // Each worker asks the database again a second after a failed attempt.
  await eventually(async () => {
    const statuses = await Promise.all(Array.from({ length: 16 }, (_, n) => post(late.token, 'after', n)));
    return statuses.every((status) => status === 200);
  }, 20_000);
});

test('without Redis telemetry is accepted, and changes arrive again afterwards', async () => {
  await stores.redis.kill();
  // A retry of this test counts only its own points.
  const key = `without_redis_${Date.now()}`;
  await accept(key, 50);
  await storedOnce(key, 50);
  // Deleted while the bus is down: the workers read the log of changes instead.
  const gone = await engine.api.createDevice('gone without redis');
  for (let n = 0; n < 16; n += 1) expect(await postText(gone.token, 'gone', n)).toBe('200 ');
  expect((await engine.api.send('DELETE', `/api/device/${gone.id}`)).status).toBe(200);
  await eventually(async () => {
    const statuses = await Promise.all(Array.from({ length: 12 }, () => post(gone.token, 'gone', 0)));
    return statuses.every((status) => status === 401);
  }, 10_000);
  await stores.redis.start();
  expect(await post(device.token, 'with_redis', 1)).toBe(200);
});

test('a stop ships what is journaled and ends with 0', async () => {
  await accept('before_stop', 100);
  await engine.stop();
  await storedOnce('before_stop', 100);
});

/** `npm run journal -- …` as an operator runs it, beside the engine's settings. */
function journalCommand(...words: string[]): Promise<{ code: number; output: string }> {
  const env = {
    ...inherited(),
    ...hostSettings(stores),
    DATA_DIR: engine.dataDir,
    WORKERS: '1',
  };
  return new Promise((resolve) => {
    execFile(process.execPath, [join(root, 'dist', 'journal.js'), ...words], { cwd: root, env }, (error, out, wrong) =>
      resolve({ code: error ? Number(error.code) : 0, output: out + wrong }),
    );
  });
}

/** Returns the number of journals for which deletes may wait. */
async function knownJournals(): Promise<number> {
  const postgres = openPostgres({ url: stores.postgres.url, poolMax: 1, log: silentLog });
  const rows = await postgres.query('select writer from journals').finally(() => postgres.close());
  return rows.length;
}

/** Returns the number of waiting rows of all lanes, from the table that `list` prints. */
function waitingIn(listed: string): number {
  const lines = listed.split('\n').filter((line) => line.startsWith('worker-'));
  return lines.reduce((sum, line) => {
    const [, , , , live, late] = line.split(/ {2,}/);
    return sum + Number(live) + Number(late);
  }, 0);
}

function rowsIn(frames: string[]): number {
  return frames.reduce((sum, line) => sum + Number(/ (\d+) rows? /.exec(line)![1]), 0);
}

test('the journals of a host that is gone are listed, verified, shipped from a copy, and drained', async () => {
  await engine.start();
  await accept('known_again', 32);
  await eventually(async () => waitingIn((await journalCommand('list')).output) === 0, 30_000);
  await stores.clickhouse.kill();
  await accept('left_behind', 60);
  expect((await journalCommand('drain')).output).toMatch(/in use by process \d+/);
  await engine.killAll();

  const listed = (await journalCommand('list')).output;
  expect(listed).toMatch(/worker-0 +worker +\d+ +.+ [1-9]\d* /);
  expect(listed).toMatch(/worker-1 +orphan +\d+ +.+ [1-9]\d* /);
  expect(await journalCommand('verify')).toMatchObject({
    code: 0,
    output: expect.stringContaining('every frame is whole'),
  });
  const journals = await Promise.all(['worker-0', 'worker-1'].map((name) => journalCommand('show', name)));
  const lines = journals.flatMap(({ output }) => output.split('\n'));
  const waiting = lines.filter((line) => line.includes('  order '));
  expect(waiting[0]).toMatch(/ live {2}order \d+ .+ rows?/);
  expect(waiting.filter((line) => line.endsWith('  stored'))).toEqual([]);
  expect(rowsIn(waiting)).toBe(waitingIn(listed));
  const [leftOut] = lines.filter((line) => /^left out: \d+ frames? of these segments/.test(line));
  expect(leftOut).toBeDefined();

  const copy = join(engine.dataDir, 'copied');
  cpSync(join(engine.dataDir, 'journal', 'worker-1'), copy, { recursive: true });
  const damaged = join(engine.dataDir, 'damaged');
  cpSync(copy, damaged, { recursive: true });
  const segment = readdirSync(damaged).find((name) => name.endsWith('.seg'))!;
  writeSync(openSync(join(damaged, segment), 'r+'), Buffer.alloc(16, 7), 0, 16, 8_300);
  expect(await journalCommand('verify', damaged)).toMatchObject({
    code: 1,
    output: expect.stringContaining('damaged'),
  });

  rmSync(join(engine.dataDir, 'journal', 'worker-1'), { recursive: true });
  await stores.clickhouse.start();
  const note = join(copy, 'installation');
  const installation = readFileSync(note);
  writeFileSync(note, 'f'.repeat(32));
  expect(await journalCommand('ship', copy)).toMatchObject({
    code: 1,
    output: expect.stringContaining('is a journal of another installation'),
  });
  writeFileSync(note, installation);
  expect(await journalCommand('ship', copy)).toMatchObject({
    code: 0,
    output: expect.stringContaining('1 journal with'),
  });
  // A report of the copied journal is only seconds old, so another process could have this journal.
  const known = await knownJournals();
  expect(await journalCommand('drain')).toMatchObject({
    code: 0,
    output: expect.stringContaining('everything is stored'),
  });
  expect(await knownJournals()).toBe(known - 1);
  expect(readdirSync(join(engine.dataDir, 'journal'))).toEqual([]);
  await storedOnce('left_behind', 60);
});
