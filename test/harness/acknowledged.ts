/** Load whose acknowledged values are remembered, and the proof that each of them is stored once. */
import { setTimeout as sleep } from 'node:timers/promises';
import { expect } from 'vitest';
import { type Api, eventually } from './api.ts';
import { type ClickhouseAddress, queryClickhouse } from './clickhouse-queries.ts';
import type { MqttClient } from './mqtt-client.ts';

const senders = 4;
const storedMsMax = 60_000;
const weekMs = 7 * 86_400_000;

export interface Acknowledged {
  key: string;
  /** Values whose message was acknowledged. */
  values: number[];
  stop(): Promise<void>;
}

/** Posts values of a key over HTTP until `stop` is called. Half of them are of last week, so both lanes have rows. */
export function postValues(api: Api, token: string, key: string): Acknowledged {
  const values: number[] = [];
  let going = true;
  let value = 0;
  const one = async (): Promise<void> => {
    while (going) {
      const mine = (value += 1);
      const near = mine % 2 === 0 ? Date.now() : Date.now() - weekMs;
      const ts = Math.floor(near / 100_000) * 100_000 + (mine % 100_000);
      const status = await api.postTelemetry(token, JSON.stringify({ ts, values: { [key]: mine } })).catch(() => 0);
      if (status === 200) values.push(mine);
      else await sleep(5);
    }
  };
  const all = Promise.all(Array.from({ length: senders }, one));
  const stop = async () => {
    going = false;
    await all;
  };
  return { key, values, stop };
}

/** Publishes values of a key over MQTT with QoS 1, without `ts`, until `stop` is called or the connection ends. */
export function publishValues(client: MqttClient, key: string): Acknowledged {
  const values: number[] = [];
  let going = true;
  const run = async (): Promise<void> => {
    for (let value = 1; going; value += 1) {
      try {
        const ack = await client.publish('v1/devices/me/telemetry', JSON.stringify({ [key]: value }));
        if (ack.reasonCode === 0) values.push(value);
      } catch {
        return;
      }
    }
  };
  const all = run();
  const stop = async () => {
    going = false;
    await all;
  };
  return { key, values, stop };
}

/** Waits until every acknowledged value is stored, and checks that none is there twice. */
export async function expectStoredOnce(
  address: ClickhouseAddress,
  { key, values }: Pick<Acknowledged, 'key' | 'values'>,
): Promise<void> {
  const sql =
    `select int from telemetry final where key = '${key}' and kind != 0 order by int ` +
    'settings do_not_merge_across_partitions_select_final = 1';
  const read = async () => (await queryClickhouse(address, sql)).map(([value]) => Number(value));
  expect(values.length).toBeGreaterThan(0);
  await eventually(async () => {
    const stored = new Set(await read());
    return values.every((value) => stored.has(value));
  }, storedMsMax);
  const stored = await read();
  expect(stored.length).toBe(new Set(stored).size);
}
