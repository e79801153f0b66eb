/**
 * Reports in plain JavaScript, point by point, as docs/rest.md#reports describes them. The results of the queries of
 * `src/report` are compared with these. The reference shares no code with the queries: it takes calendars from Intl and
 * finds the start of a bucket by going back minute by minute.
 */
import { dayMs } from '../../src/base/durations.ts';

export interface RefPoint {
  device: number;
  key: string;
  ts: number;
  value: boolean | bigint | number | string | { json: string };
  /** Milliseconds from `ts` to the arrival. */
  late?: number;
}

interface RefGrouping {
  grouping: string;
  groupBy?: { unit: string; amount: number } | null;
}

export type RefCell = string | number | bigint;

const days = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];
const months = 'January February March April May June July August September October November December'.split(' ');

const formats = new Map<string, Intl.DateTimeFormat>();

interface Wall {
  year: number;
  month: number;
  day: number;
  hour: number;
  minute: number;
}

function wall(ts: number, timeZone: string): Wall {
  let format = formats.get(timeZone);
  if (!format) {
    format = new Intl.DateTimeFormat('en-GB', {
      timeZone,
      hourCycle: 'h23',
      year: 'numeric',
      month: 'numeric',
      day: 'numeric',
      hour: 'numeric',
      minute: 'numeric',
    });
    formats.set(timeZone, format);
  }
  const of = Object.fromEntries(format.formatToParts(ts).map(({ type, value }) => [type, Number(value)]));
  return { year: of['year']!, month: of['month']!, day: of['day']!, hour: of['hour']!, minute: of['minute']! };
}

const two = (n: number) => String(n).padStart(2, '0');
const dayNumber = ({ year, month, day }: Wall) => Math.floor(Date.UTC(year, month - 1, day) / dayMs);
const dateOf = (number: number) => new Date(number * dayMs).toISOString().slice(0, 10);
/** The weeks of a period that begins on day number `first` are counted from the Sunday on or before it. */
const weekFrom = (first: number, number: number) => {
  const sunday = first - new Date(first * dayMs).getUTCDay();
  return Math.floor((number - sunday) / 7) + 1;
};

/** Returns the bucket of a moment as a string; moments of one bucket follow each other. */
function bucketId(ts: number, unit: string, amount: number, timeZone: string): string {
  const w = wall(ts, timeZone);
  const number = dayNumber(w);
  switch (unit) {
    case 'HOUR':
      return String(Math.floor((number * 24 + w.hour) / amount));
    case 'DAY':
      return String(Math.floor(number / amount));
    case 'WEEK':
      return String(Math.floor((number - new Date(number * dayMs).getUTCDay() + 4) / 7 / amount));
    case 'MONTH':
      return String(Math.floor((w.year * 12 + w.month - 1) / amount));
    default:
      return String(Math.floor(w.year / amount));
  }
}

/** Returns the start of the minute, also before 1970. */
const minuteOf = (ts: number) => Math.floor(ts / 60_000) * 60_000;

const starts = new Map<string, number>();

function bucketStart(ts: number, { unit, amount }: { unit: string; amount: number }, timeZone: string): number {
  const minutes = unit === 'MINUTE' ? amount : unit === 'HOUR' && amount === 1 ? 60 : 0;
  if (minutes > 0) {
    // Back to the last full bucket of the clock, in real time.
    const { hour, minute } = wall(ts, timeZone);
    const late = (hour * 60 + minute) % minutes;
    return minuteOf(ts) - late * 60_000;
  }
  const id = bucketId(ts, unit, amount, timeZone);
  const known = starts.get(`${timeZone} ${unit} ${amount} ${id}`);
  if (known !== undefined) return known;
  let start = minuteOf(ts);
  for (const step of [20 * 3_600_000, 3_600_000, 60_000]) {
    while (bucketId(start - step, unit, amount, timeZone) === id) start -= step;
  }
  starts.set(`${timeZone} ${unit} ${amount} ${id}`, start);
  return start;
}

export function dateCell(ts: number, { grouping, groupBy }: RefGrouping, timeZone: string): string | number {
  const w = wall(ts, timeZone);
  const number = dayNumber(w);
  const date = `${w.year}-${two(w.month)}-${two(w.day)}`;
  switch (grouping) {
    case 'RAW':
      return String(groupBy ? bucketStart(ts, groupBy, timeZone) : ts);
    case 'FULL_MINUTE':
      return `${date} ${two(w.hour)}:${two(w.minute)}`;
    case 'FULL_HOUR':
      return `${date} ${two(w.hour)}`;
    case 'FULL_DATE':
      return date;
    case 'START_OF_WEEK':
      return dateOf(number - new Date(number * dayMs).getUTCDay());
    case 'YEARMONTH':
      return `${w.year}-${months[w.month - 1]!.slice(0, 3)}`;
    case 'YEAR':
      return w.year;
    case 'MINUTE':
      return w.minute;
    case 'HOUR':
      return w.hour;
    case 'DAY':
      return days[new Date(number * dayMs).getUTCDay()]!;
    case 'DATE':
      return w.day;
    case 'WEEK_OF_MONTH':
      return weekFrom(number - w.day + 1, number);
    case 'WEEK_OF_YEAR':
      return weekFrom(dayNumber({ ...w, month: 1, day: 1 }), number);
    case 'MONTH':
      return months[w.month - 1]!;
    default:
      return Math.floor((w.month - 1) / 3) + 1;
  }
}

type Value = RefPoint['value'];

const textOf = (value: Value) => (typeof value === 'object' ? value.json : String(value));
const isNumber = (value: Value) => typeof value !== 'string' && typeof value !== 'object';
/** Returns whole numbers and booleans as bigint, other numbers unchanged. */
const numberOf = (value: Value): bigint | number =>
  typeof value === 'boolean' ? BigInt(value) : (value as bigint | number);

/** Adds numbers up; the sum is exact as long as all are whole. */
function sum(numbers: (bigint | number)[]): bigint | number {
  const wholes = numbers.filter((n) => typeof n === 'bigint').reduce((a, b) => a + b, 0n);
  const doubles = numbers.filter((n) => typeof n === 'number');
  return doubles.length === 0 ? wholes : Number(wholes) + doubles.reduce((a, b) => a + b, 0);
}

/** Aggregates one group: `steps` for DELTA, `points` for the other aggregations. Undefined: no value. */
function aggregate(aggregation: string, points: RefPoint[]): RefCell | undefined {
  const numbers = points.filter(({ value }) => isNumber(value)).map(({ value }) => numberOf(value));
  switch (aggregation) {
    case 'COUNT':
      return points.length > 0 ? BigInt(points.length) : undefined;
    case 'UNIQ':
      return points.length > 0 ? BigInt(new Set(points.map(({ value }) => textOf(value))).size) : undefined;
    case 'LATEST': {
      const newest = [...points].sort((a, b) => a.ts - b.ts || a.device - b.device).at(-1);
      if (!newest) return undefined;
      const { value } = newest;
      return typeof value === 'bigint' || typeof value === 'number' ? value : textOf(value) || undefined;
    }
    case 'SUM':
    case 'DELTA':
      return numbers.length > 0 ? sum(numbers) : undefined;
    case 'AVG':
      return numbers.length > 0 ? Number(sum(numbers)) / numbers.length : undefined;
    default: {
      const better = (a: bigint | number, b: bigint | number) => (aggregation === 'MIN' ? a <= b : a >= b);
      return numbers.length > 0 ? numbers.reduce((a, b) => (better(a, b) ? a : b)) : undefined;
    }
  }
}

/**
 * Aggregates the milliseconds from points to their arrivals. A percentile is the smallest value that the given share of
 * them does not exceed.
 */
function lateness(aggregation: string, points: RefPoint[]): RefCell {
  const sorted = points.map(({ late }) => late!).sort((a, b) => a - b);
  switch (aggregation) {
    case 'AVG':
      return sorted.reduce((a, b) => a + b, 0) / sorted.length;
    case 'MIN':
      return BigInt(sorted[0]!);
    case 'MAX':
      return BigInt(sorted.at(-1)!);
    case 'LATEST':
      return BigInt([...points].sort((a, b) => a.ts - b.ts || a.device - b.device).at(-1)!.late!);
    default:
      return BigInt(sorted[Math.ceil((sorted.length * Number(aggregation.slice(1))) / 100) - 1]!);
  }
}

/** Each numeric point of a key becomes the step from the one before it, wherever that is. */
function stepsOf(points: RefPoint[], startTs: number): RefPoint[] {
  const steps: RefPoint[] = [];
  const series = new Map<string, RefPoint[]>();
  for (const point of points.filter(({ value }) => isNumber(value))) {
    const name = `${point.device} ${point.key}`;
    series.set(name, [...(series.get(name) ?? []), point]);
  }
  for (const list of series.values()) {
    list.sort((a, b) => a.ts - b.ts);
    list.forEach((point, n) => {
      if (point.ts < startTs) return;
      const [now, before] = [numberOf(point.value), numberOf(list[Math.max(0, n - 1)]!.value)];
      const whole = typeof now === 'bigint' && typeof before === 'bigint';
      const step = whole
        ? now >= before
          ? now - before
          : now
        : Number(now) >= Number(before)
          ? Number(now) - Number(before)
          : Number(now);
      steps.push({ ...point, value: step });
    });
  }
  return steps;
}

interface RefView {
  startTs: number;
  endTs: number;
  values: { source: string; key: string; aggregation: string }[];
  /** Returns the groups of a point: row cells and, with a pivot, the name of its column. */
  row(point: RefPoint): (string | number)[];
  column(point: RefPoint): string;
  keep(point: RefPoint): boolean;
}

/** Returns the cells of a report by row (the row's cells as JSON), then by column and value (`column n`). */
export function referenceReport(points: RefPoint[], view: RefView): Map<string, Map<string, RefCell>> {
  const { startTs, endTs, values } = view;
  const before = points.filter(({ ts }) => ts < endTs);
  const inRange = (list: RefPoint[]) => list.filter((point) => point.ts >= startTs && view.keep(point));
  const table = new Map<string, Map<string, RefCell>>();
  values.forEach(({ source, key, aggregation }, n) => {
    const ofKey = before.filter((point) => point.key === key);
    const groups = new Map<string, { row: string; column: string; points: RefPoint[] }>();
    for (const point of inRange(aggregation === 'DELTA' ? stepsOf(ofKey, startTs) : ofKey)) {
      const [row, column] = [JSON.stringify(view.row(point)), view.column(point)];
      const group = groups.get(`${row} ${column}`) ?? { row, column, points: [] };
      group.points.push(point);
      groups.set(`${row} ${column}`, group);
    }
    for (const { row, column, points } of groups.values()) {
      const cells = table.get(row) ?? new Map<string, RefCell>();
      table.set(row, cells);
      const cell = source === 'LATENESS' ? lateness(aggregation, points) : aggregate(aggregation, points);
      if (cell !== undefined) cells.set(`${column} ${n}`, cell);
    }
  });
  return table;
}
