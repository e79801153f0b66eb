/** Deletes have the same outcome for latest values that are records as for those that are rows of their own. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type SharedClickHouse, shareTestClickHouse } from '../../test/harness/clickhouse-server.ts';
import { Random } from '../../test/harness/random.ts';
import { deletesInMemory } from '../../test/harness/stored-deletes.ts';
import type { ClickHouse } from '../clickhouse/client.ts';
import { recordKind } from '../clickhouse/latest-rows.ts';
import { insertLatest, insertTelemetry } from '../clickhouse/statements.ts';
import { keyOf } from '../telemetry/keys.ts';
import { readLatest } from '../telemetry/latest.ts';
import { packRecords } from '../telemetry/pack-records.ts';
import { readHistory } from '../telemetry/query.ts';
import { Rows } from '../telemetry/rows.ts';
import { Kind } from '../value/typed.ts';
import type { StoredDelete } from './deletes-store.ts';
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

const { all: allDeletes, deletes } = deletesInMemory();

function depsOf(clickhouse: ClickHouse, mayHaveBegun = false) {
  return { clickhouse, cluster: '', msLeft: () => 60_000, deletes, mayHaveBegun };
}

async function erase(
  asked: Omit<StoredDelete, 'id' | 'aheadWriters' | 'aheadOrders'>,
  clickhouse = embedded.clickhouse,
) {
  const erased = { id: allDeletes.length + 1, ...asked, aheadWriters: [], aheadOrders: [] };
  allDeletes.push(erased);
  await eraseSeries(depsOf(clickhouse), [erased]);
}

/** Repeats all deletes of the device in their order, as after a host that has ended. */
async function repeat(device: number): Promise<void> {
  for (const erased of allDeletes) {
    if (erased.device === device && 'id' in erased) await eraseSeries(depsOf(embedded.clickhouse, true), [erased]);
  }
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

/** What a device shows by the rules of ThingsBoard. */
class Shown {
  /** The rewrites that met a latest value outside their range whose point is gone, or points without a latest value. */
  readonly met = { kept: 0, none: 0 };
  readonly #points = new Map<string, Map<number, bigint>>();
  readonly #latest = new Map<string, { ts: number; order: bigint }>();

  add({ ts, keys, order }: Sent): void {
    for (const key of keys) {
      const points = this.#points.get(key) ?? new Map<number, bigint>();
      this.#points.set(key, points.set(ts, order));
      if (ts >= (this.#latest.get(key)?.ts ?? 0)) this.#latest.set(key, { ts, order });
    }
  }

  /** A latest value changes when it lies in the range, and never otherwise. */
  erase({ keys, startTs, endTs, latest }: Pick<Erased, 'keys' | 'startTs' | 'endTs' | 'latest'>): void {
    for (const [key, points] of this.#points) {
      if (keys !== null && !keys.includes(key)) continue;
      for (const ts of [...points.keys()]) if (ts >= startTs && ts < endTs) points.delete(ts);
      const { ts } = this.#latest.get(key) ?? { ts: -1 };
      if (latest === 'rewrite' && ts < 0 && points.size > 0) this.met.none += 1;
      if (latest === 'rewrite' && ts >= 0 && !points.has(ts) && (ts < startTs || ts >= endTs)) this.met.kept += 1;
      if (latest === 'keep' || ts < startTs || ts >= endTs) continue;
      this.#latest.delete(key);
      const newest = Math.max(...points.keys());
      if (latest === 'rewrite' && points.size > 0) this.#latest.set(key, { ts: newest, order: points.get(newest)! });
    }
  }

  do(step: Step): void {
    if (step === 'expire') this.expire();
    else if ('order' in step) this.add(step);
    else this.erase(step);
  }

  /** Retention drops the points, and the latest values stay. */
  expire(): void {
    for (const points of this.#points.values()) points.clear();
  }

  get all() {
    const shownAs = (order: bigint) => ({ kind: Kind.double, num: Number((order >> 20n) % 1000n) });
    const history = [...this.#points].flatMap(([key, points]) => {
      return [...points].map(([ts, order]) => [key, ts, shownAs(order)] as const);
    });
    const latest = [...this.#latest].map(([key, { ts, order }]) => ({ key, ts, value: shownAs(order) }));
    return {
      history: history.sort(([a, at], [b, bt]) => (a === b ? at - bt : a < b ? -1 : 1)),
      latest: latest.sort((a, b) => (a.key < b.key ? -1 : 1)),
    };
  }
}

type Step = Sent | Pick<Erased, 'keys' | 'startTs' | 'endTs' | 'orderNumber' | 'latest'> | 'expire';

function stepsOf(seed: number): Step[] {
  const random = new Random(seed);
  return Array.from({ length: 14 }, (_, step): Step => {
    const order = orderAt(10 * (step + 1));
    const ts = begin + random.below(30);
    if (random.below(5) < 3) return { ts, keys: shapes[random.below(shapes.length)]!, order };
    if (random.below(10) === 0) return 'expire';
    return {
      keys: random.below(3) === 0 ? null : ['a', 'b', 'c', 'd'].filter((_key, place) => random.below(3) !== place),
      startTs: random.below(6) === 0 ? 0 : ts,
      endTs: random.below(3) === 0 ? 2 ** 50 : ts + 1 + random.below(20),
      orderNumber: order.toString(),
      latest: (['delete', 'keep', 'rewrite', 'rewrite'] as const)[random.below(4)]!,
    };
  });
}

/** Seeds whose deletes meet what they must leave alone. */
const seeds: number[] = [];
for (let seed = 0; seeds.length < 5; seed += 1) {
  const model = new Shown();
  for (const step of stepsOf(seed)) model.do(step);
  if (model.met.kept > 0 && model.met.none > 0) seeds.push(seed);
}

test.each(seeds)('any deletes between any records, seed %i', async (seed) => {
  const device = 700_000 + seed;
  const twin = device + 2 ** 34;
  const model = new Shown();
  for (const [place, step] of stepsOf(seed).entries()) {
    model.do(step);
    if (step === 'expire') {
      await embedded.clickhouse.exec(`DELETE FROM telemetry WHERE device IN (${device}, ${twin})`);
    } else if ('order' in step) {
      await ship(device, step, true);
      await ship(twin, step, false);
    } else {
      await erase({ device, ...step });
      await erase({ device: twin, ...step });
      expect(await shown(twin), `rows, step ${place}`).toMatchObject(model.all);
      expect(await shown(device), `records, step ${place}`).toEqual(await shown(twin));
    }
  }
  expect(await shown(twin)).toMatchObject(model.all);
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
  await eraseSeries(depsOf(embedded.clickhouse), [
    { ...shared, id: 1, device: covered, keys: ['a'], aheadOrders: [] },
    { ...shared, id: 2, device: other, keys: ['c'], aheadOrders: [] },
  ]);
  expect([await kindsOf(covered), await kindsOf(other)]).toEqual([[Kind.double], [recordKind]]);
  expect((await readLatest(embedded.clickhouse, covered)).map(({ key }) => key)).toEqual(['b']);
  expect((await readLatest(embedded.clickhouse, other)).map(({ key }) => key)).toEqual(['a', 'b']);
});

test('a delete that ended after it had inserted the points of a record is finished by its repetition', async () => {
  const device = 710_006;
  await ship(device, { ts: begin, keys: ['a', 'b'], order: orderAt(1) }, true);
  const { clickhouse } = embedded;
  const { clickhouse: ended } = endedAt('exec');
  const erased = { device, keys: ['a'], ...whole, orderNumber: orderAt(2).toString(), latest: 'delete' as const };
  await expect(erase(erased, ended)).rejects.toThrow('ended');
  expect(await kindsOf(device)).toEqual([Kind.double, Kind.double, recordKind]);
  await erase(erased);
  expect(await kindsOf(device)).toEqual([Kind.double]);
  expect((await readLatest(clickhouse, device)).map(({ key }) => key)).toEqual(['b']);
});

describe('a point that another delete covers while its record is divided', () => {
  const of = (device: number, key: string, n: number, latest: Erased['latest']) => {
    return { device, keys: [key], ...whole, orderNumber: orderAt(n).toString(), latest };
  };

  test.each([
    ['does not come back', 720_000, 'delete', false, ['c']],
    ['does not come back when its telemetry has expired', 720_001, 'delete', true, ['c']],
    ['does not come back when the other delete rewrites', 720_002, 'rewrite', false, ['c']],
    ['stays when the other delete keeps it', 720_003, 'keep', false, ['b', 'c']],
    ['stays when the other delete keeps it, and its telemetry has expired', 720_004, 'keep', true, ['b', 'c']],
  ] as const)('%s', async (_, device, latest, isExpired, left) => {
    await ship(device, { ts: begin, keys: ['b', 'c', 'a'], order: orderAt(1) }, true);
    if (isExpired) await embedded.clickhouse.exec(`DELETE FROM telemetry WHERE device = ${device}`);
    // The records were read. Another host deletes key b, or keeps it and deletes key a, before the insert.
    const { clickhouse, isDone } = interruptedAt('insertBlocks', async () => {
      await erase(of(device, 'b', 3, latest));
      if (latest === 'keep') await erase(of(device, 'a', 3, 'delete'));
    });
    await erase(of(device, 'a', 2, 'delete'), clickhouse);
    expect(isDone()).toBe(true);
    const keys = (await readLatest(embedded.clickhouse, device)).map(({ key }) => key);
    expect(keys).toEqual(left);
  });

  test('of a deleted device does not come back when its telemetry has expired', async () => {
    const device = 720_010;
    await ship(device, { ts: begin, keys: ['a', 'b'], order: orderAt(1) }, true);
    await embedded.clickhouse.exec(`DELETE FROM telemetry WHERE device = ${device}`);
    const { clickhouse } = interruptedAt('insertBlocks', async () => {
      const gone = { device, keys: null, startTs: 0, endTs: 0, orderNumber: null, latest: 'delete' as const };
      allDeletes.push({ ...gone, aheadWriters: [], aheadOrders: [] });
      await eraseDevices(depsOf(embedded.clickhouse), [device]);
    });
    await erase(of(device, 'a', 2, 'delete'), clickhouse);
    expect(await readLatest(embedded.clickhouse, device)).toEqual([]);
  });

  test('gives way to the newest point that remains when the other delete rewrites', async () => {
    const device = 720_011;
    await ship(device, { ts: begin - 5, keys: ['a', 'b'], order: orderAt(1) }, false);
    await ship(device, { ts: begin, keys: ['a', 'b'], order: orderAt(2) }, true);
    const { clickhouse } = interruptedAt('insertBlocks', () =>
      erase({ ...of(device, 'b', 4, 'rewrite'), startTs: begin }),
    );
    await erase({ ...of(device, 'a', 3, 'delete'), startTs: begin }, clickhouse);
    expect(await readLatest(embedded.clickhouse, device)).toMatchObject([{ key: 'b', ts: begin - 5 }]);
  });
});

describe('a delete that ends while it divides a record beside another delete', () => {
  const key = (device: number, name: string, n: number, latest: Erased['latest']) => {
    return { device, keys: [name], startTs: begin, endTs: 2 ** 50, orderNumber: orderAt(n).toString(), latest };
  };

  /** A client that ends at a statement after the other delete was carried out between read and insert. */
  function endedBeside(other: () => Promise<void>, isEnd: (step: string) => boolean) {
    const { clickhouse } = interruptedAt('insertBlocks', other);
    let hasInserted = false;
    return new Proxy(clickhouse, {
      get(target, name: string) {
        const value = Reflect.get(target, name) as unknown;
        if (typeof value !== 'function') return value;
        return async (...given: unknown[]) => {
          if (hasInserted && isEnd(name)) throw new Error('ended');
          hasInserted ||= name === 'insertBlocks';
          return (await value.apply(target, given)) as unknown;
        };
      },
    });
  }

  test.each([
    ['leaves no value of the other delete', 721_000, 'delete', false, []],
    ['leaves no value of the other delete when its telemetry has expired', 721_001, 'delete', true, []],
    ['leaves the newest remaining point when the other delete rewrites', 721_002, 'rewrite', false, [-5]],
    ['leaves the value that the other delete has kept', 721_003, 'keep', false, [0]],
  ] as const)('%s', async (_, device, latest, isExpired, left) => {
    await ship(device, { ts: begin - 5, keys: ['b', 'c'], order: orderAt(1) }, false);
    await ship(device, { ts: begin, keys: ['b', 'c', 'a'], order: orderAt(2) }, true);
    if (isExpired) await embedded.clickhouse.exec(`DELETE FROM telemetry WHERE device = ${device}`);
    const other = async () => {
      await erase(key(device, 'b', 4, latest));
      if (latest === 'keep') await erase(key(device, 'a', 4, 'delete'));
    };
    const ended = endedBeside(other, () => true);
    await expect(erase(key(device, 'a', 3, 'delete'), ended)).rejects.toThrow('ended');
    await repeat(device);
    const shownNow = (await readLatest(embedded.clickhouse, device)).map(({ key, ts }) => [key, ts - begin]);
    expect(shownNow).toEqual([...left.map((ts) => ['b', ts]), ['c', 0]]);
  });

  test('leaves the newest remaining point when it has deleted the value and has not rewritten it', async () => {
    const device = 721_010;
    await ship(device, { ts: begin - 5, keys: ['b', 'c'], order: orderAt(1) }, false);
    await ship(device, { ts: begin, keys: ['b', 'c', 'a'], order: orderAt(2) }, true);
    const ended = endedBeside(
      () => erase(key(device, 'b', 4, 'rewrite')),
      (step) => step === 'insertBlocks',
    );
    await expect(erase(key(device, 'a', 3, 'delete'), ended)).rejects.toThrow('ended');
    await repeat(device);
    const shownNow = (await readLatest(embedded.clickhouse, device)).map(({ key, ts }) => [key, ts - begin]);
    expect(shownNow).toEqual([
      ['b', -5],
      ['c', 0],
    ]);
  });

  test('leaves no value of a deleted device', async () => {
    const device = 721_011;
    await ship(device, { ts: begin, keys: ['a', 'b'], order: orderAt(1) }, true);
    const ended = endedBeside(
      async () => {
        const gone = { device, keys: null, startTs: 0, endTs: 0, orderNumber: null, latest: 'delete' as const };
        allDeletes.push({ ...gone, aheadWriters: [], aheadOrders: [] });
        await eraseDevices(depsOf(embedded.clickhouse), [device]);
      },
      () => true,
    );
    await expect(erase(key(device, 'a', 3, 'delete'), ended)).rejects.toThrow('ended');
    await repeat(device);
    expect(await readLatest(embedded.clickhouse, device)).toEqual([]);
  });
});

test('a deleted device leaves no record', async () => {
  const device = 710_003;
  await ship(device, { ts: begin, keys: ['a', 'b'], order: orderAt(1) }, true);
  await eraseDevices(depsOf(embedded.clickhouse), [device]);
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
  const { clickhouse, isDone } = interruptedAt(step, () =>
    ship(device, { ts: begin + 5, keys: ['a', 'b'], order: orderAt(2) }, true),
  );
  await erase({ device, keys: ['a'], ...whole, orderNumber: orderAt(3).toString(), latest: 'delete' }, clickhouse);
  expect(isDone()).toBe(true);
  expect(await readLatest(embedded.clickhouse, device)).toMatchObject([{ key: 'b', ts: begin + 5 }]);
});

test('a later value outside the range stays when it is stored beside the delete of its key', async () => {
  const device = 710_020;
  await ship(device, { ts: begin, keys: ['a', 'b'], order: orderAt(1) }, false);
  const { clickhouse, isDone } = interruptedAt('exec', () =>
    ship(device, { ts: begin + 5, keys: ['a', 'b'], order: orderAt(2) }, false),
  );
  const erased = { device, keys: ['a'], startTs: 0, endTs: begin + 1, latest: 'delete' as const };
  await erase({ ...erased, orderNumber: orderAt(3).toString() }, clickhouse);
  expect(isDone()).toBe(true);
  expect(await readLatest(embedded.clickhouse, device)).toMatchObject([
    { key: 'a', ts: begin + 5 },
    { key: 'b', ts: begin + 5 },
  ]);
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

/** Stores records of the largest text. Each has one of `keys`, in turns, the keys 0 to 61, and a key of its own. */
async function shipLarge(device: number, count: number, keys: string[]): Promise<void> {
  const ts = `${begin} + number`;
  const first = `arrayElement(['${keys.join(`','`)}'], 1 + number % ${keys.length})`;
  const shared = `arrayStringConcat(arrayMap(n -> concat('\\xFF', toString(n)), range(62)))`;
  await embedded.clickhouse.exec(`INSERT INTO latest (device, key, ts, seq, kind, num, int, text, version)
    SELECT ${device}, concat('\\xFF', ${first}, ${shared}, '\\xFFx', toString(number)), ${ts}, 0, ${recordKind}, 0, 0,
      repeat(concat(char(${Kind.string}, 255), repeat('v', 255)), 64),
      toUInt64(toInt256(${orderAt(1)}) - (${ts}) * 1048576 + 9223372036854775808)
    FROM numbers(${count})`);
}

describe('a device with more records than an answer has room for', () => {
  const [count, keys] = [8_000, Array.from({ length: 20 }, (_, n) => `k${n}`)];
  const withKey = count / keys.length;
  const erased = { keys: ['k1'], ...whole, orderNumber: orderAt(2).toString(), latest: 'delete' as const };
  const rowsOf = async (device: number) => {
    const sql = `SELECT countIf(kind = ${recordKind}) AS records, countIf(key = 'k1') AS deleted,
      countIf(startsWith(key, 'x')) AS own, countIf(kind != ${recordKind} AND text != repeat('v', 255)) AS changed
      FROM latest FINAL WHERE device = ${device}`;
    const [row] = await embedded.clickhouse.rows<Record<string, string>>(sql);
    return Object.fromEntries(Object.entries(row!).map(([name, value]) => [name, Number(value)]));
  };

  test('loses a key', async () => {
    const device = 730_000;
    await shipLarge(device, count, keys);
    await erase({ device, ...erased });
    expect(await rowsOf(device)).toEqual({ records: count - withKey, deleted: 0, own: withKey, changed: 0 });
    const latest = await readLatest(embedded.clickhouse, device, ['k1', 'k2', 'x1', 'x2']);
    expect(latest.map(({ key, ts }) => [key, ts - begin])).toEqual([
      ['k2', count - keys.length + 2],
      ['x1', 1],
      ['x2', 2],
    ]);
  });

  test('keeps what was divided when the delete ends early, and its repetition does the rest', async () => {
    const device = 730_001;
    await shipLarge(device, count, keys);
    let mutations = 0;
    const { clickhouse } = endedAt('exec', () => (mutations += 1) > 1);
    await expect(erase({ device, ...erased }, clickhouse)).rejects.toThrow('ended');
    // Each record has a key of its own: the first part has no record any more, and the second part has both.
    const { records, own, deleted } = await rowsOf(device);
    expect(records! + own!).toBeGreaterThan(count);
    expect(records!).toBeLessThan(count);
    expect(deleted).toBe(1);
    await erase({ device, ...erased });
    expect(await rowsOf(device)).toEqual({ records: count - withKey, deleted: 0, own: withKey, changed: 0 });
  });
});

/** A client that ends before a statement of a kind. */
function endedAt(step: string, isEnd: () => boolean = () => true) {
  return interruptedAt(
    step,
    async () => {
      if (isEnd()) throw new Error('ended');
    },
    true,
  );
}

/** A client that does something before its first statement of a kind, or before each one. */
function interruptedAt(step: string, act: () => Promise<void>, eachTime = false) {
  let isDone = false;
  const clickhouse = new Proxy(embedded.clickhouse, {
    get(target, name) {
      const value = Reflect.get(target, name) as unknown;
      if (typeof value !== 'function') return value;
      return async (...given: unknown[]) => {
        if ((eachTime || !isDone) && name === step) {
          isDone = true;
          await act();
        }
        return (await value.apply(target, given)) as unknown;
      };
    },
  });
  return { clickhouse, isDone: () => isDone };
}
