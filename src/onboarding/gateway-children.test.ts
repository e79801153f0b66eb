/**
 * Devices of gateways, made many at once against a real server: each is made once, although several callers need it at
 * once, and none beyond the limit.
 */

import { afterAll, beforeAll, beforeEach, expect, it, vi } from 'vitest';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { createDevice, deleteDevice, type NewDeviceDeps } from '../admin/devices.ts';
import { noLimits } from '../admin/entity-limits.ts';
import { listRelations } from '../admin/relation-store.ts';
import { insertCustomer, insertTenant } from '../admin/store.ts';
import { systemClock as clock } from '../base/clock.ts';
import { Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { createUuid } from '../base/uuid.ts';
import type { CredentialChanges } from '../device/credential-changes.ts';
import { CachedDevice } from '../device/model/cached-device.ts';
import type { CredentialChange } from '../device/sql/credential-log-store.ts';
import { lookUpTokens } from '../device/sql/look-up-store.ts';
import { findDeviceRow } from '../device/sql/store.ts';
import type { Postgres } from '../postgres/client.ts';
import { type ChildOutcomes, findOrCreateChildren } from './gateway-children.ts';

let server: TestPostgres;
let postgres: Postgres;
let tenantId: string;
let deps: NewDeviceDeps;
const published: CredentialChange[] = [];

beforeAll(async () => {
  server = await startTestPostgres();
  postgres = server.postgres;
}, 60_000);

afterAll(() => server.stop(), 60_000);

async function renewTenant(): Promise<void> {
  tenantId = createUuid(clock.now());
  await insertTenant(postgres, { id: tenantId, createdTime: clock.now(), title: 'Mill' });
}

beforeEach(async () => {
  await renewTenant();
  published.length = 0;
  const changes = { publish: (list: CredentialChange[]) => published.push(...list) } as unknown as CredentialChanges;
  deps = { postgres, changes, clock, limitsOf: () => noLimits };
});

async function newGateway(customerId?: string): Promise<string> {
  const name = `hub-${createUuid(clock.now())}`;
  const device = await createDevice(deps, tenantId, { name, customerId, additionalInfo: { gateway: true } });
  return device.id;
}

function make(
  gatewayId: string,
  names: string[],
  type = '',
  used = deps,
  actsFor = () => true,
): Promise<ChildOutcomes> {
  return findOrCreateChildren(
    used,
    tenantId,
    names.map((name) => ({ gatewayId, name, type, actsFor })),
  );
}

const numbered = (count: number, prefix = 'child') => Array.from({ length: count }, (_, n) => `${prefix}-${n}`);

async function count(table: string, where = 'tenant_id = $1'): Promise<number> {
  const [row] = await postgres.query<{ count: number }>(`select count(*) from ${table} where ${where}`, [tenantId]);
  return row!.count;
}

it('makes what is missing and finds what is there, with all that belongs to a device', async () => {
  const customerId = createUuid(clock.now());
  await insertCustomer(postgres, { id: customerId, tenantId, createdTime: clock.now(), title: 'Miller' });
  const gatewayId = await newGateway(customerId);
  const names = [...numbered(50), 'Gerät', 'quote"', '__proto__'];
  const made = await make(gatewayId, names, 'thermo');
  expect([...made.keys()].sort()).toEqual([...names].sort());
  const again = await make(gatewayId, [...names, 'one more'], 'other');
  for (const name of names) expect(again.get(name)).toEqual(made.get(name));
  // The session of a device shares the object.
  for (const outcomes of [made, again]) expect(outcomes.get('Gerät')).toBeInstanceOf(CachedDevice);
  const [device] = await postgres.query<Record<string, unknown>>(
    `select d.id, d.customer_id, d.additional_info, p.name as type, k.credentials_id as token
       from device d join device_profile p on p.id = d.device_profile_id join device_credentials k on k.device_id = d.id
      where d.tenant_id = $1 and d.name = 'Gerät'`,
    [tenantId],
  );
  expect(device).toMatchObject({ customer_id: customerId, type: 'thermo' });
  expect(device!['additional_info']).toEqual({ lastConnectedGateway: gatewayId });
  const token = device!['token'] as string;
  expect(token).toMatch(/^[A-Za-z0-9]{20}$/);
  expect((await lookUpTokens(postgres, [token])).get(token)).toMatchObject({ name: 'Gerät', customerId });
  const relations = await listRelations(postgres, 'from', { id: gatewayId, type: 'DEVICE' }, 'COMMON', undefined, 100);
  expect(relations).toHaveLength(names.length + 1);
  expect(relations[0]).toMatchObject({ type: 'Created', typeGroup: 'COMMON', additionalInfo: null });
  expect(published.filter(({ deleted }) => deleted)).toEqual([]);
  expect(published.map(({ credentialsId }) => credentialsId)).toContain(token);
  expect(await count('credential_changes', 'device_id in (select id from device where tenant_id = $1)')).toBe(
    names.length + 2,
  );
});

it('gives the default profile to a device without a type', async () => {
  const gatewayId = await newGateway();
  await make(gatewayId, ['a']);
  expect(await count('device_profile')).toBe(1);
  expect(await count('device_profile', `tenant_id = $1 and is_default and name = 'default'`)).toBe(1);
});

it('devices that come first, all at once, share the one default profile that the first of them makes', async () => {
  for (let round = 0; round < 40; round += 1) {
    await Promise.all(Array.from({ length: 8 }, () => newGateway()));
    expect(await count('device_profile')).toBe(1);
    await renewTenant();
  }
});

it('two gateways that make the same names at once never fail and make each one once', async () => {
  const gateways = await Promise.all([newGateway(), newGateway(), newGateway()]);
  const names = numbered(300);
  const rounds = await Promise.all(
    gateways.map((gatewayId, n) => make(gatewayId, n % 2 === 0 ? names : [...names].reverse(), 'shared type')),
  );
  for (const name of names) {
    const rows = rounds.map((round) => round.get(name));
    expect(rows.some((row) => row instanceof Fault)).toBe(false);
    expect(new Set(rows.map((row) => (row as { number: number }).number)).size).toBe(1);
  }
  expect(await count('device')).toBe(names.length + gateways.length);
  expect(await count('device_profile', `tenant_id = $1 and name = 'shared type'`)).toBe(1);
});

it("gateways that connect the same devices again and again are not in each other's way", async () => {
  const gateways = await Promise.all([newGateway(), newGateway(), newGateway(), newGateway()]);
  const names = numbered(200);
  await make(gateways[0]!, names);
  for (let round = 0; round < 5; round += 1) {
    const rounds = await Promise.all(
      gateways.map((gatewayId, n) => make(gatewayId, n % 2 === 0 ? names : [...names].reverse())),
    );
    for (const outcomes of rounds) for (const row of outcomes.values()) expect(row).not.toBeInstanceOf(Fault);
  }
});

it('records through which gateway a device came last', async () => {
  const [first, second] = [await newGateway(), await newGateway()];
  await make(first, ['roamer']);
  const info = { note: 'kept', n: 1.5 };
  await postgres.query(`update device set additional_info = $2 where tenant_id = $1 and name = 'roamer'`, [
    tenantId,
    JSON.stringify({ ...info, lastConnectedGateway: first }),
  ]);
  await make(second, ['roamer']);
  const [row] = await postgres.query<{ info: unknown }>(
    `select additional_info as info from device where tenant_id = $1 and name = 'roamer'`,
    [tenantId],
  );
  expect(row!.info).toEqual({ ...info, lastConnectedGateway: second });
  // The maker of the device does not change.
  expect(await listRelations(postgres, 'from', { id: second, type: 'DEVICE' }, 'COMMON', undefined, 10)).toEqual([]);
});

it('reads no long document of a child, which connects all the same', async () => {
  const [first, second] = [await newGateway(), await newGateway()];
  await make(first, ['wordy']);
  const info = { note: 'x'.repeat(limits.childInfoBytesMax), lastConnectedGateway: first };
  await postgres.query(`update device set additional_info = $2 where tenant_id = $1 and name = 'wordy'`, [
    tenantId,
    JSON.stringify(info),
  ]);
  const query = vi.spyOn(postgres, 'query');
  const outcome = (await make(second, ['wordy'])).get('wordy');
  expect(outcome).not.toBeInstanceOf(Fault);
  const read = await Promise.all(query.mock.results.map(({ value }) => value));
  query.mockRestore();
  expect(JSON.stringify(read).length).toBeLessThan(2_000);
  const [row] = await postgres.query<{ info: unknown }>(
    `select additional_info as info from device where tenant_id = $1 and name = 'wordy'`,
    [tenantId],
  );
  expect(row!.info).toEqual(info);
});

it('makes the first ones at the limit, and refuses the others by name', async () => {
  const gatewayId = await newGateway();
  const limited = { ...deps, limitsOf: () => ({ ...noLimits, devicesMax: 5 }) };
  await make(gatewayId, ['known'], '', limited);
  const outcomes = await make(gatewayId, ['a', 'known', 'b', 'c', 'd'], '', limited);
  const refused = [...outcomes].filter(([, outcome]) => outcome instanceof Fault);
  expect(refused.map(([name]) => name)).toEqual(['d']);
  expect(refused[0]![1]).toMatchObject({ status: 403, errorCode: 41, reason: 'device_limit' });
  expect(await count('device')).toBe(5);
  // Eight calls at once when one more device is allowed.
  await deleteDevice(deps, tenantId, (outcomes.get('a') as { id: string }).id);
  const rounds = await Promise.all(numbered(8, 'race').map((name) => make(gatewayId, [name], '', limited)));
  const made = rounds.flatMap((round) => [...round.values()]).filter((outcome) => !(outcome instanceof Fault));
  expect(made).toHaveLength(1);
  expect(await count('device')).toBe(5);
});

it('refuses a name that no device can have, and makes the others', async () => {
  const gatewayId = await newGateway();
  const outcomes = await make(gatewayId, ['', 'x'.repeat(256), 'good']);
  expect(outcomes.get('')).toMatchObject({ status: 400 });
  expect(outcomes.get('x'.repeat(256))).toMatchObject({ status: 400 });
  expect(outcomes.get('good')).toMatchObject({ name: 'good' });
});

it('makes nothing for a gateway that is gone', async () => {
  const gatewayId = await newGateway();
  await deleteDevice(deps, tenantId, gatewayId);
  expect((await make(gatewayId, ['orphan'])).get('orphan')).toMatchObject({ status: 503 });
  expect(await count('device')).toBe(0);
});

it('a device that is deleted takes its relations with it, from either end', async () => {
  const gatewayId = await newGateway();
  const outcomes = await make(gatewayId, ['a', 'b']);
  const list = () => listRelations(postgres, 'from', { id: gatewayId, type: 'DEVICE' }, 'COMMON', 'Created', 10);
  expect(await list()).toHaveLength(2);
  await deleteDevice(deps, tenantId, (outcomes.get('a') as { id: string }).id);
  expect(await list()).toHaveLength(1);
  await deleteDevice(deps, tenantId, gatewayId);
  expect(await list()).toHaveLength(0);
});

it('makes thousands of one gateway, each once', async () => {
  const gatewayId = await newGateway();
  for (let n = 0; n < 5; n += 1) await make(gatewayId, numbered(1000, `batch-${n}`), 'fast');
  expect(await count('device')).toBe(5001);
});

it('knows the maker of a device, and changes nothing of one that the gateway does not act for', async () => {
  const [first, second] = [await newGateway(), await newGateway()];
  const { number } = (await findDeviceRow(postgres, tenantId, first))!;
  expect((await make(first, ['a'])).get('a')).toMatchObject({ madeBy: number });
  const found = (await make(second, ['a'], '', deps, () => false)).get('a');
  expect(found).toMatchObject({ name: 'a', madeBy: number });
  const [device] = await postgres.query<{ info: unknown }>(
    "select additional_info as info from device where tenant_id = $1 and name = 'a'",
    [tenantId],
  );
  expect(device!.info).toEqual({ lastConnectedGateway: first });
});
