/**
 * `STREAM_FALLBACK=journal` while rows of both lanes come in: what begins to be published before the majority is gone,
 * and what goes to the journal at once, are in the order of their numbers there. Over the wire, with three real nodes.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { queryClickhouse } from '../harness/clickhouse-queries.ts';
import type { Engine } from '../harness/engine.ts';
import type { NatsCluster } from '../harness/nats-cluster.ts';
import type { Stores } from '../harness/stores.ts';
import { type StreamEngine, startStreamEngine } from '../harness/stream-engine.ts';

let started: StreamEngine | undefined;
let engine: Engine;
let stores: Stores;
let nodes: NatsCluster;
let device: Device;

beforeAll(async () => {
  const settings = { STREAM_FALLBACK: 'journal', SHIP_LATE_SECONDS_MAX: '1', SHUTDOWN_DRAIN_MS_MAX: '3000' };
  started = await startStreamEngine('fallback', settings);
  ({ engine, stores, nodes, device } = started);
});

afterAll(() => started?.stop());

const daysAgo = () => Date.now() - 7 * 86_400_000;

async function post(body: object): Promise<{ status: number; message: string }> {
  const url = `${engine.api.http}/api/v1/${device.token}/telemetry`;
  const answer = await fetch(url, { method: 'POST', body: JSON.stringify(body), signal: AbortSignal.timeout(30_000) });
  return { status: answer.status, message: await answer.text() };
}

async function storedValues(key: string): Promise<string[]> {
  const sql = `select int from telemetry final where key = '${key}' and kind != 0 order by int`;
  return (await queryClickhouse(stores.clickhouse.address(), sql)).map(([value]) => String(value));
}

test('late rows that wait for the stream while live rows go to the journal are acknowledged and stored', async () => {
  await nodes.kill(1);
  await nodes.kill(2);
  const first = post({ changes: 1 });
  // The stream of live rows is known to be away while this message still waits for the other one.
  await sleep(1_000);
  const late = post({ ts: daysAgo(), values: { changes: 2 } });
  expect(await first).toMatchObject({ status: 200 });
  for (let n = 3; n < 10; n += 1) expect(await post({ changes: n })).toMatchObject({ status: 200 });
  expect(await late).toMatchObject({ status: 200 });
  await eventually(async () => (await storedValues('changes')).join() === '1,2,3,4,5,6,7,8,9', 30_000);
  nodes.startAgain(1);
  nodes.startAgain(2);
  await eventually(async () => (await engine.metric('stream_away')) === 0, 60_000);
}, 120_000);

test('a delete waits for frames of the stream and of the journal, and for no later one', async () => {
  const gone = (values: number) => ({ ts: Date.now() - 60_000 - values, values: { gone: values } });
  const old = (values: number) => ({ ts: daysAgo(), values: { goneLate: values } });
  await stores.clickhouse.kill();
  try {
    for (const body of [gone(1), old(1)]) expect(await post(body)).toMatchObject({ status: 200 });
    await nodes.kill(1);
    await nodes.kill(2);
    for (const body of [gone(2), old(2), gone(3)]) expect(await post(body)).toMatchObject({ status: 200 });
    const path = `/api/plugins/telemetry/DEVICE/${device.id}/timeseries/delete`;
    const asked = await engine.api.send('DELETE', `${path}?keys=gone,goneLate&deleteAllDataForKeys=true`);
    expect(asked.status).toBe(202);
    expect(await post({ gone: 4 })).toMatchObject({ status: 200 });
    nodes.startAgain(1);
    nodes.startAgain(2);
    await eventually(async () => (await engine.metric('stream_away')) === 0, 60_000);
    await eventually(async () => (await engine.metric('deletes_waiting')) === 1, 20_000);
  } finally {
    await stores.clickhouse.start();
  }
  await eventually(async () => (await engine.metric('deletes_waiting')) === 0, 90_000);
  expect([await storedValues('gone'), await storedValues('goneLate')]).toEqual([['4'], []]);
  const latest = `select int from latest final where key in ('gone', 'goneLate')`;
  expect(await queryClickhouse(stores.clickhouse.address(), latest)).toEqual([['4']]);
}, 240_000);
