/**
 * Reads the results of a crash run: the rows of each account from ClickHouse, and the rows that are not shipped yet.
 */
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import type { LatestRow } from '../../src/clickhouse/latest-rows.ts';
import { listQuarantine } from '../../src/journal/quarantine.ts';
import { suspectsDir } from '../../src/journal/suspects.ts';
import { latestPointsOf } from '../../src/telemetry/latest-records.ts';
import type { Engine } from '../../test/harness/engine.ts';
import { type Deletes, type DoomedVerdict, doomedKeyPrefix } from './deletes.ts';
import { type InTurn, type TurnRow, type TurnVerdict, turnKey } from './in-turn.ts';
import { keysOfRecord, type Ledger, type StoredRow, type Verdict } from './ledger.ts';

/** The order of rows of one series as a reader gets them (docs/durability.md#server-times). */
const readingOrder = 'ts, seq, origin';

/** Rows of one sorting key are in one partition: a read need not merge hundreds of days. */
const eachPartition = 'SETTINGS do_not_merge_across_partitions_select_final = 1';

/** Returns the store's number of each device by the run's own number. */
async function storeNumbers(engine: Engine): Promise<Map<number, string>> {
  const rows = await engine.clickhouse(
    `SELECT int, device FROM telemetry FINAL WHERE key = 'number' AND kind != 0 ${eachPartition}`,
  );
  return new Map(rows.map(([n, device]) => [Number(n), device!]));
}

/** `first`: the run's number of the ledger's first device. */
export async function readRecords(engine: Engine, ledger: Ledger, first: number): Promise<Verdict> {
  const verdict = ledger.emptyVerdict();
  const numbers = await storeNumbers(engine);
  for (let n = 0; n < ledger.devices; n += 1) {
    const device = numbers.get(first + n);
    if (device === undefined) {
      verdict.missing += 1;
      continue;
    }
    const rows = await engine.clickhouse(
      `SELECT ts, key, multiIf(kind = 2, toString(int), kind = 3, toString(num), text) FROM telemetry FINAL ` +
        `WHERE device = ${device} AND kind != 0 AND key IN (${keysOfRecord.map((key) => `'${key}'`).join(', ')}) ${eachPartition}`,
    );
    ledger.check(
      n,
      rows.map(([ts, key, value]): StoredRow => ({ ts: Number(ts), key: key!, value: value! })),
      verdict,
    );
  }
  return verdict;
}

export async function readTurns(engine: Engine, inTurn: InTurn, first: number, count: number): Promise<TurnVerdict> {
  const verdict = inTurn.emptyVerdict();
  const numbers = await storeNumbers(engine);
  for (let n = 0; n < count; n += 1) {
    const device = numbers.get(first + n);
    if (device === undefined) {
      verdict.missing += 1;
      continue;
    }
    const where = `FINAL WHERE kind != 0 AND device = ${device} AND key = '${turnKey}'`;
    const rows = await engine.clickhouse(
      `SELECT ts, int FROM telemetry ${where} ORDER BY ${readingOrder} ${eachPartition}`,
    );
    const latest = (await latestPoints(engine, device)).find(({ key }) => key === turnKey);
    inTurn.check(n, rows.map(turnRow), latest && turnRow([latest.ts, latest.int]), verdict);
  }
  return verdict;
}

function turnRow([ts, value]: string[]): TurnRow {
  return { ts: Number(ts), value: Number(value) };
}

export async function readDeletes(engine: Engine, deletes: Deletes): Promise<DoomedVerdict> {
  const rows = await engine.clickhouse(
    `SELECT int FROM telemetry FINAL WHERE kind != 0 AND startsWith(key, '${doomedKeyPrefix}') ${eachPartition}`,
  );
  const latest = (await latestPoints(engine)).filter(({ key }) => key.startsWith(doomedKeyPrefix));
  return deletes.judge(
    rows.map(([value]) => Number(value)),
    latest.map(({ int }) => Number(int)),
  );
}

/** Returns the latest point of each key of one device, or of each device, from rows and from records. */
async function latestPoints(engine: Engine, device?: string): Promise<ReturnType<typeof latestPointsOf>> {
  const where = device === undefined ? '' : `WHERE device = ${device}`;
  const columns = 'device, hex(key), ts, kind, num, int, hex(text), rank';
  const cells = await engine.clickhouse(`SELECT ${columns} FROM latest FINAL ${where}`);
  const rowsOf = new Map<string, LatestRow[]>();
  for (const [of = '', key = '', ts = '', kind, num, int = '', text = '', rank = ''] of cells) {
    const texts = { key: Buffer.from(key, 'hex'), text: Buffer.from(text, 'hex') };
    const row = { ...texts, device: Number(of), ts, kind: Number(kind), num: Number(num), int, rank: BigInt(rank) };
    rowsOf.set(of, [...(rowsOf.get(of) ?? []), row]);
  }
  return [...rowsOf.values()].flatMap(latestPointsOf);
}

/** Returns a string for each row or delete that still waits; empty when none does. */
export async function waiting(engine: Engine): Promise<string[]> {
  const what = await setAside(engine.dataDir);
  const status = await engine.readiness();
  if (status !== 200) what.push(`readyz answers ${status}`);
  try {
    const text = await engine.api.metrics();
    for (const name of ['wal_bytes', 'orphan_journal_bytes', 'orphan_journals', 'deletes_waiting']) {
      const sum = sumOf(text, name);
      if (sum > 0) what.push(`${name} ${sum}`);
    }
  } catch {
    what.push('no metrics');
  }
  return what;
}

function sumOf(metrics: string, name: string): number {
  let sum = 0;
  for (const line of metrics.split('\n')) {
    const match = /^(\w+)(?:\{[^}]*\})? (\S+)/.exec(line);
    if (match?.[1] === name) sum += Number(match[2]);
  }
  return sum;
}

/** Returns rows that were set aside. Damaged stretches are not among them: this run damages tails itself. */
async function setAside(dataDir: string): Promise<string[]> {
  const journals = join(dataDir, 'journal');
  const what: string[] = [];
  for (const name of readdirSync(journals)) {
    for (const { kind, rows, reason } of await listQuarantine(join(journals, name))) {
      if (kind === 'rows') what.push(`quarantine of ${name}: ${rows} rows, ${reason}`);
    }
    const suspects = suspectsDir(join(journals, name));
    for (const file of existsSync(suspects) ? readdirSync(suspects) : []) what.push(`suspects of ${name}: ${file}`);
  }
  return what;
}
