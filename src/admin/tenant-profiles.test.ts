/** Changes of tenant profiles at the same moment as changes of tenants, on a real PostgreSQL. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../../test/harness/api.ts';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { readTenantsOf } from '../auth/tenant-limits-store.ts';
import { systemClock as clock } from '../base/clock.ts';
import type { Queries } from '../postgres/client.ts';
import { findDefaultTenantProfile } from './tenant-profile-store.ts';
import {
  createTenantProfile,
  deleteTenantProfile,
  makeDefaultTenantProfile,
  saveTenantProfile,
} from './tenant-profiles.ts';
import { createTenant } from './tenants.ts';

let server: TestPostgres;

beforeAll(async () => {
  server = await startTestPostgres();
}, 60_000);

afterAll(() => server.stop(), 60_000);

const isolated = { isDefault: false, isIsolated: false };
const input = (configuration = {}) => ({ ...isolated, name: randomUUID(), profileData: { configuration } });

function deps(onLimits = async () => {}) {
  return { postgres: server.postgres, clock, onLimits };
}

/** Runs each of `calls` after the earlier ones have ended or wait for a lock, while `lock` is held. */
async function whileLocked(lock: string, calls: (() => Promise<unknown>)[]): Promise<PromiseSettledResult<unknown>[]> {
  const { postgres } = server;
  const running: Promise<unknown>[] = [];
  const settled = new Set<number>();
  await postgres.transaction(async (queries: Queries) => {
    await queries.query(lock);
    for (const [i, call] of calls.entries()) {
      const end = () => settled.add(i);
      const run = call();
      run.then(end, end);
      running.push(run);
      await eventually(async () => (await waiting(postgres)) + settled.size === i + 1);
    }
  });
  return await Promise.allSettled(running);
}

async function waiting(queries: Queries): Promise<number> {
  const [row] = await queries.query<{ count: number }>(
    `select count(*) as count from pg_stat_activity
      where datname = current_database() and wait_event_type = 'Lock'`,
  );
  return row!.count;
}

const noTenants = 'lock table tenant in share mode';

test('limits that a profile gets while a tenant with the profile is made count for that tenant', async () => {
  const { id, ...profile } = await createTenantProfile(deps(), input());
  const read: string[][] = [];
  const onLimits = async () => {
    read.push((await readTenantsOf(server.postgres, [id])).map((tenant) => tenant.id));
  };
  const limited = { ...isolated, name: profile.name, profileData: { configuration: { maxDevices: 1 } } };
  const [made, saved] = await whileLocked(noTenants, [
    () => createTenant(deps(onLimits), { title: 'Mill', tenantProfileId: id }),
    () => saveTenantProfile(deps(onLimits), id, limited),
  ]);
  expect([made, saved]).toMatchObject([{ status: 'fulfilled' }, { status: 'fulfilled' }]);
  expect(read.at(-1)).toHaveLength(1);
});

test('a profile that a new tenant gets is not deleted', async () => {
  const { id } = await createTenantProfile(deps(), input());
  const outcomes = await whileLocked(noTenants, [
    () => createTenant(deps(), { title: 'Mill', tenantProfileId: id }),
    () => deleteTenantProfile(deps(), id),
  ]);
  expect(outcomes).toMatchObject([
    { status: 'fulfilled' },
    { status: 'rejected', reason: { reason: 'tenant_profile_used' } },
  ]);
});

test('of two profiles that are made the default at once, the later one is', async () => {
  const profiles = await Promise.all([createTenantProfile(deps(), input()), createTenantProfile(deps(), input())]);
  const outcomes = await whileLocked(
    'select 1 from tenant_profile where is_default for update',
    profiles.map(
      ({ id }) =>
        () =>
          makeDefaultTenantProfile(deps(), id),
    ),
  );
  expect(outcomes).toMatchObject([{ status: 'fulfilled' }, { status: 'fulfilled' }]);
  expect((await findDefaultTenantProfile(server.postgres)).id).toBe(profiles[1]!.id);
});
