/** A device that exists gives its credentials to one request, also when commits get no answer. Against PostgreSQL. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { silentLog as log } from '../../test/harness/silent-log.ts';
import { createDevice } from '../admin/devices.ts';
import { noLimits } from '../admin/entity-limits.ts';
import { createProfile } from '../admin/profiles.ts';
import { insertTenant } from '../admin/store.ts';
import type { WrongTries } from '../auth/wrong-tries.ts';
import { createUuid } from '../base/uuid.ts';
import type { CredentialChanges } from '../device/credential-changes.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { type ProvisionDeps, provision } from './provision.ts';

/** The time of all requests. */
const now = Date.now();
const request = {
  ...{ key: 'k-pump', secret: 's3-pump', deviceName: 'pump-1', credentialsType: 'ACCESS_TOKEN' as const },
  ...{ token: null, clientId: null, username: null, password: null, hash: null, gateway: false },
};
let server: TestPostgres;
beforeAll(async () => {
  server = await startTestPostgres();
  const deps = depsOf(server.postgres);
  const tenantId = createUuid(now);
  await insertTenant(server.postgres, { id: tenantId, createdTime: now, title: 'tenant' });
  const type = 'CHECK_PRE_PROVISIONED_DEVICES';
  const { id } = await createProfile(deps, tenantId, {
    ...{ name: 'pump', transportType: 'DEFAULT', provisionType: type, provisionKey: request.key },
    data: { provisionConfiguration: { type, provisionDeviceSecret: request.secret } },
  });
  await createDevice(deps, tenantId, { name: request.deviceName, profileId: id });
}, 60_000);
afterAll(() => server.stop(), 60_000);

function depsOf(postgres: Postgres): ProvisionDeps {
  const changes = { publish: () => {} } as unknown as CredentialChanges;
  const wrongKeys = { find: (_: string, find: () => unknown) => find() } as unknown as WrongTries;
  const clock = { now: () => now, monotonic: () => now };
  return { postgres, changes, clock, limitsOf: () => noLimits, wrongKeys, log };
}

/** Ends the connection of the first transaction before its commit. Calls `then` before the next transaction. */
function losingFirst(postgres: Postgres, then: () => Promise<unknown>): Postgres {
  let isFirst = true;
  const transaction = async <Result>(work: (queries: Queries) => Promise<Result>): Promise<Result> => {
    if (!isFirst) {
      await then();
      return await postgres.transaction(work);
    }
    isFirst = false;
    return await postgres.transaction(async (queries) => {
      const result = await work(queries);
      const [row] = await queries.query<{ pid: number }>('select pg_backend_pid() as pid');
      await postgres.query('select pg_terminate_backend($1, 5000)', [row!.pid]);
      return result;
    });
  };
  return { query: postgres.query.bind(postgres), transaction } as unknown as Postgres;
}

test('of two requests in one millisecond, the one whose lost commit was rolled back gets no credentials', async () => {
  const { postgres } = server;
  const outcomes: string[] = [];
  const other = async () => outcomes.push((await provision(depsOf(postgres), request, '10.0.0.2')).status);
  outcomes.push((await provision(depsOf(losingFirst(postgres, other)), request, '10.0.0.1')).status);
  expect(outcomes).toEqual(['SUCCESS', 'FAILURE']);
});
