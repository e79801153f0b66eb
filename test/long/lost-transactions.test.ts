/**
 * A standby takes over without the last transactions of its primary, and uses their numbers and those of their devices
 * again.
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { systemClock as clock } from '../../src/base/clock.ts';
import { nullUuid } from '../../src/base/uuid.ts';
import { CredentialChanges } from '../../src/device/credential-changes.ts';
import { readLastDeviceNumber } from '../../src/device/sql/number-store.ts';
import { DataDirectory } from '../../src/instance/host/data-directory.ts';
import { HostPoll } from '../../src/instance/stores/host-poll.ts';
import { RestoredStores } from '../../src/instance/stores/restored-stores.ts';
import { openPostgres, type Queries } from '../../src/postgres/client.ts';
import { migratePostgres } from '../../src/postgres/migrate.ts';
import type { PollResult } from '../../src/postgres/shared-poll.ts';
import { deafBus } from '../harness/deaf-bus.ts';
import { DebianPostgres, type PostgresNode } from '../harness/debian-postgres.ts';
import { silentLog as log } from '../harness/silent-log.ts';

let servers: DebianPostgres;
let nodes: PostgresNode[];

beforeEach(() => {
  servers = new DebianPostgres();
  nodes = [];
});

afterEach(() => servers.remove(nodes), 60_000);

async function useTransactions(server: Queries, count: number): Promise<void> {
  for (let n = 0; n < count; n += 1) await server.query('select pg_current_xact_id()::text');
}

/** A primary with the tables of this version, a client of it, and its standby. */
async function startPair() {
  const a = await servers.primary();
  nodes.push(a);
  const first = openPostgres({ url: a.url, poolMax: 2, log });
  await migratePostgres(first, { log });
  const b = await servers.standbyOf(a);
  nodes.push(b);
  return { a, first, b };
}

test('a change with the number of a lost transaction reaches every worker', async () => {
  const { a, first, b } = await startPair();
  const second = openPostgres({ url: b.url, poolMax: 2, log });
  let inUse: Queries = first;
  let isAway = false;
  const postgres: Queries = {
    query: async (...asked) => {
      if (isAway) throw Object.assign(new Error('connection refused'), { code: 'ECONNREFUSED' });
      return await inUse.query(...asked);
    },
  };
  const results: PollResult[] = [];
  const host = new HostPoll({ postgres, log, onResult: (result) => results.push(result) });
  const changes = new CredentialChanges({ postgres, bus: deafBus, clock, log });
  let seen: string[] = [];
  changes.onChange((change) => seen.push(change === 'all' ? 'all' : change.credentialsId));
  try {
    // The standby has no part of what follows.
    await b.stop();
    await useTransactions(first, 50);
    await changes.start();
    host.start();
    const before = results.length;
    await expect.poll(() => results.length).toBeGreaterThan(before + 2);
    isAway = true;
    await first.close();
    await a.stop('immediate');
    await b.start();
    await b.promote();
    await second.query(
      'insert into credential_changes (credentials_id, device_id, device_number, created_time) values ($1, $2, 1, 0)',
      ['reused', nullUuid],
    );
    await useTransactions(second, 100);
    [seen, inUse] = [[], second];
    const { length } = results;
    isAway = false;
    await expect.poll(() => results.length).toBeGreaterThan(length + 1);
    expect(results.slice(length).flatMap(({ found }) => found)).toContain('heads');
    await expect.poll(() => seen).toContain('all');
  } finally {
    await host.stop();
    await changes.stop();
    await second.close();
  }
}, 170_000);

test('the number of a device that was lost is given to no other device', async () => {
  const { a, first, b } = await startPair();
  // As with one name that follows the primary.
  const postgres = openPostgres({
    url: `postgres://millrace@127.0.0.1:${a.port},127.0.0.1:${b.port}/millrace`,
    poolMax: 2,
    log,
  });
  const dir = mkdtempSync(join(tmpdir(), 'millrace-lost-'));
  const stores = new RestoredStores({ postgres, data: new DataDirectory(dir), log });
  const onNumber = (last: number, isOther: boolean) => stores.polled(last, isOther);
  let polls = 0;
  const host = new HostPoll({ postgres, log, onNumber, onResult: () => (polls += 1) });
  try {
    stores.clickhouseUnavailable();
    await stores.postgresPrepared();
    host.start();
    // The standby has no part of what follows.
    await b.stop();
    const nextNumbers = `select max(nextval(pg_get_serial_sequence('device', 'number'))) as last from generate_series(1, 200)`;
    const [lost] = await first.query<{ last: number }>(nextNumbers);
    await first.close();
    const before = polls;
    await expect.poll(() => polls).toBeGreaterThan(before + 1);
    await a.stop('immediate');
    await b.start();
    expect(await lastOfStandby(b)).toBeLessThan(lost!.last);
    await b.promote();
    await expect.poll(() => readLastDeviceNumber(postgres).catch(() => 0)).toBeGreaterThan(lost!.last);
  } finally {
    await host.stop();
    await stores.stop();
    await postgres.close();
    rmSync(dir, { recursive: true });
  }
}, 170_000);

async function lastOfStandby(standby: PostgresNode): Promise<number> {
  return Number(
    await standby.sql(
      `select coalesce(pg_sequence_last_value(pg_get_serial_sequence('device', 'number')::regclass), 0)`,
    ),
  );
}
