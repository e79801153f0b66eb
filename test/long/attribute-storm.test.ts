/**
 * A change of a shared attribute of 20 000 devices in about a second, of which 5 000 follow their attributes at one
 * worker: each of these gets its value, and their worker sends PostgreSQL few statements.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createDevices } from '../../src/admin/bulk-create.ts';
import { noLimits } from '../../src/admin/entity-limits.ts';
import { insertTenant } from '../../src/admin/store.ts';
import { ownValue } from '../../src/attributes/attributes.ts';
import { AttributeUpdates } from '../../src/attributes/followers.ts';
import { notifyShared } from '../../src/attributes/notify.ts';
import { sharedScope } from '../../src/attributes/scope.ts';
import { AttributeWriter } from '../../src/attributes/writer.ts';
import { systemClock as clock } from '../../src/base/clock.ts';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { createUuid } from '../../src/base/uuid.ts';
import { busCounters } from '../../src/bus/bus.ts';
import { IpcBus } from '../../src/bus/ipc.ts';
import { BusHub } from '../../src/bus/ipc-primary.ts';
import { portPair } from '../../src/bus/port.ts';
import type { CredentialChanges } from '../../src/device/credential-changes.ts';
import { openChannels } from '../../src/downlink/device-channels.ts';
import { Downlink } from '../../src/downlink/downlink.ts';
import type { Queries } from '../../src/postgres/client.ts';
import { eventually } from '../harness/api.ts';
import { startTestPostgres, type TestPostgres } from '../harness/postgres-server.ts';
import { silentLog as log } from '../harness/silent-log.ts';

const deviceCount = 20_000;
const followerCount = 5_000;
const statementsPerSecondMax = 50;

let server: TestPostgres;
let tenantId: string;
let devices: number[];
const closing: (() => Promise<void> | void)[] = [];
const hub = new BusHub(new Metrics());

beforeAll(async () => {
  server = await startTestPostgres(4);
  const { postgres } = server;
  tenantId = createUuid(clock.now());
  await insertTenant(postgres, { id: tenantId, createdTime: clock.now(), title: 'Mill' });
  const none = { type: 'pump', label: null, profileId: null, customerId: null, additionalInfo: null, accessToken: '' };
  const inputs = Array.from({ length: deviceCount }, (_, n) => ({ ...none, name: `pump ${n}` }));
  const changes = { publish() {} } as unknown as CredentialChanges;
  await createDevices({ postgres, changes, clock, limitsOf: () => noLimits }, tenantId, inputs);
  const rows = await postgres.query<{ number: number }>('select number from device where tenant_id = $1', [tenantId]);
  devices = rows.map(({ number }) => number);
  expect(devices).toHaveLength(deviceCount);
}, 120_000);

afterAll(async () => {
  for (const close of closing.reverse()) await close();
  await server?.stop();
});

async function openDownlink(): Promise<Downlink> {
  const [ours, theirs] = portPair();
  hub.attach(theirs);
  const bus = new IpcBus(ours, busCounters(new Metrics()));
  const downlink = new Downlink({ bus, channels: openChannels(bus), log, metrics: new Metrics() });
  await downlink.start();
  closing.push(() => downlink.stop());
  return downlink;
}

/** The statements of one worker, by their first words. */
class Counted implements Queries {
  readonly counts = new Map<string, number>();

  get all(): number {
    return [...this.counts.values()].reduce((sum, count) => sum + count, 0);
  }

  query<Row>(...statement: Parameters<Queries['query']>): Promise<Row[]> {
    const name = statement[0].trim().slice(0, 40);
    this.counts.set(name, (this.counts.get(name) ?? 0) + 1);
    return server.postgres.query<Row>(...statement);
  }
}

test('followers send few statements while thousands of devices get a new value', async () => {
  const statements = new Counted();
  const own = { postgres: statements, clock, log, metrics: new Metrics(), lossFree: true };
  const updates = new AttributeUpdates({ ...own, downlink: await openDownlink() });
  updates.start();
  closing.push(() => updates.stop());
  const received = new Map<number, string>();
  for (const number of devices.slice(0, followerCount)) {
    const following = updates.follow(
      { number, tenantId, customerId: null },
      {
        update: (update) => {
          received.set(number, update.json);
          // The client confirms a while later.
          setTimeout(() => following.confirmed(update), Math.random() * 200);
        },
        failed: () => {},
        close: () => {},
      },
    );
    closing.push(() => following.leave());
  }
  const idle = async () => {
    const before = statements.all;
    await sleep(1_000);
    return statements.all - before < 5;
  };
  await eventually(idle, 60_000);

  const far = await openDownlink();
  const onShared = (change: Parameters<typeof notifyShared>[1]) => notifyShared(far, change);
  const writer = new AttributeWriter({ postgres: server.postgres, clock, metrics: new Metrics(), onShared });
  statements.counts.clear();
  const began = performance.now();
  await Promise.all(
    devices.map((number) => writer.save(number, sharedScope, new Map([['rate', ownValue.long(7)]]), tenantId)),
  );
  await eventually(() => received.size === followerCount, 60_000);
  await eventually(idle, 60_000);
  const seconds = (performance.now() - began) / 1000;
  expect(new Set(received.values())).toEqual(new Set(['{"rate":7}']));
  expect(statements.all / seconds, JSON.stringify([...statements.counts])).toBeLessThan(statementsPerSecondMax);
});
