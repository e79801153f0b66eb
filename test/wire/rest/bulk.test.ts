/** Many devices in one call, with an outcome for each. */
import { randomUUID } from 'node:crypto';
import { expect, test } from 'vitest';
import { newTenant, ok } from '../../harness/people.ts';
import { fault } from '../../harness/rest.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

interface Result {
  name: string;
  id: { entityType: string; id: string } | null;
  accessToken: string | null;
  error: string | null;
}

interface Results {
  created: number;
  failed: number;
  results: Result[];
}

const bulk = (devices: object[], token?: string): Promise<Results> =>
  ok('POST', '/api/devices/bulk', { devices }, token);

test('a body of several pieces: rows keep their places, and one wrong row refuses all of it', async () => {
  const run = randomUUID().slice(0, 8);
  const info = { text: `],[{"${'x'.repeat(100)}` };
  const devices = Array.from({ length: 1_200 }, (_, i) => ({
    name: `${run}-${i}`,
    label: `é ${i}`,
    additionalInfo: info,
  }));
  const wrong = [...devices, { name: `${run}-last`, label: 5 }];
  expect(await fault('POST', '/api/devices/bulk', { devices: wrong })).toMatch(
    /^400\/31 .*devices\.1200\.label must be/,
  );
  const { created, failed, results } = await bulk(devices);
  expect([created, failed]).toEqual([1_200, 0]);
  expect(results.map(({ name }) => name)).toEqual(devices.map(({ name }) => name));
  const last = await ok('GET', `/api/device/${results.at(-1)!.id!.id}`);
  expect(last).toMatchObject({ name: `${run}-1199`, label: 'é 1199', additionalInfo: info });
});

test('each device is made or refused with a reason, independent of the others', async () => {
  const run = randomUUID().slice(0, 8);
  const customer = await ok('POST', '/api/customer', { title: `bulk-${run}` });
  await ok('POST', `/api/device?accessToken=${run}-taken`, { name: `${run}-there` });
  const devices = [
    {
      name: `${run}-1`,
      label: 'North',
      type: `type-${run}`,
      customerId: customer.id,
      additionalInfo: { gateway: true },
    },
    { name: `${run}-2`, accessToken: `${run}-token` },
    { name: `${run}-1` },
    { name: `${run}-there` },
    { name: `${run}-3`, accessToken: `${run}-taken` },
    { name: `${run}-4`, customerId: { entityType: 'CUSTOMER', id: randomUUID() } },
    { name: `${run}-5`, deviceProfileId: { entityType: 'DEVICE_PROFILE', id: randomUUID() } },
    { name: '<script>' },
    { name: `${run}'; drop table device; --` },
  ];
  const { created, failed, results } = await bulk(devices);
  expect([created, failed]).toEqual([3, 6]);
  expect(results.map(({ name }) => name)).toEqual(devices.map(({ name }) => name));
  expect(results.map(({ error }) => error)).toEqual([
    null,
    null,
    'Device with such name already exists!',
    'Device with such name already exists!',
    'These device credentials cannot be used: choose others.',
    "Can't assign device to non-existent customer!",
    'Device is referencing non existing device profile!',
    'Validation error: name is malformed',
    null,
  ]);
  for (const member of results) expect(Object.keys(member)).toEqual(['name', 'id', 'accessToken', 'error']);
  const first = await ok('GET', `/api/device/${results[0]!.id!.id}`);
  expect(first).toMatchObject({ label: 'North', type: `type-${run}`, customerId: customer.id, version: 1 });
  expect(first.additionalInfo).toEqual({ gateway: true });
  expect(results[1]!.accessToken).toBe(`${run}-token`);
  for (const { accessToken } of [results[0]!, results[1]!]) {
    expect(await sharedEngine().postTelemetry(accessToken!, '{"k":1}')).toBe(200);
  }
});

test('four thousand devices of one call have a token each', async () => {
  const { admin } = await newTenant();
  const devices = Array.from({ length: 4_000 }, (_, i) => ({ name: `pump-${i}` }));
  const { created, results } = await bulk(devices, admin.token);
  expect(created).toBe(4_000);
  expect(new Set(results.map(({ accessToken }) => accessToken)).size).toBe(4_000);
});

test('the same names at once on two connections are made once', async () => {
  const { admin } = await newTenant();
  const devices = Array.from({ length: 500 }, (_, i) => ({ name: `pump-${i}`, type: `type-${i % 5}` }));
  const answers = await Promise.all([bulk(devices, admin.token), bulk([...devices].reverse(), admin.token)]);
  expect(answers[0]!.created + answers[1]!.created).toBe(500);
  const page = await ok('GET', '/api/tenant/devices?pageSize=1&page=0', undefined, admin.token);
  expect(page.totalElements).toBe(500);
});

test('too many are refused', async () => {
  const devices = Array.from({ length: 20_001 }, (_, i) => ({ name: `pump-${i}` }));
  expect(await fault('POST', '/api/devices/bulk', { devices })).toMatch(/^400\/31 Validation error: devices /);
});
