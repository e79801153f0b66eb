/** How an insert handles its own earlier attempts. test/crash/ship-faults.test.ts has the faults of stores. */
import { setTimeout as sleep } from 'node:timers/promises';
import { expect, test } from 'vitest';
import { silentLog as log } from '../../test/harness/silent-log.ts';
import { systemClock as clock } from '../base/clock.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { ClickHouseError } from '../clickhouse/client.ts';
import { recordKind } from '../clickhouse/latest-rows.ts';
import { orderMs, orderUpTo } from '../ingest/order-number.ts';
import { keyOf } from '../telemetry/keys.ts';
import { blocksOf, readBlock } from '../telemetry/read-block.ts';
import { Rows } from '../telemetry/rows.ts';
import { Kind } from '../value/typed.ts';
import { Inserter, type InserterDeps } from './insert.ts';

test('rows that the client sent twice count as stored when the first try has ended', async () => {
  const asked: string[] = [];
  const clickhouse = {
    insertBlocks: async () => ({ repeated: true }),
    // The first check finds the earlier insert still running.
    endInserts: async (mark: string) => asked.push(mark) > 1,
  };
  const parts = { clickhouse, clock, log, metrics: new Metrics(), timeoutMs: 30_000, sleep: async () => {} };
  const { signal } = new AbortController();
  const inserter = new Inserter({
    ...parts,
    signal,
    once: false,
    parallelMax: 1,
    patient: false,
  } as unknown as InserterDeps);
  expect(await inserter.insert([new Uint8Array(8)])).toMatchObject({ complete: true, refused: [] });
  expect(asked).toHaveLength(2);
});

test('the memory of a body is used again after an insert without a failure, and only then', async () => {
  const memories: ArrayBufferLike[] = [];
  const bodies: string[] = [];
  const failures = [0, 0, 1, 0, 0];
  const clickhouse = {
    insertBlocks: async (_: string, body: Buffer) => {
      memories.push(body.buffer);
      bodies.push(body.toString('latin1'));
      if (failures.shift()) throw new ClickHouseError(0, 'transient', 'socket hang up', { connectionLost: true });
      return { repeated: false };
    },
    endInserts: async () => true,
    ping: async () => true,
  };
  const control = { forget() {}, accepted: async () => true };
  const parts = { clickhouse, control, clock, log, metrics: new Metrics(), timeoutMs: 30_000, sleep: async () => {} };
  const given = { ...parts, signal: new AbortController().signal, once: false, parallelMax: 1, patient: false };
  const inserter = new Inserter(given as unknown as InserterDeps);
  for (const text of ['one', 'three', 'two', 'four']) {
    expect(await inserter.insert([Buffer.from(text), Buffer.from('!')])).toMatchObject({ complete: true });
  }
  // Two statements for each body; of the second body one was repeated.
  expect(bodies.map((text) => text.slice(0, -1))).toEqual('one one three three three two two four four'.split(' '));
  const [one, , three, , , two, , four] = memories;
  expect([three === one, two === three, four === two]).toEqual([true, false, true]);
});

test('of two rows of one point in one frame the later one counts, also when the frame is cut between them', async () => {
  const today = Math.floor(clock.now() / 86_400_000) * 86_400_000;
  const rows = new Rows();
  const add = (key: string, ts: number, value: number) => {
    rows.addDouble(keyOf(key)!, value);
    rows.endRecord(7, ts);
  };
  add('a', today, 1);
  // Each occurrence of a long key has a separate entry in the dictionary of the frame.
  const long = 'l'.repeat(200);
  add('b', today, 10);
  add(long, today, 1);
  rows.addText(keyOf('text')!, Kind.string, Buffer.from('early'), 0, 5);
  rows.endRecord(7, today);
  add('a', today, 2);
  add(long, today, 20);
  rows.addText(keyOf('text')!, Kind.string, Buffer.from('late'), 0, 4);
  rows.endRecord(7, today);
  // Another day, so that two inserts run at once.
  add('a', today - 86_400_000, 3);
  const frame = Buffer.concat(rows.encode({ order: orderUpTo(today), micros: 0, firstPlace: 0 }));
  // As a store does that gets one version twice: the row that was inserted last is kept.
  const stored = new Map<string, number | string>();
  const clickhouse = {
    insertBlocks: async (sql: string, body: Buffer, { parameters }: { parameters: Record<string, number> }) => {
      const { fromTs = Number.NEGATIVE_INFINITY, toTs = Number.POSITIVE_INFINITY } = parameters;
      const found = blocksOf(body)
        .flatMap(readBlock)
        .filter(({ ts }) => ts >= fromTs && ts < toTs);
      if (found.length > 3) throw new ClickHouseError(241, 'size', 'Memory limit exceeded');
      // The rows that came first are inserted last.
      await sleep(found.some(({ num }) => num === 1) ? 300 : 50);
      for (const { key, ts, num, text } of found)
        if (sql.includes('telemetry')) stored.set(`${key} ${ts}`, text || num);
      return { repeated: false };
    },
    ping: async () => true,
    endInserts: async () => true,
  };
  const parts = { clickhouse, clock, log, metrics: new Metrics(), timeoutMs: 30_000, sleep: async () => {} };
  const { signal } = new AbortController();
  const inserter = new Inserter({
    ...parts,
    control: { forget: () => {}, accepted: async () => true },
    signal,
    once: false,
    parallelMax: 2,
    patient: false,
  } as unknown as InserterDeps);
  expect(await inserter.insert([frame], { daysMax: 1 })).toMatchObject({ complete: true, refused: [] });
  expect(Object.fromEntries(stored)).toEqual({
    [`a ${today}`]: 2,
    [`b ${today}`]: 10,
    [`${long} ${today}`]: 20,
    [`text ${today}`]: 'late',
    [`a ${today - 86_400_000}`]: 3,
  });
});

test('small frames are inserted as one block, which costs the store a fraction', async () => {
  const bodies: Buffer[] = [];
  const clickhouse = {
    insertBlocks: async (_: string, body: Buffer) => {
      bodies.push(Buffer.from(body));
      return { repeated: false };
    },
  };
  const parts = { clickhouse, clock, log, metrics: new Metrics(), timeoutMs: 30_000, sleep: async () => {} };
  const given = { ...parts, signal: new AbortController().signal, once: false, parallelMax: 1, patient: false };
  const frames = Array.from({ length: 50 }, (_, n) => {
    const rows = new Rows();
    rows.addDouble(keyOf(`key ${n % 7}`)!, n);
    rows.endRecord(n, clock.now());
    return Buffer.concat(rows.encode({ order: orderUpTo(clock.now()) + BigInt(n), micros: 0, firstPlace: 0 }));
  });
  await new Inserter(given as unknown as InserterDeps).insert(frames);
  expect(bodies).toHaveLength(2);
  for (const body of bodies) {
    expect(blocksOf(body)).toHaveLength(1);
    expect(readBlock(body)).toEqual(frames.flatMap((frame) => readBlock(frame)));
  }
});

test('rows are checked for times ahead only where a row of the unit may be too far ahead', async () => {
  const aheadMsMax = 60_000;
  const orderMin = orderUpTo(clock.now());
  const arrival = orderMs(orderMin);
  const statements: string[] = [];
  const clickhouse = {
    insertBlocks: async (sql: string) => {
      statements.push(sql);
      return { repeated: false };
    },
  };
  const parts = { clickhouse, clock, log, metrics: new Metrics(), timeoutMs: 30_000, sleep: async () => {} };
  const { signal } = new AbortController();
  const inserter = new Inserter({
    ...parts,
    signal,
    once: false,
    parallelMax: 1,
    patient: false,
    latestAheadMsMax: aheadMsMax,
  } as unknown as InserterDeps);
  const isChecked = async (times: number[], progress: { orderMin?: bigint } = { orderMin }) => {
    const rows = new Rows();
    for (const ts of times) {
      rows.addDouble(keyOf('a')!, 1);
      rows.endRecord(7, ts);
    }
    statements.length = 0;
    const frame = Buffer.concat(rows.encode({ order: orderMin, micros: 0, firstPlace: 0 }));
    await inserter.insert([frame], progress);
    return statements.find((sql) => sql.includes('INTO latest'))!.includes('version >=');
  };
  expect(await isChecked([arrival, arrival + aheadMsMax])).toBe(false);
  expect(await isChecked([arrival, arrival + aheadMsMax + 1, arrival])).toBe(true);
  // Without an order the time of arrival is unknown.
  expect(await isChecked([arrival], {})).toBe(true);
});

test('latest values of devices that sent once are records, but not those of a unit that was divided', async () => {
  const bodies: [table: string, kinds: number[]][] = [];
  let isTooLarge = false;
  const clickhouse = {
    insertBlocks: async (sql: string, body: Buffer) => {
      if (isTooLarge && body.length > 60_000) throw new ClickHouseError(241, 'size', 'memory limit exceeded');
      const kinds = new Set(readBlock(body).map(({ kind }) => kind));
      bodies.push([/INTO (\w+)/.exec(sql)![1]!, [...kinds]]);
      return { repeated: false };
    },
    endInserts: async () => true,
    ping: async () => true,
  };
  const control = { forget() {}, accepted: async () => true };
  const parts = { clickhouse, control, clock, log, metrics: new Metrics(), timeoutMs: 30_000, sleep: async () => {} };
  const given = { ...parts, signal: new AbortController().signal, once: false, parallelMax: 1, patient: false };
  const rows = new Rows();
  for (let device = 1; device <= 2_000; device += 1) {
    for (const name of ['a', 'b']) rows.addDouble(keyOf(name)!, device);
    rows.endRecord(device, clock.now());
  }
  const order = BigInt(clock.now()) << 20n;
  const unit = [Buffer.concat(rows.encode({ order, micros: 0, firstPlace: 0 }))];
  await new Inserter(given as unknown as InserterDeps).insert(unit);
  expect(bodies).toEqual([
    ['telemetry', [Kind.double]],
    ['latest', [recordKind]],
  ]);
  bodies.length = 0;
  isTooLarge = true;
  await new Inserter(given as unknown as InserterDeps).insert(unit);
  expect(bodies.length).toBeGreaterThan(2);
  expect(bodies.every(([, kinds]) => kinds.join() === String(Kind.double))).toBe(true);
});
