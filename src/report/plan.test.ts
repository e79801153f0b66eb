/**
 * Queries of reports on the real engine, against plain JavaScript over the same random points. Every third report, and
 * in long runs every report, is also made over two shards, which are databases of one engine, and must be the same.
 */
import { randomUUID } from 'node:crypto';
import fc from 'fast-check';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type SharedClickHouse, shareTestClickHouse } from '../../test/harness/clickhouse-server.ts';
import { referenceSeries } from '../../test/harness/completeness-reference.ts';
import { Random } from '../../test/harness/random.ts';
import { dateCell, type RefCell, type RefPoint, referenceReport } from '../../test/harness/report-reference.ts';
import { bucketCount } from '../clickhouse/shards.ts';
import { type DateGrouping, dateGroupings, type GroupBy } from './dates.ts';
import type { Expired } from './expired-store.ts';
import { type Plan, planReport } from './plan.ts';
import { dropTables, gatherPoints } from './spread-points.ts';
import { spreadTables } from './spread-statements.ts';
import { type Cell, type ResultRow, tableOf } from './table.ts';
import { type Field, type Filter, latenessAggregations, reportAggregations, type ViewDefinition } from './view.ts';

let embedded: SharedClickHouse;
/** The shard of devices with an odd number. Their points are in `embedded` too, as before a move is cleaned up. */
let odd: SharedClickHouse;
let lastDevice = 0;
let reports = 0;

beforeAll(async () => {
  [embedded, odd] = await Promise.all([shareTestClickHouse(), shareTestClickHouse()]);
});

afterAll(() => Promise.all([embedded.stop(), odd.stop()]));

const sites = ['North', 'East', 'North', ''];
const keys = ['flow', "or'1"];
const manyPoints = 2_000_000;

/** A tenant of its own with four devices; `points` name them 0 to 3. */
async function store(points: RefPoint[]): Promise<{ tenantId: string; points: RefPoint[] }> {
  const tenantId = randomUUID();
  const first = lastDevice + 1;
  lastDevice += sites.length;
  const devices = sites.map((_, n) => ({
    ...{ device: first + n, tenant: tenantId, id: randomUUID(), name: `device-${n}`, label: n % 2 ? '' : `L${n}` },
    ...{ profile: n < 2 ? 'pump' : 'valve', owner: '', deleted: 0, version: 1 },
  }));
  const attributes = sites.flatMap((text, n) =>
    text === '' ? [] : [{ scope: 3, key: 'site', device: first + n, kind: 4, text, deleted: 0, version: 1 }],
  );
  const rows = points.map(({ device, key, ts, value, late = 0 }, n) => ({
    device: first + device,
    key,
    ts,
    ...columnsOf(value),
    version: String(((BigInt(late) + 2n ** 43n) << 20n) + BigInt(n)),
  }));
  await insert('device_metadata', devices);
  await insert('device_attribute', attributes);
  await insert('telemetry', rows);
  await insert(
    'telemetry',
    rows.filter(({ device }) => device % 2 === 1),
    odd,
  );
  // A later write of the same moment replaces the earlier one.
  const byArrival = points.map((point) => ({ point, late: point.late ?? 0 }));
  byArrival.sort((a, b) => a.late - b.late);
  const last = new Map(byArrival.map(({ point }) => [`${point.device} ${point.key} ${point.ts}`, point]));
  return { tenantId, points: [...last.values()] };
}

function columnsOf(value: RefPoint['value']) {
  const none = { num: 0, int: '0', text: '' };
  if (typeof value === 'boolean') return { ...none, kind: 1, int: value ? '1' : '0' };
  if (typeof value === 'bigint') return { ...none, kind: 2, int: String(value) };
  if (typeof value === 'number') return { ...none, kind: 3, num: value };
  if (typeof value === 'string') return { ...none, kind: 4, text: value };
  return { ...none, kind: 5, text: value.json };
}

async function insert(table: string, rows: object[], { clickhouse } = embedded): Promise<void> {
  if (rows.length === 0) return;
  const body = Buffer.from(rows.map((row) => JSON.stringify(row)).join('\n'));
  await clickhouse.insertBlocks(`INSERT INTO ${table} (${Object.keys(rows[0]!)}) FORMAT JSONEachRow`, body);
}

async function run(
  definition: Partial<ViewDefinition>,
  of: { tenantId: string; startTs: number; endTs: number; now?: number; rowsMax?: number; expired?: Expired },
  memoryBytesMax?: number,
) {
  const whole: ViewDefinition = {
    type: 'TABLE',
    scope: { deviceProfiles: [], deviceIds: [] },
    fields: [],
    timeRange: { type: 'FIXED', startTs: 0, endTs: 1 },
    groupBy: null,
    timeZone: 'UTC',
    filters: [],
    sort: [],
    limit: null,
    ...definition,
  };
  const input = {
    now: Date.now(),
    rowsMax: 10_000,
    expired: { profiles: [] },
    ...of,
    ownDevices: null,
    definition: whole,
  };
  const plan = planReport(input);
  const settings = {
    do_not_merge_across_partitions_select_final: 1,
    max_query_size: '4194304',
    readonly: '2',
  } as const;
  const rowsOf = async ({ sql, parameters }: Plan): Promise<{ labels: string[]; rows: Cell[][] }> => {
    const memory = memoryBytesMax === undefined ? {} : { max_memory_usage: String(memoryBytesMax) };
    const result = await embedded.clickhouse.rows<ResultRow>(sql, parameters, { settings: { ...settings, ...memory } });
    const { labels, rows } = tableOf(plan, result);
    return { labels, rows: [...rows] };
  };
  const table = await rowsOf(plan);
  reports += 1;
  if (memoryBytesMax === undefined && (runs !== undefined || reports % 3 === 0)) {
    const tables = spreadTables(`report-${randomUUID()}`);
    const spread = planReport({ ...input, tables });
    const servers = [embedded.clickhouse, odd.clickhouse];
    const shardOf = Uint8Array.from({ length: bucketCount }, (_, bucket) => bucket % 2);
    await gatherPoints(spread, { servers, shardOf, step: (_, step) => step({ timeoutMs: 30_000, settings }) });
    expect(await rowsOf(spread)).toEqual(table);
    await dropTables(tables, servers, 30_000);
  }
  return table;
}

/** Moments at which clocks are moved, in zones that do it differently: whole and half hours, at midnight, never. */
const zones: Record<string, number[]> = {
  UTC: [Date.UTC(2025, 11, 31, 12)],
  'Europe/Kyiv': [Date.UTC(2025, 9, 26, 1), Date.UTC(2026, 2, 29, 1)],
  'America/New_York': [Date.UTC(2025, 10, 2, 6), Date.UTC(2024, 2, 10, 7)],
  'Australia/Lord_Howe': [Date.UTC(2025, 3, 5, 15), Date.UTC(2025, 9, 4, 15, 30)],
  'America/Sao_Paulo': [Date.UTC(2018, 1, 18, 2), Date.UTC(2018, 10, 4, 3)],
  'Asia/Kathmandu': [Date.UTC(1985, 11, 31, 18, 30), Date.UTC(1970, 0, 1)],
};

const value = fc.oneof(
  { weight: 4, arbitrary: fc.integer({ min: -40, max: 400 }).map((n) => n / 4) },
  { weight: 4, arbitrary: fc.integer({ min: -5, max: 100 }).map(BigInt) },
  // Sums of these with quarters are exact, in any order of addition.
  { weight: 1, arbitrary: fc.bigInt({ min: -(2n ** 44n), max: 2n ** 44n }) },
  { weight: 1, arbitrary: fc.boolean() },
  { weight: 1, arbitrary: fc.constantFrom('man', 'auto', '5', '') },
  { weight: 1, arbitrary: fc.constantFrom({ json: '{"a":1}' }, { json: '[]' }) },
);
const distance = fc.oneof(
  fc.integer({ min: -3 * 3_600_000, max: 3 * 3_600_000 }),
  fc.integer({ min: -36, max: 36 }).map((hours) => hours * 3_600_000),
  // Far apart, but on few days: each day is a separate part.
  fc.tuple(fc.constantFrom(-95, -60, 33, 48), fc.nat(86_399_999)).map(([days, ms]) => days * 86_400_000 + ms),
);
const late = fc.oneof(
  fc.integer({ min: -3000, max: 20 }),
  fc.integer({ min: 0, max: 30 * 86_400_000 }),
  fc.constant(-(2 ** 42)),
);
const data = fc.constantFrom(...Object.keys(zones)).chain((zone) =>
  fc.record({
    zone: fc.constant(zone),
    around: fc.constantFrom(...zones[zone]!),
    points: fc.array(fc.record({ device: fc.nat(3), key: fc.constantFrom(...keys), distance, value, late }), {
      minLength: 20,
      maxLength: 80,
      size: 'max',
    }),
    startsBefore: fc.constantFrom(86_400_000, 40 * 86_400_000, 100 * 86_400_000),
    excluded: fc.constantFrom<string[]>([], ['North'], ['-']),
  }),
);

const site: Field = { label: 'Site', source: 'ATTRIBUTE', attributeScope: 'SERVER_SCOPE', key: 'site', role: 'ROW' };

const groupings: [DateGrouping, GroupBy | null][] = [
  ...dateGroupings.map((grouping): [DateGrouping, GroupBy | null] => [grouping, null]),
  ...(
    [
      ['MINUTE', 1],
      ['MINUTE', 30],
      ['HOUR', 1],
      ['HOUR', 6],
      ['DAY', 1],
      ['DAY', 3],
      ['WEEK', 1],
      ['WEEK', 2],
      ['MONTH', 1],
      ['MONTH', 3],
      ['YEAR', 1],
    ] as const
  ).map(([unit, amount]): [DateGrouping, GroupBy | null] => ['RAW', { unit, amount }]),
];

/**
 * The same draw each time, for each third grouping, every aggregation of one key. REPORT_RUNS=8 makes that many new
 * draws for each grouping, of both keys (`test/long/report-plans.test.ts`).
 */
const runs = process.env['REPORT_RUNS'];
const tried = groupings.filter((_, index) => runs !== undefined || index % 3 === 0);
const draws = runs === undefined ? { numRuns: 1, seed: 42 } : { numRuns: Number(runs), endOnFailure: true };

type PointValue = { source: 'TELEMETRY' | 'LATENESS'; key: string; aggregation: NonNullable<Field['aggregation']> };

function valuesOf(index: number): PointValue[] {
  const all = keys.flatMap((key): PointValue[] => [
    ...reportAggregations.map((aggregation) => ({ source: 'TELEMETRY' as const, key, aggregation })),
    ...latenessAggregations.map((aggregation) => ({ source: 'LATENESS' as const, key, aggregation })),
  ]);
  return runs === undefined ? all.filter(({ key }) => key === keys[index % keys.length]) : all;
}

test.each(tried.map(([dateGrouping, groupBy], index) => ({ dateGrouping, groupBy, index })))(
  'every aggregation by $dateGrouping $groupBy',
  async ({ dateGrouping, groupBy, index }) => {
    const values = valuesOf(index);
    const date: Field = { label: 'Date', source: 'DATE', dateGrouping, role: 'ROW' };
    await fc.assert(
      fc.asyncProperty(data, async ({ zone, around, points, startsBefore, excluded }) => {
        const moments = points.map(({ distance, ...point }) => ({ ...point, ts: around + distance }));
        const stored = await store(moments);
        const range = { startTs: around - startsBefore, endTs: around + 50 * 86_400_000 };
        const filters: Filter[] = [{ ...site, name: 'site', operation: 'NOT_IN', values: excluded }];
        const view = { groupBy, timeZone: zone, filters };
        const siteOf = ({ device }: RefPoint) => sites[device] || '-';
        const dateOf = ({ ts }: RefPoint) => dateCell(ts, { grouping: dateGrouping, groupBy }, zone);
        const of = { ...range, values, keep: (point: RefPoint) => !excluded.includes(siteOf(point)) };
        const fields = values.map((of, n): Field => ({ label: `v${n}`, role: 'VALUE', ...of }));

        const flat = await run({ ...view, fields: [site, date, ...fields] }, { ...stored, ...range });
        const expected = referenceReport(stored.points, {
          ...of,
          row: (p) => [siteOf(p), dateOf(p)],
          column: () => '',
        });
        expectTable(flat, 2, expected, (label) => ` ${label.slice(1)}`);

        const pivotFields: Field[] = [date, { ...site, role: 'COLUMN' }, ...fields];
        const pivot = await run({ ...view, fields: pivotFields }, { ...stored, ...range });
        const pivoted = referenceReport(stored.points, { ...of, row: (p) => [dateOf(p)], column: siteOf });
        expectTable(pivot, 1, pivoted, (label) => label.replace(/ v(\d+)$/, ' $1'));
      }),
      draws,
    );
  },
  90_000,
);

/** A series that keeps its interval, nearly, with lost points and one long hole; or one that has none. */
function timesOf(random: Random, from: number, to: number): number[] {
  const interval = random.pick([11 * 60_000, 20 * 60_000, 3_600_000, 7 * 3_600_000, 86_400_000]);
  const [jitter, lost] = [random.pick([0, 0.05, 0.2, 0.45]), random.pick([0, 0.1, 0.3, 0.6])];
  const hole = { from: random.between(from, to), ms: random.pick([0, 3, 100]) * interval };
  const times: number[] = [];
  for (let due = from + random.below(interval); due < to; due += interval) {
    if (random.next() < lost || (due >= hole.from && due < hole.from + hole.ms)) continue;
    times.push(Math.round(due + random.between(-jitter, jitter) * interval));
  }
  return random.next() < 0.15 ? times.map(() => random.below(to - from) + from) : times;
}

const completed = groupings.filter((_, index) => index % (runs === undefined ? 12 : 3) === 1);

test.each([...completed, undefined])('completeness by %o', async (grouping) => {
  const draw = fc.record({ zone: fc.constantFrom(...Object.keys(zones)), seed: fc.integer({ min: 0 }) });
  await fc.assert(
    fc.asyncProperty(draw, async ({ zone, seed }) => {
      const random = new Random(seed);
      const length = random.pick([3, 40, 200]) * 3_600_000;
      const startTs = random.pick(zones[zone]!) - random.below(length);
      const range = { startTs, endTs: startTs + length, now: startTs + random.pick([0.4, 1.2, 50]) * length };
      const firstTs = startTs - random.pick([0.5, 20]) * 86_400_000;
      const drawn = sites.flatMap((_, device) => {
        const last = random.next() < 0.3 ? startTs - 36 * 3_600_000 : range.endTs + 20 * 3_600_000;
        return timesOf(random, firstTs, Math.max(firstTs, last)).map((ts) => ({ device, key: 'flow', ts, value: 1n }));
      });
      const stored = await store(drawn);
      const expected = new Map<string, { present: number; missing: number }>();
      for (const [device, series] of referenceSeries(stored.points, range)) {
        for (const kind of ['present', 'missing'] as const) {
          for (const ts of series[kind]) {
            const date = grouping && dateCell(ts, { grouping: grouping[0], groupBy: grouping[1] }, zone);
            const row = JSON.stringify([sites[device] || '-', ...(date === undefined ? [] : [date])]);
            const group = expected.get(row) ?? { present: 0, missing: 0 };
            expected.set(row, group);
            if (series.interval !== undefined) group[kind] += 1;
          }
        }
      }
      const complete: Field = { label: 'v0', source: 'COMPLETENESS', key: 'flow', role: 'VALUE' };
      const dates: Field[] = grouping
        ? [{ label: 'Date', source: 'DATE', dateGrouping: grouping[0], role: 'ROW' }]
        : [];
      const view = { groupBy: grouping?.[1] ?? null, timeZone: zone, fields: [site, ...dates, complete] };
      const table = await run(view, { ...stored, ...range });
      const shares = [...expected].map(([row, { present, missing }]): [string, Map<string, RefCell>] => {
        const share = present + missing === 0 ? [] : [['', present / (present + missing)] as const];
        return [row, new Map(share)];
      });
      expectTable(table, 1 + dates.length, new Map(shares), () => '');
    }),
    { numRuns: runs === undefined ? 4 : Number(runs), ...(runs === undefined && { seed: 7 }), endOnFailure: true },
  );
});

test('rows are sorted and cut: numbers before texts, what is empty last, ties by the row', async () => {
  const { tenantId } = await store([
    { device: 0, key: 'flow', ts: 1000, value: 5n },
    { device: 1, key: 'flow', ts: 1000, value: 40.5 },
    { device: 2, key: 'flow', ts: 1000, value: 'stuck' },
    { device: 3, key: 'flow', ts: 1000, value: 40.5 },
  ]);
  const name: Field = { label: 'Name', source: 'ENTITY_FIELD', key: 'name', role: 'ROW' };
  const flow = (aggregation: Field['aggregation']): Field =>
    ({ label: 'flow', source: 'TELEMETRY', key: 'flow', role: 'VALUE', aggregation }) as Field;
  const names = async (definition: Partial<ViewDefinition>, rowsMax = 10) =>
    (await run(definition, { tenantId, startTs: 0, endTs: 2000, rowsMax })).rows.map(([cell]) => cell);
  const by = (label: string, order: 'ASC' | 'DESC') => [{ label, order }];
  const [a, b, c, d] = [0, 1, 2, 3].map((n) => `device-${n}`);
  expect(await names({ fields: [name, flow('SUM')] })).toEqual([a, b, c, d]);
  expect(await names({ fields: [name, flow('SUM')], sort: by('Name', 'DESC') })).toEqual([d, c, b, a]);
  expect(await names({ fields: [name, flow('SUM')], sort: by('flow', 'ASC') })).toEqual([a, b, d, c]);
  expect(await names({ fields: [name, flow('SUM')], sort: by('flow', 'DESC') })).toEqual([b, d, a, c]);
  expect(await names({ fields: [name, flow('LATEST')], sort: by('flow', 'ASC') })).toEqual([a, b, d, c]);
  // One row above the limit shows that there are more.
  expect(await names({ fields: [name, flow('SUM')] }, 2)).toEqual([a, b, c]);
});

test('filters compare numbers as numbers and texts as texts', async () => {
  const { tenantId } = await store(
    [5n, 40.5, 100n, true, '7', 'auto'].map((value, n) => ({ device: 0, key: 'flow', ts: n * 3_600_000, value })),
  );
  const flow: Field = { label: 'flow', source: 'TELEMETRY', key: 'flow', role: 'VALUE', aggregation: 'COUNT' };
  const count = async (filter: Partial<Filter>) => {
    const filters = [{ name: 'f', source: 'TELEMETRY', key: 'flow', ...filter } as Filter];
    const { rows } = await run({ fields: [flow], filters }, { tenantId, startTs: 0, endTs: 86_400_000 });
    return rows.length === 0 ? 0 : Number((rows[0]![0] as { exact: string }).exact);
  };
  expect(await count({ operation: 'GT', values: ['9'] })).toBe(2);
  expect(await count({ operation: 'LTE', values: ['40.50'] })).toBe(3);
  expect(await count({ operation: 'IN', values: ['40.5', 'true', '1e2'] })).toBe(2);
  expect(await count({ operation: 'NOT_IN', values: ['5', 'auto'] })).toBe(4);
  expect(await count({ operation: 'EQ', values: [] })).toBe(6);
  expect(await count({ operation: 'CONTAINS', values: ['UT', '0'] })).toBe(3);
  const hours = { source: 'DATE', dateGrouping: 'HOUR' } as const;
  expect(await count({ ...hours, operation: 'GTE', values: ['2'] })).toBe(4);
  expect(await count({ ...hours, operation: 'NOT_IN', values: ['2', 'x'] })).toBe(5);
  const dates = { source: 'DATE', dateGrouping: 'FULL_HOUR' } as const;
  expect(await count({ ...dates, operation: 'LT', values: ['1970-01-01 01:30'] })).toBe(2);
  expect(await count({ ...dates, operation: 'IN', values: ['1970-01-01 03', '1970-01-01 03:30'] })).toBe(1);
});

test('expired points are left out, by the profile and by the installation, also as the beginning of a step', async () => {
  // Devices 0 and 1 are pumps, 2 and 3 valves.
  const { tenantId } = await store(
    [0, 2].flatMap((device) => [1n, 10n, 100n].map((value, n) => ({ device, key: 'flow', ts: n * 1000, value }))),
  );
  const name: Field = { label: 'Name', source: 'ENTITY_FIELD', key: 'name', role: 'ROW' };
  const sums = async (aggregation: 'SUM' | 'DELTA', startTs: number, expired: Expired) => {
    const flow = { label: 'flow', source: 'TELEMETRY', key: 'flow', role: 'VALUE', aggregation } as Field;
    const { rows } = await run({ fields: [name, flow] }, { tenantId, startTs, endTs: 5000, expired });
    return rows.map(([device, cell]) => `${String(device)} ${(cell as { exact: string }).exact}`);
  };
  const pumps = { profiles: [{ before: 1000, names: ['pump', 'other'] }] };
  expect(await sums('SUM', 0, pumps)).toEqual(['device-0 110', 'device-2 111']);
  expect(await sums('SUM', 0, { before: 1000, profiles: [] })).toEqual(['device-0 110', 'device-2 110']);
  expect(await sums('DELTA', 1000, { profiles: [] })).toEqual(['device-0 99', 'device-2 99']);
  expect(await sums('DELTA', 1000, pumps)).toEqual(['device-0 90', 'device-2 99']);
  expect(await sums('DELTA', 0, { before: 1000, profiles: [] })).toEqual(['device-0 90', 'device-2 90']);
});

test('DELTA needs at most a hundred bytes of memory for each point', async () => {
  const { tenantId } = await store([]);
  const first = lastDevice - sites.length + 1;
  await embedded.clickhouse.exec(
    `INSERT INTO telemetry (device, key, ts, kind, num, int, text, version)
     SELECT ${first} + number % 4, 'flow', intDiv(number, 4) * 1000, 3, intDiv(number, 4), 0, '', 1 FROM numbers(${manyPoints})`,
  );
  const name: Field = { label: 'Name', source: 'ENTITY_FIELD', key: 'name', role: 'ROW' };
  const flow: Field = { label: 'flow', source: 'TELEMETRY', key: 'flow', role: 'VALUE', aggregation: 'DELTA' };
  const whole = { tenantId, startTs: 0, endTs: 250 * manyPoints };
  const { rows } = await run({ fields: [name, flow] }, whole, 100 * manyPoints);
  expect(rows.map(([, steps]) => Number((steps as { exact?: string }).exact ?? steps))).toEqual(
    Array(4).fill(manyPoints / 4 - 1),
  );
});

test('a report without devices needs no memory for each device and hour', async () => {
  const { tenantId } = await store([]);
  const [first, devices, hours] = [1_000_000_000, 300_000, 8];
  await embedded.clickhouse.exec(
    `INSERT INTO device_metadata (device, tenant, id, name, label, profile, owner, deleted, version)
     SELECT ${first} + number, '${tenantId}', generateUUIDv4(), toString(number), '', 'pump', '', 0, 1 FROM numbers(${devices})`,
  );
  await embedded.clickhouse.exec(
    `INSERT INTO telemetry (device, key, ts, kind, num, int, text, version)
     SELECT ${first} + intDiv(number, ${hours}), 'flow', (number % ${hours}) * 3600000, 2, 0, 1, '', 1
     FROM numbers(${devices * hours})`,
  );
  const hour: Field = { label: 'Hour', source: 'DATE', dateGrouping: 'HOUR', role: 'ROW' };
  const flow: Field = { label: 'flow', source: 'TELEMETRY', key: 'flow', role: 'VALUE', aggregation: 'AVG' };
  const { rows } = await run(
    { fields: [hour, flow] },
    { tenantId, startTs: 0, endTs: hours * 3_600_000 },
    128 * 2 ** 20,
  );
  expect(rows.map(([, average]) => average)).toEqual(Array(hours).fill(1));
});

/** Every expected cell, and "-" everywhere else. */
function expectTable(
  { labels, rows }: { labels: string[]; rows: Cell[][] },
  rowFields: number,
  expected: Map<string, Map<string, RefCell>>,
  nameOf: (label: string) => string,
): void {
  const keysOfRows = rows.map((row) => JSON.stringify(row.slice(0, rowFields)));
  expect([...keysOfRows].sort()).toEqual([...expected.keys()].sort());
  rows.forEach((row, n) => {
    const cells = expected.get(keysOfRows[n]!)!;
    expect(row.length).toBe(labels.length);
    const shown = labels.slice(rowFields).map((label, at) => {
      const cell = row[rowFields + at]!;
      const want = cells.get(nameOf(label));
      const same = want === undefined ? cell === '-' : isSame(cell, want);
      return same ? undefined : { row: keysOfRows[n], label, cell, want };
    });
    expect(shown.filter((difference) => difference !== undefined)).toEqual([]);
  });
}

function isSame(cell: Cell, want: RefCell): boolean {
  if (typeof want === 'string') return cell === want;
  // The smallest of 5 and 5.0 is either.
  if (typeof want === 'bigint') return typeof cell === 'object' ? cell.exact === String(want) : cell === Number(want);
  const number = typeof cell === 'object' ? Number(cell.exact) : cell;
  return typeof number === 'number' && Math.abs(number - want) <= 1e-9 * Math.max(1, Math.abs(want));
}
