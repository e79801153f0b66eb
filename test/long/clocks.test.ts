/**
 * Two hosts on shared stores, one of them with a clock that is wrong or steps (`faketime`): that host loses nothing,
 * replaces no later value, makes no device inactive, is not ready and reports the reason.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { firing, scrape } from '../harness/alerts.ts';
import { type Device, eventually } from '../harness/api.ts';
import { type Engine, startEngines } from '../harness/engine.ts';
import { MachineClock } from '../harness/machine-clock.ts';
import { connectMqtt } from '../harness/mqtt-client.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';

const year = 365 * 24 * 3_600;
const telemetry = 'v1/devices/me/telemetry';
/** The clock of the bad host. */
const clock = new MachineClock();

let stores: Stores;
let good: Engine;
let bad: Engine;
/** Two devices during all tests: one sends through the good host, the other through the bad one. */
let steady: Device[];
let sending: NodeJS.Timeout;
let refusedSteady = 0;

beforeAll(async () => {
  stores = await startStores();
  const env = {
    ...hostSettings(stores),
    DEFAULT_INACTIVITY_TIMEOUT: '5',
    DEFAULT_STATE_CHECK_INTERVAL: '1',
  };
  [good, bad] = await startEngines([
    { workers: 1, env },
    { workers: 2, env: { ...env, ...clock.environment } },
  ]);
  steady = [await good.api.createDevice('steady here'), await good.api.createDevice('steady there')];
  sending = setInterval(() => {
    for (const [n, host] of [good, bad].entries()) {
      void post(host, steady[n]!, `{"ts":${Date.now()},"values":{"beat":1}}`).then((status) => {
        if (status !== 200) refusedSteady += 1;
      });
    }
  }, 500);
});

afterAll(async () => {
  clearInterval(sending);
  clock.set(0);
  await Promise.all([good?.destroy(), bad?.destroy()]);
  await stores?.stopAll();
  clock.remove();
});

function post(host: Engine, device: Device, body: string): Promise<number> {
  return host.api.postTelemetry(device.token, body);
}

async function readyz(host: Engine): Promise<{ status: number; body: { refusing?: string; reasons: string[] } }> {
  const response = await fetch(`${host.api.http}/readyz`, { headers: { connection: 'close' } });
  return { status: response.status, body: (await response.json()) as { refusing?: string; reasons: string[] } };
}

async function offsetOf(host: Engine): Promise<number> {
  const text = await host.api.metrics();
  return Number(/^clock_offset_seconds (\S+)$/m.exec(text)?.[1]);
}

async function serverAttributes(device: Device): Promise<Map<string, { value: unknown; lastUpdateTs: number }>> {
  const path = `/api/plugins/telemetry/DEVICE/${device.id}/values/attributes/SERVER_SCOPE`;
  const rows = (await (await good.api.send('GET', path)).json()) as {
    key: string;
    value: unknown;
    lastUpdateTs: number;
  }[];
  return new Map(rows.map((row) => [row.key, row]));
}

/** Writes through one host, then through the other, and checks that the second value is stored. */
async function laterWins(first: Engine, second: Engine): Promise<void> {
  const device = await good.api.newDevice();
  const ts = Date.now() - 10_000;
  const write = (host: Engine, value: number) =>
    post(host, device, `{"ts":${ts},"values":{"v":${value},"n${value}":1}}`);
  expect(await write(first, 1)).toBe(200);
  // Far above the error of a measurement on a busy machine.
  await sleep(400);
  expect(await write(second, 2)).toBe(200);
  const read = await eventually(async () => {
    const points = await good.api.readSeries(device.id, ['v', 'n1', 'n2'], { startTs: ts, endTs: ts + 1 });
    return points['n1']?.length === 1 && points['n2']?.length === 1 ? points['v'] : undefined;
  }, 20_000);
  expect(read?.map(({ value }) => value)).toEqual([2]);
}

describe.each([
  ['is 11 minutes ahead', 660],
  ['is 11 minutes behind', -660],
  ['is a year ahead', year],
  ['steps back to an hour ahead', 3_600],
  ['steps back to an hour behind', -3_600],
])('a host whose clock %s', (_, seconds) => {
  beforeAll(async () => {
    clock.set(seconds);
    await eventually(async () => Math.abs((await offsetOf(bad)) - seconds) < 2, 20_000);
  });

  test('is not ready and gives the reason; the other one is ready', async () => {
    // A worker receives the primary's measurement half a second later.
    const sentence = seconds > 0 ? /clock of this host is [\d.]+ s ahead of/ : /[\d.]+ s behind/;
    await eventually(async () => {
      const { status, body } = await readyz(bad);
      return status === 503 && sentence.test(body.refusing ?? '');
    });
    expect((await readyz(good)).status).toBe(200);
    expect(Math.abs(await offsetOf(good))).toBeLessThan(0.5);
    expect(firing(await scrape(bad.api))).toContain('MillraceClock');
  });

  test('refuses messages without ts, and takes those with ts', async () => {
    const device = await good.api.newDevice();
    const refused = await fetch(`${bad.api.http}/api/v1/${device.token}/telemetry`, {
      method: 'POST',
      body: '{"a":1}',
    });
    expect(refused.status).toBe(503);
    expect(Number(refused.headers.get('retry-after'))).toBeGreaterThan(0);
    expect(((await refused.json()) as { message: string }).message).toMatch(/"ts"/);
    const client = await connectMqtt({ port: bad.mqttPort, token: device.token });
    expect((await client.publish(telemetry, '{"a":1}')).reasonCode).toBe(0x97);
    expect((await client.publish(telemetry, `{"ts":${Date.now()},"values":{"b":1}}`)).reasonCode).toBe(0);
    client.cut();
    expect(await post(good, device, '{"a":2}')).toBe(200);
  });

  test('overrides nothing that comes later, and is not overridden by what came before', async () => {
    await Promise.all([laterWins(bad, good), laterWins(good, bad)]);
  });

  test('owns commands that wait, which end by the right time, and takes sessions over', async () => {
    const device = await good.api.newDevice();
    const command = (method: string) => ({ method, expirationTime: Date.now() + 600_000 });
    const ids: string[] = [];
    for (const host of [bad, good, bad]) {
      ids.push(await host.api.sendPersistent(device.id, command(`n${ids.length}`), 'oneway'));
    }
    const short = { method: 'short', expirationTime: Date.now() + 2_000 };
    const shortId = await bad.api.sendPersistent(device.id, short, 'oneway');
    await eventually(async () => (await good.api.persistentState(shortId)).status === 'EXPIRED', 10_000);
    for (const id of ids) expect((await good.api.persistentState(id)).status).toBe('QUEUED');
    const first = await connectMqtt({ port: bad.mqttPort, token: device.token });
    const second = await connectMqtt({ port: good.mqttPort, token: device.token });
    await first.closedFor(0x8e);
    await second.subscribe('v1/devices/me/rpc/request/+');
    const methods: string[] = [];
    while (methods.length < ids.length) methods.push((await second.message()).json.method);
    expect(methods).toEqual(['n0', 'n1', 'n2']);
    const third = await connectMqtt({ port: bad.mqttPort, token: device.token });
    await second.closedFor(0x8e);
    third.cut();
  });

  test('stores attributes with the right time', async () => {
    const device = await good.api.newDevice();
    const before = Date.now();
    const path = `/api/plugins/telemetry/DEVICE/${device.id}/attributes/SERVER_SCOPE`;
    expect((await bad.api.send('POST', path, { level: 1 })).status).toBe(200);
    const { lastUpdateTs } = (await serverAttributes(device)).get('level')!;
    expect(lastUpdateTs).toBeGreaterThan(before - 1_000);
    expect(lastUpdateTs).toBeLessThan(Date.now() + 1_000);
  });
});

test('no device turned inactive meanwhile, and one that falls silent does', async () => {
  const began = Date.now();
  for (const device of steady) {
    const attributes = await serverAttributes(device);
    expect(attributes.get('active')?.value).toBe(true);
    expect(attributes.has('inactivityAlarmTime')).toBe(false);
    expect(attributes.get('lastActivityTime')?.value).toBeLessThan(Date.now() + 1_000);
  }
  expect(refusedSteady).toBe(0);
  clearInterval(sending);
  await eventually(async () => {
    const all = await Promise.all(steady.map(serverAttributes));
    return all.every((attributes) => attributes.get('active')?.value === false);
  }, 40_000);
  for (const device of steady) {
    const ended = (await serverAttributes(device)).get('inactivityAlarmTime')?.value as number;
    expect(ended).toBeGreaterThan(began);
    expect(ended).toBeLessThan(Date.now() + 1_000);
  }
});

test('a clock that is right again makes the host ready; one that is wrong from the start does not', async () => {
  clock.set(0);
  await eventually(async () => (await readyz(bad)).status === 200, 20_000);
  const device = await good.api.newDevice();
  expect(await post(bad, device, '{"a":1}')).toBe(200);
  await bad.stop();
  clock.set(660);
  bad.spawn();
  await eventually(async () => {
    const answer = await readyz(bad).catch(() => undefined);
    return answer?.body.refusing?.includes('ahead');
  }, 40_000);
  expect(await post(bad, device, '{"a":2}')).toBe(503);
  expect(await post(bad, device, `{"ts":${Date.now()},"values":{"a":3}}`)).toBe(200);
});
