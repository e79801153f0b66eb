import { describe, expect, it } from 'vitest';
import { bucketStarts, bucketTs, type IntervalType } from './buckets.ts';

const at = (text: string) => Date.parse(text);
const calendar = (from: string, to: string, type: IntervalType, zone: string) =>
  bucketStarts({ startTs: at(from), endTs: at(to) }, type, 0, zone).map((ts) => new Date(ts).toISOString());

describe('buckets', () => {
  it('begin at the start of the range and are reported at their middle', () => {
    const starts = bucketStarts({ startTs: 100, endTs: 125 }, 'MILLISECONDS', 10, '');
    expect(starts).toEqual([100, 110, 120]);
    expect(starts.map((_, i) => bucketTs(starts, i, 125))).toEqual([105, 115, 122]);
  });

  it('work before 1970', () => {
    const starts = bucketStarts({ startTs: -15, endTs: 0 }, 'MILLISECONDS', 10, '');
    expect(starts).toEqual([-15, -5]);
    expect(starts.map((_, i) => bucketTs(starts, i, 0))).toEqual([-10, -3]);
  });

  it('are 700 at most', () => {
    expect(bucketStarts({ startTs: 0, endTs: 7000 }, 'MILLISECONDS', 10, '')).toHaveLength(700);
    expect(() => bucketStarts({ startTs: 0, endTs: 7001 }, 'MILLISECONDS', 10, '')).toThrow(
      /^Incorrect TsKvQuery\. Number of intervals is to high - 701/,
    );
    expect(() => bucketStarts({ startTs: 0, endTs: at('2200-01-01T00:00Z') }, 'MONTH', 0, '')).toThrow(/to high/);
  });

  it('continue at calendar weeks, months and quarters', () => {
    expect(calendar('2026-01-14T10:00Z', '2026-02-01T00:00Z', 'WEEK', 'UTC')).toEqual([
      '2026-01-14T10:00:00.000Z',
      '2026-01-18T00:00:00.000Z',
      '2026-01-25T00:00:00.000Z',
    ]);
    expect(calendar('2026-01-14T10:00Z', '2026-01-27T00:00Z', 'WEEK_ISO', 'UTC').slice(1)).toEqual([
      '2026-01-19T00:00:00.000Z',
      '2026-01-26T00:00:00.000Z',
    ]);
    expect(calendar('2025-12-31T23:30Z', '2026-03-02T00:00Z', 'MONTH', 'UTC').slice(1)).toEqual([
      '2026-01-01T00:00:00.000Z',
      '2026-02-01T00:00:00.000Z',
      '2026-03-01T00:00:00.000Z',
    ]);
    expect(calendar('2026-02-11T00:00Z', '2026-10-02T00:00Z', 'QUARTER', 'UTC').slice(1)).toEqual([
      '2026-04-01T00:00:00.000Z',
      '2026-07-01T00:00:00.000Z',
      '2026-10-01T00:00:00.000Z',
    ]);
  });

  it('end where calendars end', () => {
    const far = { startTs: Number.MIN_SAFE_INTEGER, endTs: Number.MAX_SAFE_INTEGER };
    for (const intervalType of ['WEEK', 'WEEK_ISO', 'MONTH', 'QUARTER'] as const) {
      for (const range of [far, { ...far, startTs: 8.64e15 }, { ...far, endTs: -8.64e15 }]) {
        expect(() => bucketStarts(range, intervalType, 0, 'UTC')).toThrow(/'startTs' and 'endTs' between/);
      }
      const last = { startTs: 8.6e15 - 1, endTs: 8.6e15 };
      expect(bucketStarts(last, intervalType, 0, 'Asia/Tokyo')).toEqual([last.startTs]);
    }
  });

  it('follow the time zone over a change of the clocks', () => {
    expect(calendar('2026-03-20T00:00Z', '2026-05-02T00:00Z', 'MONTH', 'Europe/Kyiv').slice(1)).toEqual([
      '2026-03-31T21:00:00.000Z',
      '2026-04-30T21:00:00.000Z',
    ]);
    expect(calendar('2026-10-20T00:00Z', '2026-11-02T00:00Z', 'WEEK', 'America/New_York').slice(1)).toEqual([
      '2026-10-25T04:00:00.000Z',
      '2026-11-01T04:00:00.000Z',
    ]);
  });

  it('always advance, also when a zone skips midnight', () => {
    for (const zone of ['Africa/Cairo', 'America/Sao_Paulo', 'Asia/Beirut', 'Pacific/Apia', 'Australia/Lord_Howe']) {
      const starts = bucketStarts(
        { startTs: at('2000-01-01T00:00Z'), endTs: at('2013-01-01T00:00Z') },
        'WEEK',
        0,
        zone,
      );
      for (let i = 2; i < starts.length; i += 1) {
        const days = (starts[i]! - starts[i - 1]!) / 86_400_000;
        expect(days).toBeGreaterThan(5.9);
        expect(days).toBeLessThan(7.2);
      }
    }
  });

  it('refuse an unknown time zone', () => {
    expect(() => bucketStarts({ startTs: 0, endTs: 1 }, 'WEEK', 0, 'Mars/Olympus')).toThrow(/Unknown time zone/);
  });
});
