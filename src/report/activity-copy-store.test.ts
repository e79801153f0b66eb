/** The copy of device activity for reports, on a real PostgreSQL: what is copied, once, and what is left out. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { replaceBlocks } from '../activity/block-store.ts';
import { blockBytes, blockDevices, mergeTimes } from '../activity/blocks.ts';
import { copyLastActivity, isLastActivityKept } from './activity-copy-store.ts';
import { type AttributeCopy, activityAfter, findAttributeCopies } from './outbox-store.ts';

let server: TestPostgres;
let version = 0;

beforeAll(async () => {
  server = await startTestPostgres();
}, 60_000);

afterAll(() => server.stop(), 60_000);

/** Devices of block 7 were active then. */
async function active(times: Record<number, number>): Promise<void> {
  const bytes = Buffer.alloc(blockBytes);
  const seen = new Float64Array(blockDevices);
  for (const [place, time] of Object.entries(times)) seen[Number(place)] = time;
  mergeTimes(bytes, seen, 1e12);
  expect(await replaceBlocks(server.postgres, [{ block: 7, version, times: bytes }])).toEqual(new Set([7]));
  version += 1;
}

async function copied(): Promise<Record<number, string>> {
  const copies: AttributeCopy[] = [];
  await server.postgres.transaction((queries) => copyLastActivity(queries, async (some) => void copies.push(...some)));
  return Object.fromEntries(copies.map(({ device, text }) => [device - 7 * blockDevices, text]));
}

test('each time is copied once after it changed', async () => {
  expect(await copied()).toEqual({});
  await active({ 0: 1_000, 3: 2_000, 511: 3_000 });
  expect(await copied()).toEqual({ 0: '1000', 3: '2000', 511: '3000' });
  expect(await copied()).toEqual({});
  await active({ 0: 1_000, 2: 5_000, 3: 2_001, 511: 3_000 });
  expect(await copied()).toEqual({ 2: '5000', 3: '2001' });
});

test('only a report that names it has it copied', async () => {
  const { postgres } = server;
  expect(await isLastActivityKept(postgres)).toBe(false);
  await postgres.query(`insert into report_key values (3, 'lastActivityTime', 0, null, false)`);
  expect(await isLastActivityKept(postgres)).toBe(false);
  await postgres.query('update report_key set filled_time = 1');
  expect(await isLastActivityKept(postgres)).toBe(true);
});

test('what changes in a row of activity names its device to the copier, and is read as an attribute', async () => {
  const { postgres } = server;
  const first = 7 * blockDevices;
  const outbox = () => postgres.query<object>('select device, scope, key from device_outbox where key is not null');
  await postgres.query(
    'insert into device_activity (device, active, woke_time, last_connect_time) values ($1, true, 900, null), ($2, false, 0, 70)',
    [first, first + 1],
  );
  expect(await outbox()).toEqual([first, first + 1].map((device) => ({ device, scope: 3, key: 'lastActivityTime' })));
  await active({ 0: 1_000 });
  const of = (device: number, key: string, kind: number, text: string) => ({ device, scope: 3, key, kind, text });
  const keys = ['active', 'lastActivityTime', 'lastConnectTime'];
  const asked = [first, first + 1].flatMap((device) => keys.map((key) => ({ device, scope: 3, key })));
  const expected = [
    of(first, 'active', 1, 'true'),
    of(first, 'lastActivityTime', 2, '1000'),
    of(first + 1, 'lastConnectTime', 2, '70'),
  ];
  expect(await findAttributeCopies(postgres, asked)).toEqual({ copies: expected, unread: [] });
  expect(await activityAfter(postgres, -1, keys)).toEqual({ rows: expected, last: first + 1 });
  expect(await activityAfter(postgres, first, ['active'])).toEqual({ rows: [], last: first + 1 });
  expect(await activityAfter(postgres, first + 1, keys)).toEqual({ rows: [], last: undefined });
});
