/** Orphan journals: visible while they wait, shipped one after the other, removed when they are stored. */
import { chmodSync, existsSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { systemClock as clock } from '../../base/clock.ts';
import { dayMs } from '../../base/durations.ts';
import { createLog } from '../../base/log.ts';
import { Metrics } from '../../base/metrics/metrics.ts';
import { type ClickHouse, ClickHouseError } from '../../clickhouse/client.ts';
import { Shards } from '../../clickhouse/shards.ts';
import { storeWriterId } from '../../journal/identity.ts';
import { openJournal } from '../../journal/open-journal.ts';
import { listQuarantine } from '../../journal/quarantine.ts';
import { keyOf } from '../../telemetry/keys.ts';
import { Rows } from '../../telemetry/rows.ts';
import { OrphanJournals, type OrphanJournalsDeps } from './orphan-journals.ts';

const log = createLog('fatal', 'test');
const segmentBytes = 1024 * 1024;
let home: string;

beforeEach(() => {
  home = mkdtempSync(join(tmpdir(), 'millrace-orphans-'));
});

afterEach(() => rmSync(home, { recursive: true, force: true }));

async function journalWith(name: string, order: bigint, key = 't', hasWriter = true): Promise<string> {
  const dir = join(home, name);
  const journal = await openJournal({ dir, log, segmentBytes });
  const rows = new Rows();
  rows.addDouble(keyOf(key)!, 1);
  rows.endRecord(1, Number(order >> 20n));
  await journal.append([{ lane: 0, order, rows: 1, parts: rows.encode({ order, micros: 0, firstPlace: 0 }) }]);
  await journal.close();
  if (hasWriter) await storeWriterId(dir, Number(name.slice(-1)));
  return dir;
}

const badKey = 'a-key-that-is-refused';

/** A store that is unavailable until `open` is true, and counts the inserts that run at one time. */
function store() {
  const state = { open: false, running: 0, runningMax: 0, inserts: 0 };
  const insertBlocks = async (_sql: string, body: Buffer) => {
    state.running += 1;
    state.runningMax = Math.max(state.runningMax, state.running);
    await new Promise((resolve) => setTimeout(resolve, 5));
    state.running -= 1;
    if (!state.open) throw new ClickHouseError(0, 'transient', 'unavailable');
    if (body.includes(badKey)) throw new ClickHouseError(27, 'content', 'refused');
    state.inserts += 1;
    return { repeated: false };
  };
  const clickhouse = { insertBlocks, ping: async () => state.open } as unknown as ClickHouse;
  return { state, clickhouse };
}

const onStoredAtOnce = async () => {};

function orphansOf(
  dirs: string[],
  clickhouse: ClickHouse,
  metrics = new Metrics(),
  onStored: OrphanJournalsDeps['onStored'] = onStoredAtOnce,
  more: Partial<OrphanJournalsDeps> = {},
): OrphanJournals {
  const waits = { intervalMsMin: 1, intervalMsMax: 5, rowsMax: 1000, lateSecondsMax: 1, timeoutMs: 1000 };
  return new OrphanJournals({
    dirs,
    segmentBytes,
    shards: new Shards([clickhouse]),
    clock,
    log,
    metrics,
    onStored,
    ...waits,
    ...more,
  });
}

test('waiting journals are counted and reported as not stored until each is stored', async () => {
  const nowOrder = BigInt(Date.now()) << 20n;
  const dirs = [await journalWith('worker-1', nowOrder), await journalWith('worker-2', nowOrder + 5n)];
  const { state, clickhouse } = store();
  const metrics = new Metrics();
  const orphans = orphansOf(dirs, clickhouse, metrics);
  await orphans.start();
  const gauge = (name: string) => metrics.snapshot().find((sample) => sample.name === name)?.value;
  expect(gauge('orphan_journals')).toBe(2);
  expect(gauge('orphan_journal_bytes')).toBeGreaterThan(0);
  const { reports, isWhole } = orphans.reports();
  expect(isWhole).toBe(true);
  expect(reports.map(({ writer }) => writer)).toEqual([1, 2]);
  for (const { orderShipped, orderHigh } of reports) expect(BigInt(orderShipped)).toBeLessThan(BigInt(orderHigh));

  state.open = true;
  await vi.waitFor(() => expect(orphans.count).toBe(0), { timeout: 20_000 });
  expect(orphans.reports().reports.map(({ writer, gone }) => [writer, gone])).toEqual([
    [1, true],
    [2, true],
  ]);
  expect(dirs.filter((dir) => existsSync(dir))).toEqual([]);
  // A unit is two inserts, one for each table: two journals at one time would be four.
  expect(state.runningMax).toBeLessThanOrEqual(2);
  await orphans.drain(0);
});

test('a row that is refused delays only the removal of its own journal', async () => {
  const nowOrder = BigInt(Date.now()) << 20n;
  const dirs = [await journalWith('worker-1', nowOrder, badKey), await journalWith('worker-2', nowOrder + 5n)];
  const { state, clickhouse } = store();
  state.open = true;
  const orphans = orphansOf(dirs, clickhouse);
  await orphans.start();
  await vi.waitFor(() => expect(existsSync(dirs[1]!)).toBe(false), { timeout: 20_000 });
  expect(orphans.count).toBe(1);
  const held = orphans.reports().reports.find(({ writer }) => writer === 1);
  expect(held).toMatchObject({ orderHeld: nowOrder.toString() });
  await orphans.drain(1000);
  expect(existsSync(join(dirs[0]!, 'suspects'))).toBe(true);
});

test('a journal that is stored stays until the stores know it: a crash before that loses no delete', async () => {
  const nowOrder = BigInt(Date.now()) << 20n;
  const dir = await journalWith('worker-3', nowOrder);
  const { state, clickhouse } = store();
  state.open = true;
  const known: unknown[] = [];
  const orphans = orphansOf([dir], clickhouse, new Metrics(), async (journal) => {
    known.push(journal);
    throw new Error('PostgreSQL is unavailable');
  });
  await orphans.start();
  await vi.waitFor(() => expect(known).toHaveLength(1), { timeout: 20_000 });
  expect(existsSync(dir)).toBe(true);
  expect(known).toEqual([{ writer: 3, orderRecovered: expect.any(String), orderHigh: expect.any(String) }]);
  await orphans.drain(0);
  // The next start finds nothing to ship in it, and makes it known again.
  const next = orphansOf([dir], clickhouse);
  await next.start();
  await vi.waitFor(() => expect(existsSync(dir)).toBe(false), { timeout: 20_000 });
  await next.drain(0);
});

test('deletes wait for the frames of a restored journal, which has no writer id', async () => {
  const nowOrder = BigInt(Date.now()) << 20n;
  const { state, clickhouse } = store();
  const orphans = orphansOf([await journalWith('worker-1', nowOrder, 't', false)], clickhouse);
  await orphans.start();
  const [report] = orphans.reports().reports;
  expect(BigInt(report!.orderShipped)).toBeLessThan(BigInt(report!.orderHigh));
  expect(report!.orderRecovered).not.toBeNull();
  state.open = true;
  await vi.waitFor(() => expect(orphans.count).toBe(0), { timeout: 20_000 });
  const { writer, orderRecovered } = report!;
  expect(orphans.reports().reports).toMatchObject([{ writer, orderRecovered, gone: true }]);
  await orphans.drain(0);
});

test('a journal that cannot be opened is counted, and deletes know that it is missing', async () => {
  const dir = join(home, 'worker-7');
  mkdirSync(dir);
  // A directory in the place of a file: no user can read it, not even root.
  mkdirSync(join(dir, 'position'));
  writeFileSync(join(dir, 'position', 'x'), '');
  chmodSync(dir, 0o700);
  const orphans = orphansOf([dir], store().clickhouse);
  await orphans.start();
  expect(orphans.count).toBe(1);
  expect(orphans.reports()).toEqual({ reports: [], isWhole: false });
  await orphans.drain(0);
});

test('the quarantine that a removed journal leaves expires as any other', async () => {
  const dir = join(home, 'worker-4');
  const monthAgo = { now: () => clock.now() - 31 * dayMs, monotonic: () => clock.monotonic() };
  const refused = (order: bigint) => ({ reason: 'code 27', payload: Buffer.from('row'), rows: 1, order });
  for (const [time, order] of [
    [monthAgo, 1n],
    [clock, 2n],
  ] as const) {
    const journal = await openJournal({ dir, log, clock: time, segmentBytes, adopt: true });
    await journal.quarantine.add([refused(order)]);
    await journal.close();
  }
  const { clickhouse } = store();
  const expiring = { quarantineKeptDays: 30, expiryTime: async () => clock.now() };
  const orphans = orphansOf([dir], clickhouse, new Metrics(), onStoredAtOnce, expiring);
  await orphans.start();
  expect(orphans.quarantineEntries).toBe(2);
  await vi.waitFor(() => expect(orphans.quarantineEntries).toBe(1), 20_000);
  expect((await listQuarantine(dir)).map(({ order }) => order)).toEqual(['2']);
  await orphans.drain(0);
});
