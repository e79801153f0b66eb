/** Deletes have the same outcome for latest values that are records as for those that are rows of their own. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type SharedClickHouse, shareTestClickHouse } from '../../test/harness/clickhouse-server.ts';
import { Random } from '../../test/harness/random.ts';
import { recordKind } from '../clickhouse/latest-rows.ts';
import { insertLatest, insertTelemetry } from '../clickhouse/statements.ts';
import { keyOf } from '../telemetry/keys.ts';
import { readLatest } from '../telemetry/latest.ts';
import { packRecords } from '../telemetry/pack-records.ts';
import { readHistory } from '../telemetry/query.ts';
import { Rows } from '../telemetry/rows.ts';
import { Kind } from '../value/typed.ts';
import { eraseDevices, eraseSeries } from './erase-in-clickhouse.ts';
import type { Erased } from './tombstone-store.ts';

let embedded: SharedClickHouse;

beforeAll(async () => {
  embedded = await shareTestClickHouse();
});

afterAll(() => embedded.stop());

const begin = Date.UTC(2026, 10, 28);
const shapes = [
  ['a', 'b'],
  ['b', 'c', 'a'],
  ['c', 'd'],
];
const orderAt = (n: number) => BigInt(begin + n) << 20n;

interface Sent {
  ts: number;
  keys: string[];
  order: bigint;
}

/** Stores a record of one device: its latest values as a record, or as rows. */
async function ship(device: number, { ts, keys, order }: Sent, isPacked: boolean): Promise<void> {
  const rows = new Rows();
  for (const key of keys) rows.addDouble(keyOf(key)!, Number((order >> 20n) % 1000n));
  rows.endRecord(device, ts);
  const block = Buffer.concat(rows.encode({ order, micros: 0, firstPlace: 0 }));
  await embedded.clickhouse.insertBlocks(insertTelemetry, block);
  const packed = packRecords([block], (bytes) => Buffer.alloc(bytes));
  expect(packed).toBeDefined();
  await embedded.clickhouse.insertBlocks(insertLatest, isPacked ? packed! : block);
}

async function erase(erased: Omit<Erased, 'aheadWriters' | 'aheadOrders'>, clickhouse = embedded.clickhouse) {
  const deps = { clickhouse, cluster: '', msLeft: () => 60_000 };
  await eraseSeries(deps, [{ ...erased, aheadWriters: [], aheadOrders: [] }]);
}

async function shown(device: number): Promise<unknown> {
  const history: unknown[] = [];
  const range = { startTs: 0, endTs: 2 ** 50, keys: ['a', 'b', 'c', 'd'] };
  for (const key of range.keys) {
    await readHistory(embedded.clickhouse, device, { ...range, keys: [key] } as never, 1000, 'ASC', (point) => {
      history.push([key, point.ts, point.value]);
    });
  }
  return { history, latest: await readLatest(embedded.clickhouse, device) };
}

/** Returns the kinds of the rows in `latest`. */
async function kindsOf(device: number): Promise<number[]> {
  const sql = `SELECT kind FROM latest FINAL WHERE device = ${device} ORDER BY kind`;
  return (await embedded.clickhouse.rows<{ kind: number }>(sql)).map(({ kind }) => kind);
}

const whole = { startTs: 0, endTs: 2 ** 50 };

test.each(Array.from({ length: 5 }, (_, seed) => seed))('any deletes between any records, seed %i', async (seed) => {
  const random = new Random(seed);
  const device = 700_000 + seed;
  const twin = device + 2 ** 34;
  const order = (n: number) => orderAt(10 * n);
  let n = 1;
  for (let step = 0; step < 14; step += 1) {
    if (random.below(3) > 0) {
      const sent = { ts: begin + random.below(30), keys: shapes[random.below(shapes.length)]!, order: order(n) };
      await ship(device, sent, true);
      await ship(twin, sent, false);
      n += 1;
      continue;
    }
    const startTs = random.below(4) === 0 ? 0 : begin + random.below(30);
    const erased = {
      keys: random.below(3) === 0 ? null : ['a', 'b', 'c', 'd'].filter(() => random.below(2) === 0),
      startTs,
      endTs: random.below(3) === 0 ? 2 ** 50 : startTs + 1 + random.below(20),
      orderNumber: order(n).toString(),
      latest: (['delete', 'rewrite', 'rewrite'] as const)[random.below(3)]!,
    };
    if (erased.keys?.length === 0) continue;
    n += 1;
    await erase({ device, ...erased });
    await erase({ device: twin, ...erased });
    expect(await shown(device)).toEqual(await shown(twin));
  }
  expect(await shown(device)).toEqual(await shown(twin));
});

test('a record that arrived after the delete keeps its values', async () => {
  const device = 710_000;
  await ship(device, { ts: begin, keys: ['a', 'b'], order: orderAt(1) }, true);
  await ship(device, { ts: begin + 5, keys: ['c', 'd'], order: orderAt(3) }, true);
  await erase({ device, keys: null, ...whole, orderNumber: orderAt(2).toString(), latest: 'delete' });
  expect((await readLatest(embedded.clickhouse, device)).map(({ key }) => key)).toEqual(['c', 'd']);
});

test('a delete that touches no latest value writes nothing to the latest values', async () => {
  const device = 710_001;
  await ship(device, { ts: begin, keys: ['a', 'b'], order: orderAt(1) }, true);
  await ship(device, { ts: begin + 5, keys: ['a', 'b'], order: orderAt(2) }, true);
  await erase({
    device,
    keys: ['a'],
    startTs: 0,
    endTs: begin + 1,
    orderNumber: orderAt(3).toString(),
    latest: 'delete',
  });
  expect(await kindsOf(device)).toEqual([recordKind]);
});

test('deletes that share their statements divide the records of their own devices alone', async () => {
  const [covered, other] = [710_004, 710_005];
  for (const device of [covered, other]) await ship(device, { ts: begin, keys: ['a', 'b'], order: orderAt(1) }, true);
  const shared = { ...whole, orderNumber: orderAt(2).toString(), latest: 'delete' as const, aheadWriters: [] };
  await eraseSeries({ clickhouse: embedded.clickhouse, cluster: '', msLeft: () => 60_000 }, [
    { ...shared, device: covered, keys: ['a'], aheadOrders: [] },
    { ...shared, device: other, keys: ['c'], aheadOrders: [] },
  ]);
  expect([await kindsOf(covered), await kindsOf(other)]).toEqual([[Kind.double], [recordKind]]);
  expect((await readLatest(embedded.clickhouse, covered)).map(({ key }) => key)).toEqual(['b']);
  expect((await readLatest(embedded.clickhouse, other)).map(({ key }) => key)).toEqual(['a', 'b']);
});

test('a delete that ended after it had inserted the points of a record is finished by its repetition', async () => {
  const device = 710_006;
  await ship(device, { ts: begin, keys: ['a', 'b'], order: orderAt(1) }, true);
  const { clickhouse } = embedded;
  const ended = new Proxy(clickhouse, {
    get(target, name) {
      const value = Reflect.get(target, name) as unknown;
      if (name === 'exec') return async () => Promise.reject(new Error('ended'));
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
  const erased = { device, keys: ['a'], ...whole, orderNumber: orderAt(2).toString(), latest: 'delete' as const };
  await expect(erase(erased, ended)).rejects.toThrow('ended');
  expect(await kindsOf(device)).toEqual([Kind.double, Kind.double, recordKind]);
  await erase(erased);
  expect(await kindsOf(device)).toEqual([Kind.double]);
  expect((await readLatest(clickhouse, device)).map(({ key }) => key)).toEqual(['b']);
});

test('a point that another delete marks while its record is divided does not come back', async () => {
  const device = 710_002;
  await ship(device, { ts: begin, keys: ['a', 'b'], order: orderAt(1) }, true);
  const { clickhouse } = embedded;
  let isFirst = true;
  const interrupted = new Proxy(clickhouse, {
    get(target, name) {
      const value = Reflect.get(target, name) as unknown;
      if (typeof value !== 'function') return value;
      return async (...given: unknown[]) => {
        // The records were read; another host deletes key b before the points are inserted.
        if (isFirst && name === 'insertBlocks') {
          isFirst = false;
          await erase({ device, keys: ['b'], ...whole, orderNumber: orderAt(3).toString(), latest: 'delete' });
        }
        return (await value.apply(target, given)) as unknown;
      };
    },
  });
  await erase({ device, keys: ['a'], ...whole, orderNumber: orderAt(2).toString(), latest: 'delete' }, interrupted);
  expect(isFirst).toBe(false);
  expect(await readLatest(clickhouse, device)).toEqual([]);
});

test('a deleted device leaves no record', async () => {
  const device = 710_003;
  await ship(device, { ts: begin, keys: ['a', 'b'], order: orderAt(1) }, true);
  await eraseDevices({ clickhouse: embedded.clickhouse, cluster: '', msLeft: () => 60_000 }, [device]);
  expect(await readLatest(embedded.clickhouse, device)).toEqual([]);
});

test('a latest value that a delete has kept stays when the record is divided for another key', async () => {
  const device = 710_004;
  await ship(device, { ts: begin, keys: ['a', 'b'], order: orderAt(1) }, true);
  await erase({ device, keys: ['a'], ...whole, orderNumber: orderAt(2).toString(), latest: 'keep' });
  await erase({ device, keys: ['b'], ...whole, orderNumber: orderAt(3).toString(), latest: 'delete' });
  expect((await readLatest(embedded.clickhouse, device)).map(({ key }) => key)).toEqual(['a']);
});

test.each(['insertBlocks', 'exec'])('a record that is stored beside the division loses no value (%s)', async (step) => {
  const device = 710_005 + step.length;
  await ship(device, { ts: begin, keys: ['a', 'b'], order: orderAt(1) }, true);
  // This record was sent before the delete and is stored when the records have been read.
  const { clickhouse, isDone } = before(step, () =>
    ship(device, { ts: begin + 5, keys: ['a', 'b'], order: orderAt(2) }, true),
  );
  await erase({ device, keys: ['a'], ...whole, orderNumber: orderAt(3).toString(), latest: 'delete' }, clickhouse);
  expect(isDone()).toBe(true);
  expect(await readLatest(embedded.clickhouse, device)).toMatchObject([{ key: 'b', ts: begin + 5 }]);
});

test('values of a divided record keep each bit', async () => {
  const device = 710_030;
  const random = new Random(1);
  const numbers = Array.from({ length: 60 }, () => (random.below(2 ** 30) / 1e9 + random.below(2 ** 30) / 7) * 1e-5);
  numbers.push(-0, 5e-324, 1.7976931348623157e308);
  const rows = new Rows();
  for (const [i, number] of numbers.entries()) rows.addDouble(keyOf(`n${i} "\u0000`)!, number);
  rows.endRecord(device, begin);
  const block = Buffer.concat(rows.encode({ order: orderAt(1), micros: 0, firstPlace: 0 }));
  await embedded.clickhouse.insertBlocks(insertTelemetry, block);
  await embedded.clickhouse.insertBlocks(insertLatest, packRecords([block], (bytes) => Buffer.alloc(bytes))!);
  const before = await readLatest(embedded.clickhouse, device);
  const first = before[0]!.key;
  await erase({ device, keys: [first], ...whole, orderNumber: orderAt(2).toString(), latest: 'delete' });
  expect(await readLatest(embedded.clickhouse, device)).toEqual(before.slice(1));
});

/** A client that does something before its first statement of a kind. */
function before(step: string, act: () => Promise<void>) {
  let isDone = false;
  const clickhouse = new Proxy(embedded.clickhouse, {
    get(target, name) {
      const value = Reflect.get(target, name) as unknown;
      if (typeof value !== 'function') return value;
      return async (...given: unknown[]) => {
        if (!isDone && name === step) {
          isDone = true;
          await act();
        }
        return (await value.apply(target, given)) as unknown;
      };
    },
  });
  return { clickhouse, isDone: () => isDone };
}
