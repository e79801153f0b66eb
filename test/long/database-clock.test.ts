/**
 * Two hosts whose PostgreSQL has a clock that jumps by an hour (`faketime`), while commands have leases and devices are
 * active: no command is lost, ended or delivered twice, no device becomes inactive, no user is signed out, and the
 * hosts see each other.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Device, eventually } from '../harness/api.ts';
import { DebianPostgres, type PostgresNode } from '../harness/debian-postgres.ts';
import { type Engine, startEngines } from '../harness/engine.ts';
import { MachineClock } from '../harness/machine-clock.ts';
import { connectMqtt } from '../harness/mqtt-client.ts';
import { hostSettings, type Stores, startStores } from '../harness/stores.ts';

const clock = new MachineClock();
const servers = new DebianPostgres();

let stores: Stores;
let node: PostgresNode;
let hosts: Engine[];
let steady: Device[];
let sending: NodeJS.Timeout;

beforeAll(async () => {
  stores = await startStores();
  node = await clock.around(() => servers.primary());
  const env = {
    ...hostSettings(stores),
    DATABASE_URL: node.url,
    DEFAULT_INACTIVITY_TIMEOUT: '5',
    DEFAULT_STATE_CHECK_INTERVAL: '1',
  };
  hosts = await startEngines([
    { workers: 1, env },
    { workers: 2, env },
  ]);
  steady = [await hosts[0]!.api.createDevice('steady 0'), await hosts[1]!.api.createDevice('steady 1')];
  sending = setInterval(() => {
    for (const [n, { api }] of hosts.entries()) {
      // Fails while the first host is being restarted.
      api.postTelemetry(steady[n]!.token, `{"ts":${Date.now()},"values":{"beat":1}}`).catch(() => {});
    }
  }, 500);
}, 120_000);

afterAll(async () => {
  clearInterval(sending);
  clock.set(0);
  await Promise.all((hosts ?? []).map((host) => host.destroy()));
  await servers.remove([node]);
  await stores?.stopAll();
  clock.remove();
});

async function offsetOf(host: Engine): Promise<number> {
  return Number(/^clock_offset_seconds (\S+)$/m.exec(await host.api.metrics())?.[1]);
}

async function isActive({ id }: Device): Promise<boolean> {
  const path = `/api/plugins/telemetry/DEVICE/${id}/values/attributes/SERVER_SCOPE?keys=active`;
  const rows = (await (await hosts[0]!.api.send('GET', path)).json()) as { value: boolean }[];
  return rows[0]?.value === true;
}

test.each([
  ['ahead', 3_600],
  ['back to the right time', 0],
  ['behind', -3_600],
  ['ahead to the right time', 0],
])(
  'commands and devices outlive a jump %s, and a restart of a host after it',
  { timeout: 90_000 },
  async (_, seconds) => {
    const device = await hosts[0]!.api.createDevice(`jump ${performance.now()}`);
    const commands = [0, 1, 2, 3, 4, 5];
    const send = async (n: number) => {
      const body = { method: 'once', params: n, expirationTime: Date.now() + 600_000 };
      return await hosts[n % 2]!.api.sendPersistent(device.id, body, 'oneway');
    };
    const ids: string[] = [];
    for (const n of commands.slice(0, 4)) ids.push(await send(n));
    clock.set(seconds);
    await eventually(async () => {
      const offsets = await Promise.all(hosts.map(offsetOf));
      return offsets.every((offset) => Math.abs(offset + seconds) < 2);
    }, 20_000);
    await hosts[0]!.stop();
    hosts[0]!.spawn();
    // A host whose clock differs from that of the database accepts messages with `ts`, and is not ready.
    const [first] = hosts as [Engine];
    const beat = () => first.api.postTelemetry(steady[0]!.token, `{"ts":${Date.now()},"values":{"beat":2}}`);
    await eventually(async () => (await beat().catch(() => 0)) === 200, 20_000);
    const ts = Date.now() - 10_000;
    for (const [v, { api }] of hosts.entries()) {
      expect(await api.postTelemetry(device.token, `{"ts":${ts},"values":{"v":${v}}}`)).toBe(200);
      // Above the error of a measurement on a busy machine.
      await sleep(400);
    }
    for (const n of commands.slice(4)) ids.push(await send(n));
    const client = await connectMqtt({ port: hosts[1]!.mqttPort, token: device.token });
    await client.subscribe('v1/devices/me/rpc/request/+');
    const got: number[] = [];
    while (got.length < commands.length) got.push((await client.message()).json.params);
    // The order of arrival is not exact while a worker is slow (docs/rest.md).
    expect(got.sort((a, b) => a - b)).toEqual(commands);
    await eventually(async () => {
      const states = await Promise.all(ids.map((id) => hosts[0]!.api.persistentState(id)));
      return states.every(({ status }) => status === 'DELIVERED');
    });
    // Longer than a lease, and than the time after which a silent device is inactive.
    await client.nothingFor(7_000);
    client.cut();
    const { v } = await hosts[0]!.api.readSeries(device.id, ['v'], { startTs: ts, endTs: ts + 1 });
    expect(v?.map(({ value }) => value)).toEqual([1]);
    expect(await Promise.all(steady.map(isActive))).toEqual([true, true]);
    for (const host of hosts) {
      expect(await host.api.metrics()).toMatch(/^hosts\{state="live"\} 2$/m);
      const { status } = await fetch(`${host.api.http}/readyz`);
      expect(status).toBe(seconds === 0 ? 200 : 503);
    }
  },
);
