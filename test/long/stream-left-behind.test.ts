/**
 * Frames that wait in a stream when STREAM_NAME, the servers or the level of an installation are changed: readiness,
 * the log, a start and `npm run doctor` name the stream and what ships it, and it is shipped.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { queryClickhouse } from '../harness/clickhouse-queries.ts';
import type { Engine } from '../harness/engine.ts';
import { NatsCluster } from '../harness/nats-cluster.ts';
import type { Stores } from '../harness/stores.ts';
import { type StreamEngine, startStreamEngine } from '../harness/stream-engine.ts';

let started: StreamEngine | undefined;
let engine: Engine;
let stores: Stores;
let nodes: NatsCluster;
let others: NatsCluster;
let device: Device;
let count = 0;

beforeAll(async () => {
  others = await NatsCluster.start();
  started = await startStreamEngine('left behind', { SHUTDOWN_DRAIN_MS_MAX: '2000' });
  ({ engine, stores, nodes, device } = started);
});

afterAll(() => Promise.all([started?.stop(), others?.stop()]));

/** Resolves when a host has compared the stream once: before that PostgreSQL does not know the stream. */
async function isKnown(): Promise<void> {
  await eventually(async () => /known are .*millrace-live/.test(await run('stream', ['forget', 'none'], {})), 30_000);
}

/** Leaves frames in the stream and stops. Without a pause, no host has compared the stream after the last frame. */
async function leaveFrames(): Promise<void> {
  await isKnown();
  await stores.clickhouse.kill();
  for (let n = 0; n < 3; n += 1) {
    await eventually(async () => (await engine.api.postTelemetry(device.token, `{"left":${count}}`)) === 200, 30_000);
    count += 1;
  }
  await engine.stop();
}

async function run(program: string, words: string[], changes: Record<string, string>): Promise<string> {
  const env = { ...engine.environment, ...changes };
  const child = spawn(process.execPath, [`dist/${program}.js`, ...words], { env });
  let output = '';
  for (const each of [child.stdout, child.stderr]) each.on('data', (chunk) => (output += chunk));
  await once(child, 'close');
  return output;
}

async function expectShipped(): Promise<void> {
  const sql = "select count() from telemetry final where key = 'left'";
  await eventually(
    async () => Number((await queryClickhouse(stores.clickhouse.address(), sql))[0]![0]) === count,
    60_000,
  );
}

const left =
  /the stream millrace-live holds \d+( or more)? frames .*STREAM_NAME=millrace.* until millrace_stream_frames/;

test.each([
  ['the level and STREAM_URL', () => ({ INGEST_ACK: 'journal', STREAM_URL: '' })],
  ['STREAM_NAME', () => ({ STREAM_NAME: 'another' })],
])(
  'after a change of %s',
  async (_what, changed) => {
    const changes = changed();
    await leaveFrames();
    expect((await run('doctor', [], changes)).toLowerCase()).toMatch(
      new RegExp(`^fault +stream +${left.source}`.toLowerCase(), 'm'),
    );
    await engine.start(changes, 'workers');
    expect(engine.output).toMatch(left);
    const { status, reasons } = await engine.status();
    expect(status).toBe('degraded');
    expect(reasons?.join()).toMatch(left);
    const logged = engine.events('stream_stranded').find(({ reason }) => left.test(String(reason)));
    expect(logged).toMatchObject({ level: 'error', stream: 'millrace-live' });
    await engine.stop();
    await engine.start({}, 'workers');
    await stores.clickhouse.start();
    await expectShipped();
    await eventually(async () => (await engine.status()).status === 'ready', 30_000);
  },
  180_000,
);

test('after a change of the servers a start is refused, until the stream is forgotten', async () => {
  await leaveFrames();
  const changes = { STREAM_URL: others.url };
  const refused =
    /STREAM_URL names other servers than .*, where the stream millrace-live held \d+ frames .*stream -- forget millrace-live/;
  engine.spawn(changes);
  expect((await engine.exit(60_000)).code).not.toBe(0);
  expect(engine.output).toMatch(refused);
  expect(await run('doctor', [], changes)).toMatch(refused);
  expect(await run('stream', ['forget', 'none'], changes)).toMatch(
    /has used the stream none: known are .*millrace-live/,
  );
  // The same servers by another address have the same stream.
  await engine.start({ STREAM_URL: nodes.url.replaceAll('127.0.0.1', 'localhost') }, 'workers');
  await engine.stop();
  expect(await run('stream', ['forget', 'millrace-live'], changes)).toMatch(/millrace-live is forgotten/);
  await engine.start(changes, 'workers');
  await engine.stop();
  // Nothing waits at the other servers.
  await engine.start({}, 'workers');
  await stores.clickhouse.start();
  await expectShipped();
}, 180_000);
