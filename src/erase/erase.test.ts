/**
 * Deletes across hosts, restarts and late journals, on real stores. The journals are reports that a test sets; what a
 * journal ships is an insert. `limits` that are times are passed over by setting the times of rows back.
 */
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { SimDisk } from '../../test/crash/sim-disk.ts';
import { type SharedClickHouse, shareTestClickHouse } from '../../test/harness/clickhouse-server.ts';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { silentLog as log } from '../../test/harness/silent-log.ts';
import type { Clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { type ClickHouse, ClickHouseError } from '../clickhouse/client.ts';
import { Shards } from '../clickhouse/shards.ts';
import { insertLatest, insertTelemetry } from '../clickhouse/statements.ts';
import { insertDeviceTombstone } from '../device/sql/store.ts';
import { goneReport, type JournalReport } from '../ingest/journal-report.ts';
import {
  forgetJournal,
  forgetOldJournals,
  forgetRestoredJournals,
  readJournals,
  takeWriterId,
} from '../ingest/journal-store.ts';
import { writerIdOf } from '../ingest/writer-id.ts';
import type { Postgres, Queries } from '../postgres/client.ts';
import { giveBackLease, takeLease } from '../postgres/lease.ts';
import { keyOf } from '../telemetry/keys.ts';
import { readLatest } from '../telemetry/latest.ts';
import { readHistory } from '../telemetry/query.ts';
import { readBlock } from '../telemetry/read-block.ts';
import { Rows } from '../telemetry/rows.ts';
import { type DeleteSeries, seriesDeleter } from './delete-series.ts';
import { Eraser } from './erase.ts';
import { withoutErased } from './replay-filter.ts';
import { SteadyClock } from './steady-clock.ts';
import {
  countWaiting,
  erasesRow,
  expireTombstones,
  handOver,
  insertTombstones,
  readTombstonesOf,
  readWaiting,
  reopenCovering,
  reopenNewer,
  reopenTombstones,
} from './tombstone-store.ts';

let stores: TestPostgres;
let embedded: SharedClickHouse;
let postgres: Postgres;
let devices = 1000;

const day = 86_400_000;
const someDay = 1_700_006_400_000;

beforeAll(async () => {
  [stores, embedded] = await Promise.all([startTestPostgres(), shareTestClickHouse()]);
  ({ postgres } = stores);
}, 120_000);

afterAll(async () => {
  await Promise.all([stores?.stop(), embedded?.stop()]);
});

beforeEach(async () => {
  await postgres.query('truncate tombstones, tombstone_rewrites, journals, former_journals, lease');
});

/** Counts what is written, and fails statements that `refuse` names. */
function recorded(refuse = (_sql: string, _parameters: unknown): boolean => false) {
  const statements: string[] = [];
  const clickhouse = new Proxy(embedded.clickhouse, {
    get(target, name) {
      if (name !== 'exec') {
        const value = Reflect.get(target, name) as unknown;
        return typeof value === 'function' ? value.bind(target) : value;
      }
      return async (...parameters: Parameters<ClickHouse['exec']>) => {
        if (refuse(parameters[0], parameters[1])) throw new ClickHouseError(48, 'transient', 'refused');
        statements.push(parameters[0]);
        await target.exec(...parameters);
      };
    },
  });
  return { clickhouse, statements };
}

/** One host: its journals, its eraser, its deletes. `skip` passes over waits. */
function host(writers: number[], clickhouse: ClickHouse = embedded.clickhouse, queries: Postgres = postgres) {
  let skippedMs = 0;
  const clock: Clock = { now: () => Date.now(), monotonic: () => performance.now() + skippedMs };
  const reports = new Map(writers.map((writer) => [writer, idle(writer)]));
  const journals = async () => ({ reports: [...reports.values()], isWhole: true });
  const steadyClock = new SteadyClock({ postgres, clock, log });
  const parts = { postgres: queries, shards: new Shards([clickhouse]), cluster: '', clock, steadyClock, log };
  const metrics = new Metrics();
  const eraserDeps = { ...parts, host: 'erasing', metrics, isLeader: () => true, journals, tombstonesKeptDays: 90 };
  let eraser = new Eraser(eraserDeps);
  const remove: DeleteSeries = seriesDeleter({ ...parts, journals });
  return {
    remove,
    deletesWaiting: () => metrics.snapshot().find(({ name }) => name === 'deletes_waiting')!.value,
    set: (writer: number, report: Partial<JournalReport>) => {
      reports.set(writer, { ...reports.get(writer)!, ...report });
    },
    /** Runs rounds until a round finds no more work. */
    rounds: async (count = 2) => {
      for (let n = 0; n < count; n += 1) {
        skippedMs += 400_000;
        await eraser.round();
      }
    },
    start: () => eraser.start(),
    stop: () => eraser.stopErasing(),
    restart: () => {
      eraser = new Eraser(eraserDeps);
    },
    /** Sends the last report of a worker that has drained its journal. */
    end: () => eraser.end(() => [...reports.values()]),
  };
}

const orderAt = (ms: number, writer: number) => (BigInt(ms) << 20n) | BigInt(writer);

function idle(writer: number): JournalReport {
  const order = orderAt(Date.now() - 60_000, writer).toString();
  const none = { orderRecovered: null, orderHeld: null, isAhead: false };
  return { writer, run: '1', orderHigh: order, orderShipped: order, orderDone: order, ...none };
}

/**
 * A store that does something in the middle of a delete, once: its points have been looked for and are not marked yet.
 */
function interrupted(meanwhile: () => Promise<unknown>): ClickHouse {
  let isDone = false;
  return new Proxy(embedded.clickhouse, {
    get(target, name) {
      const value = Reflect.get(target, name) as unknown;
      if (typeof value !== 'function') return value;
      return async (...parameters: unknown[]) => {
        const answer = (await value.apply(target, parameters)) as unknown;
        if (isDone || name !== 'rows' || !String(parameters[0]).includes('GROUP BY day')) return answer;
        isDone = true;
        await meanwhile();
        return answer;
      };
    },
  });
}

/** Stores points of key `k` as a shipped frame does. */
async function ship(device: number, order: bigint, points: number[], key = 'k'): Promise<void> {
  const rows = new Rows();
  for (const ts of points) {
    rows.addDouble(keyOf(key)!, Number(order >> 20n) % 1000);
    rows.endRecord(device, ts);
  }
  const block = Buffer.concat(rows.encode({ order, micros: 0, firstPlace: 0 }));
  await embedded.clickhouse.insertBlocks(insertTelemetry, block);
  await embedded.clickhouse.insertBlocks(insertLatest, block);
}

/** Times of the points that a read shows, and of the latest value. */
async function readable(device: number): Promise<[number[], number[]]> {
  const { clickhouse } = embedded;
  const range = { startTs: -(2 ** 50), endTs: 2 ** 50 };
  const points: number[] = [];
  await readHistory(clickhouse, device, range, 1000, 'ASC', ({ ts }) => points.push(ts));
  const latest = await readLatest(clickhouse, device);
  return [points, latest.map(({ ts }) => ts)];
}

const all = {
  keys: ['k'],
  startTs: Number.MIN_SAFE_INTEGER,
  endTs: Number.MAX_SAFE_INTEGER,
  latest: 'delete' as const,
};
/** A report: all of the journal is stored, and nothing was replayed. */
const stored = (writer: number, orderHigh: bigint) => {
  return { writer, orderRecovered: null, orderHigh: orderHigh.toString() };
};
/** Changes the deletes as if a host had received them an hour ago. */
const forgetGrace = () =>
  postgres.query(`update tombstones set handed_over = true, recorded_at = recorded_at - interval '1 hour'`);
const silence = (writer: number) =>
  postgres.query(`update journals set heard_at = heard_at - interval '1 hour' where writer = $1`, [writer]);

async function deleteDevices(numbers: number[]): Promise<void> {
  for (const number of numbers) await insertDeviceTombstone(postgres, number, Date.now());
  await forgetGrace();
}

test('a host reports its journals while it carries out deletes', async () => {
  const device = devices++;
  await ship(device, orderAt(Date.now() - 1000, 1), [someDay]);
  let begin: () => void;
  let end: () => void;
  const begun = new Promise<void>((resolve) => (begin = resolve));
  const ended = new Promise<void>((resolve) => (end = resolve));
  const slow = interrupted(async () => {
    begin();
    await ended;
  });
  const only = host([1], slow);
  await deleteDevices([device]);
  only.start();
  try {
    await begun;
    const [row] = await postgres.query<{ fence: number }>(`select nextval('tombstones_id_seq') as fence`, []);
    const settled = async () => (await readJournals(postgres)).map((journal) => journal.settled);
    await expect.poll(settled, { timeout: 10_000 }).toEqual([row!.fence]);
  } finally {
    end!();
    await only.stop();
    await only.end();
  }
  expect(await readable(device)).toEqual([[], []]);
});

test('a stop does not wait for a statement that waits for merges, and another worker repeats the delete', async () => {
  const device = devices++;
  await ship(device, orderAt(Date.now() - 1000, 1), [someDay]);
  const { clickhouse } = embedded;
  const first = host([1]);
  await clickhouse.exec('SYSTEM STOP MERGES latest');
  try {
    await deleteDevices([device]);
    first.start();
    const mutations = `SELECT count() AS n FROM system.mutations
      WHERE database = currentDatabase() AND table = 'latest' AND NOT is_done`;
    await expect
      .poll(async () => (await clickhouse.rows<{ n: string }>(mutations))[0]!.n, { timeout: 10_000 })
      .toBe('1');
    const begin = performance.now();
    await first.stop();
    expect(performance.now() - begin).toBeLessThan(limits.eraseStopMsMax + 5_000);
    await first.end();
  } finally {
    await clickhouse.exec('SYSTEM START MERGES latest');
  }
  await host([1]).rounds();
  expect(await readable(device)).toEqual([[], []]);
  expect(await readWaiting(postgres, 0, 10)).toEqual([]);
});

test('a page of waiting deletes holds few long lists of keys', async () => {
  const keys = Array.from({ length: 5000 }, (_, n) => `key ${n}`);
  const erased = { device: devices++, startTs: 0, endTs: 1, latest: 'keep' as const, orderNumber: '1' };
  const deletes = Array.from({ length: 40 }, () => {
    return { ...erased, keys, aheadWriters: [], aheadOrders: [], createdTime: 1 };
  });
  const made = await insertTombstones(postgres, deletes);
  await handOver(
    postgres,
    made.map(({ id }) => id),
  );
  const found: number[] = [];
  for (;;) {
    const page = await readWaiting(postgres, found.at(-1) ?? 0, 2000);
    if (page.length === 0) break;
    expect(page.length).toBeLessThan(30);
    expect(page[0]).toMatchObject({ device: erased.device, keys, orderNumber: '1', fence: page[0]!.id });
    expect(page[0]!.rowVersion).toMatch(/^\d+$/);
    found.push(...page.map(({ id }) => id));
  }
  expect(found).toEqual(made.map(({ id }) => id));
});

test('a delete touches the parts of its days alone, and makes no mutation of telemetry', async () => {
  const [device, other] = [devices++, devices++];
  const points = Array.from({ length: 40 }, (_, n) => someDay + n * day);
  const order = orderAt(Date.now() - 1000, 1);
  await ship(device, order, points);
  await ship(other, order, points);
  const parts = async () => {
    const found = await embedded.clickhouse.rows<{ name: string; partition: string }>(
      `SELECT name, partition FROM system.parts
       WHERE database = currentDatabase() AND table = 'telemetry' AND active AND NOT startsWith(partition, '2023112')`,
    );
    return new Set(found.map(({ name }) => name));
  };
  await embedded.clickhouse.exec('SYSTEM STOP MERGES telemetry');
  const before = await parts();
  const { remove } = host([1]);
  // Five days of November 20 to 29, 2023.
  const startTs = Date.UTC(2023, 10, 22);
  expect(await remove({ device, ...all, startTs, endTs: startTs + 5 * day })).toBe('done');
  expect(await parts()).toEqual(before);
  const mutations = `SELECT count() AS n FROM system.mutations WHERE database = currentDatabase() AND table = 'telemetry'`;
  expect(await embedded.clickhouse.rows(mutations)).toEqual([{ n: '0' }]);
  await embedded.clickhouse.exec('SYSTEM START MERGES telemetry');
  const kept = points.filter((ts) => ts < startTs || ts >= startTs + 5 * day);
  expect(await readable(device)).toEqual([kept, [points.at(-1)]]);
  expect(await readable(other)).toEqual([points, [points.at(-1)]]);
});

test('what is marked is gone from the disk after a merge, and the same row again does not show it', async () => {
  const device = devices++;
  const order = orderAt(Date.now() - 1000, 1);
  const [ts, kept] = [someDay, someDay + 1000];
  await ship(device, order, [ts]);
  await ship(device, order + (1n << 14n), [kept]);
  const { remove } = host([1]);
  expect(await remove({ device, ...all, endTs: kept })).toBe('done');
  await ship(device, order, [ts]);
  expect((await readable(device))[0]).toEqual([kept]);
  await embedded.clickhouse.exec(`OPTIMIZE TABLE telemetry PARTITION ${20231115} FINAL`);
  const raw = `SELECT toInt64(ts) - ${someDay} AS at, kind, num FROM telemetry WHERE device = ${device} ORDER BY ts`;
  expect(await embedded.clickhouse.rows(raw)).toEqual([
    { at: '0', kind: 0, num: 0 },
    { at: '1000', kind: 3, num: expect.any(Number) },
  ]);
  expect((await readable(device))[0]).toEqual([kept]);
  // A later write of the deleted moment is a new point.
  await ship(device, orderAt(Date.now() + 1000, 1), [ts]);
  expect((await readable(device))[0]).toEqual([ts, kept]);
});

test('deletes of one moment share their statements, and each deletes its own range and key', async () => {
  const order = orderAt(Date.now() - 1000, 1);
  const odd = `"k's", {\\}`;
  const count = 40;
  const numbers = Array.from({ length: count }, () => devices++);
  for (const device of numbers) {
    await ship(device, order, [someDay, someDay + 1000]);
    await ship(device, order, [someDay], odd);
  }
  const statements: string[] = [];
  const queries = {
    query: (text: string, values: unknown[]) => {
      statements.push(text);
      return postgres.query(text, values);
    },
  } as unknown as Postgres;
  const { remove } = host([1], embedded.clickhouse, queries);
  const outcomes = await Promise.all(
    numbers.map((device, n) => {
      const last = { ...all, startTs: someDay + 1000 };
      return remove({ device, ...(n % 2 === 0 ? last : { ...all, keys: [odd] }) }, `tenant ${n % 3}`);
    }),
  );
  expect(new Set(outcomes)).toEqual(new Set(['done']));
  for (const [n, device] of numbers.entries()) {
    const points = n % 2 === 0 ? [someDay, someDay] : [someDay, someDay + 1000];
    expect((await readable(device))[0]).toEqual(points);
  }
  // Questions for journals included: 40 deletes alone would take 160.
  expect(statements.length).toBeLessThan(count);
  expect(await countWaiting(postgres)).toEqual({ waiting: 0, oldestMs: 0, again: 0 });
});

test('rows whose order is ahead of the clock are deleted, and later ones stay', async () => {
  const device = devices++;
  const ahead = orderAt(Date.now() + 3_600_000, 2);
  await ship(device, ahead, [someDay]);
  const { remove, set } = host([1, 2]);
  set(2, { orderHigh: ahead.toString(), orderShipped: ahead.toString(), isAhead: true });
  expect(await remove({ device, ...all })).toBe('done');
  expect(await readable(device)).toEqual([[], []]);
  await ship(device, ahead + (1n << 14n), [someDay + 1]);
  await ship(device, orderAt(Date.now() + 10, 1), [someDay + 2]);
  await postgres.query('update tombstones set applied_at = null, handed_over = true');
  await host([1, 2]).rounds();
  expect(await readable(device)).toEqual([[someDay + 1, someDay + 2], [someDay + 2]]);
});

test('a delete on one host covers what another host, whose orders are ahead, has reported', async () => {
  const device = devices++;
  const ahead = orderAt(Date.now() + 3_600_000, 7);
  const other = host([7]);
  other.set(7, { orderHigh: ahead.toString(), orderShipped: ahead.toString(), isAhead: true });
  await other.rounds();
  await ship(device, ahead, [someDay]);
  const here = host([1]);
  // The other host has not settled a delete that it has not seen.
  const outcome = here.remove({ device, ...all });
  await other.rounds();
  await here.rounds();
  await outcome;
  await other.rounds();
  await here.rounds();
  expect(await readable(device)).toEqual([[], []]);
});

describe('rows of a journal whose orders were ahead of the clock are deleted after', () => {
  const reported = (ahead: bigint) => ({ orderHigh: ahead.toString(), orderShipped: ahead.toString(), isAhead: true });
  const setBack = () => postgres.query(`update journals set heard_at = heard_at - interval '91 days'`);

  test.each<[string, boolean, (orderHigh: bigint) => Promise<unknown>]>([
    ['the journal was stored and removed by this process', true, (high) => forgetJournal(postgres, stored(7, high))],
    [
      'the journal was stored and removed by a host that is gone',
      false,
      () => forgetJournal(postgres, goneReport(7, null)),
    ],
    ['the journal was not reported for long', false, () => setBack().then(() => forgetOldJournals(postgres, 90))],
    ['a restore', false, () => forgetRestoredJournals(postgres)],
  ])('%s', async (_, isShippedHere, forget) => {
    const device = devices++;
    const ahead = orderAt(Date.now() + 3_600_000, 7);
    const gone = host([7]);
    gone.set(7, reported(ahead));
    await gone.rounds();
    await ship(device, ahead, [someDay]);
    await forget(ahead);
    expect(await readJournals(postgres)).toEqual([]);
    // A round removes what is known of journals that are not ahead of the clock.
    const here = host([1]);
    if (isShippedHere) here.set(7, goneReport(7, null));
    await here.rounds();
    expect(await here.remove({ device, ...all })).toBe('done');
    expect(await readable(device)).toEqual([[], []]);
    expect(await here.remove({ device: devices++, ...all })).toBe('done');
  });

  test('the clock has passed the orders: then nothing is known of the journal any more, and its id is free', async () => {
    await forgetJournal(postgres, stored(7, orderAt(Date.now() + 3_600_000, 7)));
    await forgetOldJournals(postgres, 90);
    await postgres.query(`select setval('writer_id', 6)`);
    expect(await takeWriterId(postgres, 'h', '0')).toBe(8);
    await forgetJournal(postgres, stored(9, orderAt(Date.now() - 60_000, 9)));
    await postgres.query(`update former_journals set order_high = $1 where writer = 7`, [
      orderAt(Date.now() - 60_000, 7).toString(),
    ]);
    await forgetOldJournals(postgres, 90);
    expect(await postgres.query('select from former_journals')).toEqual([]);
    await postgres.query(`select setval('writer_id', 6)`);
    expect(await takeWriterId(postgres, 'h', '0')).toBe(7);
  });

  test('an id that is taken at the moment at which its journal is forgotten is not free', async () => {
    await takeWriterId(postgres, 'h', '0');
    await postgres.query(`update journals set writer = 7`);
    await postgres.query(`select setval('writer_id', 6)`);
    let taken: Promise<number | undefined> | undefined;
    await postgres.transaction(async (queries) => {
      // The transaction of forgetJournal, which is committed later.
      const inside = { transaction: async (work: (queries: Queries) => Promise<unknown>) => await work(queries) };
      await forgetJournal(inside as Postgres, stored(7, orderAt(Date.now() + 3_600_000, 7)));
      taken = takeWriterId(postgres, 'h', '0');
      const waiting = `select from pg_stat_activity where wait_event_type = 'Lock' and query like '%nextval(%'`;
      await expect.poll(() => postgres.query(waiting)).toHaveLength(1);
    });
    expect(await taken).toBe(8);
  });
});

describe('a delete that was answered before all rows were stored', () => {
  test('waits for a journal that has not shipped yet, as an orphan journal, and is not called done', async () => {
    const device = devices++;
    const { remove, set, rounds } = host([1, 9]);
    const waits = orderAt(Date.now() - 1000, 9);
    set(9, { orderHigh: waits.toString(), orderShipped: '0' });
    expect(await remove({ device, ...all })).toBe('recorded');
    await rounds();
    expect(await postgres.query('select id from tombstones where applied_at is not null')).toEqual([]);
    await ship(device, waits, [someDay]);
    set(9, { orderShipped: waits.toString() });
    await rounds();
    expect(await readable(device)).toEqual([[], []]);
    expect(await postgres.query('select id from tombstones where applied_at is null')).toEqual([]);
  });

  test('is counted at every moment at which it waits', async () => {
    const { remove, set, rounds, deletesWaiting } = host([1, 9]);
    const waits = orderAt(Date.now() - 1000, 9);
    set(9, { orderHigh: waits.toString(), orderShipped: '0' });
    expect(await remove({ device: devices++, ...all })).toBe('recorded');
    await rounds();
    const counts = new Set<number>();
    let isRunning = true;
    const ended = rounds(5).finally(() => (isRunning = false));
    while (isRunning) {
      counts.add(deletesWaiting());
      await new Promise((resolve) => setImmediate(resolve));
    }
    await ended;
    expect([...counts]).toEqual([1]);
    set(9, { orderShipped: waits.toString() });
    await rounds();
    expect(deletesWaiting()).toBe(0);
  });

  test('continues without a silent host, and is carried out again when that host is back', async () => {
    const device = devices++;
    const waits = orderAt(Date.now() - 1000, 8);
    const gone = host([8]);
    await gone.rounds();
    await silence(8);
    const { remove, rounds } = host([1]);
    await rounds();
    await ship(device, orderAt(Date.now() - 500, 1), [someDay + 1]);
    expect(await remove({ device, ...all })).toBe('done');
    await rounds();
    expect(await readable(device)).toEqual([[], []]);
    // The host returns: its rows are recovered and shipped.
    const back = host([8]);
    back.set(8, { run: '2', orderRecovered: waits.toString(), orderHigh: waits.toString(), orderShipped: '0' });
    await back.rounds();
    await ship(device, waits, [someDay]);
    expect((await readable(device))[0]).toEqual([someDay]);
    back.set(8, { orderShipped: waits.toString() });
    await back.rounds();
    await rounds();
    expect(await readable(device)).toEqual([[], []]);
  });

  test('is carried out again when rows that waited beside a journal are stored', async () => {
    const device = devices++;
    const held = orderAt(Date.now() - 1000, 1);
    const { remove, set, rounds } = host([1]);
    set(1, { orderHeld: held.toString(), orderHigh: held.toString(), orderShipped: held.toString() });
    await rounds();
    expect(await remove({ device, ...all })).toBe('recorded');
    await rounds();
    await ship(device, held, [someDay]);
    set(1, { orderHeld: null });
    await rounds();
    expect(await readable(device)).toEqual([[], []]);
    expect(await postgres.query(`select id from tombstones where missing <> '{}'`)).toEqual([]);
  });

  test('is carried out again when rows are set aside while the request waits for the journal', async () => {
    const device = devices++;
    const order = orderAt(Date.now() - 1000, 1);
    const { remove, set, rounds } = host([1]);
    await rounds();
    set(1, { orderHigh: order.toString(), orderShipped: '0' });
    const outcome = remove({ device, ...all });
    setTimeout(() => set(1, { orderShipped: order.toString(), orderHeld: order.toString() }), 100);
    expect(await outcome).toBe('recorded');
    await rounds();
    await ship(device, order, [someDay]);
    set(1, { orderHeld: null });
    await rounds();
    expect(await readable(device)).toEqual([[], []]);
  });

  test('is carried out again when rows beside a journal of another host are stored meanwhile', async () => {
    const device = devices++;
    const held = orderAt(Date.now() - 1000, 8);
    const other = host([8]);
    other.set(8, { orderHeld: held.toString(), orderHigh: held.toString(), orderShipped: held.toString() });
    await other.rounds();
    const order = { orderNumber: orderAt(Date.now(), 0).toString(), aheadWriters: [], aheadOrders: [] };
    await insertTombstones(postgres, [{ device, ...all, ...order, createdTime: Date.now() }]);
    await postgres.query('update tombstones set handed_over = true');
    await takeLease(postgres, 'deletes', 'nobody', 60_000);
    await other.rounds();
    await giveBackLease(postgres, 'deletes', 'nobody');
    // The rows are stored after the search for the points, and reported before the delete is recorded as carried out.
    const clickhouse = interrupted(async () => {
      await ship(device, held, [someDay]);
      other.set(8, { orderHeld: null });
      await other.rounds(1);
    });
    await host([1], clickhouse).rounds(1);
    expect((await readable(device))[0]).toEqual([someDay]);
    await host([1]).rounds();
    expect(await readable(device)).toEqual([[], []]);
  });

  test('is carried out again after a journal that came late was shipped and removed between two reports', async () => {
    const device = devices++;
    const waits = orderAt(Date.now() - 1000, 8);
    await host([8]).rounds();
    await silence(8);
    const { remove, rounds, set } = host([1]);
    await rounds();
    expect(await remove({ device, ...all })).toBe('done');
    // The host returns with fewer workers: its journal is an orphan, and is removed before the first report.
    await ship(device, waits, [someDay]);
    set(8, { ...goneReport(8, waits.toString()) });
    await rounds();
    expect(await readable(device)).toEqual([[], []]);
    const again = `select id from tombstones where applied_at is null or missing <> '{}'`;
    expect(await postgres.query(again)).toEqual([]);
  });
});

describe('a journal that deletes do not know yet', () => {
  test('delays a delete from the moment at which it has an id', async () => {
    const device = devices++;
    const here = host([1]);
    await here.rounds();
    const writer = (await takeWriterId(postgres, 'other', '0'))!;
    const there = host([writer]);
    const order = orderAt(Date.now() - 1000, writer);
    there.set(writer, { orderHigh: order.toString(), orderShipped: '0' });
    // The host of the new journal is stopped before its first report, so the delete does not wait for it.
    await silence(writer);
    expect(await here.remove({ device, ...all })).toBe('done');
    await ship(device, order, [someDay]);
    there.set(writer, { orderShipped: order.toString() });
    await there.rounds();
    await here.rounds();
    expect(await readable(device)).toEqual([[], []]);
    expect(await postgres.query(`select id from tombstones where missing <> '{}'`)).toEqual([]);
  });

  test('lets all deletes be carried out again, though its opening has found nothing to ship', async () => {
    const device = devices++;
    const here = host([1]);
    await here.rounds();
    // The journal was forgotten while its host was down; its rows are older than the delete and are shipped later.
    const order = orderAt(Date.now() - 1000, 8);
    expect(await here.remove({ device, ...all })).toBe('done');
    const there = host([8]);
    there.set(8, { orderHigh: order.toString(), orderShipped: '0' });
    await there.rounds();
    await ship(device, order, [someDay]);
    there.set(8, { orderShipped: order.toString() });
    await there.rounds();
    await here.rounds();
    expect(await readable(device)).toEqual([[], []]);
  });

  test('gets an id that no journal has, and none when all are in use', async () => {
    await postgres.query(`select setval('writer_id', 16383)`);
    const run = `insert into journals (writer, host, run, order_high, settled) select n, 'h', '1', 0, 0`;
    await postgres.query(`${run} from generate_series(0, 4) as n`);
    expect(await takeWriterId(postgres, 'h', '0')).toBe(5);
    await postgres.query(`${run} from generate_series(6, 16383) as n`);
    expect(await takeWriterId(postgres, 'h', '0')).toBeUndefined();
    await postgres.query('delete from journals where writer = 77');
    expect(await takeWriterId(postgres, 'h', '0')).toBe(77);
  });
});

describe('a journal whose directory cannot keep an id', () => {
  test('takes none away, delays no delete, and says what it waits for until the disk has room', async () => {
    const disk = new SimDisk();
    disk.fault = (operation) => (operation === 'write' ? 'ENOSPC' : undefined);
    const reasons: string[] = [];
    const sleep = async () => {
      expect(await readJournals(postgres)).toEqual([]);
      if (reasons.length === 3) disk.fault = () => undefined;
    };
    const onWaiting = (reason: string) => reasons.push(reason);
    const journal = { orderMax: 0n, epoch: 1 };
    const deps = { journal, dir: '/journal/worker-0', postgres, onWaiting, disk, sleep };
    const writer = await writerIdOf(deps);
    expect(reasons).toHaveLength(3);
    expect(reasons[0]).toMatch(/its id cannot be stored in .*ENOSPC/);
    expect((await readJournals(postgres)).map((row) => row.writer)).toEqual([writer]);
    expect(await writerIdOf(deps)).toBe(writer);
  });
});

describe('a delete that is reopened while another host carries it out', () => {
  /** A delete whose rows are stored again after the search for its points; `reopen` reports them. */
  async function cameBack(reopen: (device: number, order: bigint) => Promise<unknown>): Promise<void> {
    const device = devices++;
    const order = orderAt(Date.now() - 1000, 8);
    const orders = { orderNumber: orderAt(Date.now(), 0).toString(), aheadWriters: [], aheadOrders: [] };
    await insertTombstones(postgres, [{ device, ...all, ...orders, createdTime: Date.now() }]);
    await postgres.query('update tombstones set handed_over = true');
    const clickhouse = interrupted(async () => {
      await ship(device, order, [someDay]);
      await reopen(device, order);
    });
    await host([1], clickhouse).rounds(1);
    expect((await readable(device))[0]).toEqual([someDay]);
    await host([1]).rounds();
    expect(await readable(device)).toEqual([[], []]);
    expect(await postgres.query(`select id from tombstones where applied_at is null or missing <> '{}'`)).toEqual([]);
  }

  test('because a journal was shipped and removed', async () => {
    await cameBack((_, order) => forgetJournal(postgres, { ...stored(8, order), orderRecovered: order.toString() }));
  });

  test('because rows of the quarantine were sent again', async () => {
    await cameBack((device) => reopenNewer(postgres, { devices: [device], tombstones: [] }));
  });

  test('because a store was restored', async () => {
    await cameBack(() => reopenTombstones(postgres));
  });

  test('because a journal that it waited for was opened once more', async () => {
    const device = devices++;
    const order = orderAt(Date.now() - 1000, 8);
    const there = host([8]);
    await there.rounds();
    await silence(8);
    const here = host([1]);
    await here.rounds();
    expect(await here.remove({ device, ...all })).toBe('done');
    await there.rounds();
    // The journal has settled. The rows that its next opening ships arrive after the search for the points.
    const clickhouse = interrupted(async () => {
      there.restart();
      there.set(8, { run: '2', orderRecovered: order.toString(), orderHigh: order.toString(), orderShipped: '0' });
      await there.rounds(1);
      await ship(device, order, [someDay]);
    });
    await host([1], clickhouse).rounds(1);
    there.set(8, { orderShipped: order.toString() });
    await there.rounds();
    await here.rounds();
    expect(await readable(device)).toEqual([[], []]);
  });
});

test('a request whose delete was reopened meanwhile does not report it as done', async () => {
  const device = devices++;
  const order = orderAt(Date.now() - 1000, 8);
  const clickhouse = interrupted(async () => {
    await ship(device, order, [someDay]);
    await forgetJournal(postgres, { ...stored(8, order), orderRecovered: order.toString() });
  });
  const here = host([1], clickhouse);
  await here.rounds();
  expect(await here.remove({ device, ...all })).toBe('recorded');
  await here.rounds();
  expect(await readable(device)).toEqual([[], []]);
});

test('rows of a delete that was committed after one with a higher id are not kept by a replay', async () => {
  const device = devices++;
  await host([1]).rounds();
  const tombstones = [1_000_000];
  await deleteDevices([device]);
  await host([1]).rounds(3);
  await ship(device, orderAt(Date.now() - 1000, 1), [someDay]);
  await reopenNewer(postgres, { devices: [device], tombstones });
  await host([1]).rounds(2);
  expect(await readable(device)).toEqual([[], []]);
});

test('what a host ships while it stops is settled, also when the host never comes back', async () => {
  const device = devices++;
  const order = orderAt(Date.now() - 1000, 8);
  const leaving = host([8]);
  await leaving.rounds();
  const { remove, rounds } = host([1]);
  await rounds();
  await silence(8);
  expect(await remove({ device, ...all })).toBe('done');
  await ship(device, order, [someDay]);
  leaving.set(8, { orderHigh: order.toString(), orderShipped: order.toString() });
  await leaving.end();
  await rounds();
  expect(await readable(device)).toEqual([[], []]);
  expect((await readJournals(postgres)).find(({ writer }) => writer === 8)?.settled).toBeGreaterThan(0);
});

test('a deleted device may be sending until a while after its delete was seen, however long its transaction took', async () => {
  const device = devices++;
  const here = host([1]);
  await here.rounds();
  await insertDeviceTombstone(postgres, device, Date.now());
  await postgres.query(`update tombstones set recorded_at = recorded_at - interval '1 hour'`);
  await here.rounds();
  expect(await postgres.query('select id from tombstones where fence is not null')).toEqual([]);
  await forgetGrace();
  await here.rounds();
  expect(await postgres.query('select id from tombstones where applied_at is null')).toEqual([]);
});

describe('a restart', () => {
  test('repeats no finished delete', async () => {
    const [device, other] = [devices++, devices++];
    await ship(device, orderAt(Date.now() - 1000, 1), [someDay]);
    await ship(other, orderAt(Date.now() - 1000, 1), [someDay]);
    const { clickhouse, statements } = recorded();
    const here = host([1], clickhouse);
    await here.rounds();
    expect(await here.remove({ device, ...all })).toBe('done');
    await deleteDevices([other]);
    await here.rounds(3);
    expect(await readable(other)).toEqual([[], []]);
    expect(statements.length).toBeGreaterThan(0);
    statements.length = 0;
    here.restart();
    here.set(1, { run: '2' });
    await here.rounds(3);
    expect(statements).toEqual([]);
    expect(await postgres.query(`select id from tombstones where applied_at is null or missing <> '{}'`)).toEqual([]);
  });

  test('that replays a journal deletes its rows once more', async () => {
    const device = devices++;
    const order = orderAt(Date.now() - 1000, 1);
    await ship(device, order, [someDay]);
    const here = host([1]);
    await here.rounds();
    expect(await here.remove({ device, ...all })).toBe('done');
    await here.rounds();
    here.restart();
    here.set(1, { run: '2', orderRecovered: order.toString(), orderHigh: order.toString(), orderShipped: '0' });
    await here.rounds();
    await ship(device, order, [someDay]);
    await ship(device, order, [someDay + 1]);
    here.set(1, { orderShipped: order.toString() });
    await here.rounds();
    expect(await readable(device)).toEqual([[], []]);
  });

  test('whose previous opening was never registered repeats the deletes that may cover what that one has shipped', async () => {
    const [device, early] = [devices++, devices++];
    const here = host([1]);
    await here.rounds();
    expect(await here.remove({ device: early, ...all })).toBe('done');
    // All that was accepted before this moment is done; what comes later may be shipped by an opening that says
    // nothing.
    const done = orderAt(Date.now() + 5, 1);
    await new Promise((resolve) => setTimeout(resolve, 20));
    here.set(1, { orderDone: done.toString(), orderHigh: done.toString(), orderShipped: done.toString() });
    await here.rounds();
    expect(await here.remove({ device, ...all })).toBe('done');
    await here.rounds();
    // Opening 2 shipped this and ended while PostgreSQL was unavailable; opening 3 has found nothing to ship.
    await ship(device, done + (1n << 14n), [someDay]);
    here.restart();
    here.set(1, { run: '3' });
    await here.rounds(1);
    const touched = await postgres.query(`select device from tombstones where missing <> '{}' or device = $1`, [
      device,
    ]);
    expect(touched).toEqual([{ device }]);
    await here.rounds();
    expect(await readable(device)).toEqual([[], []]);
  });

  test('after a restore carries out every delete that came before the backup', async () => {
    const [device, gone] = [devices++, devices++];
    const here = host([1]);
    await here.rounds();
    expect(await here.remove({ device, ...all })).toBe('done');
    await deleteDevices([gone]);
    await here.rounds(3);
    // The copy of ClickHouse is older than that of PostgreSQL.
    await ship(device, orderAt(Date.now() - 60_000, 1), [someDay]);
    await ship(gone, orderAt(Date.now() - 60_000, 1), [someDay]);
    await reopenTombstones(postgres);
    await here.rounds(3);
    expect(await readable(device)).toEqual([[], []]);
    expect(await readable(gone)).toEqual([[], []]);
  });
});

test('many deleted devices share few statements', async () => {
  const numbers = Array.from({ length: 300 }, () => devices++);
  const order = orderAt(Date.now() - 1000, 1);
  for (const number of numbers.slice(0, 20)) await ship(number, order, [someDay, someDay + day]);
  const { clickhouse, statements } = recorded();
  const here = host([1], clickhouse);
  await here.rounds();
  await deleteDevices(numbers);
  await here.rounds(3);
  expect(statements.length).toBeLessThanOrEqual(2);
  for (const number of numbers.slice(0, 20)) expect(await readable(number)).toEqual([[], []]);
  expect(await postgres.query('select id from tombstones where applied_at is null')).toEqual([]);
});

test('many deletes of series share few statements, and each deletes only what it covers', async () => {
  const numbers = Array.from({ length: 40 }, () => devices++);
  const order = orderAt(Date.now() - 1000, 1);
  const later = orderAt(Date.now() + 60_000, 1);
  for (const number of numbers.slice(0, 4)) {
    await ship(number, order, [someDay, someDay + 1, someDay + 2]);
    await ship(number, order + (1n << 14n), [someDay], 'other');
    await ship(number, later, [someDay + 3]);
  }
  const { clickhouse, statements } = recorded();
  const here = host([1], clickhouse);
  await here.rounds();
  const orders = { orderNumber: orderAt(Date.now(), 0).toString(), aheadWriters: [], aheadOrders: [] };
  for (const [n, device] of numbers.entries()) {
    // Of the first four: the middle, from the middle on, all keys with their latest values, and the latest rewritten.
    const range = [
      { ...all, startTs: someDay + 1, endTs: someDay + 2 },
      { ...all, startTs: someDay + 1 },
      { ...all, keys: null },
      { ...all, startTs: someDay + 2, latest: 'rewrite' as const },
    ][n % 4]!;
    await insertTombstones(postgres, [{ device, ...range, ...orders, createdTime: Date.now() }]);
  }
  await postgres.query('update tombstones set handed_over = true');
  await here.rounds();
  expect(statements.length).toBeLessThan(20);
  const shown = await Promise.all(numbers.slice(0, 4).map(async (number) => (await readable(number))[0]));
  const at = (...offsets: number[]) => offsets.map((offset) => someDay + offset);
  expect(shown).toEqual([at(0, 2, 3, 0), at(0, 3, 0), at(3), at(0, 1, 3, 0)]);
  expect(await postgres.query('select id from tombstones where applied_at is null')).toEqual([]);
});

/** A store whose rewrite of latest values inserts what it has read after something else was done. */
function slowToRewrite(meanwhile: () => Promise<unknown>): ClickHouse {
  let isDone = false;
  return new Proxy(embedded.clickhouse, {
    get(target, name) {
      const value = Reflect.get(target, name) as unknown;
      if (typeof value !== 'function') return value;
      return async (...parameters: unknown[]) => {
        if (!isDone && name === 'insertBlocks') {
          isDone = true;
          await meanwhile();
        }
        return (await value.apply(target, parameters)) as unknown;
      };
    },
  });
}

const [first, second, third] = [someDay, someDay + 1000, someDay + 2000];
const ofThird = { ...all, startTs: third, latest: 'rewrite' as const };

async function shipped(): Promise<number> {
  const device = devices++;
  await ship(device, orderAt(Date.now() - 1000, 1), [first, second, third]);
  return device;
}

describe('a latest value that one delete rewrites while another delete covers it', () => {
  const ofSecond = { ...all, startTs: second, endTs: third };

  test('does not stay when it was written before its point was marked', async () => {
    const device = await shipped();
    const rewriting = host([1]);
    const { remove } = host(
      [1],
      interrupted(() => rewriting.remove({ device, ...ofThird })),
    );
    expect(await remove({ device, ...ofSecond })).toBe('done');
    // The second delete has deleted the value that the first one had made the latest.
    expect(await readable(device)).toEqual([[first], []]);
  });

  test('does not stay when it was read before its point was marked, and written afterwards', async () => {
    const device = await shipped();
    const deleting = host([1]);
    const { remove } = host(
      [1],
      slowToRewrite(() => deleting.remove({ device, ...ofSecond })),
    );
    expect(await remove({ device, ...ofThird })).toBe('done');
    expect(await readable(device)).toEqual([[first], [first]]);
  });

  test('does not take a later value with it', async () => {
    const device = await shipped();
    const deleting = host([1]);
    const later = third + 1000;
    const { remove } = host(
      [1],
      slowToRewrite(async () => {
        await deleting.remove({ device, ...ofSecond });
        await ship(device, orderAt(Date.now() + 1000, 1), [later]);
      }),
    );
    expect(await remove({ device, ...ofThird })).toBe('done');
    expect(await readable(device)).toEqual([[first, later], [later]]);
  });

  test('does not stay when the device is deleted meanwhile', async () => {
    const device = await shipped();
    const deleting = host([1]);
    const { remove } = host(
      [1],
      slowToRewrite(async () => {
        await deleteDevices([device]);
        await deleting.rounds();
      }),
    );
    await remove({ device, ...ofThird });
    expect(await readable(device)).toEqual([[], []]);
  });
});

describe('a delete that rewrites latest values', () => {
  test('leaves a latest value outside its range that an earlier delete has kept, also when it is repeated', async () => {
    const device = await shipped();
    const here = host([1]);
    expect(await here.remove({ device, ...ofThird, latest: 'keep' })).toBe('done');
    expect(await here.remove({ device, ...ofThird, startTs: second, endTs: third })).toBe('done');
    expect(await readable(device)).toEqual([[first], [third]]);
    await reopenTombstones(postgres);
    await here.rounds();
    expect(await readable(device)).toEqual([[first], [third]]);
    expect(await here.remove({ device, ...ofThird })).toBe('done');
    expect(await readable(device)).toEqual([[first], [first]]);
  });

  test('makes no latest value where another delete has deleted it, also when it is repeated', async () => {
    const device = await shipped();
    const here = host([1]);
    expect(await here.remove({ device, ...ofThird, latest: 'delete' })).toBe('done');
    expect(await here.remove({ device, ...ofThird, startTs: second, endTs: third })).toBe('done');
    expect(await readable(device)).toEqual([[first], []]);
    await reopenTombstones(postgres);
    await here.rounds();
    expect(await readable(device)).toEqual([[first], []]);
  });

  test('makes no latest value where a later delete has deleted the one that it had made, also when it is repeated', async () => {
    const device = await shipped();
    const here = host([1]);
    expect(await here.remove({ device, ...ofThird })).toBe('done');
    expect(await readable(device)).toEqual([[first, second], [second]]);
    expect(await here.remove({ device, ...all, startTs: second, endTs: third })).toBe('done');
    expect(await readable(device)).toEqual([[first], []]);
    await reopenTombstones(postgres);
    await here.rounds();
    expect(await readable(device)).toEqual([[first], []]);
  });

  test('makes no latest value where a delete that had covered the same value has deleted it', async () => {
    const device = await shipped();
    const here = host([1]);
    expect(await here.remove({ device, ...ofThird, latest: 'delete' })).toBe('done');
    expect(await here.remove({ device, ...ofThird })).toBe('done');
    await reopenTombstones(postgres);
    await here.rounds();
    expect(await readable(device)).toEqual([[first, second], []]);
  });

  test('leaves no point that another delete has deleted when it ended after it had inserted the point', async () => {
    const device = await shipped();
    const deleting = host([1]);
    let isDone = false;
    const ended = new Proxy(
      slowToRewrite(() => deleting.remove({ device, ...ofThird, startTs: second, latest: 'delete' })),
      {
        get(target, name) {
          const value = Reflect.get(target, name) as unknown;
          if (typeof value !== 'function') return value;
          return async (...parameters: unknown[]) => {
            if (isDone) throw new ClickHouseError(48, 'transient', 'ended');
            const answer = (await value.apply(target, parameters)) as unknown;
            isDone ||= name === 'insertBlocks';
            return answer;
          };
        },
      },
    );
    expect(await host([1], ended).remove({ device, ...ofThird })).toBe('recorded');
    await host([1]).rounds(3);
    expect(await readable(device)).toEqual([[first], [first]]);
  });

  test.each(['INSERT INTO telemetry', 'insertBlocks'])(
    'is finished by its repetition when it ended at %s',
    async (step) => {
      const device = await shipped();
      const ended = new Proxy(embedded.clickhouse, {
        get(target, name) {
          const value = Reflect.get(target, name) as unknown;
          if (typeof value !== 'function') return value;
          return async (...parameters: unknown[]) => {
            const isStep = name === step || (name === 'exec' && String(parameters[0]).startsWith(step));
            if (isStep) throw new ClickHouseError(48, 'transient', 'ended');
            return (await value.apply(target, parameters)) as unknown;
          };
        },
      });
      expect(await host([1], ended).remove({ device, ...ofThird })).toBe('recorded');
      expect((await readable(device))[1]).toEqual([]);
      await host([1]).rounds(3);
      expect(await readable(device)).toEqual([[first, second], [second]]);
    },
  );
});

test('requests that come together share statements, and each is done', async () => {
  const numbers = Array.from({ length: 12 }, () => devices++);
  const order = orderAt(Date.now() - 1000, 1);
  for (const number of numbers) await ship(number, order, [someDay]);
  const { clickhouse, statements } = recorded();
  const here = host([1], clickhouse);
  await here.rounds();
  const outcomes = await Promise.all(numbers.map((device) => here.remove({ device, ...all })));
  expect(new Set(outcomes)).toEqual(new Set(['done']));
  expect(statements.length).toBeLessThan(12);
  for (const number of numbers) expect(await readable(number)).toEqual([[], []]);
});

test('one delete that fails delays no other, and is tried again later', async () => {
  const [bad, good] = [devices++, devices++];
  const order = orderAt(Date.now() - 1000, 1);
  await ship(bad, order, [someDay]);
  await ship(good, order, [someDay]);
  let isRefused = true;
  const { clickhouse } = recorded(
    (_sql, parameters) => isRefused && (parameters as { device0?: number }).device0 === bad,
  );
  const here = host([1], clickhouse);
  await here.rounds();
  expect(await here.remove({ device: bad, ...all })).toBe('recorded');
  await deleteDevices([good]);
  await here.rounds(3);
  expect((await readable(good))[0]).toEqual([]);
  expect((await readable(bad))[0]).toEqual([someDay]);
  isRefused = false;
  await here.rounds();
  expect(await readable(bad)).toEqual([[], []]);
});

test('of two hosts one carries deletes out', async () => {
  const device = devices++;
  await ship(device, orderAt(Date.now() - 1000, 1), [someDay]);
  const [a, b] = [recorded(), recorded()];
  const [one, two] = [host([1], a.clickhouse), host([2], b.clickhouse)];
  await one.rounds();
  await two.rounds();
  await deleteDevices([device]);
  for (let n = 0; n < 4; n += 1) await Promise.all([one.rounds(1), two.rounds(1)]);
  expect(await readable(device)).toEqual([[], []]);
  expect([a.statements.length, b.statements.length].filter((count) => count > 0)).toHaveLength(1);
});

test('a clock that was ahead and is right again leaves nothing that delays a delete', async () => {
  const device = devices++;
  const gone = host([21]);
  await gone.rounds();
  await insertDeviceTombstone(postgres, device, Date.now());
  await postgres.query(`update tombstones set handed_over = true, recorded_at = recorded_at + interval '1 year'`);
  // The host of this journal stopped at the later time, and a crashed host held the lease.
  await postgres.query(`update journals set heard_at = heard_at + interval '1 year'`);
  await postgres.query(
    `insert into lease (name, holder, until) values ('deletes', 'crashed', clock_timestamp() + interval '1 year')`,
  );
  expect((await readJournals(postgres)).map(({ isLive }) => isLive)).toEqual([false]);
  const here = host([22]);
  await here.rounds();
  const applied = () => postgres.query('select from tombstones where device = $1 and applied_at is not null', [device]);
  expect(await applied()).toHaveLength(0);
  // The lease ends no later than one that is taken now, so its holder may still be at work.
  const soon = `until between clock_timestamp() and clock_timestamp() + interval '1 minute'`;
  expect(await postgres.query(`select from lease where name = 'deletes' and ${soon}`)).toHaveLength(1);
  await postgres.query(`update lease set until = clock_timestamp() where name = 'deletes'`);
  await postgres.query(`update tombstones set recorded_at = clock_timestamp() - interval '10 seconds'`);
  await here.rounds(3);
  expect(await applied()).toHaveLength(1);
});

test('tombstones expire when they were carried out and are old', async () => {
  const here = host([1]);
  await here.rounds();
  expect(await here.remove({ device: devices++, ...all })).toBe('done');
  expect(await expireTombstones(postgres, 1)).toBe(0);
  await postgres.query(`update tombstones set recorded_at = recorded_at - interval '2 days'`);
  expect(await expireTombstones(postgres, 1)).toBe(1);
});

test('a tombstone covers a row by device, key, range and order of its writer', () => {
  const order = orderAt(1_000_000, 1);
  const ahead = orderAt(9_000_000, 2);
  const erased = {
    device: 5,
    keys: ['k'],
    startTs: 10,
    endTs: 20,
    orderNumber: order.toString(),
    aheadWriters: [2],
    aheadOrders: [ahead.toString()],
    latest: 'delete' as const,
  };
  const row = { device: 5, key: 'k', ts: 10, order };
  expect(erasesRow(erased, row)).toBe(true);
  for (const other of [{ device: 6 }, { key: 'l' }, { ts: 20 }, { ts: 9 }, { order: order + (1n << 14n) }]) {
    expect(erasesRow(erased, { ...row, ...other })).toBe(false);
  }
  expect(erasesRow(erased, { ...row, order: ahead })).toBe(true);
  expect(erasesRow(erased, { ...row, order: ahead + (1n << 14n) })).toBe(false);
  expect(erasesRow({ ...erased, keys: null, orderNumber: null }, { ...row, key: 'x', ts: 99, order: ahead * 2n })).toBe(
    true,
  );
});

test('rows that are sent again later come without those that were deleted meanwhile', async () => {
  const [device, other] = [devices++, devices++];
  const order = orderAt(Date.now() - 1000, 1);
  const rows = new Rows();
  const points: [number, number][] = [
    [device, someDay],
    [other, someDay],
    [device, someDay + day],
    [other, someDay + day],
  ];
  for (const [number, ts] of points) {
    rows.addDouble(keyOf('k')!, 1);
    rows.endRecord(number, ts);
  }
  const block = Buffer.concat(rows.encode({ order, micros: 0, firstPlace: 0 }));
  const here = host([1]);
  await here.rounds();
  expect((await withoutErased(postgres, block)).body).toEqual(block);
  expect(await here.remove({ device, ...all, endTs: someDay + 1 })).toBe('done');
  await deleteDevices([other]);
  const replayed = await withoutErased(postgres, Buffer.concat([block, block]));
  expect(replayed.dropped).toBe(6);
  expect(readBlock(replayed.body).map((row) => [row.device, row.ts])).toEqual([
    [device, someDay + day],
    [device, someDay + day],
  ]);
  // A delete that is made and carried out while the rows are in transit.
  expect(await here.remove({ device, ...all })).toBe('done');
  await embedded.clickhouse.insertBlocks(insertTelemetry, replayed.body);
  await embedded.clickhouse.insertBlocks(insertLatest, replayed.body);
  await reopenNewer(postgres, replayed);
  await here.rounds();
  expect(await readable(device)).toEqual([[], []]);
});

test('a delete names the writers whose frames, with orders ahead of the clock, were accepted before it', async () => {
  const device = devices++;
  await postgres.query(
    `insert into tombstones (device, order_number, created_time, applied_at, ahead_writers, ahead_orders)
     values ($1, 100, 0, now(), '{}', '{}'), ($1, 200, 0, now(), '{7,8}', '{700,800}'), ($1, null, 0, now(), '{}', '{}')`,
    [device],
  );
  await reopenCovering(postgres, [device], 900n, [
    { writer: 7, order: 900n, accepted: 99n },
    { writer: 7, order: 950n, accepted: 100n },
    { writer: 9, order: 990n, accepted: 200n },
  ]);
  await reopenCovering(postgres, [device], 300n, [{ writer: 8, order: 300n, accepted: 50n }]);
  const found = await readTombstonesOf(postgres, [device]);
  const named = found.map(({ orderNumber, aheadWriters, aheadOrders }) => [orderNumber, aheadWriters, aheadOrders]);
  expect(named).toEqual(
    expect.arrayContaining([
      ['100', [7, 8], ['900', '300']],
      ['200', [7, 8], ['950', '800']],
      [null, [], []],
    ]),
  );
  await postgres.query('delete from tombstones where device = $1', [device]);
});

test('the deletes that cover a late frame are looked up by an index, also of a device with very many deletes', async () => {
  const device = devices++;
  await postgres.query(
    `insert into tombstones (device, order_number, created_time, applied_at)
     select $1, g, 0, now() from generate_series(1, 20000) as g`,
    [device],
  );
  await postgres.query('analyze tombstones');
  const plans: string[] = [];
  const explained = {
    query: async (text: string, values: unknown[]) => {
      const rows = await postgres.query<Record<string, string>>(`explain analyze ${text}`, values);
      plans.push(rows.map((row) => Object.values(row)[0]).join('\n'));
      return [];
    },
  } as unknown as Queries;
  for (const others of [[], Array.from({ length: 1_000 }, (_, i) => 10_000_000 + i)]) {
    await reopenCovering(explained, [device, ...others], 19_999n);
  }
  for (const plan of plans) {
    expect(plan).toContain('tombstones_by_device_order');
    expect(plan).not.toMatch(/Seq Scan|Rows Removed by Filter: \d{3,}/);
  }
  const open = await postgres.query('select from tombstones where device = $1 and applied_at is null', [device]);
  expect(open).toHaveLength(2);
  await postgres.query('delete from tombstones where device = $1', [device]);
});
