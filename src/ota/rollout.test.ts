/** A rollout beside a device that cannot be notified. Against PostgreSQL. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { silentLog as log } from '../../test/harness/silent-log.ts';
import { createDevice } from '../admin/devices.ts';
import { noLimits } from '../admin/entity-limits.ts';
import { insertTenant } from '../admin/store.ts';
import { Attributes, ownValue } from '../attributes/attributes.ts';
import { AttributeWriter } from '../attributes/writer.ts';
import { systemClock as clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { createUuid } from '../base/uuid.ts';
import type { CredentialChanges } from '../device/credential-changes.ts';
import { createPackage } from './packages.ts';
import { Rollout } from './rollout.ts';
import type { SeriesIngest } from './series.ts';

let server: TestPostgres;
beforeAll(async () => {
  server = await startTestPostgres();
}, 60_000);
afterAll(() => server.stop(), 60_000);

const now = () => clock.now();
const ingest: SeriesIngest = {
  accept: (_decode, _body, _source, waiter) => {
    waiter.acknowledge();
    return 1;
  },
};

test('a device whose own attributes use up its share is notified later, and delays no other device', async () => {
  const { postgres } = server;
  const changes = { publish() {} } as unknown as CredentialChanges;
  const deps = { postgres, changes, clock, limitsOf: () => noLimits };
  const tenantId = createUuid(now());
  await insertTenant(postgres, { id: tenantId, createdTime: now(), title: 'Mill' });
  const none = { profileId: null, tag: null, externalId: null, additionalInfo: null };
  const described = { ...none, type: 'FIRMWARE', title: 'pump', version: '1', url: 'https://files.example/1' } as const;
  const { id: firmwareId } = await createPackage({ postgres, clock }, tenantId, described, true);
  const devices = [];
  for (const name of ['busy', 'second', 'third']) {
    devices.push(await createDevice(deps, tenantId, { name, firmwareId }));
  }
  const writer = new AttributeWriter({ postgres, clock, metrics: new Metrics(), onShared: () => {} });
  const attributes = new Attributes(postgres, writer);
  const { number } = devices[0]!;
  const value = (bytes: number) => new Map([['k', ownValue.string('x'.repeat(bytes))]]);
  await attributes.save(number, 'CLIENT_SCOPE', value(1), tenantId);
  // Devices that are left out come again sooner.
  const fast = { now, monotonic: () => clock.monotonic() * 50 };
  const rollout = new Rollout({ postgres, ingest, attributes, clock: fast, log, metrics: new Metrics() });
  const notified = async () => {
    const rows = await postgres.query<{ name: string }>(
      'select name from device where told_firmware_id = $1 order by number',
      [firmwareId],
    );
    return rows.map(({ name }) => name);
  };
  const saves: Promise<void>[] = [];
  // Writes of the busy device wait for this transaction.
  await postgres.transaction(async (queries) => {
    await queries.query('select 1 from attribute where device = $1 for update', [number]);
    const bytes = limits.attributeBytesWaitingPerDeviceMax / 4 - 200;
    for (let n = 0; n < 4; n += 1) saves.push(attributes.save(number, 'CLIENT_SCOPE', value(bytes), tenantId));
    for (const save of saves) save.catch(() => {});
    rollout.start();
    await expect.poll(notified, { timeout: 10_000 }).toEqual(['second', 'third']);
  });
  await Promise.all(saves);
  await expect.poll(notified, { timeout: 20_000 }).toEqual(['busy', 'second', 'third']);
  await rollout.stop();
  await writer.idle();
}, 60_000);
