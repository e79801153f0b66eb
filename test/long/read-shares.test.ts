/** Reads of telemetry share the few places of the embedded ClickHouse: a tenant never uses all of them. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Device } from '../harness/api.ts';
import { type Engine, startEngine } from '../harness/engine.ts';
import { call, makeTenant } from '../harness/tenants.ts';

let engine: Engine;

beforeAll(async () => {
  engine = await startEngine({ workers: 1, env: { CLICKHOUSE_EMBEDDED_SESSIONS: '4' } });
});

afterAll(() => engine?.destroy());

test('a read of one tenant does not wait for the reads that another tenant has asked for before', async () => {
  const { api } = engine;
  const small = await api.newDevice();
  await send(small, [{ ts: 1_750_000_000_000, values: { a: 1 } }]);
  const other = await makeTenant(api, await systemToken());
  const { id } = await call(api, 'POST', '/api/device', { name: 'busy' }, other.admin.token);
  const { credentialsId } = await call(api, 'GET', `/api/device/${id.id}/credentials`, undefined, other.admin.token);
  const points = Array.from({ length: 20_000 }, (_, n) => ({ ts: 1_750_000_000_000 + n, values: { a: n } }));
  await send({ id: id.id, token: credentialsId }, points);
  const range = 'keys=a&startTs=1750000000000&endTs=1750000100000';
  const long = `/api/plugins/telemetry/DEVICE/${id.id}/values/timeseries?limit=20000&${range}`;
  const short = `/api/plugins/telemetry/DEVICE/${small.id}/values/timeseries?${range}`;
  const read = (path: string, token: string) => call(api, 'GET', path, undefined, token);
  const admin = await api.adminToken();
  await expect
    .poll(async () => (await read(long, other.admin.token)).a?.length, { timeout: 20_000 })
    .toBe(points.length);
  await expect.poll(async () => (await read(short, admin)).a?.length).toBe(1);

  let answered = 0;
  const flood = Array.from({ length: 30 }, async () => {
    await read(long, other.admin.token);
    answered += 1;
  });
  await expect.poll(() => answered, { interval: 5, timeout: 20_000 }).toBeGreaterThan(0);
  const before = answered;
  expect((await read(short, admin)).a).toHaveLength(1);
  expect(answered - before).toBeLessThan(8);
  await Promise.all(flood);
});

async function send({ token }: Device, body: object[]): Promise<void> {
  const response = await fetch(`${engine.api.http}/api/v1/${token}/telemetry`, {
    method: 'POST',
    body: JSON.stringify(body),
  });
  expect(response.status).toBe(200);
}

async function systemToken(): Promise<string> {
  return (await engine.api.login('sysadmin@millrace.local', engine.api.address.adminPassword)).token;
}
