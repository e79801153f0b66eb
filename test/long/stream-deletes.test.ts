/** Frames that reach ClickHouse again after a delete was carried out bring nothing back. */
import { jetstream } from '@nats-io/jetstream';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { copyMsMin } from '../../src/stream/deletes-again.ts';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { NatsCluster } from '../harness/nats-cluster.ts';
import { streamSettings } from '../harness/stream-engine.ts';

const live = 'millrace-live';
const waitMsMax = 60_000;
let nodes: NatsCluster;
let engine: Engine;
let device: Device;

beforeAll(async () => {
  nodes = await NatsCluster.start();
  // The relay of JSON keeps stored frames in the stream.
  const json = { STREAM_JSON: 'true', STREAM_JSON_BYTES_MAX: '16MiB' };
  engine = await startEngine({ workers: 1, env: { ...streamSettings(nodes), ...json } });
  device = await engine.api.createDevice('deletes');
});

afterAll(async () => {
  await engine?.destroyAtOnce();
  await nodes?.stop();
});

/** Rows of a key that a read shows, and its latest values. */
async function shown(key: string): Promise<number[]> {
  const count = async (sql: string) => Number((await engine.clickhouse(sql))[0]![0]);
  return [
    await count(`SELECT count() FROM telemetry FINAL WHERE key = '${key}' AND kind != 0`),
    await count(`SELECT count() FROM latest FINAL WHERE key = '${key}'`),
  ];
}

async function shows(key: string, wanted: number[]): Promise<void> {
  await eventually(async () => (await shown(key)).join() === wanted.join(), waitMsMax);
}

async function relayIsPaused(until: Date): Promise<void> {
  await nodes.manage((manager) => manager.consumers.pause(live, 'millrace-json', until));
  await eventually(() => nodes.manage(async ({ consumers }) => (await consumers.info(live, 'millrace-json')).paused));
}

/** Resolves when ClickHouse has every message up to this one. */
async function confirmed(seq: number): Promise<void> {
  const floor = () =>
    nodes.manage(async ({ consumers }) => (await consumers.info(live, 'millrace')).ack_floor.stream_seq).catch(() => 0);
  await eventually(async () => (await floor()) >= seq, waitMsMax);
}

/** Posts a value, and returns the message of the stream that has it. */
async function posted(key: string): Promise<{ seq: number; data: Uint8Array }> {
  await eventually(async () => (await engine.api.postTelemetry(device.token, `{"${key}":1}`)) === 200, waitMsMax);
  await shows(key, [1, 1]);
  return nodes.manage(async ({ streams }) => {
    const { state } = await streams.info(live);
    return (await streams.getMessage(live, { seq: state.last_seq }))!;
  });
}

async function deleted(key: string): Promise<void> {
  const path = `/api/plugins/telemetry/DEVICE/${device.id}/timeseries/delete?keys=${key}&deleteAllDataForKeys=true`;
  expect((await engine.api.send('DELETE', path)).status).toBeLessThan(300);
  await shows(key, [0, 0]);
}

test('a copy of a frame that a server publishes after a delete, as when it was frozen, brings nothing back', async () => {
  await relayIsPaused(new Date(Date.now() + 600_000));
  const postedBefore = Date.now();
  const { data } = await posted('copied');
  await deleted('copied');
  // A younger frame has no copy.
  await eventually(async () => Date.now() - postedBefore > copyMsMin + 1_000);
  const connection = await nodes.connect();
  const { seq } = await jetstream(connection).publish('millrace.live.0', data);
  await connection.close();
  await confirmed(seq);
  await shows('copied', [0, 0]);
}, 200_000);

test('frames that a new consumer gives again bring nothing back that was deleted', async () => {
  await relayIsPaused(new Date(Date.now() + 600_000));
  const { seq } = await posted('given');
  await confirmed(seq);
  await deleted('given');
  await nodes.manage(({ consumers }) => consumers.delete(live, 'millrace'));
  await confirmed(seq);
  await shows('given', [0, 0]);
}, 200_000);
