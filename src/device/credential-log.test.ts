/** Changes of credentials through their log in PostgreSQL, and without PostgreSQL. */

import { describe, expect, it } from 'vitest';
import { config, sharedApi, unique } from '../../test/harness/api-handlers.ts';
import { deafBus } from '../../test/harness/deaf-bus.ts';
import { silentLog as log } from '../../test/harness/silent-log.ts';
import { openJwt } from '../auth/jwt.ts';
import { systemClock as clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import { nullUuid } from '../base/uuid.ts';
import { openPostgres } from '../postgres/client.ts';
import { CredentialChanges } from './credential-changes.ts';
import { LocalDevices } from './local-devices.ts';
import {
  changesSince,
  hasChangedCredentials,
  isOtherHistory,
  type LogPlace,
  placeAt,
  placeValues,
  pruneCredentialChanges,
  readSettled,
} from './sql/credential-log-store.ts';
import { lookUpTokens } from './sql/look-up-store.ts';
import { TokenCache } from './token-cache.ts';

const { tokenOf, create, postgres } = await sharedApi();

describe('credential changes', () => {
  it('reach another process through the log, also when a transaction becomes visible late', async () => {
    const cache = new TokenCache((batch) => lookUpTokens(postgres, batch), limits, new LocalDevices(), clock);
    const other = new CredentialChanges({ postgres, bus: deafBus, clock, log });
    const seen: string[] = [];
    other.onChange((change) => {
      if (change === 'all') return;
      seen.push(change.credentialsId);
      cache.invalidate(change.credentialsId);
    });
    const insert = `insert into credential_changes (credentials_id, device_id, device_number, created_time)
      values ($1, $2, 1, 0)`;
    try {
      await other.start();
      const late = postgres.transaction(async (queries) => {
        await queries.query(insert, ['late', nullUuid]);
        await new Promise((resolve) => setTimeout(resolve, limits.credentialPollMs * 1.5));
      });
      await new Promise((resolve) => setTimeout(resolve, 100));
      const token = await tokenOf('tenant@thingsboard.org', 'tenant');
      const key = unique('SEEN');
      expect(await cache.lookup(key)).toBeNull();
      const device = await create(token, {}, `?accessToken=${key}`);
      await late;
      await expect.poll(() => seen).toEqual(expect.arrayContaining([key, 'late']));
      // Read again while the other transaction was open, and passed on once: a later lookup need not be repeated.
      expect(seen.filter((each) => each === key)).toHaveLength(1);
      expect((await cache.lookup(key))?.id).toBe(device.id.id);
    } finally {
      await other.stop();
    }
  });
});

it('changes are deleted once they are old, by the clocks of the host and of the database', async () => {
  const kept = limits.credentialChangesKeptMs;
  const ids = { old: unique('OLD'), fresh: unique('FRESH') };
  const insert = `insert into credential_changes (credentials_id, device_id, device_number, created_time)
    values ($1, $2, 1, $3)`;
  const left = async () => {
    const rows = await postgres.query<{ id: string }>(
      'select credentials_id as id from credential_changes where credentials_id = any($1)',
      [Object.values(ids)],
    );
    return rows.map(({ id }) => id);
  };
  await postgres.query(insert, [ids.old, nullUuid, clock.now() - kept - 60_000]);
  await postgres.query(insert, [ids.fresh, nullUuid, clock.now() - kept + 60_000]);
  await pruneCredentialChanges(postgres, clock.now() - 3_600_000, kept, 2);
  expect(await left()).toHaveLength(2);
  await pruneCredentialChanges(postgres, clock.now() + 10 * kept, kept, 2);
  expect(await left()).toEqual([ids.fresh]);
});

it('a server that hides its log has no timeline, and its changes are followed all the same', async () => {
  expect(await readSettled(postgres)).toMatchObject({ timeline: expect.stringMatching(/^00000001\/\d+$/) });
  const hidden = new Error('the transaction is rolled back');
  const read = postgres.transaction(async (queries) => {
    await queries.query('revoke execute on function pg_current_wal_lsn() from public');
    await queries.query('create role millrace_without_log');
    await queries.query('set local role millrace_without_log');
    const settled = await readSettled(queries);
    expect(settled.timeline).toBeNull();
    expect(isOtherHistory(await readSettled(queries), settled)).toBe(false);
    throw hidden;
  });
  await expect(read).rejects.toBe(hidden);
});

it('changes that are old are found by the index of their time', async () => {
  const plan = await postgres.transaction(async (queries) => {
    await queries.query('set local enable_seqscan = off');
    const rows: { 'QUERY PLAN': string }[] = [];
    const explain: typeof queries.query = async (text, values) => {
      rows.push(...(await queries.query<(typeof rows)[0]>(`explain ${text}`, values)));
      return [];
    };
    await pruneCredentialChanges({ query: explain }, clock.now(), limits.credentialChangesKeptMs, 2);
    return rows.map((row) => row['QUERY PLAN']).join('\n');
  });
  expect(plan).toMatch(/Index Cond: \(created_time </);
});

describe('without Postgres', () => {
  it('a worker starts, and answers 503 where it needs the store', async () => {
    const away = openPostgres({ url: 'postgres://nobody@127.0.0.1:1/nothing', poolMax: 1, log });
    const parts = new CredentialChanges({ postgres: away, bus: deafBus, clock, log });
    await parts.start();
    const jwt = await openJwt(away, config.auth, clock);
    await expect(jwt.verify('a.b.c')).rejects.toMatchObject({ status: 503 });
    await parts.stop();
    await away.close();
  });
});

it.each([
  { known: 'no statistics', statistics: 'select' },
  { known: 'statistics of one large transaction', statistics: 'analyze credential_changes' },
])('reads only the new rows of a long log of which PostgreSQL has $known', async ({ statistics }) => {
  await postgres.transaction(async (queries) => {
    // Hides the table of this name until the end of the transaction.
    await queries.query(
      'create temp table credential_changes (like public.credential_changes including all) on commit drop',
    );
    const insert = async (transaction: number, token: string, count: number) => {
      await queries.query(
        `insert into credential_changes (transaction_id, credentials_id, device_id, device_number, created_time)
         select $1::text::xid8, $2, $3, 1, 0 from generate_series(1, $4::int)`,
        [String(transaction), token, nullUuid, count],
      );
    };
    await insert(7, 'old', 60_000);
    await queries.query(statistics);
    await insert(10, 'ten', 3);
    await insert(8, 'eight', 5);
    await insert(5, 'five', 3);
    const plans: string[] = [];
    const explained = {
      ...queries,
      query: async (text: string, values?: unknown[]) => {
        const lines = await queries.query<Record<string, string>>(`explain (analyze, buffers) ${text}`, values);
        plans.push(lines.map((line) => Object.values(line)[0]).join('\n'));
        return await queries.query(text, values);
      },
    } as typeof queries;
    const read = async (place: LogPlace, pageRows = 2, to?: LogPlace) => {
      const pages: string[] = [];
      for await (const { changes } of changesSince(explained, place, pageRows, to))
        pages.push(changes.map(({ credentialsId }) => credentialsId).join(' '));
      const [row] = await explained.query<{ changed: boolean }>(
        `select ${hasChangedCredentials} as changed`,
        placeValues(place),
      );
      return [row!.changed, pages];
    };
    expect(await read(placeAt(8n))).toEqual([true, ['eight eight', 'eight eight', 'eight ten', 'ten ten', '']]);
    // Transactions 5 and 8 ran when the log was read up to 9, and 6 runs for long.
    expect(await read({ next: 9n, running: [5n, 6n, 8n] })).toEqual([
      true,
      ['five five', 'five eight', 'eight eight', 'eight eight', 'ten ten', 'ten'],
    ]);
    expect(await read({ next: 11n, running: [6n] }, 1_000)).toEqual([false, ['']]);
    // What a reader lacks that stopped where transaction 8 was running is read from there on.
    const stop = { next: 10n, running: [8n] };
    expect(await read({ next: 9n, running: [5n, 6n, 8n] }, 2, stop)).toEqual([true, ['five five', 'five', '', '', '']]);
    expect(await read(stop, 2)).toEqual([true, ['eight eight', 'eight eight', 'eight ten', 'ten ten', '']]);
    // A reader that ends after any page goes on from the place of that page, also when transaction 8 has ended since.
    const changesIn = async (place: LogPlace, pages: number, to: LogPlace) => {
      const read: number[] = [];
      let next: LogPlace | undefined;
      for await (const page of changesSince(queries, place, 2, to)) {
        read.push(...page.changes.map(({ id }) => id));
        next = page.place;
        pages -= 1;
        if (pages === 0) break;
      }
      return { read, next };
    };
    for (const { from, count, pagesRead } of [
      { from: { next: 9n, running: [5n, 6n, 8n] }, count: 3 + 5 + 3, pagesRead: 5 },
      { from: placeAt(8n), count: 5 + 3, pagesRead: 4 },
    ]) {
      const end = { next: 12n, running: [] };
      const all = (await changesIn(from, 0, end)).read;
      expect(all).toHaveLength(count);
      let pages = 1;
      for (; ; pages += 1) {
        const { read, next } = await changesIn(from, pages, { next: 11n, running: [8n] });
        if (next === undefined) break;
        const rest = (await changesIn(next, 0, end)).read;
        expect([...new Set([...read, ...rest])].sort(), `after page ${pages}`).toEqual([...all].sort());
        // Only a change of transaction 5 may be read again, which was running.
        const again = read.filter((id) => rest.includes(id));
        const ofFive = all.slice(0, count - 8);
        expect(ofFive, `after page ${pages}`).toEqual(expect.arrayContaining(again));
      }
      expect(pages - 1).toBe(pagesRead);
    }
    for (const plan of plans) {
      expect(plan).not.toMatch(/Rows Removed by Filter: \d{2}|Seq Scan/);
      // The index of the old rows alone has more than fifty pages.
      const buffers = [...plan.matchAll(/local hit=(\d+)/g)].map(([, pages]) => Number(pages));
      expect(buffers, plan).not.toEqual([]);
      expect(Math.max(...buffers), plan).toBeLessThan(30);
    }
  });
});
