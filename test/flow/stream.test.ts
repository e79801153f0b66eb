/**
 * `INGEST_ACK=stream` over the wire, with two hosts, stores of their own and three real nodes of NATS: what was
 * acknowledged is stored once whatever a host loses, one node may be lost, and without a majority nothing is promised.
 */
import { randomUUID } from 'node:crypto';
import { rmSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, queryClickhouse, startEngine } from '../harness/engine.ts';
import { connectMqtt, type MqttClient } from '../harness/mqtt-client.ts';
import { NatsCluster } from '../harness/nats-cluster.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';

const losses = Number(process.env['STREAM_LOSSES'] ?? 3);
const redeliverSeconds = 4;
/** Stays for all tests; the other host is the one that is lost. */
let stays: Engine;
let lost: Engine;
let stores: Stores;
let nodes: NatsCluster;
let device: Device;
let env: Record<string, string>;

beforeAll(async () => {
  [stores, nodes] = await Promise.all([startStores(), NatsCluster.start()]);
  env = {
    ...hostSettings(stores),
    INGEST_ACK: 'stream',
    STREAM_URL: nodes.url,
    STREAM_MONITOR_URLS: nodes.monitorUrls,
    STREAM_BYTES_MAX: '64MiB',
    STREAM_REDELIVER_SECONDS: String(redeliverSeconds),
    SHIP_LATE_SECONDS_MAX: '1',
  };
  stays = await startEngine({ workers: 1, env });
  lost = await startEngine({ workers: 1, env });
  device = await stays.api.createDevice(`stream-${randomUUID()}`, randomUUID().replaceAll('-', ''));
});

afterAll(async () => {
  await Promise.all([stays?.destroyAtOnce(), lost?.destroyAtOnce()]);
  await Promise.all([nodes?.stop(), stores?.stopAll()]);
});

interface Ledger {
  key: string;
  /** Values whose message was acknowledged. */
  values: number[];
}

/** Posts values until `stop` is called; remembers those that got 200. Half of them are of last week. */
function post(engine: Engine, key: string): { ledger: Ledger; stop(): Promise<void> } {
  const ledger: Ledger = { key, values: [] };
  let going = true;
  let value = 0;
  const one = async (): Promise<void> => {
    while (going) {
      const mine = (value += 1);
      const ts = (mine % 2 === 0 ? Date.now() : Date.now() - 7 * 86_400_000) - (mine % 1000);
      const body = JSON.stringify({
        ts: Math.floor(ts / 100_000) * 100_000 + (mine % 100_000),
        values: { [key]: mine },
      });
      const status = await engine.api.postTelemetry(device.token, body).catch(() => 0);
      if (status === 200) ledger.values.push(mine);
      else await sleep(5);
    }
  };
  const all = Promise.all(Array.from({ length: 4 }, one));
  return {
    ledger,
    stop: async () => {
      going = false;
      await all;
    },
  };
}

/** The same over MQTT with QoS 1. */
function publish(client: MqttClient, key: string): { ledger: Ledger; stop(): Promise<void> } {
  const ledger: Ledger = { key, values: [] };
  let going = true;
  const run = async (): Promise<void> => {
    for (let value = 1; going; value += 1) {
      try {
        const ack = await client.publish('v1/devices/me/telemetry', JSON.stringify({ [key]: value }));
        if (ack.reasonCode === 0) ledger.values.push(value);
      } catch {
        return;
      }
    }
  };
  const all = run();
  return {
    ledger,
    stop: async () => {
      going = false;
      await all;
    },
  };
}

/** Every value of the ledger is there, and none of them twice. */
async function expectStoredOnce({ key, values }: Ledger): Promise<void> {
  const rows = () =>
    queryClickhouse(
      stores.clickhouse.address(),
      `select int from telemetry final where key = '${key}' and kind != 0 order by int settings do_not_merge_across_partitions_select_final = 1`,
    );
  expect(values.length).toBeGreaterThan(0);
  await eventually(async () => {
    const stored = new Set((await rows()).map(([value]) => Number(value)));
    return values.every((value) => stored.has(value));
  }, 60_000);
  const stored = (await rows()).map(([value]) => Number(value));
  expect(stored.length).toBe(new Set(stored).size);
}

/** The nodes have given every frame, and it was confirmed. */
async function streamsAreEmpty(): Promise<void> {
  await eventually(
    () =>
      nodes.manage(async (manager) => {
        const infos = await Promise.all(
          ['live', 'late'].map((lane) => manager.consumers.info(`millrace-${lane}`, 'millrace')),
        );
        return infos.every(({ num_pending, num_ack_pending }) => num_pending + num_ack_pending === 0);
      }),
    60_000,
  );
}

test(`a host that is lost with its disk ${losses} times loses nothing that was acknowledged`, async () => {
  for (let round = 1; round <= losses; round += 1) {
    const isAway = round % 2 === 0;
    if (isAway) await stores.clickhouse.kill();
    const client = await connectMqtt({ port: lost.mqttPort, token: device.token });
    const http = post(lost, `http${round}`);
    const mqtt = publish(client, `mqtt${round}`);
    await eventually(() => http.ledger.values.length > 100 && mqtt.ledger.values.length > 20, 30_000);
    await lost.killAll();
    client.cut();
    await Promise.all([http.stop(), mqtt.stop()]);
    rmSync(lost.dataDir, { recursive: true, force: true });
    if (isAway) await stores.clickhouse.start();
    await expectStoredOnce(http.ledger);
    await expectStoredOnce(mqtt.ledger);
    await streamsAreEmpty();
    // A new machine in the place of the old one.
    lost = await startEngine({ workers: 1, env });
  }
  expect(stays.events('stream_lost')).toEqual([]);
}, 600_000);
