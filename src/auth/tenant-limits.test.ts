/** How a worker notices changed limits of tenants. Against PostgreSQL. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { deafBus } from '../../test/harness/deaf-bus.ts';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { silentLog as log } from '../../test/harness/silent-log.ts';
import { seedFirstTenant } from '../admin/seed.ts';
import { systemClock as clock } from '../base/clock.ts';
import { PasswordHasher } from './password.ts';
import { TenantLimits } from './tenant-limits.ts';

let server: TestPostgres;
let tenantId: string;
beforeAll(async () => {
  server = await startTestPostgres();
  const { postgres } = server;
  const passwords = new PasswordHasher(1, { ln: 10, r: 8, p: 1 });
  const admin = { email: 'a@b.c', systemEmail: 's@b.c', password: 'pear-tree-7' };
  await seedFirstTenant({ postgres, passwords, clock }, admin);
  await passwords.close();
  const [tenant] = await postgres.query<{ id: string }>('select id from tenant');
  tenantId = tenant!.id;
}, 60_000);
afterAll(() => server.stop(), 60_000);

/** Changes the limit as another server would have done, which gives the version again. */
async function setDevicesMax(devicesMax: number): Promise<void> {
  const configuration = { profileType: 'DEFAULT', maxDevices: devicesMax };
  await server.postgres.query('update tenant_profile set profile_data = $1', [{ configuration }]);
}

test('limits are read again when another server has given the same version', async () => {
  const { postgres } = server;
  await setDevicesMax(3);
  const tenantLimits = new TenantLimits({ postgres, bus: deafBus, clock, log, devicesMax: 0, keysPerDeviceMax: 0 });
  await tenantLimits.changed();
  expect(tenantLimits.of(tenantId).devicesMax).toBe(3);
  await setDevicesMax(5);
  await tenantLimits.changed();
  expect(tenantLimits.of(tenantId).devicesMax).toBe(3);
  await postgres.query(
    `create or replace function server_timeline() returns text language sql as $$ select '0000000A' $$`,
  );
  await tenantLimits.changed();
  expect(tenantLimits.of(tenantId).devicesMax).toBe(5);
  await tenantLimits.stop();
});
