/** Saves during a rollout of packages, against a real server: no device is forgotten. */

import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import type { TenantPrincipal } from '../auth/roles.ts';
import { systemClock as clock } from '../base/clock.ts';
import { createUuid } from '../base/uuid.ts';
import type { CredentialChanges } from '../device/credential-changes.ts';
import { createPackage } from '../ota/packages.ts';
import { expandRolloutProfile, finishRolloutDevices, readOutdated, takeRolloutDevices } from '../ota/store.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { createDevice, type NewDeviceDeps, saveDevice } from './devices.ts';
import { noLimits } from './entity-limits.ts';
import { insertTenant } from './store.ts';

let server: TestPostgres;
let postgres: Postgres;
let deps: NewDeviceDeps;
let tenantId: string;
let firmwareId: string;

beforeAll(async () => {
  server = await startTestPostgres(4);
  postgres = server.postgres;
  const changes = { publish() {} } as unknown as CredentialChanges;
  deps = { postgres, changes, clock, limitsOf: () => noLimits };
}, 60_000);

afterAll(() => server.stop(), 60_000);

beforeEach(async () => {
  tenantId = createUuid(clock.now());
  await insertTenant(postgres, { id: tenantId, createdTime: clock.now(), title: 'Mill' });
  const none = { profileId: null, tag: null, externalId: null, additionalInfo: null };
  const described = { ...none, type: 'FIRMWARE', title: 'pump', version: '1', url: 'https://files.example/1' } as const;
  firmwareId = (await createPackage({ postgres, clock }, tenantId, described, true)).id;
});

function admin(): TenantPrincipal {
  const names = { userId: tenantId, email: 'admin@millrace.local', customerId: null, sessionId: null, apiKeyId: null };
  return { ...names, authority: 'TENANT_ADMIN', tenantId, isPublic: false };
}

/** One round of a rollout; `meanwhile` runs between the notification of the devices and its record. */
async function tell(meanwhile: () => Promise<unknown> = async () => {}): Promise<(string | null)[]> {
  while (await expandRolloutProfile(postgres, 10));
  return await postgres.transaction(async (queries: Queries) => {
    const taken = await takeRolloutDevices(queries, 10);
    const outdated = await readOutdated(queries, [...new Set(taken.map(({ deviceId }) => deviceId))]);
    await meanwhile();
    const told = outdated.map(({ id, firmware }) => ({ id, firmwareId: firmware?.id ?? null, softwareId: null }));
    const rolloutIds = taken.map(({ rolloutId }) => rolloutId);
    await finishRolloutDevices(queries, rolloutIds, told);
    return told.map((device) => device.firmwareId);
  });
}

it('a package that is unassigned during its notification is removed in the next round', async () => {
  const device = await createDevice(deps, tenantId, { name: 'pump', firmwareId });
  const takeAway = () => saveDevice(deps, admin(), device.id, { name: 'pump', firmwareId: null });
  expect(await tell(takeAway)).toEqual([firmwareId]);
  expect(await tell()).toEqual([null]);
  expect(await tell()).toEqual([]);
});

it('a profile that loses its package during its rollout has its devices notified again', async () => {
  const { profileId } = await createDevice(deps, tenantId, { name: 'pump' });
  const give = async (id: string | null) => {
    await postgres.query('update device_profile set firmware_id = $2 where id = $1', [profileId, id]);
    await postgres.query('insert into ota_rollout (device_profile_id) values ($1)', [profileId]);
  };
  await give(firmwareId);
  const loses = async () => {
    await give(null);
    while (await expandRolloutProfile(postgres, 10));
  };
  expect(await tell(loses)).toEqual([firmwareId]);
  expect(await tell()).toEqual([null]);
  expect(await tell()).toEqual([]);
});

it('a round in which nothing is saved leaves nothing to do', async () => {
  await createDevice(deps, tenantId, { name: 'pump', firmwareId });
  expect(await tell()).toEqual([firmwareId]);
  expect(await tell()).toEqual([]);
});
