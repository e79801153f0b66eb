/** Saves during a rollout of packages, against a real server: no device is forgotten. */

import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import type { TenantPrincipal } from '../auth/roles.ts';
import { systemClock as clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import { createUuid } from '../base/uuid.ts';
import type { CredentialChanges } from '../device/credential-changes.ts';
import { createPackage } from '../ota/packages.ts';
import {
  countRolloutDevices,
  expandRolloutProfile,
  finishRolloutDevices,
  readOutdated,
  takeRolloutDevices,
} from '../ota/rollout-store.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { createDevices } from './bulk-create.ts';
import { createDevice, deleteDevice, type NewDeviceDeps, saveDevice } from './devices.ts';
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
  await postgres.query('delete from ota_rollout');
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
    const notified = outdated.map(({ id, firmware }) => ({ id, firmwareId: firmware?.id ?? null, softwareId: null }));
    const rolloutIds = taken.map(({ rolloutId }) => rolloutId);
    await finishRolloutDevices(queries, rolloutIds, notified);
    return notified.map((device) => device.firmwareId);
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

describe('a profile with a pace', () => {
  /** Makes devices of a profile that has the package and this pace of a rollout. */
  async function paced(count: number, pace: { perMinute?: number; isPaused?: boolean }) {
    const devices = [];
    for (let i = 0; i < count; i += 1) devices.push(await createDevice(deps, tenantId, { name: `pump ${i}` }));
    const { profileId } = devices[0]!;
    const { perMinute = null, isPaused = false } = pace;
    await postgres.query('update device_profile set ota_per_minute = $2, ota_paused = $3 where id = $1', [
      ...[profileId, perMinute, isPaused],
    ]);
    const give = async (id: string | null) => {
      await postgres.query('update device_profile set firmware_id = $2 where id = $1', [profileId, id]);
      await postgres.query('insert into ota_rollout (device_profile_id) values ($1)', [profileId]);
      while (await expandRolloutProfile(postgres, 10));
    };
    await give(firmwareId);
    return { devices, profileId, give, waiting: () => countRolloutDevices(postgres, profileId) };
  }

  /** Sets the time up to which notifications of the profile are taken. */
  async function lastNotified(profileId: string, when: string): Promise<void> {
    await postgres.query(
      `insert into ota_pace values ($1, clock_timestamp() + $2::interval)
       on conflict (device_profile_id) do update set taken_until = excluded.taken_until`,
      [profileId, when],
    );
  }

  it.each([1, 7, 11, 13, 17, 19, 23])('notifies at %i devices a minute', async (perMinute) => {
    const { profileId } = await paced(2, { perMinute });
    await lastNotified(profileId, '-1 hour');
    expect(await tell()).toHaveLength(1);
  });

  it('goes on when the clock of the database was set back', async () => {
    const { profileId } = await paced(2, { perMinute: 1 });
    await lastNotified(profileId, '1 hour');
    expect(await tell()).toEqual([]);
    const [pace] = await postgres.query<{ isPast: boolean }>(
      'select taken_until < clock_timestamp() as "isPast" from ota_pace where device_profile_id = $1',
      [profileId],
    );
    expect(pace).toEqual({ isPast: true });
  });

  it('has each device wait once while it is paused, at the place for its present packages', async () => {
    const { devices, profileId, give, waiting } = await paced(15, { isPaused: true });
    const described = { type: 'FIRMWARE', title: 'pump', version: '2', url: 'https://files.example/2' } as const;
    const none = { profileId: null, tag: null, externalId: null, additionalInfo: null };
    await give((await createPackage({ postgres, clock }, tenantId, { ...described, ...none }, true)).id);
    expect(await waiting()).toBe(15);
    for (const { id, name } of devices) {
      await saveDevice(deps, admin(), id, { name, label: '1' });
      await saveDevice(deps, admin(), id, { name, label: '2' });
    }
    expect(await waiting()).toBe(15);
    const places = await postgres.query<{ isPresent: boolean }>(
      `select distinct place = abs(hashtextextended(concat(d.id, p.firmware_id, p.software_id), 0) % 100) as "isPresent"
         from ota_rollout r join device d on d.id = r.device_id join device_profile p on p.id = d.device_profile_id
        where p.id = $1`,
      [profileId],
    );
    expect(places).toEqual([{ isPresent: true }]);
    for (const { id } of devices.slice(5)) await deleteDevice(deps, tenantId, id);
    expect(await waiting()).toBe(5);
  });

  it('lets a device with a package of its own wait no longer', async () => {
    const { devices, waiting } = await paced(2, { isPaused: true });
    await saveDevice(deps, admin(), devices[0]!.id, { name: 'pump', firmwareId });
    expect(await waiting()).toBe(1);
  });

  it('takes turns with other profiles, and with devices that have packages of their own', async () => {
    const many = async (members: object, count: number) => {
      const devices = [];
      for (let n = 0; n < count; n += 1) {
        devices.push(await createDevice(deps, tenantId, { name: `pump ${createUuid(clock.now())}`, ...members }));
      }
      return devices;
    };
    const types = ['large', 'small'];
    const [large, small, own] = [
      await many({ type: types[0] }, 12),
      await many({ type: types[1] }, 1),
      await many({ type: 'own', firmwareId }, 12),
    ];
    for (const devices of [large, small]) {
      const { profileId } = devices[0]!;
      await postgres.query('update device_profile set firmware_id = $2 where id = $1', [profileId, firmwareId]);
      await postgres.query('insert into ota_rollout (device_profile_id) values ($1)', [profileId]);
    }
    while (await expandRolloutProfile(postgres, 20));
    const taken = await postgres.transaction((queries) => takeRolloutDevices(queries, 6));
    const count = (devices: { id: string }[]) =>
      taken.filter(({ deviceId }) => devices.some(({ id }) => id === deviceId)).length;
    // The share of the small profile that is left over is the large one's only when the large one comes later.
    expect([2, 3]).toContain(count(large));
    expect([count(small), count(own)]).toEqual([1, 2]);
  });

  it('notifies a fleet at its percentage and its rate, once each, and reads few rows while 20 000 wait', {
    timeout: 180_000,
  }, async () => {
    const count = 20_000;
    const none = { type: 'fleet', label: null, profileId: null, customerId: null, additionalInfo: null };
    const inputs = Array.from({ length: count }, (_, n) => ({ ...none, name: `fleet ${n}`, accessToken: '' }));
    await createDevices(deps, tenantId, inputs);
    const [profile] = await postgres.query<{ id: string }>(
      `select id from device_profile where tenant_id = $1 and name = 'fleet'`,
      [tenantId],
    );
    const { id } = profile!;
    const pace = (perMinute: number | null, percent: number, isPaused = false) =>
      postgres.query(
        'update device_profile set firmware_id = $2, ota_per_minute = $3, ota_percent = $4, ota_paused = $5 where id = $1',
        [id, firmwareId, perMinute, percent, isPaused],
      );
    await pace(null, 20);
    await postgres.query('insert into ota_rollout (device_profile_id) values ($1)', [id]);
    while (await expandRolloutProfile(postgres, limits.otaRolloutExpandMax));
    await postgres.query('analyze ota_rollout');
    const waiting = () => countRolloutDevices(postgres, id);
    expect(await waiting()).toBe(count);

    const notified = new Set<string>();
    /** The rows of the queue that this connection has read lately. */
    const rowsRead = async (queries: Queries): Promise<number> => {
      const [read] = await queries.query<{ rows: number }>(
        `select (seq_tup_read + coalesce(idx_tup_fetch, 0))::int as rows
           from pg_stat_xact_user_tables where relname = 'ota_rollout'`,
      );
      return read!.rows;
    };
    /** Notifies one batch, and returns its size. */
    const batch = () =>
      postgres.transaction(async (queries) => {
        const before = await rowsRead(queries);
        const taken = await takeRolloutDevices(queries, limits.otaRolloutBatchMax);
        // Besides the devices that are taken, a few rows of each profile.
        expect((await rowsRead(queries)) - before).toBeLessThanOrEqual(2 * taken.length + 20);
        const devices = await readOutdated(queries, [...new Set(taken.map(({ deviceId }) => deviceId))]);
        const updates = devices.map((device) => ({ id: device.id, firmwareId, softwareId: null }));
        const rolloutIds = taken.map(({ rolloutId }) => rolloutId);
        await finishRolloutDevices(queries, rolloutIds, updates);
        for (const device of updates) {
          expect(notified.has(device.id)).toBe(false);
          notified.add(device.id);
        }
        return taken.length;
      });

    const [below] = await postgres.query<{ count: number }>(
      'select count(*) as count from ota_rollout where place < 20',
    );
    while ((await batch()) > 0);
    const fifth = notified.size;
    expect(fifth).toBe(below!.count);
    expect(Math.abs(fifth - count / 5)).toBeLessThan(count / 50);
    expect(await waiting()).toBe(count - fifth);

    const perMinute = 600;
    await pace(perMinute, 100);
    await lastNotified(id, '0 s');
    const [seconds, began] = [60, performance.now()];
    for (let second = 0; second < seconds; second += 1) {
      // Time passes for the pace of this profile alone.
      await postgres.query(
        `update ota_pace set taken_until = taken_until - interval '1 second' where device_profile_id = $1`,
        [id],
      );
      while ((await batch()) > 0);
    }
    const passed = seconds + (performance.now() - began) / 1000;
    const inTime = notified.size - fifth;
    expect(inTime).toBeGreaterThan(0.9 * (perMinute / 60) * seconds);
    expect(inTime).toBeLessThan(1.1 * (perMinute / 60) * passed);

    await pace(null, 100, true);
    expect(await batch()).toBe(0);
    expect(await waiting()).toBe(count - notified.size);
    await pace(null, 100);
    const beforeLast = notified.size;
    for (let n = 0; n < 5; n += 1) expect(await batch()).toBe(limits.otaRolloutBatchMax);
    expect(notified.size).toBe(beforeLast + 5 * limits.otaRolloutBatchMax);
    expect(await waiting()).toBe(count - notified.size);
  });

  it('costs no statement while its pace allows no device', async () => {
    const profileIds = new Set<string>();
    for (let n = 0; n < 20; n += 1) {
      const { profileId } = await createDevice(deps, tenantId, { name: `pump ${n}`, type: `pump ${n}` });
      profileIds.add(profileId);
    }
    const ids = [...profileIds];
    await postgres.query(
      'update device_profile set firmware_id = $2, ota_per_minute = 1 + get_byte(uuid_send(id), 15) % 9 where id = any($1)',
      [ids, firmwareId],
    );
    await postgres.query('insert into ota_rollout (device_profile_id) select unnest($1::uuid[])', [ids]);
    while (await expandRolloutProfile(postgres, 20));
    for (const id of ids) await lastNotified(id, '0 s');
    let statements = 0;
    const counted = (queries: Queries): Queries => ({
      query: (...statement) => {
        statements += 1;
        return queries.query(...statement);
      },
    });
    const taken = await postgres.transaction((queries) => takeRolloutDevices(counted(queries), 100));
    expect(taken).toEqual([]);
    expect(statements).toBeLessThan(ids.length);
  });
});
