/**
 * The report pool of a whole engine with slow queries: its sizes, how reports end, and what happens when a store stops.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';

const monday = Date.UTC(2025, 5, 2);
const pointCount = 1_500_000;
const buildReport = '/apiAnalytics/publicApi/buildReport';

let engine: Engine;
let slow: string;
let quick: string;

beforeAll(async () => {
  engine = await startEngine({ workers: 1, reports: true });
  const { token } = await engine.api.createDevice('meter');
  await engine.api.postTelemetry(token, JSON.stringify({ ts: monday - 1, values: { quick: 1 } }));
  const number = await deviceNumber('meter');
  // The points are 50 ms apart, and all of them are different.
  await engine.clickhouseCommand(
    `INSERT INTO telemetry (device, key, ts, kind, num, int, text, version)
     SELECT ${number}, 'flow', ${monday} + 50 * number, 3, number / 7, 0, '', number FROM numbers(${pointCount})`,
  );
  const text = { source: 'TELEMETRY', role: 'VALUE' };
  slow = await saveView([
    { label: 'Minute', source: 'DATE', dateGrouping: 'FULL_MINUTE', role: 'ROW' },
    { ...text, label: 'unique', key: 'flow', aggregation: 'UNIQ' },
    { ...text, label: 'latest', key: 'flow', aggregation: 'LATEST' },
  ]);
  quick = await saveView([{ ...text, label: 'quick', key: 'quick', aggregation: 'SUM' }]);
});

afterAll(() => engine.destroy());

/** Returns the number of a device from the copy of device data in ClickHouse. */
async function deviceNumber(name: string): Promise<string> {
  const number = await eventually(async () => {
    const found = await engine.clickhouse(`SELECT device FROM device_metadata FINAL WHERE name = '${name}'`);
    return found[0]?.[0];
  });
  return number;
}

async function ask(path: string, body: object, signal?: AbortSignal): Promise<Response> {
  return await fetch(`http://127.0.0.1:${engine.analyticsPort}${path}`, {
    method: 'POST',
    headers: { jwt: await engine.api.adminToken(), 'content-type': 'application/json' },
    body: JSON.stringify(body),
    ...(signal && { signal }),
  });
}

async function saveView(fields: object[]): Promise<string> {
  const timeRange = { type: 'FIXED', startTs: monday - 1, endTs: monday + 86_400_000 };
  const response = await ask('/apiAnalytics/view', { name: 'view', fields, timeRange });
  expect(response.status).toBe(200);
  return ((await response.json()) as { id: string }).id;
}

/** 0 = no answer: the engine was stopped meanwhile. */
async function statusOf(viewConfigId: string): Promise<number> {
  try {
    const response = await ask(buildReport, { viewConfigId });
    await response.arrayBuffer();
    return response.status;
  } catch {
    return 0;
  }
}

async function metric(name: string): Promise<number> {
  const text = await engine.api.metrics();
  return Number(new RegExp(`^${name} (\\S+)$`, 'm').exec(text)?.[1]);
}

const held = async (running: number, waiting: number) =>
  (await metric('report_running')) === running && (await metric('report_waiting')) === waiting;

async function restart(settings: Record<string, string>): Promise<void> {
  await engine.stop();
  engine.spawn(settings);
  await engine.ready();
}

/** ClickHouse does not answer during `use`, so reports end only by their deadline. */
async function whileClickhouseStands(use: () => Promise<void>): Promise<void> {
  const pid = engine.pids().get('clickhouse')!;
  process.kill(pid, 'SIGSTOP');
  try {
    await use();
  } finally {
    process.kill(pid, 'SIGCONT');
  }
}

test('20 reports are held by default, the 21st is 429, and one more after they are done is 200', async () => {
  const refusedBefore = await metric('report_refused_total');
  let first: Promise<number>[] = [];
  await whileClickhouseStands(async () => {
    first = Array.from({ length: 20 }, () => statusOf(quick));
    await eventually(() => held(10, 10));
    const refused = await ask(buildReport, { viewConfigId: quick });
    expect(refused.status).toBe(429);
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(0);
    const { message } = (await refused.json()) as { message: string };
    expect(message).toContain('SIMPLE_API_RATE_LIMITER_THREAD_POOL_SIZE');
    expect(message).toContain('SIMPLE_API_RATE_LIMITER_QUEUE_CAPACITY');
    expect(await metric('report_refused_total')).toBe(refusedBefore + 1);
  });
  expect(new Set(await Promise.all(first))).toEqual(new Set([200]));
  expect(await statusOf(quick)).toBe(200);
});

test('a client that disconnects frees its place, and its query ends', async () => {
  const leaving = Array.from({ length: 20 }, () => {
    const gone = new AbortController();
    return {
      gone,
      answer: ask(buildReport, { viewConfigId: slow }, gone.signal).then(
        (r) => r.status,
        () => 'gone',
      ),
    };
  });
  const queries = async () => {
    const running = await engine.clickhouse(
      `SELECT count() FROM system.processes WHERE query LIKE '%uniqExact%' AND query NOT LIKE '%system.processes%'`,
    );
    return Number(running[0]![0]);
  };
  await eventually(() => held(10, 10));
  await eventually(async () => (await queries()) > 0);
  for (const { gone } of leaving) gone.abort();
  expect(new Set(await Promise.all(leaving.map(({ answer }) => answer)))).toEqual(new Set(['gone']));
  await eventually(() => held(0, 0));
  await eventually(async () => (await queries()) === 0);
  expect(await statusOf(quick)).toBe(200);
});

test('without ClickHouse the answer is 503; afterwards reports work and include the changes made meanwhile', async () => {
  await engine.kill('clickhouse');
  const response = await ask(buildReport, { viewConfigId: quick });
  expect(response.status).toBe(503);
  await engine.api.createDevice('made-meanwhile');
  await eventually(async () => (await statusOf(quick)) === 200, 30_000);
  expect(Number(await deviceNumber('made-meanwhile'))).toBeGreaterThan(0);
});

test('an analytics process that dies is restarted, without an effect on ingest', async () => {
  const pid = await engine.kill('analytics');
  await eventually(async () => (await statusOf(quick)) === 200, 30_000);
  expect(engine.pids().get('analytics')).not.toBe(pid);
  expect(await engine.readiness()).toBe(200);
});

test('sizes are exact: one thread and a queue of two', async () => {
  await restart({
    SIMPLE_API_RATE_LIMITER_THREAD_POOL_SIZE: '1',
    SIMPLE_API_RATE_LIMITER_QUEUE_CAPACITY: '2',
    JWT_TOKEN_EXPIRATION_TIME: '1',
  });
  let first: Promise<number>[] = [];
  await whileClickhouseStands(async () => {
    first = Array.from({ length: 3 }, () => statusOf(quick));
    await eventually(() => held(1, 2));
    expect(await statusOf(quick)).toBe(429);
  });
  expect(await Promise.all(first)).toEqual([200, 200, 200]);
});

test('an expired token is 403', async () => {
  const { token } = await engine.api.login();
  await sleep(2_100);
  const path = `${buildReport}?jwt=${token}`;
  const response = await ask(path, { viewConfigId: quick });
  expect([response.status, ((await response.json()) as { message: string }).message]).toEqual([
    403,
    'Token has expired',
  ]);
});

test('device data that ClickHouse lost is copied again', async () => {
  await engine.clickhouseCommand('TRUNCATE TABLE device_metadata');
  await engine.api.createDevice('made-after-the-loss');
  await deviceNumber('made-after-the-loss');
  expect(await engine.clickhouse('SELECT uniqExact(device) >= 3 FROM device_metadata')).toEqual([['1']]);
});

test('sizes are exact: two threads and no queue; a report has its time', async () => {
  await restart({
    SIMPLE_API_RATE_LIMITER_THREAD_POOL_SIZE: '2',
    SIMPLE_API_RATE_LIMITER_QUEUE_CAPACITY: '0',
    // Longer than two reads of the metrics take beside other tests.
    REPORT_TIMEOUT_MS: '8000',
  });
  await whileClickhouseStands(async () => {
    const first = Array.from({ length: 2 }, () => statusOf(quick));
    await eventually(() => held(2, 0));
    expect(await statusOf(quick)).toBe(429);
    expect(await Promise.all(first)).toEqual([504, 504]);
  });
});
