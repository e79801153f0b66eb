/**
 * Telemetry and attributes of customers, tenants, users and device profiles: they work as those of devices, and only
 * permitted users see them.
 */
import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { newTenant, newUser, ok, type Person } from '../../harness/people.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

let admin: Person;
let customerUser: Person;
const ids: Record<string, string> = {};

beforeAll(async () => {
  const tenant = await newTenant();
  ({ admin } = tenant);
  const customer = await ok('POST', '/api/customer', { title: randomUUID() }, admin.token);
  customerUser = await newUser({ authority: 'CUSTOMER_USER', customerId: customer.id }, sharedEngine(), admin.token);
  const profile = await ok('POST', '/api/deviceProfile', { name: randomUUID() }, admin.token);
  Object.assign(ids, {
    CUSTOMER: customer.id.id,
    TENANT: tenant.id,
    USER: customerUser.id,
    DEVICE_PROFILE: profile.id.id,
  });
});

const pathOf = (type: string, id = ids[type]) => `/api/plugins/telemetry/${type}/${id}`;
const send = (method: string, path: string, body?: unknown, token = admin.token) => ok(method, path, body, token);

async function refusal(method: string, path: string, body?: unknown, token = admin.token): Promise<string> {
  const answer = await sharedEngine().send(method, path, body, token);
  return `${answer.status} ${await answer.text()}`;
}

describe.each(['CUSTOMER', 'TENANT', 'USER', 'DEVICE_PROFILE'])('%s', (type) => {
  test('has nothing at first', async () => {
    const path = pathOf(type);
    expect(await send('GET', `${path}/keys/timeseries`)).toEqual([]);
    expect(await send('GET', `${path}/values/attributes`)).toEqual([]);
    expect((await send('GET', `${path}/values/timeseries?keys=k`)).k).toEqual([
      { ts: expect.any(Number), value: null },
    ]);
    await send('DELETE', `${path}/timeseries/delete?keys=k&deleteAllDataForKeys=true`);
    await send('DELETE', `${path}/SERVER_SCOPE?keys=k`);
  });

  test('stores, reads and deletes telemetry', async () => {
    const path = pathOf(type);
    await send('POST', `${path}/timeseries/ANY`, [
      { ts: 1000, values: { k: 1, l: 'x' } },
      { ts: 2000, values: { k: 2.5 } },
    ]);
    const range = `${path}/values/timeseries?keys=k&startTs=0&endTs=3000&useStrictDataTypes=true`;
    const points = await eventually(async () => {
      const { k = [] } = await send('GET', range);
      return k.length === 2 ? k : undefined;
    });
    expect(points).toEqual([
      { ts: 2000, value: 2.5 },
      { ts: 1000, value: 1 },
    ]);
    // Points and latest values are inserted one by one, so either may be visible first.
    const latest = await eventually(async () => (await send('GET', `${path}/values/timeseries`)).k);
    expect(latest).toEqual([{ ts: 2000, value: '2.5' }]);
    expect(await send('GET', `${path}/keys/timeseries`)).toEqual(['k', 'l']);
    await send('DELETE', `${path}/timeseries/delete?keys=k&startTs=0&endTs=1500`);
    await eventually(async () => (await send('GET', range)).k.length === 1);
    expect(await refusal('POST', `${path}/timeseries/ANY`, 5)).toMatch(/^400 /);
  });

  test('stores, reads and deletes attributes, scope by scope', async () => {
    const path = pathOf(type);
    await send('POST', `${path}/SERVER_SCOPE`, { zone: 'north', size: 2.5, on: true, o: { a: [1] } });
    await send('POST', `${path}/attributes/SHARED_SCOPE`, { zone: 'south' });
    await send('POST', `${path}/SERVER_SCOPE`, { size: 3 });
    const read = async (of: string) =>
      Object.fromEntries(
        (await send('GET', `${path}/values/attributes${of}`)).map((row: { key: string; value: unknown }) => [
          row.key,
          row.value,
        ]),
      );
    expect(await read('/SERVER_SCOPE')).toEqual({ o: { a: [1] }, on: true, size: 3, zone: 'north' });
    expect(await read('/SHARED_SCOPE?keys=zone,none')).toEqual({ zone: 'south' });
    expect(await send('GET', `${path}/keys/attributes`)).toEqual(['o', 'on', 'size', 'zone']);
    await send('DELETE', `${path}/SERVER_SCOPE?keys=o,on,none`);
    expect(await send('GET', `${path}/keys/attributes/SERVER_SCOPE`)).toEqual(['size', 'zone']);
    expect(await refusal('POST', `${path}/CLIENT_SCOPE`, { a: 1 })).toBe('400 Invalid scope: CLIENT_SCOPE');
  });

  test('belongs to its owner only', async () => {
    const stranger = (await newTenant()).admin.token;
    for (const [method, rest, body] of [
      ['GET', '/values/timeseries', undefined],
      ['GET', '/values/attributes', undefined],
      ['POST', '/timeseries/ANY', { k: 1 }],
      ['POST', '/SERVER_SCOPE', { k: 1 }],
      ['DELETE', '/SERVER_SCOPE?keys=k', undefined],
    ] as const) {
      expect(await refusal(method, `${pathOf(type)}${rest}`, body, stranger)).toMatch(
        /^404 .* with requested id wasn't found!$/,
      );
    }
  });
});

test('a customer user reads the own customer and writes itself, and nothing of the tenant', async () => {
  const denied = "403 You don't have permission to perform this operation!";
  const { token } = customerUser;
  expect(await refusal('GET', `${pathOf('CUSTOMER')}/values/attributes`, undefined, token)).toMatch(/^200 /);
  expect(await refusal('POST', `${pathOf('CUSTOMER')}/SERVER_SCOPE`, { a: 1 }, token)).toBe(denied);
  expect(await refusal('POST', `${pathOf('USER')}/SERVER_SCOPE`, { theme: 'dark' }, token)).toBe('200 ');
  expect(await refusal('POST', `${pathOf('USER')}/timeseries/ANY`, { seen: 1 }, token)).toBe('200 ');
  for (const type of ['TENANT', 'DEVICE_PROFILE']) {
    expect(await refusal('GET', `${pathOf(type)}/values/timeseries`, undefined, token)).toBe(denied);
    expect(await refusal('POST', `${pathOf(type)}/timeseries/ANY`, { a: 1 }, token)).toBe(denied);
  }
  expect(await refusal('GET', `${pathOf('USER', admin.id)}/values/attributes`, undefined, token)).toBe(denied);
});

test('what a deleted entity had is gone, and other types have nothing', async () => {
  const { id } = (await ok('POST', '/api/customer', { title: randomUUID() }, admin.token)).id;
  await send('POST', `${pathOf('CUSTOMER', id)}/SERVER_SCOPE`, { a: 1 });
  await send('POST', `${pathOf('CUSTOMER', id)}/timeseries/ANY`, { a: 1 });
  await send('DELETE', `/api/customer/${id}`);
  expect(await refusal('GET', `${pathOf('CUSTOMER', id)}/values/attributes`)).toBe(
    "404 Customer with requested id wasn't found!",
  );
  for (const values of ['timeseries', 'attributes']) {
    expect(await refusal('GET', `${pathOf('ASSET', id)}/values/${values}`)).toBe(
      "404 ASSET with requested id wasn't found!",
    );
  }
});
