/**
 * Writes whose answer is lost, on a real PostgreSQL: they were committed, other workers continued, and the repetition
 * changes nothing, with any clocks of the hosts.
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { seedDemoData, seedFirstTenant } from '../admin/seed.ts';
import { PasswordHasher } from '../auth/password.ts';
import { systemClock } from '../base/clock.ts';
import { unavailable } from '../base/errors.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import type { TypedValue } from '../value/typed.ts';
import { ownValue } from './attributes.ts';
import { readAttributes } from './store.ts';
import { AttributeWriter, type SharedChange } from './writer.ts';

const [client, shared] = [1, 2];
let server: TestPostgres;
let postgres: Postgres;
let device: number;
let announced: SharedChange[] = [];

beforeAll(async () => {
  server = await startTestPostgres();
  postgres = server.postgres;
  const passwords = new PasswordHasher(1, { ln: 10, r: 8, p: 1 });
  const parts = { postgres, passwords, clock: systemClock };
  await seedFirstTenant(parts, { email: 'a@b.c', systemEmail: 's@b.c', password: 'pear-tree-7' });
  await seedDemoData(parts);
  await passwords.close();
  [{ device }] = (await postgres.query('select min(number) as device from device')) as [{ device: number }];
}, 60_000);

afterAll(() => server.stop(), 60_000);

beforeEach(async () => {
  await postgres.query('delete from attribute where device = $1', [device]);
  announced = [];
});

/** A worker whose clock is `aheadMs` ahead of the others'. */
function worker(queries: Queries, aheadMs = 0): AttributeWriter {
  const clock = { now: () => Date.now() + aheadMs, monotonic: () => performance.now() };
  return new AttributeWriter({
    postgres: queries,
    clock,
    metrics: new Metrics(),
    onShared: (change) => announced.push(change),
  });
}

/** The first statement is committed and its answer lost; `meanwhile` runs before it is repeated. */
function losingAnswer(meanwhile: () => Promise<unknown>): Queries {
  let isLost = false;
  return {
    async query<Row>(text: string, values?: unknown[]): Promise<Row[]> {
      const rows = await postgres.query<Row>(text, values);
      if (isLost) return rows;
      isLost = true;
      await meanwhile();
      throw unavailable('postgres_away', 'The connection was lost.');
    },
  };
}

function one(key: string, value: string): Map<string, TypedValue> {
  return new Map([[key, ownValue.string(value)]]);
}

async function stored(scope: number): Promise<Record<string, string>> {
  const rows = await readAttributes(postgres, device, [scope], null);
  return Object.fromEntries(rows.map(({ key, value }) => [key, value.text]));
}

const hour = 3_600_000;

describe.each([
  ['client', client],
  ['shared', shared],
])('%s attributes', (_, scope) => {
  test.each([0, hour, -hour])('a newer value of another host stays (clock %i ms ahead)', async (aheadMs) => {
    const other = worker(postgres);
    const lost = worker(
      losingAnswer(() => other.save(device, scope, one('a', 'newer'))),
      aheadMs,
    );
    await lost.save(device, scope, one('a', 'older'));
    expect(await stored(scope)).toEqual({ a: 'newer' });
    if (scope === shared) expect(announced.map(({ changed }) => changed?.get('a')?.text)).toEqual(['newer']);
    // The queue continues.
    await lost.save(device, scope, one('a', 'newest'));
    expect(await stored(scope)).toEqual({ a: 'newest' });
  });

  test('what another worker deleted meanwhile does not come back', async () => {
    const other = worker(postgres);
    await worker(losingAnswer(() => other.remove(device, scope, ['a']))).save(device, scope, one('a', 'gone'));
    expect(await stored(scope)).toEqual({});
  });

  test('a removal does not take what was written after it', async () => {
    const other = worker(postgres);
    await other.save(device, scope, new Map([...one('a', '1'), ...one('b', '1')]));
    const lost = worker(losingAnswer(() => other.save(device, scope, one('a', '2'))));
    expect(await lost.remove(device, scope, ['a', 'b'])).toEqual(['b']);
    expect(await stored(scope)).toEqual({ a: '2' });
  });

  test('a write that only lost its answer is stored, and announced with its version', async () => {
    await worker(losingAnswer(async () => {})).save(device, scope, one('a', '1'));
    expect(await stored(scope)).toEqual({ a: '1' });
    if (scope !== shared) return;
    const [{ version }] = (await postgres.query('select version from attribute_head where device = $1', [device])) as [
      { version: number },
    ];
    expect(announced).toEqual([{ device, version, changed: one('a', '1'), deleted: undefined }]);
  });
});

test('a statement that still runs when it is repeated takes effect once', async () => {
  let isFirst = true;
  let slow: Promise<unknown> = Promise.resolve();
  const queries: Queries = {
    async query<Row>(text: string, values?: unknown[]): Promise<Row[]> {
      if (!isFirst) return await postgres.query<Row>(text, values);
      isFirst = false;
      // The connection is closed while the server still executes the statement, in a transaction that commits later.
      slow = postgres.transaction(async (inside) => {
        await inside.query(text, values);
        await sleep(300);
      });
      await sleep(100);
      throw unavailable('postgres_away', 'The connection was lost.');
    },
  };
  await worker(queries).save(device, client, one('a', '1'));
  await slow;
  expect(await stored(client)).toEqual({ a: '1' });
});
