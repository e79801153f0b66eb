/** Records of latest values are read as the points that they were made of. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type SharedClickHouse, shareTestClickHouse } from '../../test/harness/clickhouse-server.ts';
import { Random } from '../../test/harness/random.ts';
import { unavailable } from '../base/errors.ts';
import { recordKind } from '../clickhouse/latest-rows.ts';
import { insertLatestOf } from '../clickhouse/statements.ts';
import { Kind } from '../value/typed.ts';
import { keyOf } from './keys.ts';
import {
  type Point,
  readLatest,
  readLatestEach,
  readLatestKeys,
  readLatestKeysOf,
  readLatestOf,
  readSomeKeys,
} from './latest.ts';
import { LatestReads } from './latest-reads.ts';
import { packRecords } from './pack-records.ts';
import { blocksOf, readBlock } from './read-block.ts';
import { packedListsMax } from './record-keys.ts';
import { Rows } from './rows.ts';

const now = Date.UTC(2026, 10, 28);
const longKey = 'k'.repeat(200);
let embedded: SharedClickHouse;

beforeAll(async () => {
  embedded = await shareTestClickHouse();
});

afterAll(() => embedded.stop());

type Record = { device: number; ts?: number; values: [key: string, value: number | bigint | boolean | string][] };

function blockOf(records: Record[], order: bigint): Buffer {
  const rows = new Rows();
  for (const { device, ts, values } of records) {
    for (const [name, value] of values) {
      const key = keyOf(name)!;
      if (typeof value === 'number') rows.addDouble(key, value);
      else if (typeof value === 'boolean') rows.addBoolean(key, value);
      else if (typeof value === 'bigint') rows.addLong(key, Number(value));
      else {
        const kind = value.startsWith('{') ? Kind.json : Kind.string;
        rows.addText(key, kind, Buffer.from(value), 0, Buffer.byteLength(value));
      }
    }
    if (ts === undefined) rows.endRecordNow(device, now);
    else rows.endRecord(device, ts);
  }
  return Buffer.concat(rows.encode({ order, micros: now * 1000, firstPlace: 0 }));
}

const packed = (...blocks: Buffer[]) => packRecords(blocks, (bytes) => Buffer.alloc(bytes, 0xaa));
const orderAt = (n: number) => (BigInt(now) << 20n) + BigInt(n);

async function insert(body: Buffer): Promise<void> {
  const statement = { serverTimes: true, expires: false, ranged: false, aheadMsMax: 0, areSingle: true };
  await embedded.clickhouse.insertBlocks(insertLatestOf(statement), body);
}

function drawnRecord(random: Random, device: number): Record {
  const shapes = [
    ['temperature', 'humidity', 'on'],
    ['temperature', 'humidity', 'on', 'näme', 'state'],
    ['state', 'count'],
    ['temperature', 'setup', longKey],
    ['temperature'],
  ];
  const values = shapes[random.below(shapes.length)]!.map((key): Record['values'][number] => {
    if (key === 'on') return [key, random.below(2) === 0];
    if (key === 'count') return [key, BigInt(random.below(2 ** 40)) - 2n ** 39n];
    if (key === 'setup') return [key, `{"n":${random.below(100)}}`];
    if (key === 'state') return [key, 'ü'.repeat(random.below(random.below(40) === 0 ? 300 : 100))];
    return [key, random.below(100_000) / 7];
  });
  return random.below(3) === 0
    ? { device, values }
    : { device, ts: now - random.below(random.below(20) === 0 ? 3 : 5_000), values };
}

test('latest values are the same from records and from rows, for each way to read them', async () => {
  const { clickhouse } = embedded;
  const apart = 2 ** 34;
  const first = 5_000_000;
  const [devices, units] = [100, 40];
  let records = 0;
  for (let unit = 0; unit < units; unit += 1) {
    const random = new Random(unit);
    const blocks = Array.from({ length: 1 + random.below(4) }, (_, n) => {
      const drawn = Array.from({ length: 1 + random.below(40) }, () => {
        return drawnRecord(random, first + random.below(devices));
      });
      const order = orderAt(10 * unit + n);
      return [drawn, drawn.map((each) => ({ ...each, device: each.device + apart }))].map((each) =>
        blockOf(each, order),
      );
    });
    const body = packed(...blocks.map(([block]) => block!));
    if (body) records += readBlock(body).filter(({ kind }) => (kind as number) === recordKind).length;
    await insert(body ?? Buffer.concat(blocks.map(([block]) => block!)));
    await insert(Buffer.concat(blocks.map(([, block]) => block!)));
  }
  expect(records).toBeGreaterThan(100);
  const numbers = Array.from({ length: devices }, (_, n) => first + n);
  const others = numbers.map((device) => device + apart);
  const shards = { each: (all: readonly number[]) => [{ reads: clickhouse, items: [...all] }] } as never;
  for (const keys of [undefined, ['humidity', 'näme'], ['state'], [longKey, 'setup'], ['none']]) {
    const each = await readLatestEach(clickhouse, numbers, keys);
    const ofRows = await readLatestEach(clickhouse, others, keys);
    for (const [i, device] of numbers.entries()) {
      const rows = ofRows.get(others[i]!)!;
      expect(each.get(device)).toEqual(rows);
      expect(await readLatest(clickhouse, device, keys)).toEqual(rows);
    }
  }
  expect(await readLatestKeys(clickhouse, first)).toEqual(await readLatestKeys(clickhouse, first + apart));
  expect(await readLatestKeysOf(shards, numbers)).toEqual([
    'count',
    'humidity',
    longKey,
    'näme',
    'on',
    'setup',
    'state',
    'temperature',
  ]);
  const some = await readSomeKeys(clickhouse, first, 2);
  expect(some).toHaveLength(2);
  expect(await readLatestKeys(clickhouse, first)).toEqual(expect.arrayContaining(some));
  const sorted = async (all: number[], from: number) =>
    (await readLatestOf(shards, all, ['on', 'count']))
      .map((point) => ({ ...point, device: point.device - from }))
      .sort((a, b) => a.device - b.device || (a.key < b.key ? -1 : 1));
  expect(await sorted(numbers, 0)).toEqual(await sorted(others, apart));
});

test('a device that sends other keys each time has no more records than a sixty-fourth of all records allows', () => {
  const usual = Array.from(
    { length: 1000 },
    (_, n): Record => ({
      device: n + 10,
      ts: now,
      values: [
        ['a', 1],
        ['b', n],
      ],
    }),
  );
  const odd = Array.from(
    { length: 60 },
    (_, n): Record => ({
      device: 1,
      ts: now - n,
      values: [
        ['a', n],
        [`k${n}`, n],
      ],
    }),
  );
  const body = packed(blockOf([...usual, ...odd], orderAt(1)))!;
  expect(blocksOf(body).map((block) => readBlock(block).length)).toEqual([1000, 120]);
  expect(
    readBlock(body)
      .filter(({ device }) => device === 1)
      .every(({ kind }) => kind === Kind.double),
  ).toBe(true);
});

test('records of one device and time stay rows, of which the later one counts', () => {
  const records = Array.from(
    { length: 20 },
    (_, n): Record => ({
      device: n + 10,
      ts: now,
      values: [
        ['a', 1],
        ['b', n],
      ],
    }),
  );
  const twice: Record = { device: 15, ts: now, values: [['b', 7]] };
  const body = packed(blockOf([...records, twice], orderAt(1)))!;
  const own = readBlock(body).filter(({ device }) => device === 15);
  expect(own.map(({ key, num }) => [key, num])).toEqual([
    ['a', 1],
    ['b', 5],
    ['b', 7],
  ]);
});

test('records of one device whose times a sender has chosen to search one place are not all searched there', () => {
  const values: Record['values'] = [
    ['a', 1],
    ['b', 2],
  ];
  const usual = Array.from({ length: 2_000 }, (_, n): Record => ({ device: n + 10, ts: now, values }));
  // Equal in the lower bits, from which the place follows.
  const chosen = Array.from({ length: 200 }, (_, n): Record => ({ device: 1, ts: now + n * 2 ** 21, values }));
  const own = readBlock(packed(blockOf([...usual, ...chosen], orderAt(1)))!).filter(({ device }) => device === 1);
  const records = own.filter(({ kind }) => (kind as number) === recordKind);
  expect(records.length).toBeLessThan(100);
  expect(own.length - records.length).toBe(2 * (200 - records.length));
});

test('an empty string is read as one, also where the unit has no other strings', async () => {
  const rows = new Rows();
  for (let device = 6_000_001; device <= 6_000_020; device += 1) {
    rows.addValue(keyOf('state')!, { kind: Kind.string, num: 0, int: '0', text: '' });
    rows.addBoolean(keyOf('on')!, true);
    rows.endRecord(device, now);
  }
  const block = Buffer.concat(rows.encode({ order: orderAt(1), micros: 0, firstPlace: 0 }));
  await insert(packed(block) ?? block);
  expect(await readLatest(embedded.clickhouse, 6_000_007)).toEqual([
    { key: 'on', ts: now, value: { kind: Kind.boolean, num: 0, int: '1', text: '' } },
    { key: 'state', ts: now, value: { kind: Kind.string, num: 0, int: '0', text: '' } },
  ]);
});

test('a unit of single points, of texts that are long, or of bytes that are no block is not packed', () => {
  const unit = (values: (n: number) => Record['values']) =>
    packed(
      blockOf(
        Array.from({ length: 50 }, (_, n) => ({ device: n + 1, ts: now, values: values(n) })),
        orderAt(1),
      ),
    );
  expect(unit((n) => [['a', n]])).toBeUndefined();
  expect(
    unit((n) => [
      ['a', n],
      ['b', 'x'.repeat(256)],
    ]),
  ).toBeUndefined();
  expect(
    unit((n) => [
      ['a', n],
      ['b', 'x'.repeat(255)],
    ]),
  ).toBeDefined();
  expect(packed(Buffer.from('INSERT'))).toBeUndefined();
});

test('the longest list of keys is a record, and a longer one stays rows', () => {
  const unit = (keys: number) =>
    packed(
      blockOf(
        Array.from(
          { length: 10 },
          (_, device): Record => ({
            device: device + 1,
            ts: now,
            values: Array.from({ length: keys }, (__, n) => [`key ${n}`, n]),
          }),
        ),
        orderAt(1),
      ),
    );
  expect(readBlock(unit(64)!)).toHaveLength(10);
  expect(unit(65)).toBeUndefined();
});

const eight = ['a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'];

/** Returns the keys in an order of their own for each number below 40 320. */
function orderOfKeys(n: number): string[] {
  const left = [...eight];
  let rest = n;
  return eight.map(() => {
    const [key] = left.splice(rest % left.length, 1);
    rest = Math.floor(rest / (left.length + 1));
    return key!;
  });
}

function inOrder(device: number, ts: number, n: number): Buffer {
  return blockOf([{ device, ts, values: orderOfKeys(n).map((key) => [key, n]) }], orderAt(n));
}

test('a fleet that changes the order of its keys with time has records of some orders alone', () => {
  const known = new Set<string>();
  const pack = (n: number) => packRecords([inOrder(1, now, n)], (bytes) => Buffer.alloc(bytes), known);
  for (let n = 0; n < packedListsMax; n += 1) expect(pack(n)).toBeDefined();
  expect(pack(packedListsMax)).toBeUndefined();
  expect(pack(3)).toBeDefined();
  expect(known.size).toBe(packedListsMax);
});

/** Returns the body of a unit whose only record has these values; `n` is the order of the unit. */
function recordBody(record: Record, n: number): Buffer {
  return packRecords([blockOf([record], orderAt(n))], (bytes) => Buffer.alloc(bytes), new Set())!;
}

test('the latest values of a device with more records than one answer has are those of its few keys', async () => {
  const { clickhouse } = embedded;
  const device = 6_000_000;
  const bodies = Array.from({ length: 10_100 }, (_, n) => {
    const values = orderOfKeys(n).map((key): Record['values'][number] => [key, n]);
    return recordBody({ device, ts: now + n, values }, n);
  });
  // The last one by its keys. A later point and an older one of the same keys are rows of their own.
  const reversed: Record['values'] = [...eight].reverse().map((key) => [key, -1]);
  bodies.push(recordBody({ device, ts: now + 20_000, values: reversed }, 20_000));
  bodies.push(blockOf([{ device, ts: now + 20_001, values: [['b', 'newest']] }], orderAt(20_001)));
  bodies.push(blockOf([{ device, ts: now + 10, values: [['c', 'old']] }], orderAt(20_002)));
  bodies.push(blockOf([{ device, ts: now + 10, values: [['own', true]] }], orderAt(20_003)));
  await insert(Buffer.concat(bodies));
  const shown = (points: Point[]) => points.map(({ key, ts, value }) => [key, ts - now, value.text || value.num]);
  const expected = (keys: string[]) => keys.map((key) => (key === 'b' ? [key, 20_001, 'newest'] : [key, 20_000, -1]));
  expect(shown(await readLatest(clickhouse, device, ['a']))).toEqual(expected(['a']));
  expect(shown(await readLatest(clickhouse, device, ['c', 'none', 'b']))).toEqual(expected(['b', 'c']));
  expect(shown(await readLatest(clickhouse, device))).toEqual([...expected(eight), ['own', 10, 0]]);
  expect(await readLatest(clickhouse, device, ['none'])).toEqual([]);
  expect(await readLatestKeys(clickhouse, device)).toEqual([...eight, 'own']);
  expect((await readSomeKeys(clickhouse, device, 20)).sort()).toEqual([...eight, 'own']);
  const shards = { each: (all: readonly number[]) => [{ reads: clickhouse, items: [...all] }] } as never;
  expect(shown(await readLatestOf(shards, [device], ['a', 'b']))).toEqual(expected(['a', 'b']));
  // Callers that ask at the same time: the first query reads for the first of them, the second one for the others.
  const other = 6_100_001;
  await insert(
    recordBody(
      {
        device: other,
        ts: now,
        values: [
          ['a', 7],
          ['b', 8],
        ],
      },
      1,
    ),
  );
  const reads = new LatestReads({
    shards: { readsOf: () => ({ of: () => clickhouse }) } as never,
    waitingMax: 100,
    refusal: () => unavailable('rest_calls', 'Too many wait.'),
  });
  const inTurn = (query: () => Promise<void>) => query();
  const owner = { tenantId: 't', customerId: null };
  const answers = await Promise.all([device, device, other].map((each) => reads.read(owner, each, ['a'], inTurn)));
  expect(answers.map(shown)).toEqual([expected(['a']), expected(['a']), [['a', 0, 7]]]);
});

test('the latest values of a device are answered whose records are too many bytes for one answer', async () => {
  const { clickhouse } = embedded;
  const device = 6_100_002;
  const long = 'x'.repeat(250);
  const keys = Array.from({ length: 64 }, (_, n) => `key ${n}`);
  const bodies = Array.from({ length: 1_200 }, (_, n) => {
    const [first, second] = [n % 64, Math.floor(n / 64)];
    const others = keys.filter((_key, at) => at !== first && at !== second);
    const order = [...new Set([keys[first]!, keys[second]!, ...others])];
    return recordBody({ device, ts: now + n, values: order.map((key) => [key, `${n} ${long}`]) }, n);
  });
  await insert(Buffer.concat(bodies));
  const shards = { each: (all: readonly number[]) => [{ reads: clickhouse, items: [...all] }] } as never;
  for (const points of [
    await readLatest(clickhouse, device),
    await readLatest(clickhouse, device, keys),
    await readLatestOf(shards, [device], keys),
  ]) {
    expect(points.map(({ key }) => key).sort()).toEqual([...keys].sort());
    expect(new Set(points.map(({ ts, value }) => `${ts - now} ${value.text}`))).toEqual(new Set([`1199 1199 ${long}`]));
  }
});

test('a device with too many keys is refused, also when they are in few records', async () => {
  const { clickhouse } = embedded;
  const device = 6_100_003;
  const bodies = Array.from({ length: 157 }, (_, n) => {
    const values = Array.from({ length: 64 }, (__, at): Record['values'][number] => [`key ${n} ${at}`, n]);
    return recordBody({ device, ts: now, values }, n);
  });
  await insert(Buffer.concat(bodies));
  await expect(readLatest(clickhouse, device)).rejects.toMatchObject({ status: 400, reason: 'too_many_keys' });
  await expect(readLatestEach(clickhouse, [device])).rejects.toMatchObject({ status: 400, reason: 'too_many_keys' });
  expect(await readLatest(clickhouse, device, ['key 156 63'])).toHaveLength(1);
});
