/** Pages of attributes that are copied for reports, against a real server. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { insertDevices } from '../../test/harness/inserted-devices.ts';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { limits } from '../base/limits.ts';
import { type AttributeCopy, type AttributePlace, attributesAfter, findAttributeCopies } from './outbox-store.ts';

let server: TestPostgres;
/** Places of large values in the order of their primary key. */
let places: AttributePlace[];
const valueBytes = 1_000_000;
const deviceCount = 12;
const keys = [2, 3].map((scope) => ({ scope, key: 'manual' }));

beforeAll(async () => {
  server = await startTestPostgres();
  const { postgres } = server;
  const numbers = await insertDevices(postgres, deviceCount);
  await postgres.query(
    `insert into attribute (device, scope, key, kind, value, last_update_ts)
     select d.number, s.scope, k.key, 4, repeat('x', ${valueBytes}), 1
       from device d, unnest('{2,3}'::int[]) as s (scope), unnest('{manual,other}'::text[]) as k (key)`,
  );
  places = numbers.flatMap((device) => keys.map((of) => ({ device, ...of })));
}, 60_000);
afterAll(() => server.stop(), 60_000);

const pageBytesMax = limits.outboxPageBytesMax + valueBytes;

function checkPage(copies: AttributeCopy[]): AttributePlace[] {
  expect(copies.reduce((sum, { text }) => sum + text.length, 0)).toBeLessThanOrEqual(pageBytesMax);
  return copies.map(({ device, scope, key }) => ({ device, scope, key }));
}

it('large values are read in pages, each once', async () => {
  const read: AttributePlace[] = [];
  for (let after: AttributePlace = { device: -1, scope: 0, key: '' }; ; ) {
    const page = await attributesAfter(server.postgres, after, keys);
    if (page.length === 0) break;
    read.push(...checkPage(page));
    after = page.at(-1)!;
  }
  expect(read).toEqual(places);
});

it('large values that have changed are read in parts, and attributes that are gone in none', async () => {
  const gone = { device: places.at(-1)!.device + 1, scope: 3, key: 'manual' };
  const read: AttributePlace[] = [];
  for (let unread = [...places, gone]; unread.length > 0; ) {
    const found = await findAttributeCopies(server.postgres, unread);
    read.push(...checkPage(found.copies));
    unread = found.unread;
  }
  expect(read).toEqual(places);
});
