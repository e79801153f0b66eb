/**
 * Parts that fail repeatedly: the rest of the service continues, names the part that is missing, and uses it again
 * later.
 */
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { fallen, firing } from '../harness/alerts.ts';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';

let engine: Engine;
let device: Device;
let sent = 0;
const firstTs = Date.now() - 3_600_000;

beforeAll(async () => {
  engine = await startEngine({ workers: 2 });
  device = await engine.api.createDevice('steady');
});

afterAll(() => engine?.destroy());

async function send(count: number): Promise<void> {
  for (let n = 0; n < count; n += 1) {
    const response = await fetch(`${engine.api.http}/api/v1/${device.token}/telemetry`, {
      method: 'POST',
      // Any worker may get it.
      headers: { connection: 'close' },
      body: `{"ts":${firstTs + sent},"values":{"n":${sent}}}`,
    });
    expect(response.status).toBe(200);
    sent += 1;
  }
}

async function allStored(): Promise<void> {
  await eventually(async () => {
    const range = { startTs: firstTs, endTs: firstTs + sent };
    const { n } = await engine.api.readSeries(device.id, ['n'], range).catch(() => ({ n: [] }));
    return n?.length === sent;
  }, 60_000);
}

test('ClickHouse is killed at each of its starts: ingest continues, and everything is stored when it stays up', async () => {
  let last: number | undefined;
  for (let death = 0; death < 6; death += 1) {
    const pid = await eventually(() => {
      const now = engine.pids().get('clickhouse');
      return now !== last ? now : undefined;
    }, 30_000);
    last = pid;
    process.kill(pid, 'SIGKILL');
    await send(5);
  }
  await eventually(async () => (await engine.status()).status === 'degraded', 10_000);
  const { code, reasons } = await engine.status();
  expect({ code, reasons }).toMatchObject({ code: 200, reasons: [expect.stringMatching(/^The embedded ClickHouse/)] });
  await allStored();
  await eventually(async () => (await engine.status()).status === 'ready', 20_000);
});

const writerFile = (worker: number) => join(engine.dataDir, 'journal', `worker-${worker}`, 'writer');

test('a worker whose journal cannot be opened ends alone, with its reason, and restarts when it can', async () => {
  await engine.stop();
  const former = readFileSync(writerFile(1));
  writeFileSync(writerFile(1), 'no number');
  // `spawn` and not `start`, because `start` waits for every worker.
  engine.spawn();
  await eventually(async () => (await engine.status()).code === 200, 60_000);
  await send(20);
  const reason = /^worker-1 does not serve: .*worker-1\/writer must hold a number/;
  await eventually(async () => (await engine.status()).reasons?.some((each) => reason.test(each)), 10_000);
  expect(await engine.status()).toMatchObject({ code: 200, status: 'degraded' });
  await eventually(() => engine.output.includes('Degraded           worker-1'));
  writeFileSync(writerFile(1), former);
  await eventually(async () => (await engine.status()).status === 'ready', 45_000);
  await allStored();
});

test('a worker that is frozen is named, and the instance is degraded until it runs again', async () => {
  const pid = engine.pids().get('worker-1')!;
  const earlier = await engine.api.metricsPage();
  expect(firing(earlier)).not.toContain('MillraceNotReady');
  process.kill(pid, 'SIGSTOP');
  try {
    const reason = /^worker-1 does not serve: its process lives and has not reported for \d+ s\. /;
    await eventually(async () => {
      const { code, status, reasons } = await engine.status();
      return code === 200 && status === 'degraded' && reasons?.some((each) => reason.test(each));
    }, 30_000);
    const page = await engine.api.metricsPage();
    expect(firing(page, earlier)).toContain('MillraceNotReady');
    expect((await engine.status()).parts).toMatchObject({ workers: 'away' });
    await eventually(() => engine.events('worker_frozen').length > 0);
    expect(engine.events('worker_frozen')).toMatchObject([
      { level: 'error', worker: 1, reason: expect.stringMatching(reason) },
    ]);
    // Prometheus takes a counter that falls for one that began again.
    expect(fallen(page, earlier)).toEqual([]);
  } finally {
    process.kill(pid, 'SIGCONT');
  }
  await eventually(async () => (await engine.status()).status === 'ready', 20_000);
  const [again] = await eventually(() => {
    const events = engine.events('worker_runs_again');
    return events.length > 0 ? events : undefined;
  });
  expect(again).toMatchObject({ level: 'info', worker: 1, awayMs: expect.any(Number) });
});

test('a frozen worker leaves the work for its host to another one: a deleted device is erased', async () => {
  const gone = await engine.api.createDevice('gone');
  expect(await engine.api.postTelemetry(gone.token, '{"gone":1}')).toBe(200);
  const count = async () =>
    (await engine.clickhouse("SELECT count() FROM telemetry FINAL WHERE key = 'gone' AND kind != 0"))[0]![0];
  await eventually(async () => (await count()) === '1');
  const token = await engine.api.adminToken();
  const pid = engine.pids().get('worker-0')!;
  process.kill(pid, 'SIGSTOP');
  try {
    // The frozen worker may get the connection.
    await eventually(async () => {
      const answer = await fetch(`${engine.api.http}/api/device/${gone.id}`, {
        method: 'DELETE',
        headers: { 'x-authorization': `Bearer ${token}`, connection: 'close' },
        signal: AbortSignal.timeout(1_000),
      }).catch(() => undefined);
      return answer?.status === 200 || answer?.status === 404;
    }, 30_000);
    await eventually(async () => (await count()) === '0', 90_000);
  } finally {
    process.kill(pid, 'SIGCONT');
  }
  await eventually(async () => (await engine.status()).status === 'ready', 20_000);
});

test('a worker that starts later than another one is named until it serves', async () => {
  await engine.stop();
  engine.spawn();
  const pid = await eventually(() => engine.pids().get('worker-1'), 60_000);
  process.kill(pid, 'SIGSTOP');
  try {
    await eventually(async () => (await engine.status()).code === 200, 60_000);
    const { status, reasons } = await engine.status();
    expect({ status, reasons }).toEqual({ status: 'degraded', reasons: ['worker-1 is starting'] });
  } finally {
    process.kill(pid, 'SIGCONT');
  }
  await eventually(async () => (await engine.status()).status === 'ready', 60_000);
});

test('an acknowledgement that waits for ClickHouse: readiness promises no time without ClickHouse', async () => {
  const strict = await startEngine({ workers: 1, env: { INGEST_ACK: 'store' } });
  const clickhouse = strict.pids().get('clickhouse')!;
  try {
    const { token } = await strict.api.newDevice();
    expect(await strict.api.postTelemetry(token, '{"n":1}')).toBe(200);
    process.kill(clickhouse, 'SIGSTOP');
    await eventually(async () => (await strict.status()).status === 'degraded', 20_000);
    const { reasons } = await strict.status();
    expect(reasons).toEqual([
      expect.stringMatching(
        /does not answer: .*\. Telemetry is refused until ClickHouse answers \(INGEST_ACK=store\)\.$/,
      ),
    ]);
  } finally {
    process.kill(clickhouse, 'SIGCONT');
    await strict.destroy();
  }
});

test('an acknowledgement that waits for ClickHouse: a stop answers 503 before it closes the connection', async () => {
  const strict = await startEngine({ workers: 1, env: { INGEST_ACK: 'store', INGEST_STORE_ACK_MS_MAX: '3000' } });
  const clickhouse = strict.pids().get('clickhouse')!;
  try {
    const { id, token } = await strict.api.newDevice();
    expect(await strict.api.postTelemetry(token, '{"ts":1,"values":{"n":0}}')).toBe(200);
    process.kill(clickhouse, 'SIGSTOP');
    const answer = strict.api.postTelemetry(token, '{"ts":2,"values":{"n":1}}');
    await eventually(async () => (await strict.metric('ingest_store_waiters')) === 1);
    const stopped = strict.stop();
    // When the message gets no answer, `stopped` fails, too; the answer is checked first, because its failure explains
    // more.
    stopped.catch(() => {});
    expect(await answer).toBe(503);
    process.kill(clickhouse, 'SIGCONT');
    await stopped;
    await strict.start();
    await eventually(async () => (await strict.api.readSeries(id, ['n'], { startTs: 0, endTs: 3 }))['n']?.length === 2);
  } finally {
    if (strict.pids().get('clickhouse') === clickhouse) process.kill(clickhouse, 'SIGCONT');
    await strict.destroy();
  }
});

test('when no worker can open its journal the service ends with the reason', async () => {
  await engine.stop();
  const former = [0, 1].map((worker) => readFileSync(writerFile(worker)));
  for (const worker of [0, 1]) writeFileSync(writerFile(worker), 'no number');
  engine.spawn();
  const { code } = await engine.exit(60_000);
  expect(code).toBe(1);
  expect(engine.output).toMatch(/stopped: worker-\d ended \d+ times in a row .*must hold a number/);
  for (const worker of [0, 1]) writeFileSync(writerFile(worker), former[worker]!);
});
