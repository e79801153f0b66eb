/** The tables and the statements that feed them, on the real engine. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type SharedClickHouse, shareTestClickHouse } from '../../test/harness/clickhouse-server.ts';
import { silentLog } from '../../test/harness/silent-log.ts';
import { type ClickHouse, ClickHouseError, openClickHouse } from './client.ts';
import {
  erasedRanges,
  insertLatestPoints,
  markErasedStatement,
  newestPointsQuery,
  notErased,
} from './erase-statements.ts';
import { migrateClickHouse, schemaStatements } from './migrate.ts';
import { insertLatest, insertLatestOf, insertTelemetry } from './statements.ts';

let embedded: SharedClickHouse;

beforeAll(async () => {
  embedded = await shareTestClickHouse();
});

afterAll(() => embedded.stop());

const rows = <T>(sql: string) => embedded.clickhouse.rows<T>(sql);

/** A Native block made by the engine itself. */
async function block(select: string): Promise<Buffer> {
  const { url, password } = embedded.server;
  const response = await fetch(url, {
    method: 'POST',
    body: `${select} FORMAT Native`,
    headers: { 'X-ClickHouse-Key': password },
  });
  expect(response.status).toBe(200);
  return Buffer.from(await response.arrayBuffer());
}

interface Point {
  device?: number;
  key?: string;
  ts: number | string;
  seq?: number;
  num: number;
  order: bigint;
}

const versionOf = ({ ts, order }: Point) => order - BigInt(ts) * 2n ** 20n + 2n ** 63n;
/** Omits the column `seq` when every point has its own `ts`, as Millrace does. */
const pointBlock = (points: Point[]) => {
  const hasSeq = points.some(({ seq }) => seq !== undefined);
  return block(
    points
      .map(
        (point) =>
          `SELECT ${point.device ?? 1}::UInt64 AS device, '${point.key ?? 'k'}'::LowCardinality(String) AS key,
           ${point.ts}::Int64 AS ts, ${hasSeq ? `${point.seq ?? 0}::UInt32 AS seq, ` : ''} 3::UInt8 AS kind, ${point.num}::Float64 AS num, ${versionOf(point)}::UInt64 AS version`,
      )
      .join(' UNION ALL '),
  );
};

async function insert(...bodies: Buffer[]): Promise<void> {
  const body = Buffer.concat(bodies);
  await embedded.clickhouse.insertBlocks(insertTelemetry, body);
  await insertOnlyLatest(body, false);
}

async function insertOnlyLatest(body: Buffer, areSingle: boolean): Promise<void> {
  const serverTimes = body.includes('\x03seq\x06UInt32');
  const sql = insertLatestOf({ serverTimes, expires: false, ranged: false, aheadMsMax: 0, areSingle });
  await embedded.clickhouse.insertBlocks(sql, body);
}

test.each([
  ['rising', 'intDiv(number, 60000) + 5'],
  ['equal', '5'],
])('points of one key in one insert, of %s versions, are one point for a read, and the last', async (kind, version) => {
  const key = `again ${kind}`;
  // More rows than a granule, and each point three times: at its place, at the end, and next to other devices.
  const points = await block(`
    SELECT (number % 3)::UInt64 + 4100 AS device, '${key}'::LowCardinality(String) AS key,
      intDiv(number % 60000, 3)::Int64 AS ts, 3::UInt8 AS kind, intDiv(number, 60000)::Float64 AS num,
      toUInt64(${version}) AS version
    FROM numbers(180000)`);
  await embedded.clickhouse.insertBlocks(insertTelemetry, points);
  for (const settings of ['', 'SETTINGS do_not_merge_across_partitions_select_final = 1']) {
    const read = `FROM telemetry FINAL WHERE key = '${key}'`;
    expect(
      await rows(`SELECT count() AS count, min(num) AS least, uniqExact(ts) AS times ${read} ${settings}`),
    ).toEqual([{ count: '60000', least: 2, times: '20000' }]);
  }
});

test('every parameter is a value', async () => {
  const texts = [
    "it's",
    '\\',
    '\\N',
    "\\'",
    '',
    'a\tb\nc\rd\0e',
    "']), (SELECT 1",
    '{device:UInt64}',
    'ü – 𝄞',
    '%27&param_x=1',
  ];
  for (const text of texts) {
    const [row] = await embedded.clickhouse.rows('SELECT {text:String} AS text, {texts:Array(String)} AS texts', {
      text,
      texts: [text, ...texts],
    });
    expect(row).toEqual({ text, texts: [text, ...texts] });
  }
});

test('blocks with different columns travel in one body', async () => {
  const key = "'mixed'::LowCardinality(String) AS key";
  await insert(
    await block(
      `SELECT 7::UInt64 AS device, ${key}, 1::Int64 AS ts, 3::UInt8 AS kind, 1.5 AS num, 1::UInt64 AS version`,
    ),
    await block(
      `SELECT 7::UInt64 AS device, ${key}, 2::Int64 AS ts, 2::UInt8 AS kind, 0::Float64 AS num,
       9223372036854775807::Int64 AS int, 1::UInt64 AS version`,
    ),
    await block(
      `SELECT 7::UInt64 AS device, ${key}, 3::Int64 AS ts, 4::UInt8 AS kind, 0::Float64 AS num, 0::Int64 AS int,
       'text\n;' AS text, 1::UInt64 AS version`,
    ),
    await block(
      `SELECT 7::UInt64 AS device, ${key}, 4::Int64 AS ts, 3::UInt8 AS kind, 4.5 AS num, 1::UInt64 AS version`,
    ),
  );
  expect(await rows('SELECT ts, kind, num, int, text FROM telemetry FINAL WHERE device = 7 ORDER BY ts')).toEqual([
    { ts: '1', kind: 3, num: 1.5, int: '0', text: '' },
    { ts: '2', kind: 2, num: 0, int: '9223372036854775807', text: '' },
    { ts: '3', kind: 4, num: 0, int: '0', text: 'text\n;' },
    { ts: '4', kind: 3, num: 4.5, int: '0', text: '' },
  ]);
  expect(await rows('SELECT ts, num FROM latest FINAL WHERE device = 7')).toEqual([{ ts: '4', num: 4.5 }]);
});

test('the later write of one ts wins, in any order of arrival', async () => {
  const now = 1_790_000_000_000;
  const order = BigInt(now) << 20n;
  await insert(await pointBlock([{ device: 2, ts: now, num: 2, order: order + 2n }]));
  await insert(await pointBlock([{ device: 2, ts: now, num: 1, order: order + 1n }]));
  const expected = [{ num: 2, order: String(order + 2n) }];
  const read = (table: string) =>
    rows(`SELECT num, toInt64(toInt256(version) + toInt256(ts) * 1048576 - toInt256('9223372036854775808')) AS order
          FROM ${table} FINAL WHERE device = 2`);
  expect(await read('telemetry')).toEqual(expected);
  expect(await read('latest')).toEqual(expected);
});

/** Makes the newest remaining point of key `k` the latest one. */
async function rewriteLatest(clickhouse: ClickHouse, device: number, aheadMsMax: number): Promise<void> {
  const [newest] = await clickhouse.rows<{ versionText: string }>(newestPointsQuery(aheadMsMax), {
    device,
    keys: ['k'],
  });
  const { versionText: version, ...point } = newest!;
  await clickhouse.insertBlocks(insertLatestPoints, Buffer.from(JSON.stringify({ ...point, version })));
}

describe('latest', () => {
  const now = 1_790_000_000_000;
  const order = BigInt(now) << 20n;
  const latest = (device: number) => rows(`SELECT ts, num FROM latest FINAL WHERE device = ${device}`);

  test('leaves out what was too far ahead when it arrived, also in a replay and when it is rewritten', async () => {
    const device = 41;
    const aheadMsMax = 60_000;
    const body = await pointBlock([
      { device, ts: now + aheadMsMax, num: 1, order: order + 0xfffffn },
      { device, ts: now + aheadMsMax + 1, num: 2, order },
      { device, ts: now + 10 * 365 * 86_400_000, num: 3, order },
    ]);
    const statement = (max: number, ranged = false) =>
      insertLatestOf({ serverTimes: false, expires: false, ranged, aheadMsMax: max });
    const all = { fromTs: 0, toTs: Number.MAX_SAFE_INTEGER };
    // The second insert comes long afterwards: the row itself contains how far its time was ahead.
    for (const parameters of [undefined, all]) {
      const sql = statement(aheadMsMax, parameters !== undefined);
      await embedded.clickhouse.insertBlocks(sql, body, parameters && { parameters });
      expect(await latest(device)).toEqual([{ ts: String(now + aheadMsMax), num: 1 }]);
    }
    await embedded.clickhouse.insertBlocks(insertTelemetry, body);
    await embedded.clickhouse.exec(`ALTER TABLE latest DELETE WHERE device = ${device} SETTINGS mutations_sync = 2`);
    await rewriteLatest(embedded.clickhouse, device, aheadMsMax);
    expect(await latest(device)).toEqual([{ ts: String(now + aheadMsMax), num: 1 }]);
    await embedded.clickhouse.insertBlocks(statement(0), body);
    expect(await latest(device)).toMatchObject([{ num: 3 }]);
  });

  test('keeps the greatest ts, not the last arrival, within a body and over bodies, before and after merges', async () => {
    const device = 3;
    await insert(
      await pointBlock([
        { device, ts: now, num: 10, order },
        { device, ts: now - 5, num: 9, order: order + 9n },
      ]),
    );
    await insert(await pointBlock([{ device, ts: now - 1, num: 11, order: order + 100n }]));
    expect(await latest(device)).toEqual([{ ts: String(now), num: 10 }]);
    await embedded.clickhouse.exec('OPTIMIZE TABLE latest FINAL');
    expect(await latest(device)).toEqual([{ ts: String(now), num: 10 }]);
  });

  test('a body of many frames leaves one row of each series: of the last frame the last row of the greatest ts', async () => {
    const key = 'frames';
    const frames = await Promise.all(
      [3, 1, 4, 2].map((frame) =>
        block(`
          SELECT (number % 1000)::UInt64 + 5000 AS device, '${key}'::LowCardinality(String) AS key,
            (1790000000000 + intDiv(number, 20000))::Int64 AS ts, 3::UInt8 AS kind, (${frame} * 1e6 + number)::Float64 AS num,
            toUInt64(${frame}) AS version
          FROM numbers(70000)`),
      ),
    );
    // A merge would remove replaced rows that the insert had left in its part.
    await embedded.clickhouse.exec('SYSTEM STOP MERGES latest');
    try {
      const before = await rows(`SELECT count() AS count FROM latest WHERE key = '${key}'`);
      await insert(...frames);
      const found = `FROM latest WHERE key = '${key}'`;
      expect(before).toEqual([{ count: '0' }]);
      expect(await rows(`SELECT count() AS rows, uniqExact(device) AS series ${found}`)).toEqual([
        { rows: '1000', series: '1000' },
      ]);
      expect(await rows(`SELECT countIf(num != 4e6 + 69000 + device - 5000) AS wrong ${found}`)).toEqual([
        { wrong: '0' },
      ]);
    } finally {
      await embedded.clickhouse.exec('SYSTEM START MERGES latest');
    }
  });

  test('rows that were taken for the only ones of their series, and are not, count as others do', async () => {
    const key = 'single';
    const frames = await Promise.all(
      [2, 1].map((frame) =>
        block(`
          SELECT (number % 500)::UInt64 + 7000 AS device, '${key}'::LowCardinality(String) AS key,
            (1790000000000 + intDiv(number, 1000))::Int64 AS ts, 3::UInt8 AS kind, (${frame} * 1e6 + number)::Float64 AS num,
            toUInt64(${frame}) AS version
          FROM numbers(2000)`),
      ),
    );
    const wrong = `SELECT count() AS series, countIf(num != 2e6 + 1500 + device - 7000) AS wrong FROM latest FINAL WHERE key = '${key}'`;
    await embedded.clickhouse.exec('SYSTEM STOP MERGES latest');
    try {
      await insertOnlyLatest(Buffer.concat(frames), true);
      expect(await rows(`SELECT count() AS count FROM latest WHERE key = '${key}'`)).toEqual([{ count: '4000' }]);
      expect(await rows(wrong)).toEqual([{ series: '500', wrong: '0' }]);
    } finally {
      await embedded.clickhouse.exec('SYSTEM START MERGES latest');
    }
    await embedded.clickhouse.exec('OPTIMIZE TABLE latest FINAL');
    expect(await rows(wrong.replace('FINAL ', ''))).toEqual([{ series: '500', wrong: '0' }]);
  });

  test('orders negative, tiny and far ts', async () => {
    const device = 4;
    const years270 = 8_500_000_000_000;
    const at = async (ts: number, num: number) => {
      await insert(await pointBlock([{ device, ts, num, order: order + BigInt(num) }]));
      return latest(device);
    };
    expect(await at(-years270, 1)).toEqual([{ ts: String(-years270), num: 1 }]);
    expect(await at(-5, 2)).toEqual([{ ts: '-5', num: 2 }]);
    expect(await at(0, 3)).toEqual([{ ts: '0', num: 3 }]);
    expect(await at(now + years270, 4)).toEqual([{ ts: String(now + years270), num: 4 }]);
    expect(await at(now, 5)).toEqual([{ ts: String(now + years270), num: 4 }]);
    expect(await rows(`SELECT ts FROM telemetry FINAL WHERE device = ${device} ORDER BY ts`)).toHaveLength(5);
  });
});

test('points with odd clocks share one partition, and many days in one body are taken', async () => {
  const days = await block(
    `SELECT 5::UInt64 AS device, 'k'::LowCardinality(String) AS key, (number * 86400000 - 300 * 86400000)::Int64 AS ts,
     3::UInt8 AS kind, 1::Float64 AS num, 1::UInt64 AS version FROM numbers(600)`,
  );
  const recent = await block(
    `SELECT 5::UInt64 AS device, 'k'::LowCardinality(String) AS key, (1700000000000 + number * 86400000)::Int64 AS ts,
     3::UInt8 AS kind, 1::Float64 AS num, 1::UInt64 AS version FROM numbers(150)`,
  );
  await insert(days, recent);
  const [counted] = await rows<{ partitions: string }>(
    `SELECT uniqExact(partition) AS partitions FROM system.parts
     WHERE database = currentDatabase() AND table = 'telemetry' AND active AND partition != '0' AND partition < '20250000'`,
  );
  expect(counted).toEqual({ partitions: '150' });
  expect(await rows('SELECT count() AS n FROM telemetry FINAL WHERE device = 5')).toEqual([{ n: '750' }]);
});

test('a part of many rows is one file, not one for each column', async () => {
  await embedded.clickhouse.exec(`INSERT INTO telemetry (device, key, ts, kind, num, version)
    SELECT 6, 'k', 1700000000000 + number, 3, number, 1 FROM numbers(500000) SETTINGS max_insert_block_size = 500000`);
  const parts = await rows(`SELECT DISTINCT part_type FROM system.parts
    WHERE database = currentDatabase() AND table = 'telemetry' AND active AND rows > 400000`);
  expect(parts).toEqual([{ part_type: 'Compact' }]);
  expect(await rows('SELECT count() AS n FROM telemetry FINAL WHERE device = 6')).toEqual([{ n: '500000' }]);
});

describe('errors are sorted by what helps', () => {
  const failure = async (action: Promise<unknown>) => {
    const error = await action.then(
      () => undefined,
      (thrown: unknown) => thrown,
    );
    expect(error).toBeInstanceOf(ClickHouseError);
    const { code, kind, transient } = error as ClickHouseError;
    return { code, kind, transient };
  };

  test('content, size, transient', async () => {
    const { clickhouse } = embedded;
    const bad = clickhouse.insertBlocks('INSERT INTO telemetry (device) FORMAT CSV', Buffer.from('x\n'));
    expect(await failure(bad)).toEqual({ code: 117, kind: 'content', transient: false });
    const large = clickhouse.rows(
      'SELECT groupArray(number) FROM numbers(100000000)',
      {},
      { settings: { max_memory_usage: '50000000' } },
    );
    expect(await failure(large)).toEqual({ code: 241, kind: 'size', transient: false });
    const late = clickhouse.rows('SELECT sleep(3)', {}, { timeoutMs: 200 });
    expect(await failure(late)).toEqual({ code: 0, kind: 'transient', transient: true });
    const away = openClickHouse({ url: 'http://127.0.0.1:9', user: 'u', password: 'p', database: 'd', log: silentLog });
    expect(await failure(away.rows('SELECT 1'))).toEqual({ code: 0, kind: 'transient', transient: true });
    expect(await away.ping()).toBe(false);
    await away.close();
  });
});

describe('migrations', () => {
  const options = { cluster: '', log: silentLog };

  test('two hosts at once, and again, come to the same', async () => {
    const { url, user, password } = embedded.server;
    const database = 'twice';
    const both = openClickHouse({ url, user, password, database, log: silentLog });
    await Promise.all([
      migrateClickHouse(both, { ...options, database }),
      migrateClickHouse(both, { ...options, database }),
    ]);
    await migrateClickHouse(both, { ...options, database });
    expect(await both.rows('SELECT version, name FROM schema_migrations FINAL ORDER BY version')).toEqual([
      { version: 1, name: 'telemetry' },
      { version: 2, name: 'device_metadata' },
      { version: 3, name: 'latest_is_read' },
      { version: 4, name: 'boolean_attributes' },
      { version: 5, name: 'server_time' },
      { version: 6, name: 'late_ms' },
      { version: 7, name: 'expiring_devices' },
      { version: 8, name: 'expires' },
      { version: 9, name: 'fewer_files' },
      { version: 10, name: 'records' },
      { version: 11, name: 'latest_merges' },
    ]);
    await both.close();
  });

  test('tables made before points at server time had columns of their own still work, also with writers of that time', async () => {
    const { url, user, password } = embedded.server;
    const database = 'older';
    const older = openClickHouse({ url, user, password, database, log: silentLog });
    const run = (sql: string) => older.exec(sql, {}, { withoutDatabase: true });
    await run(`CREATE DATABASE ${database}`);
    const before = schemaStatements({ database, cluster: '' }).filter((sql) => !/\b(seq|late_ms)\b/.test(sql));
    for (const sql of before) await run(sql);
    await run(`CREATE TABLE ${database}.schema_migrations
      (version UInt32, name String, applied DateTime64(3) DEFAULT now64(3)) ENGINE = ReplacingMergeTree ORDER BY version`);
    await run(`INSERT INTO ${database}.schema_migrations (version, name) SELECT number + 1, 'x' FROM numbers(4)`);
    const now = 1_790_000_000_000;
    const columns = 'device, key, ts, kind, num, int, text, version';
    const version = (order: bigint, ts = now) => versionOf({ ts, num: 0, order });
    const order = BigInt(now) << 20n;
    const earlier = async (num: number, ts: number, at: bigint) => {
      for (const table of ['telemetry', 'latest']) {
        await older.exec(
          `INSERT INTO ${table} (${columns}) VALUES (1, 'k', ${ts}, 3, ${num}, 0, '', ${version(at, ts)})`,
        );
      }
    };
    await earlier(1, now - 1, order);
    await earlier(2, now, order);
    await older.exec('OPTIMIZE TABLE telemetry FINAL');

    await migrateClickHouse(older, { ...options, database });
    expect(await older.rows('SELECT late_ms FROM telemetry FINAL ORDER BY ts')).toEqual([
      { late_ms: '1' },
      { late_ms: '0' },
    ]);
    await earlier(3, now, order + 1n);
    const history = () =>
      older.rows(`SELECT num FROM telemetry FINAL WHERE ${notErased} ORDER BY device, key, ts, seq, origin`);
    const latest = async () => (await older.rows<{ num: number }>('SELECT num FROM latest FINAL'))[0]!.num;
    expect(await history()).toEqual([{ num: 1 }, { num: 3 }]);
    expect(await latest()).toBe(3);
    const later = async (...points: Point[]) => {
      const body = await pointBlock(points.map((point) => ({ ...point, ts: now })));
      await older.insertBlocks(insertTelemetry, body);
      await older.insertBlocks(insertLatest, body);
    };
    // For one ts: the largest seq, then the later write, in any order of arrival; a repeated one counts once.
    await later({ ts: now, seq: 300, num: 6, order: order + 2n }, { ts: now, seq: 200, num: 4, order: order + 2n });
    await later({ ts: now, seq: 200, num: 5, order: order + 3n });
    await later({ ts: now, seq: 200, num: 4, order: order + 2n });
    for (const optimize of [false, true]) {
      if (optimize) for (const table of ['telemetry', 'latest']) await older.exec(`OPTIMIZE TABLE ${table} FINAL`);
      expect(await history()).toEqual([1, 3, 4, 5, 6].map((num) => ({ num })));
      expect(await latest()).toBe(6);
    }
    await earlier(7, now, order + 4n);
    expect(await history()).toEqual([1, 7, 4, 5, 6].map((num) => ({ num })));
    expect(await latest()).toBe(6);
    await earlier(8, now + 1, order + 5n);
    expect(await latest()).toBe(8);
    const erased = { device0: 1, allKeys0: 1, keys0: [], startTs0: now, endTs0: now + 2, order0: String(order + 2n) };
    await older.exec(markErasedStatement(erasedRanges(1)), {
      ...{ ...erased, aheadWriters0: '[-1]', aheadOrders0: '[0]' },
      ...{ first: now, last: now + 2 },
    });
    expect(await history()).toEqual([1, 7, 5, 8].map((num) => ({ num })));
    await older.exec('TRUNCATE TABLE latest');
    await rewriteLatest(older, 1, 0);
    expect(await latest()).toBe(8);
    await older.exec(`DELETE FROM telemetry WHERE ts > ${now}`);
    await older.exec('TRUNCATE TABLE latest');
    await rewriteLatest(older, 1, 0);
    expect(await latest()).toBe(5);
    await older.close();
  });

  test('for a cluster the same files make replicated and distributed tables', async () => {
    const statements = schemaStatements({ database: 'millrace', cluster: 'main' });
    for (const sql of statements) {
      // The engine parses them; there is no cluster here to run them on.
      const [row] = await embedded.clickhouse.rows<{ text: string }>('SELECT formatQuery({sql:String}) AS text', {
        sql,
      });
      expect(row?.text).toMatch(/ON CLUSTER main/);
    }
    expect(
      statements.filter((sql) => /ENGINE = ReplicatedReplacingMergeTree\('.*', '\{replica\}', \w+\)/.test(sql)),
    ).toHaveLength(4);
    expect(statements.filter((sql) => /ENGINE = Distributed\('main', 'millrace', '\w+_local'/.test(sql))).toHaveLength(
      5,
    );
    const alters = statements.filter((sql) => /^ALTER TABLE millrace.\w+_local ON CLUSTER 'main'/.test(sql));
    expect(alters).toHaveLength(10);
    // The tables for reading and writing in a cluster have these columns as well.
    const through = statements.filter((sql) => /^ALTER TABLE millrace.\w+(?<!_local) ON CLUSTER 'main'/.test(sql));
    expect(through).toHaveLength(4);
    expect(schemaStatements({ database: 'millrace', cluster: '' })).toHaveLength(5 + alters.length);
  });

  test('a table of an earlier version loses its own rule about old days', async () => {
    const { url, user, password } = embedded.server;
    const database = 'aging';
    const aging = openClickHouse({ url, user, password, database, log: silentLog });
    const old = await pointBlock([
      { ts: 1_600_000_000_000, num: 1, order: 1n },
      { ts: Date.now(), num: 2, order: 1n << 60n },
    ]);
    await migrateClickHouse(aging, { ...options, database });
    await aging.exec(
      `ALTER TABLE telemetry MODIFY TTL toDateTime(intDiv(ts, 1000)) + INTERVAL 7 DAY
       SETTINGS materialize_ttl_after_modify = 0`,
    );
    await migrateClickHouse(aging, { ...options, database });
    await aging.insertBlocks(insertTelemetry, old);
    await aging.exec('OPTIMIZE TABLE telemetry FINAL');
    expect(await aging.rows('SELECT num FROM telemetry FINAL ORDER BY num')).toEqual([{ num: 1 }, { num: 2 }]);
    const [table] = await aging.rows<{ sql: string }>(
      "SELECT create_table_query AS sql FROM system.tables WHERE database = 'aging' AND name = 'telemetry'",
    );
    expect(table?.sql).not.toMatch(/\bTTL\b/);
    await aging.close();
  });
});

test('a sensor-like series takes at most 3 bytes a point', async () => {
  const { clickhouse } = embedded;
  await clickhouse.exec('CREATE TABLE sensors AS telemetry');
  const series = 40;
  const steps = 10_000;
  // Random walks of one decimal, every 5 s; they arrive after 3 to 22 ms in one of three frames of that millisecond.
  await clickhouse.exec(`
    INSERT INTO sensors (device, key, ts, kind, num, version)
    SELECT device, key, ts, 3, round(20 + sum(step) OVER (PARTITION BY device, key ORDER BY ts), 1),
           toUInt64(toInt256(order) - toInt256(ts) * 1048576 + toInt256('9223372036854775808'))
    FROM (
      SELECT intDiv(number, ${steps} * 4) AS device, ['temperature', 'humidity', 'pressure', 'voltage'][1 + number % 4] AS key,
             intDiv(number, 4) % ${steps} AS step_number,
             1789900000000 + step_number * 5000 AS ts,
             (toInt256(ts) + 3 + cityHash64(device, step_number, 1) % 20) * 1048576 + (cityHash64(device, step_number, 2) % 3) * 16384 + 5 AS order,
             (toInt64(cityHash64(number, 'walk') % 7) - 3) / 10 AS step
      FROM numbers(${series} * ${steps})
    )`);
  await clickhouse.exec('OPTIMIZE TABLE sensors FINAL');
  const [size] = await rows<{ n: string; bytes: number }>(
    "SELECT sum(rows) AS n, sum(bytes_on_disk) / sum(rows) AS bytes FROM system.parts WHERE database = currentDatabase() AND table = 'sensors' AND active",
  );
  expect(size?.n).toBe(String(series * steps));
  expect(size?.bytes).toBeLessThan(3);
});
