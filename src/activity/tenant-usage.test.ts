/** How workers count what tenants send in a month, and when a quota is used up. Against PostgreSQL. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { silentLog as log } from '../../test/harness/silent-log.ts';
import { readLimits } from '../auth/profile-limits.ts';
import { Fault, unavailable } from '../base/errors.ts';
import { createUuid } from '../base/uuid.ts';
import type { Queries } from '../postgres/client.ts';
import { monthOf, TenantUsage } from './tenant-usage.ts';
import { readUsage } from './tenant-usage-store.ts';

let server: TestPostgres;
beforeAll(async () => {
  server = await startTestPostgres();
}, 60_000);
afterAll(() => server.stop(), 60_000);

const november = Date.UTC(2026, 10, 30, 23, 59, 50);
let now = november;
const clock = { now: () => now, monotonic: () => now };

async function newTenant(): Promise<string> {
  const id = createUuid(Date.now());
  await server.postgres.query('insert into tenant (id, created_time, title) values ($1, 0, $2)', [id, id]);
  return id;
}

function open(tenantId: string, configuration: object, postgres: Queries = server.postgres): TenantUsage {
  const usage = new TenantUsage({ postgres, clock, log });
  usage.useProfiles([{ id: 'p', name: 'Gold', limits: readLimits(configuration), tenantIds: [tenantId] }]);
  return usage;
}

function refusal(usage: TenantUsage, tenantId: string): Fault | undefined {
  try {
    usage.admit(tenantId);
  } catch (error) {
    if (error instanceof Fault) return error;
    throw error;
  }
  return undefined;
}

test('two workers count together; above the quota of messages both refuse until the month ends', async () => {
  now = november;
  const tenantId = await newTenant();
  const configuration = { maxTransportMessages: 10 };
  const [here, there] = [open(tenantId, configuration), open(tenantId, configuration)];
  for (let n = 0; n < 6; n += 1) here.add(tenantId, 3);
  expect(refusal(here, tenantId)).toBeUndefined();
  for (let n = 0; n < 5; n += 1) there.add(tenantId, 1);
  // Each worker has the sums of both when its counts are written.
  await expect.poll(() => refusal(here, tenantId) ?? refusal(there, tenantId)).toBeDefined();
  here.add(tenantId, 0);
  await Promise.all([here.stop(), there.stop()]);
  for (const usage of [here, there]) {
    expect(refusal(usage, tenantId)).toMatchObject({
      status: 429,
      reason: 'quota_messages',
      retryAfterSeconds: 10,
      message:
        'The devices of this tenant have sent their 10 messages of this month ' +
        '(maxTransportMessages of tenant profile "Gold").',
    });
  }
  expect(await readUsage(server.postgres, '2026-11-01', tenantId)).toEqual({ messages: 12, points: 23 });

  now += 10_000;
  expect(refusal(here, tenantId)).toBeUndefined();
  here.add(tenantId, 1);
  await here.stop();
  expect(await readUsage(server.postgres, '2026-12-01', tenantId)).toEqual({ messages: 1, points: 1 });
});

test('after a clock that was ahead was set back, messages count for the month of now again', async () => {
  now = november + 60_000;
  const tenantId = await newTenant();
  const usage = open(tenantId, { maxTransportMessages: 3 });
  for (let n = 0; n < 3; n += 1) usage.add(tenantId, 1);
  await usage.stop();
  expect(refusal(usage, tenantId)?.reason).toBe('quota_messages');
  now = november;
  expect(refusal(usage, tenantId)).toBeUndefined();
  usage.add(tenantId, 1);
  await usage.stop();
  expect(await readUsage(server.postgres, '2026-12-01', tenantId)).toEqual({ messages: 3, points: 3 });
  expect(await readUsage(server.postgres, '2026-11-01', tenantId)).toEqual({ messages: 1, points: 1 });
});

test('a quota of data points is used up by one large message; a higher one counts at once', async () => {
  now = november;
  const tenantId = await newTenant();
  const usage = open(tenantId, { maxTransportDataPoints: 100 });
  usage.add(tenantId, 99);
  expect(refusal(usage, tenantId)).toBeUndefined();
  usage.add(tenantId, 5_000);
  expect(refusal(usage, tenantId)?.reason).toBe('quota_points');
  const raised = readLimits({ maxTransportDataPoints: 1_000_000 });
  usage.useProfiles([{ id: 'p', name: 'Gold', limits: raised, tenantIds: [tenantId] }]);
  expect(refusal(usage, tenantId)).toBeUndefined();
  usage.useProfiles([]);
  expect(usage.isLimiting).toBe(false);
  await usage.stop();
});

test('counts wait while PostgreSQL is unavailable, and are written once', async () => {
  now = november;
  const tenantId = await newTenant();
  let isAway = true;
  const postgres: Queries = {
    query: async (text, values) => {
      if (isAway) throw unavailable('postgres_away', 'The database cannot be reached.');
      return await server.postgres.query(text, values);
    },
  };
  const usage = open(tenantId, { maxTransportMessages: 3 }, postgres);
  usage.add(tenantId, 1);
  await usage.stop();
  usage.add(tenantId, 1);
  expect(refusal(usage, tenantId)).toBeUndefined();
  usage.add(tenantId, 1);
  expect(refusal(usage, tenantId)?.reason).toBe('quota_messages');
  isAway = false;
  await usage.stop();
  await usage.stop();
  expect(await readUsage(server.postgres, '2026-11-01', tenantId)).toEqual({ messages: 3, points: 3 });
});

test('the counts of a tenant that was deleted are dropped', async () => {
  now = november;
  const [gone, kept] = [await newTenant(), await newTenant()];
  const usage = open(kept, {});
  usage.add(gone, 1);
  usage.add(kept, 1);
  await server.postgres.query('delete from tenant where id = $1', [gone]);
  await usage.stop();
  expect(await readUsage(server.postgres, '2026-11-01', kept)).toEqual({ messages: 1, points: 1 });
  expect(await readUsage(server.postgres, '2026-11-01', gone)).toEqual({ messages: 0, points: 0 });
});

test('a month is that of UTC', () => {
  const december = { day: '2026-12-01', begin: Date.UTC(2026, 11, 1), end: Date.UTC(2027, 0, 1) };
  expect(monthOf(Date.UTC(2026, 11, 31, 23, 59, 59, 999))).toEqual(december);
  const february = { day: '2028-02-01', begin: Date.UTC(2028, 1, 1), end: Date.UTC(2028, 2, 1) };
  expect(monthOf(Date.UTC(2028, 1, 29))).toEqual(february);
});
