/**
 * Creates the content of a new installation: the first administrators and one example device; in demo mode also the
 * entities that ThingsBoard tools expect (docs/rest.md#tenants). Each seed is one transaction. A setting with the id of
 * its tenant marks it as done: it happens once however many hosts start, and entities that a user deletes stay deleted.
 */
import type { PasswordHasher } from '../auth/password.ts';
import type { Authority } from '../auth/roles.ts';
import { insertUser } from '../auth/store.ts';
import type { Clock } from '../base/clock.ts';
import { StartError } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { createUuid } from '../base/uuid.ts';
import { tokenCredentials } from '../device/model/credentials.ts';
import { defaultProfileName } from '../device/model/device.ts';
import { findCredentials } from '../device/sql/credentials-store.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { findOrInsertSetting, findSetting } from '../postgres/stored-settings.ts';
import { insertNewDevice, randomToken } from './devices.ts';
import { findOrCreateProfile } from './profile-choice.ts';
import { insertCustomer, insertTenant } from './store.ts';

interface SeedDeps {
  postgres: Postgres;
  passwords: PasswordHasher;
  clock: Clock;
}

const firstMark = 'seed.firstTenant';
const firstDeviceMark = 'seed.firstDevice';
const demoMark = 'seed.demoTenant';
const firstDeviceName = 'Demo Device';

interface FirstAdmins {
  email: string;
  /** The email of the system administrator. */
  systemEmail: string;
  /** The password of both administrators. */
  password: string;
}

/**
 * Creates tenant "Millrace" with its administrator and a device, and the system administrator. Returns false when an
 * earlier start, or another host, has created them. Throws StartError for a password that no user may choose.
 */
export async function seedFirstTenant(deps: SeedDeps, admins: FirstAdmins): Promise<boolean> {
  const { postgres, clock } = deps;
  if (await findSetting(postgres, firstMark)) return false;
  checkLength(admins.password);
  const { email, systemEmail } = admins;
  const passwordHash = await deps.passwords.hash(admins.password);
  const now = clock.now();
  return await postgres.transaction(async (queries) => {
    const tenantId = await markedTenant(queries, firstMark, 'Millrace', now);
    if (!tenantId) return false;
    await addUser(queries, { tenantId, authority: 'TENANT_ADMIN', email, passwordHash }, now);
    await addUser(queries, { tenantId: null, authority: 'SYS_ADMIN', email: systemEmail, passwordHash }, now);
    const { device } = await insertNewDevice(queries, tenantId, { name: firstDeviceName }, randomToken(), now, 0);
    await findOrInsertSetting(queries, firstDeviceMark, device.id);
    return true;
  });
}

function checkLength({ length }: string): void {
  const { passwordCharsMin, passwordCharsMax } = limits;
  if (length >= passwordCharsMin && length <= passwordCharsMax) return;
  throw new StartError(
    `ADMIN_PASSWORD has ${length} characters: set one of ${passwordCharsMin} to ${passwordCharsMax}, or none for a generated one.`,
  );
}

/**
 * Returns the device of the first start and its token, for the message printed at a start; undefined when it was
 * deleted.
 */
export async function findFirstDevice(postgres: Queries): Promise<{ id: string; token: string } | undefined> {
  const id = await findSetting(postgres, firstDeviceMark);
  const credentials = id ? await findCredentials(postgres, id) : undefined;
  if (credentials?.type !== 'ACCESS_TOKEN') return undefined;
  return { id: credentials.deviceId, token: credentials.credentialsId };
}

/**
 * Creates the users, customers, profiles and devices of `DEMO_DATA` (docs/rest.md#tenants). Returns false when an
 * earlier start has created them.
 */
export async function seedDemoData(deps: SeedDeps): Promise<boolean> {
  const { postgres, passwords, clock } = deps;
  if (await findSetting(postgres, demoMark)) return false;
  const hashes = new Map<string, string>();
  for (const password of ['sysadmin', 'tenant', 'customer']) hashes.set(password, await passwords.hash(password));
  const now = clock.now();
  return await postgres.transaction(async (queries) => {
    const tenantId = await markedTenant(queries, demoMark, 'Tenant', now);
    if (!tenantId) return false;
    const addDemoUser = (name: string, authority: Authority, password: string, customerId: string | null = null) => {
      const tenant = authority === 'SYS_ADMIN' ? null : tenantId;
      const email = `${name}@thingsboard.org`;
      const passwordHash = hashes.get(password)!;
      return addUser(queries, { tenantId: tenant, customerId, authority, email, passwordHash }, now);
    };
    await addDemoUser('sysadmin', 'SYS_ADMIN', 'sysadmin');
    await addDemoUser('tenant', 'TENANT_ADMIN', 'tenant');
    const customers = new Map<string, string>();
    for (const letter of ['A', 'B', 'C']) {
      const id = createUuid(now);
      await insertCustomer(queries, { id, tenantId, createdTime: now, title: `Customer ${letter}` });
      customers.set(letter, id);
      await addDemoUser(`customer${letter}`, 'CUSTOMER_USER', 'customer', id);
    }
    await addDemoUser('customer', 'CUSTOMER_USER', 'customer', customers.get('A')!);
    for (const { name, token, customer, type } of demoDevices) {
      const customerId = customer ? customers.get(customer)! : null;
      const device = { name, type: type ?? defaultProfileName, customerId };
      await insertNewDevice(queries, tenantId, device, tokenCredentials(token), now, 0);
    }
    return true;
  });
}

const demoDevices: { name: string; token: string; customer?: string; type?: string }[] = [
  { name: 'Test Device A1', token: 'A1_TEST_TOKEN', customer: 'A' },
  { name: 'Test Device A2', token: 'A2_TEST_TOKEN', customer: 'A' },
  { name: 'Test Device A3', token: 'A3_TEST_TOKEN', customer: 'A' },
  { name: 'Test Device B1', token: 'B1_TEST_TOKEN', customer: 'B' },
  { name: 'Test Device C1', token: 'C1_TEST_TOKEN', customer: 'C' },
  { name: 'DHT11 Demo Device', token: 'DHT11_DEMO_TOKEN' },
  { name: 'Raspberry Pi Demo Device', token: 'RASPBERRY_PI_DEMO_TOKEN' },
  { name: 'Thermostat T1', token: 'T1_TEST_TOKEN', type: 'thermostat' },
  { name: 'Thermostat T2', token: 'T2_TEST_TOKEN', type: 'thermostat' },
];

/** Creates a tenant with its default profile. Returns undefined when `mark` shows that it was created earlier. */
async function markedTenant(queries: Queries, mark: string, title: string, now: number): Promise<string | undefined> {
  const id = createUuid(now);
  // When two hosts start at once, the second waits here until the first has committed.
  if ((await findOrInsertSetting(queries, mark, id)) !== id) return undefined;
  await insertTenant(queries, { id, createdTime: now, title });
  await findOrCreateProfile(queries, id, defaultProfileName, { isDefault: true });
  return id;
}

interface SeedUser {
  tenantId: string | null;
  customerId?: string | null;
  authority: Authority;
  email: string;
  passwordHash: string;
}

/** An account that has this email stays as it is. */
async function addUser(queries: Queries, user: SeedUser, now: number): Promise<void> {
  const names = { firstName: null, lastName: null, phone: null, additionalInfo: null };
  const { customerId = null, ...rest } = user;
  await insertUser(queries, { id: createUuid(now), createdTime: now, version: 1, customerId, ...rest, ...names });
}
