/**
 * The attributes that are kept for reports, against a real server: shares of tenants, and attributes that no view names
 * any more.
 */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { insertTenant } from '../admin/store.ts';
import { systemClock as clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import { createUuid } from '../base/uuid.ts';
import { forgetAttributes, keepAttributes, keepSaved, stateOf, unnamedAttributes } from './kept-attribute-store.ts';

let server: TestPostgres;

beforeAll(async () => {
  server = await startTestPostgres();
}, 60_000);
afterAll(() => server.stop(), 60_000);

async function newView(): Promise<{ id: string; tenantId: string; version: number }> {
  const [id, tenantId] = [createUuid(clock.now()), createUuid(clock.now())];
  await insertTenant(server.postgres, { id: tenantId, createdTime: clock.now(), title: tenantId });
  await server.postgres.query(
    `insert into report_view (id, created_time, tenant_id, name, definition) values ($1, 0, $2, 'v', '{}')`,
    [id, tenantId],
  );
  return { id, tenantId, version: 1 };
}

const named = (prefix: string, count: number) =>
  Array.from({ length: count }, (_, n) => ({ scope: 3, key: `${prefix} ${n}` }));

it('an attribute is kept while some view names it, and named again it is to be copied again', async () => {
  const { postgres } = server;
  const [first, second] = [await newView(), await newView()];
  const [a, b] = named('a', 2);
  const keep = (view: typeof first, attributes: ReturnType<typeof named>) =>
    postgres.transaction((queries) => keepAttributes(queries, view, attributes, 1));
  await keep(first, [a!, b!]);
  await keep(second, [a!]);
  expect(await stateOf(postgres, first.tenantId, [a!, b!])).toBe('copying');
  await postgres.query('update report_key set filled_time = 1, settled = true');
  expect(await stateOf(postgres, first.tenantId, [a!, b!])).toBe('ready');
  // Only a view of another tenant names this attribute.
  expect(await stateOf(postgres, second.tenantId, [a!, b!])).toEqual(b);
  await keep(first, []);
  expect(await unnamedAttributes(postgres)).toEqual([b]);
  await forgetAttributes(postgres, [a!, b!]);
  expect(await stateOf(postgres, second.tenantId, [a!])).toBe('ready');
  expect(await keepSaved(postgres, { ...first, version: 7 }, [b!], 1)).toBe(false);
  expect(await keepSaved(postgres, first, [b!], 1)).toBe(true);
  expect(await stateOf(postgres, first.tenantId, [b!])).toBe('copying');
  await postgres.query('delete from report_view');
  expect(await unnamedAttributes(postgres)).toEqual([a, b]);
});

it('a tenant names at most its share', async () => {
  const { postgres } = server;
  const [view, other] = [await newView(), await newView()];
  const keep = (of: typeof view, count: number) =>
    postgres.transaction((queries) => keepAttributes(queries, of, named('s', count), 1));
  await keep(view, limits.reportKeysPerTenantMax);
  await expect(keep(view, limits.reportKeysPerTenantMax + 1)).rejects.toMatchObject({ reason: 'report_keys_tenant' });
  await keep(other, limits.reportKeysPerTenantMax);
  expect(await stateOf(postgres, view.tenantId, named('s', limits.reportKeysPerTenantMax))).toBe('copying');
});
