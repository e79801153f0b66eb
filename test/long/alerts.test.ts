/**
 * Alerts of ops/alerts.yaml under their real faults, where a fault takes minutes or harms the engine: no alert fires
 * before its fault. test/flow and clocks.test.ts test the other alerts. `stalled` has a ClickHouse that does not
 * answer, `picky` has one that refuses a row; both begin first, because they last five minutes.
 */
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { firing, scrape } from '../harness/alerts.ts';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngines } from '../harness/engine.ts';
import { MqttClient } from '../harness/mqtt-client.ts';

const faultMsMax = 480_000;
/** MQTT may use seven eighths of so many files: the rest is a reserve, and kept for HTTP. */
const filesMax = 4_000;

let stalled: Engine;
let picky: Engine;
let device: Device;
let quarantineBefore: string;

beforeAll(async () => {
  const env = { JOURNAL_SEGMENT_BYTES: '4MiB' };
  [stalled, picky] = await startEngines([
    { workers: 1, env: { ...env, DATABASE_POOL_MAX: '16' }, filesMax },
    { workers: 1, env },
  ]);
  device = await stalled.api.createDevice('alerts');
  const refused = await picky.api.createDevice('refused');
  await picky.clickhouseCommand('ALTER TABLE telemetry ADD CONSTRAINT alerts CHECK int != 424242');
  quarantineBefore = await scrape(picky.api);
  expect(await picky.api.postTelemetry(refused.token, '{"fits":1}')).toBe(200);
  expect(await picky.api.postTelemetry(refused.token, '{"refused":424242}')).toBe(200);
  process.kill(stalled.pids().get('clickhouse')!, 'SIGSTOP');
  expect(await stalled.api.postTelemetry(device.token, '{"waits":1}')).toBe(200);
}, 240_000);

afterAll(async () => {
  const pid = stalled?.pids().get('clickhouse');
  if (pid !== undefined) process.kill(pid, 'SIGCONT');
  await Promise.all([stalled?.destroy(), picky?.destroy()]);
});

/** Checks that the alert fires in time; counters are compared with the page `earlier`. */
async function fires(alert: string, { api }: Engine, earlier?: string, waitMsMax = 60_000): Promise<void> {
  await eventually(async () => firing(await scrape(api), earlier).includes(alert), waitMsMax);
}

async function isSilent(alert: string, { api }: Engine): Promise<string> {
  const page = await scrape(api);
  expect(firing(page)).not.toContain(alert);
  return page;
}

test('parts: merges stop, and every insert adds a part', async () => {
  await isSilent('MillraceParts', picky);
  await picky.clickhouseCommand('SYSTEM STOP MERGES telemetry');
  const row = `9000000000000, 'part', 1700006400000 + number, 2, 0, number, '', 1`;
  const aPartEach =
    'max_block_size = 1, min_insert_block_size_rows = 1, min_insert_block_size_bytes = 1, max_threads = 1';
  await picky.clickhouseCommand(
    `INSERT INTO telemetry (device, key, ts, kind, num, int, text, version)
     SELECT ${row} FROM numbers(1050) SETTINGS ${aPartEach}`,
  );
  await fires('MillraceParts', picky);
  await picky.clickhouseCommand('SYSTEM START MERGES telemetry');
});

test('pool waits: statements wait for a lock that another client of the database holds', async () => {
  const { openPostgres } = await import('../../src/postgres/client.ts');
  const { url } = JSON.parse(readFileSync(join(stalled.dataDir, 'run', 'postgres.json'), 'utf8')) as { url: string };
  const silent = () => {};
  const log = { debug: silent, info: silent, warn: silent, error: silent };
  const other = openPostgres({ url, poolMax: 1, log });
  const earlier = await isSilent('MillracePoolWaits', stalled);
  // Signs in before the lock.
  await stalled.api.adminToken();
  // Reads one device and no list: pages of lists would wait for their turn, because they may use half of the
  // connections.
  const { id } = await stalled.api.createDevice('behind-the-lock');
  const statuses = new Set<number>();
  let isLocked = true;
  const callOn = async () => {
    while (isLocked) statuses.add((await stalled.api.send('GET', `/api/device/${id}`)).status);
  };
  let callers: Promise<void>[] = [];
  await other.transaction(async ({ query }) => {
    await query('lock table device in access exclusive mode');
    callers = Array.from({ length: 80 }, callOn);
    // A statement waits for a lock for 5 s at most. Its caller gets 503 and calls again.
    await fires('MillracePoolWaits', stalled, earlier).finally(() => {
      isLocked = false;
    });
  });
  await Promise.all(callers);
  await other.close();
  expect([...statuses].filter((status) => status !== 200 && status !== 503)).toEqual([]);
});

test('files: clients hold nearly as many connections as the limit allows', async () => {
  await isSilent('MillraceFiles', stalled);
  const clients: MqttClient[] = [];
  try {
    for (let n = 0; n < filesMax * 0.82; n += 1) {
      // One address gets only a share of the connections. A CONNECT may follow within seconds.
      clients.push(await MqttClient.open({ port: stalled.mqttPort, localAddress: `127.0.0.${2 + (n % 3)}` }));
    }
    await fires('MillraceFiles', stalled);
  } finally {
    for (const client of clients) client.cut();
  }
});

test('slow loop: a worker gets the processor for a tenth of the time only', async () => {
  await eventually(async () => !firing(await scrape(stalled.api)).includes('MillraceSlowLoop'), 120_000);
  const pid = stalled.pids().get('worker-0')!;
  let isOver = false;
  const starving = (async () => {
    while (!isOver) {
      process.kill(pid, 'SIGSTOP');
      await sleep(400);
      process.kill(pid, 'SIGCONT');
      await sleep(40);
    }
  })();
  try {
    await fires('MillraceSlowLoop', stalled, undefined, 120_000);
  } finally {
    isOver = true;
    await starving;
  }
});

const journal = () => join(stalled.dataDir, 'journal', 'worker-0');
const segments = () => readdirSync(journal()).filter((name) => name.endsWith('.seg'));

test('journal write errors: the system refuses a write; the message is acknowledged from the next file', async () => {
  const earlier = await isSilent('MillraceJournalWriteErrors', stalled);
  const limitFiles = (bytes: string) =>
    execFileSync('prlimit', ['--pid', String(stalled.pids().get('worker-0')), `--fsize=${bytes}:`]);
  expect(await stalled.api.postTelemetry(device.token, JSON.stringify({ long: 'x'.repeat(200_000) }))).toBe(200);
  // The next file is prepared.
  await eventually(() => segments().length >= 2, 60_000);
  limitFiles('100000');
  expect(await stalled.api.postTelemetry(device.token, '{"second":2}')).toBe(200);
  await fires('MillraceJournalWriteErrors', stalled, earlier);
  limitFiles('unlimited');
  expect(stalled.events('journal_write_failed')).toMatchObject([
    { attempt: 1, reason: expect.stringMatching(/EFBIG/) },
  ]);
  expect(await stalled.api.postTelemetry(device.token, '{"third":3}')).toBe(200);
});

test('backlog old: ClickHouse does not answer for five minutes', async () => {
  await fires('MillraceBacklogOld', stalled, undefined, faultMsMax);
});

test('unreachable: the engine is gone; journal damaged: a byte of its journal is another one at the next start', async () => {
  const body = (n: number) => `{"ts":${1_700_000_000_000 + n},"values":{"damage":"mark-${n}-of-the-test"}}`;
  for (let n = 0; n < 3; n += 1) expect(await stalled.api.postTelemetry(device.token, body(n))).toBe(200);
  expect(firing(await scrape(stalled.api))).not.toEqual(
    expect.arrayContaining([expect.stringMatching(/^Millrace(Unreachable|JournalDamaged)$/)]),
  );
  await stalled.killAll();
  await fires('MillraceUnreachable', stalled);
  const paths = segments().map((name) => join(journal(), name));
  const path = paths.find((each) => readFileSync(each).includes('mark-1-of-the-test'))!;
  const bytes = readFileSync(path);
  bytes[bytes.indexOf('mark-1-of-the-test')]! ^= 1;
  writeFileSync(path, bytes);
  await stalled.start();
  await fires('MillraceJournalDamaged', stalled);
  expect(firing(await scrape(stalled.api))).not.toContain('MillraceUnreachable');
  // The frames around the damage are stored.
  const stored = await eventually(async () => {
    const range = { startTs: 1_700_000_000_000, endTs: 1_700_000_000_009 };
    const { damage = [] } = await stalled.api.readSeries(device.id, ['damage'], range);
    return damage.length === 2 ? damage : undefined;
  }, 60_000);
  expect(stored.map(({ value }) => value)).toEqual(['mark-0-of-the-test', 'mark-2-of-the-test']);
});

test('quarantine: ClickHouse refuses a row for five minutes and takes others', async () => {
  expect(firing(quarantineBefore)).not.toContain('MillraceQuarantine');
  await fires('MillraceQuarantine', picky, quarantineBefore, faultMsMax);
  expect(await picky.metric('ingest_quarantined_rows_total')).toBe(1);
});
