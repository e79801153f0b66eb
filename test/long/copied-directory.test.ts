/**
 * Two hosts with one id, started while the clock of PostgreSQL is set back between the starts: the one that started
 * later is the copy, whatever the clock shows.
 */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createLog } from '../../src/base/log.ts';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { Membership } from '../../src/instance/membership/membership.ts';
import { openPostgres, type Postgres } from '../../src/postgres/client.ts';
import { migratePostgres } from '../../src/postgres/migrate.ts';
import { eventually } from '../harness/api.ts';
import { DebianPostgres, type PostgresNode } from '../harness/debian-postgres.ts';
import { MachineClock } from '../harness/machine-clock.ts';

const clock = new MachineClock();
const servers = new DebianPostgres();
const log = createLog('fatal', 'test');
const host = {
  ...{ id: '6f1c3c52-3b1e-4a55-9d3c-0d8f3f4c9a10', name: 'one', address: '127.0.0.1:8080', zone: '' },
  ...{ workers: 1, version: '1', settings: {} },
};

let node: PostgresNode | undefined;
let postgres: Postgres;

beforeAll(async () => {
  node = await clock.around(() => servers.primary());
  postgres = openPostgres({ url: node.url, poolMax: 4, log });
  await migratePostgres(postgres, { log });
}, 60_000);

afterAll(async () => {
  await postgres?.close();
  await servers.remove([node]);
  clock.remove();
}, 60_000);

function membership(): Membership {
  const deps = { postgres, host, mqttConnections: () => undefined, onSurplus() {}, log, metrics: new Metrics() };
  return new Membership(deps);
}

async function databaseMs(): Promise<number> {
  const [row] = await postgres.query<{ ms: number }>(
    'select (extract(epoch from clock_timestamp()) * 1000)::float8 as ms',
  );
  return row!.ms;
}

test('the host that started later is the copy, also when the clock of the database was set back', async () => {
  const [original, copy] = [membership(), membership()];
  try {
    await original.join();
    clock.set(-3_600);
    await eventually(async () => (await databaseMs()) < Date.now() - 3_000_000, 10_000);
    await copy.join();
    await eventually(() => copy.conflict !== undefined || original.conflict !== undefined, 15_000);
    expect([original.conflict, copy.conflict?.kind]).toEqual([undefined, 'copy']);
    await expect(copy.join()).rejects.toThrow('DATA_DIR is a copy');
    await original.stop();
    await expect(copy.join()).rejects.toThrow('DATA_DIR is a copy');
    expect(await postgres.query('select id from instance')).toEqual([]);
  } finally {
    await Promise.all([original.stop(), copy.stop()]);
  }
});
