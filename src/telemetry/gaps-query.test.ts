/** Gaps and late points of series on the real engine, against plain JavaScript over the same random points. */
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type SharedClickHouse, shareTestClickHouse } from '../../test/harness/clickhouse-server.ts';
import { type RefGap, referenceGaps } from '../../test/harness/completeness-reference.ts';
import { Random } from '../../test/harness/random.ts';
import { limits } from '../base/limits.ts';
import { readGaps } from './gaps-query.ts';

let embedded: SharedClickHouse;

beforeAll(async () => {
  embedded = await shareTestClickHouse();
});

afterAll(() => embedded.stop());

interface Point {
  ts: number;
  late: number;
}

const minuteMs = 60_000;
const hourMs = 60 * minuteMs;
const firstTs = Date.UTC(2025, 5, 2);

/** A device that is offline, sends what it kept, loses points, and is never quite on time. */
function series(random: Random): Point[] {
  const interval = random.pick([1000, minuteMs, 7 * minuteMs, hourMs]);
  const count = random.pick([5, 60, 400]);
  const [jitter, lost] = [random.pick([0, 0.1, 0.4]), random.pick([0, 0.05, 0.3])];
  const points = new Map<number, number>();
  let offlineUntil = 0;
  for (let n = 0; n < count; n += 1) {
    const due = firstTs + n * interval;
    if (random.next() < 0.03) offlineUntil = due + random.between(1, 30) * interval;
    const isOffline = due < offlineUntil;
    if (random.next() < (isOffline ? 0.5 : lost)) continue;
    const ts = Math.round(due + random.between(-jitter, jitter) * interval);
    points.set(ts, Math.round(isOffline ? offlineUntil - ts : random.between(-interval, 2.2 * interval)));
  }
  return [...points].map(([ts, late]) => ({ ts, late }));
}

async function store(device: number, all: Map<string, Point[]>): Promise<void> {
  const rows = [...all].flatMap(([key, points]) =>
    points.map(({ ts, late }, n) => {
      const version = String(((BigInt(late) + 2n ** 43n) << 20n) + BigInt(n));
      return JSON.stringify({ device, key, ts, kind: 2, num: 0, int: '1', text: '', version });
    }),
  );
  const columns = '(device, key, ts, kind, num, int, text, version)';
  const body = Buffer.from(rows.join('\n'));
  await embedded.clickhouse.insertBlocks(`INSERT INTO telemetry ${columns} FORMAT JSONEachRow`, body);
}

/** The longest ones, in order of time. */
function listed<Each extends RefGap>(gaps: Each[], lengthOf: (gap: Each) => number): Each[] {
  const longest = [...gaps].sort((a, b) => lengthOf(b) - lengthOf(a) || a.startTs - b.startTs);
  return longest.slice(0, limits.gapsListedMax).sort((a, b) => a.startTs - b.startTs);
}

test.each([1, 2, 3])('seed %i: intervals, gaps and late points are those of the reference', async (seed) => {
  const random = new Random(seed);
  const all = new Map(['a', 'b', 'c', 'd', 'e'].map((key) => [key, series(random)]));
  await store(seed, all);
  let [gapCount, lateCount] = [0, 0];
  for (let n = 0; n < 6; n += 1) {
    const lastTs = Math.max(...random.pick([...all.values()]).map(({ ts }) => ts));
    const at = (share: number) => firstTs + Math.round(share * (lastTs - firstTs));
    const [startTs, endTs] = [at(random.between(-0.2, 0.7)), at(random.between(0.8, 1.3))];
    const range = { startTs, endTs, now: at(random.pick([0.6, 1.1, 9])) };
    const lateMs = random.pick([undefined, 0, 90_000]);
    const read = await readGaps(embedded.clickhouse, seed, { keys: [...all.keys()], ...range, lateMs });
    for (const [key, points] of all) {
      const expected = referenceGaps(points, range, lateMs);
      const found = read.find((each) => each.key === key);
      if (expected === undefined) expect(found).toBeUndefined();
      else {
        expect(found).toMatchObject({
          intervalMs: expected.interval ?? null,
          present: expected.present,
          missing: expected.gaps.reduce((sum, gap) => sum + gap.points, 0),
          gapCount: expected.gaps.length,
          gaps: listed(expected.gaps, ({ points }) => points),
          lateCount: expected.late.length,
          late: listed(expected.late, ({ points }) => points),
        });
        gapCount += expected.gaps.length;
        lateCount += expected.late.length;
      }
    }
  }
  // The random points must show both.
  expect(gapCount).toBeGreaterThan(10);
  expect(lateCount).toBeGreaterThan(10);
});
