/** The reader of a crash run finds latest values in records as well as in rows. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Deletes, doomedKeyPrefix } from '../../bench/crash/deletes.ts';
import { type InTurn, turnKey } from '../../bench/crash/in-turn.ts';
import { readDeletes, readTurns } from '../../bench/crash/read.ts';
import { insertLatest, insertTelemetry } from '../../src/clickhouse/statements.ts';
import { keyOf } from '../../src/telemetry/keys.ts';
import { packRecords } from '../../src/telemetry/pack-records.ts';
import { Rows } from '../../src/telemetry/rows.ts';
import { type SharedClickHouse, shareTestClickHouse } from '../harness/clickhouse-server.ts';
import type { Engine } from '../harness/engine.ts';

const now = Date.UTC(2026, 10, 28);
const devices = [730_001, 730_002];
let shared: SharedClickHouse;
let engine: Engine;

beforeAll(async () => {
  shared = await shareTestClickHouse();
  const clickhouse = async (sql: string) => {
    const rows = await shared.clickhouse.rows<Record<string, unknown>>(sql);
    return rows.map((row) => Object.values(row).map(String));
  };
  engine = { clickhouse } as unknown as Engine;
  for (const [n, device] of devices.entries()) {
    await store({ device, ts: now, values: { number: n, [turnKey]: 5, [`${doomedKeyPrefix}a`]: 10 + n } });
  }
  await store({ device: devices[1]!, ts: now + 1, values: { [turnKey]: 6, [`${doomedKeyPrefix}b`]: 21 } });
});

afterAll(() => shared.stop());

/** Stores a record: its latest values in one row. */
async function store({ device, ts, values }: { device: number; ts: number; values: Record<string, number> }) {
  const rows = new Rows();
  for (const [key, value] of Object.entries(values)) rows.addLong(keyOf(key)!, value);
  rows.endRecord(device, ts);
  const block = Buffer.concat(rows.encode({ order: BigInt(ts) << 20n, micros: 0, firstPlace: 0 }));
  await shared.clickhouse.insertBlocks(insertTelemetry, block);
  await shared.clickhouse.insertBlocks(insertLatest, packRecords([block], (bytes) => Buffer.alloc(bytes), new Set())!);
}

test('the latest values of senders in turn are those of their records', async () => {
  const checked: unknown[] = [];
  const inTurn = {
    emptyVerdict: () => ({ missing: 0 }),
    check: (_n: number, history: { value: number }[], latest: { ts: number; value: number } | undefined) => {
      checked.push([history.map(({ value }) => value), latest]);
    },
  };
  expect(await readTurns(engine, inTurn as unknown as InTurn, 0, devices.length)).toEqual({ missing: 0 });
  expect(checked).toEqual([
    [[5], { ts: now, value: 5 }],
    [[5, 6], { ts: now + 1, value: 6 }],
  ]);
});

test('a deleted point that is in a record is found', async () => {
  const judged: number[][] = [];
  const deletes = { judge: (history: number[], latest: number[]) => judged.push(history.sort(), latest.sort()) };
  await readDeletes(engine, deletes as unknown as Deletes);
  expect(judged).toEqual([
    [10, 11, 21],
    [10, 11, 21],
  ]);
});
