/**
 * Two hosts under load over HTTP and MQTT. All processes of one are killed at one moment and its data directory is
 * removed, again and again, while ClickHouse answers and while it does not: what was acknowledged is stored once, with
 * `INGEST_ACK` stream and store. `HOST_LOSSES` hosts are lost of each. No test is tried again: the second try would
 * hide what was lost.
 */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Acknowledged, expectStoredOnce, postValues, publishValues } from '../harness/acknowledged.ts';
import { type Device, eventually } from '../harness/api.ts';
import { queryClickhouse } from '../harness/clickhouse-queries.ts';
import { type Engine, startEngine, startEngines } from '../harness/engine.ts';
import { connectMqtt } from '../harness/mqtt-client.ts';
import { NatsCluster } from '../harness/nats-cluster.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';

const losses = Number(process.env['HOST_LOSSES'] ?? 2);

describe.each(['stream', 'store'] as const)('INGEST_ACK=%s', (level) => {
  let stores: Stores;
  let nodes: NatsCluster | undefined;
  let stays: Engine;
  let lost: Engine;
  let device: Device;
  let env: Record<string, string>;

  beforeAll(async () => {
    stores = await startStores();
    nodes = level === 'stream' ? await NatsCluster.start() : undefined;
    env = {
      ...hostSettings(stores),
      INGEST_ACK: level,
      ...(nodes && {
        STREAM_URL: nodes.url,
        STREAM_MONITOR_URLS: nodes.monitorUrls,
        STREAM_BYTES_MAX: '64MiB',
        STREAM_REDELIVER_SECONDS: '3',
      }),
    };
    [stays, lost] = await startEngines([
      { workers: 1, env },
      { workers: 1, env },
    ]);
    device = await stays.api.createDevice(`lost-${randomUUID()}`, randomUUID().replaceAll('-', ''));
  });

  afterAll(async () => {
    await Promise.all([stays?.destroyAtOnce(), lost?.destroyAtOnce()]);
    await Promise.all([nodes?.stop(), stores?.stopAll()]);
  });

  /** Resolves when so many more messages were acknowledged by each door. */
  async function more(loads: Acknowledged[], count: number): Promise<void> {
    const before = loads.map(({ values }) => values.length);
    await eventually(() => loads.every(({ values }, i) => values.length >= before[i]! + count), 60_000);
  }

  /** Without ClickHouse a stream acknowledges as before, and `store` nothing: its loss comes in between. */
  async function loseHost(round: number, isAway: boolean): Promise<Acknowledged[]> {
    const client = await connectMqtt({ port: lost.mqttPort, token: device.token });
    const steady = postValues(stays.api, device.token, `stays${round}`);
    const ofLost = [postValues(lost.api, device.token, `http${round}`), publishValues(client, `mqtt${round}`)];
    await more([steady, ...ofLost], 20);
    if (isAway) await stores.clickhouse.kill();
    if (isAway && level === 'stream') await more([steady, ...ofLost], 20);
    await lost.destroyAtOnce();
    client.cut();
    await Promise.all([steady, ...ofLost].map((load) => load.stop()));
    if (isAway) await stores.clickhouse.start();
    return [steady, ...ofLost];
  }

  if (level === 'store') {
    test('two hosts make 25 new parts a second in a table at most', { timeout: 60_000 }, async () => {
      const sql = `SELECT toUInt32(value) FROM system.events WHERE event = 'MergeTreeDataWriterBlocks'`;
      const parts = async () => Number((await queryClickhouse(stores.clickhouse.address(), sql))[0]?.[0] ?? 0);
      const [before, start] = [await parts(), performance.now()];
      const post = async ({ api }: Engine): Promise<void> => {
        // A busy machine may answer later than within the deadline: such a message is stored as well.
        for (let n = 0; n < 40; n += 1) await api.postTelemetry(device.token, `{"parts":${n}}`);
      };
      await Promise.all([stays, lost, stays, lost].map(post));
      const seconds = (performance.now() - start) / 1000;
      // Two tables, and the inserts that ran when the time began.
      const made = (await parts()) - before;
      expect(made).toBeGreaterThan(0);
      expect(made).toBeLessThanOrEqual(2 * (25 * seconds + 4));
    });
  }

  test(`${losses} hosts that are lost with their disks lose nothing that was acknowledged`, {
    timeout: losses * 120_000,
    retry: 0,
  }, async () => {
    for (let round = 1; round <= losses; round += 1) {
      const loads = await loseHost(round, round % 2 === 0);
      // A new machine takes the place of the old one.
      [lost] = await Promise.all([
        startEngine({ workers: 1, env }),
        ...loads.map((load) => expectStoredOnce(stores.clickhouse.address(), load)),
      ]);
    }
    expect(stays.events('stream_lost')).toEqual([]);
  });
});
