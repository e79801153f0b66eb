/** Latest values that several callers ask for at the same time, over a store whose answers this test gives. */
import { expect, test } from 'vitest';
import { badRequest, unavailable } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { ClickHouseError, type Parameters, type Reads } from '../clickhouse/client.ts';
import type { LatestRow } from '../clickhouse/latest-rows.ts';
import { LatestReads } from './latest-reads.ts';

interface Query {
  owner: string | null;
  devices: number[];
  keys: unknown;
  answer(error?: Error): void;
}

/** Queries wait until the test answers them: with one point of each device, or with an error. */
function openStore() {
  const queries: Query[] = [];
  const readsOf = (owner: string | null): Reads => ({
    rows: async () => [],
    binaryRows: <T>(sql: string, { devices, keys }: Parameters) =>
      new Promise<T[]>((resolve, reject) => {
        const of = (devices ?? [Number(/ device = (\d+)/.exec(sql)![1])]) as number[];
        const rows = of.map((device): LatestRow => {
          const value = { kind: 2, num: 0, int: '0', text: Buffer.alloc(0) };
          return { device, key: Buffer.from('k'), ts: String(device), ...value, rank: 1n };
        });
        const answer = (error?: Error) => (error ? reject(error) : resolve(rows as T[]));
        queries.push({ owner, devices: of, keys, answer });
      }),
    eachRow: async () => {},
    eachBinaryRow: async () => {},
  });
  const shards = { readsOf: (owner: string | null) => ({ of: () => readsOf(owner), each: () => [] }) };
  const latest = new LatestReads({
    shards,
    waitingMax: 100,
    refusal: () => unavailable('rest_calls', 'Too many calls.'),
  });
  const read = (tenantId: string | null, device: number, keys?: string[], turn = inTurn) =>
    latest.read({ tenantId, customerId: null }, device, keys, turn);
  return { queries, reads: { read } };
}

/** It is always the turn of a query. */
const inTurn = (query: () => Promise<void>) => query();

/** Lets everything run that waits for no answer. */
function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

async function timesOf(read: Promise<{ ts: number }[]>): Promise<number[]> {
  return (await read).map(({ ts }) => ts);
}

test('reads that arrive while a query runs are answered by the next one, each with its own values', async () => {
  const { queries, reads } = openStore();
  const first = timesOf(reads.read('t', 1));
  const others = [2, 3, 2].map((device) => timesOf(reads.read('t', device)));
  await settle();
  expect(queries.map(({ devices }) => devices)).toEqual([[1]]);
  queries[0]!.answer();
  expect(await first).toEqual([1]);
  await settle();
  expect(queries.map(({ devices }) => devices)).toEqual([[1], [2, 3]]);
  queries[1]!.answer();
  expect(await Promise.all(others)).toEqual([[2], [3], [2]]);
  // Nothing is left that a later read would wait for.
  void reads.read('t', 4);
  expect(queries.at(-1)!.devices).toEqual([4]);
});

test('reads of other tenants and of other keys do not wait, and a query has a bounded number of devices', async () => {
  const { queries, reads } = openStore();
  void reads.read('t', 1);
  void reads.read('u', 2);
  void reads.read(null, 3);
  void reads.read('t', 4, ['a']);
  expect(queries.map(({ owner, keys }) => [owner, keys])).toEqual([
    ['t', undefined],
    ['u', undefined],
    [null, undefined],
    ['t', ['a']],
  ]);
  const many = Array.from({ length: limits.latestReadDevicesMax + 1 }, (_, n) => timesOf(reads.read('t', 10 + n)));
  for (const query of queries.splice(0)) query.answer();
  await settle();
  expect(queries.map(({ devices }) => devices.length)).toEqual([limits.latestReadDevicesMax]);
  queries[0]!.answer();
  await settle();
  expect(queries[1]!.devices).toEqual([10 + limits.latestReadDevicesMax]);
  queries[1]!.answer();
  expect((await Promise.all(many)).flat()).toEqual(many.map((_, n) => 10 + n));
});

test.each([
  ['too many keys', badRequest('too_many_keys', 'There are more than 10000 keys.')],
  ['an answer that is too large', new ClickHouseError(396, 'size', 'Limit for result exceeded.')],
])('devices are read one by one after %s', async (_, error) => {
  const { queries, reads } = openStore();
  const first = reads.read('t', 1);
  const others = [2, 3, 2].map((device) => timesOf(reads.read('t', device)));
  queries[0]!.answer();
  await first;
  await settle();
  queries[1]!.answer(error);
  await settle();
  // One query runs at a time, and one is for all who ask for a device.
  expect(queries.slice(2).map(({ devices }) => devices)).toEqual([[2]]);
  queries[2]!.answer();
  await settle();
  expect(queries.slice(3).map(({ devices }) => devices)).toEqual([[3]]);
  queries[3]!.answer(badRequest('too_many_keys', 'There are more than 10000 keys.'));
  const [two, three, again] = await Promise.allSettled(others);
  expect(again).toEqual(two);
  expect(two).toMatchObject({ status: 'fulfilled', value: [2] });
  expect(three).toMatchObject({ status: 'rejected', reason: { reason: 'too_many_keys' } });
});

test('all who wait are refused when the store does not answer, and the next read asks again', async () => {
  const { queries, reads } = openStore();
  const waiting = [1, 2, 3].map((device) => reads.read('t', device));
  const refused = waiting.map((read) => expect(read).rejects.toMatchObject({ reason: 'clickhouse_away', status: 503 }));
  const away = () => new ClickHouseError(0, 'transient', 'refused', { connectionLost: false });
  queries[0]!.answer(away());
  await settle();
  queries[1]!.answer(away());
  await Promise.all(refused);
  expect(queries).toHaveLength(2);
  const again = timesOf(reads.read('t', 5));
  queries[2]!.answer();
  expect(await again).toEqual([5]);
});

test('reads gather while a query waits for its turn; a turn that is refused refuses all who wait', async () => {
  const { queries, reads } = openStore();
  const turns: (() => void)[] = [];
  const later = (query: () => Promise<void>) => new Promise<void>((go) => turns.push(go)).then(query);
  const waiting = [1, 2, 3].map((device) => timesOf(reads.read('t', device, undefined, later)));
  await settle();
  expect([turns.length, queries.length]).toEqual([1, 0]);
  turns[0]!();
  await settle();
  expect(queries.map(({ devices }) => devices)).toEqual([[1, 2, 3]]);
  queries[0]!.answer();
  expect(await Promise.all(waiting)).toEqual([[1], [2], [3]]);
  const refuse = () => Promise.reject(unavailable('connections', 'Too many wait.'));
  const refused = [4, 5].map((device) => reads.read('t', device, undefined, refuse));
  for (const read of refused) await expect(read).rejects.toMatchObject({ reason: 'connections' });
  await settle();
  void reads.read('t', 6);
  expect(queries.at(-1)!.devices).toEqual([6]);
});

test('a tenant that waits for its answers leaves room to others, and finds room when it has them', async () => {
  const { queries, reads } = openStore();
  const waiting = Array.from({ length: 90 }, (_, n) => reads.read('t', n));
  await expect(reads.read('t', 1)).rejects.toMatchObject({ reason: 'rest_calls', status: 503 });
  waiting.push(reads.read('u', 1));
  while (queries.length > 0) {
    for (const query of queries.splice(0)) query.answer();
    await settle();
  }
  await Promise.all(waiting);
  void reads.read('t', 1);
  expect(queries).toHaveLength(1);
});
