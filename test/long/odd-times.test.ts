/**
 * Times in other units and times ahead of the server, with each setting and over HTTP, MQTT and gateways
 * (docs/http.md#telemetry): TELEMETRY_TS_UNIT and LATEST_FUTURE_SECONDS_MAX.
 */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { withMqtt } from '../harness/mqtt-client.ts';
import { telemetry } from '../harness/mqtt-device.ts';
import { childName, gatewayTopic } from '../harness/mqtt-gateway.ts';
import { ok } from '../harness/people.ts';

let engine: Engine;

beforeAll(async () => {
  engine = await startEngine({ workers: 1 });
});

afterAll(() => engine?.destroy());

/** Sends records of telemetry for one device; returns for each record whether it was accepted. */
type Send = (records: readonly string[]) => Promise<{ device: Device; accepted: boolean[] }>;

const doors: Record<string, Send> = {
  async HTTP(records) {
    const device = await engine.api.newDevice();
    const statuses: number[] = [];
    for (const record of records) statuses.push(await engine.api.postTelemetry(device.token, record));
    expect(statuses.filter((status) => status !== 200 && status !== 400)).toEqual([]);
    return { device, accepted: statuses.map((status) => status === 200) };
  },
  async MQTT(records) {
    const device = await engine.api.newDevice();
    return await withMqtt({ port: engine.mqttPort, token: device.token }, async (client) => {
      const accepted: boolean[] = [];
      for (const record of records) accepted.push(!(await client.publish(telemetry, record)).reasonCode);
      return { device, accepted };
    });
  },
  async gateway(records) {
    const { token } = await engine.api.createGateway(childName('hub'));
    const name = childName();
    return await withMqtt({ port: engine.mqttPort, token }, async (client) => {
      const accepted: boolean[] = [];
      for (const record of records) {
        const ack = await client.publish(gatewayTopic.telemetry, `{"${name}":[${record}]}`);
        accepted.push(!ack.reasonCode);
      }
      const path = `/api/tenant/devices?deviceName=${name}`;
      const { id } = (await ok('GET', path, undefined, undefined, engine.api)) as { id: { id: string } };
      return { device: { id: id.id, token: '' }, accepted };
    });
  },
};

const now = Date.now();
const [hourMs, dayMs] = [3_600_000, 86_400_000];
const record = (ts: number | string, key: string, value: number) => `{"ts":${ts},"values":{"${key}":${value}}}`;
/** One moment in each unit. A double cannot hold the nanoseconds exactly. */
const seconds = Math.floor(now / 1000) - 60;
const moments = { milliseconds: `${seconds}000`, seconds: `${seconds}`, microseconds: `${seconds}000000` };
const inUnits = { ...moments, nanoseconds: `${seconds}000000000` };

/** Returns the times of the history of a key, once it has so many. */
async function timesOf(device: Device, key: string, count: number): Promise<number[]> {
  const range = { startTs: 0, endTs: now + 4000 * dayMs };
  const points = await eventually(async () => {
    const found = (await engine.api.readSeries(device.id, [key], range))[key] ?? [];
    return found.length >= count ? found : undefined;
  }, 20_000);
  return points.map(({ ts }) => ts);
}

async function oddTimesOf(device: Device): Promise<Record<string, number>> {
  const path = `/api/device/${device.id}/diagnostics`;
  const { times } = (await ok('GET', path, undefined, undefined, engine.api)) as {
    times: { kind: string; count: number }[];
  };
  return Object.fromEntries(times.map(({ kind, count }) => [kind, count]));
}

/** Sends a point that is so far ahead with the value 1, then one of now with the value 0; one of them is the latest. */
async function expectLatest(send: Send, aheadMs: number, value: 0 | 1): Promise<void> {
  const { device, accepted } = await send([record(now + aheadMs, 'level', 1), record(now, 'level', 0)]);
  expect(accepted).toEqual([true, true]);
  expect(await timesOf(device, 'level', 2)).toEqual([now, now + aheadMs]);
  // The tables of history and of latest values are written one beside the other.
  await eventually(async () => {
    const { level } = await engine.api.readLatest(device.id, ['level']);
    if (level?.[0]?.value !== value) throw new Error(`${aheadMs} ms ahead: ${JSON.stringify(level)}`);
    return true;
  });
}

/** What each setting does: the times that are stored, by unit, and how far ahead the latest value may be. */
const settings = [
  {
    env: {},
    stored: { milliseconds: [seconds * 1000], seconds: [seconds] },
    latest: [hourMs, dayMs - hourMs],
    notLatest: [dayMs + hourMs, 3650 * dayMs],
  },
  {
    env: { TELEMETRY_TS_UNIT: 'auto', LATEST_FUTURE_SECONDS_MAX: '1800' },
    stored: Object.fromEntries(Object.keys(inUnits).map((unit) => [unit, [seconds * 1000]])),
    latest: [hourMs / 4],
    notLatest: [hourMs, dayMs + hourMs],
  },
  {
    env: { TELEMETRY_TS_UNIT: 'ms', LATEST_FUTURE_SECONDS_MAX: '0' },
    stored: { milliseconds: [seconds * 1000], seconds: [seconds] },
    latest: [hourMs, 3650 * dayMs],
    notLatest: [],
  },
];

for (const { env, stored, latest, notLatest } of settings) {
  describe(`with ${JSON.stringify(env)}`, () => {
    beforeAll(async () => {
      await engine.stop();
      await engine.start(env);
    });

    for (const [door, send] of Object.entries(doors)) {
      test(`${door}: a time in another unit is stored as the setting says, or refused, and counted`, async () => {
        const records = Object.entries(inUnits).map(([unit, ts]) => record(ts, unit, 1));
        const { device, accepted } = await send(records);
        expect(accepted).toEqual(Object.keys(inUnits).map((unit) => unit in stored));
        for (const [unit, times] of Object.entries(stored)) expect(await timesOf(device, unit, 1), unit).toEqual(times);
        expect(Object.keys(await engine.api.readLatest(device.id)).sort()).toEqual(Object.keys(stored).sort());
        expect(await oddTimesOf(device)).toEqual({ seconds: 1, microseconds: 1, nanoseconds: 1 });
      });

      test(`${door}: a point ahead of the server is the latest value as far as the setting says`, async () => {
        for (const aheadMs of latest) await expectLatest(send, aheadMs, 1);
        for (const aheadMs of notLatest) await expectLatest(send, aheadMs, 0);
      });
    }
  });
}
