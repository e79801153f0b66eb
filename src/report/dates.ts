/**
 * Date groupings as integers. ClickHouse groups by a `base` that costs one division for each point (hour of the clock,
 * day number, …). The calendar value (`key`) is computed for each group, and the cell for each row. Weeks begin on
 * Sunday (docs/rest.md#reports); the first week of a year or month contains its first day.
 */
import { dayMs, hourMs, minuteMs } from '../base/durations.ts';
import type { Zone } from './zone.ts';

export const dateGroupings = [
  ...(['RAW', 'FULL_MINUTE', 'FULL_HOUR', 'FULL_DATE', 'START_OF_WEEK', 'YEARMONTH', 'YEAR'] as const),
  ...(['MINUTE', 'HOUR', 'DAY', 'DATE', 'WEEK_OF_MONTH', 'WEEK_OF_YEAR', 'MONTH', 'QUARTER'] as const),
];
export type DateGrouping = (typeof dateGroupings)[number];

export const groupUnits = ['MINUTE', 'HOUR', 'DAY', 'WEEK', 'MONTH', 'YEAR'] as const;

export interface GroupBy {
  unit: (typeof groupUnits)[number];
  amount: number;
}

type DateCell = string | number;

/** The grouping by a date field, in SQL and in JavaScript. */
export interface DateKey {
  /** SQL for a point, over `ts`, `local` (wall-clock milliseconds) and `shift` (their difference). */
  base: string;
  /** Milliseconds of local time; the base changes only at their multiples. */
  unitMs: number;
  /** SQL for a group, over the base `b`. */
  key(b: string): string;
  cell(key: number): DateCell;
  /** Returns the place of a filter value in the order of keys; undefined when the value is no date of this kind. */
  position(value: string): number | undefined;
}

const weekdays = ['Sunday', 'Monday', 'Tuesday', 'Wednesday', 'Thursday', 'Friday', 'Saturday'];
const months = [
  ...['January', 'February', 'March', 'April', 'May', 'June'],
  ...['July', 'August', 'September', 'October', 'November', 'December'],
];

/** 1970-01-01 was a Thursday. */
const weekdayShift = 4;

export function dateKey(grouping: DateGrouping, groupBy: GroupBy | null, zone: Zone): DateKey {
  switch (grouping) {
    case 'RAW':
      return rawKey(groupBy, zone);
    case 'FULL_MINUTE':
      return localKey(minuteMs, (ms) => isoMinute(ms).replace('T', ' '));
    case 'FULL_HOUR':
      return localKey(hourMs, (ms) => isoMinute(ms).slice(0, -3).replace('T', ' '));
    case 'FULL_DATE':
      return localKey(dayMs, isoDate);
    case 'START_OF_WEEK':
      return {
        ...localKey(7 * dayMs, isoDate),
        base: floorDivided('local', dayMs),
        unitMs: dayMs,
        key: weekIndex,
        cell: (key) => isoDate((7 * key - weekdayShift) * dayMs),
        position: (value) => whole((dayNumber(value) + weekdayShift) / 7),
      };
    case 'YEARMONTH':
      return calendarKey(monthIndex, yearMonth, (value) => {
        const month = months.findIndex((name) => value.slice(-4) === `-${name.slice(0, 3)}`);
        const year = Number(value.slice(0, -4));
        return month < 0 ? undefined : whole(year * 12 + month);
      });
    case 'YEAR':
      return calendarKey((b) => yearOf(b), Number, number);
    case 'MINUTE':
      return cyclicKey(divided(modulo('local', hourMs), minuteMs), minuteMs);
    case 'HOUR':
      return cyclicKey(divided(modulo('local', dayMs), hourMs), hourMs);
    case 'DAY':
      return {
        ...cyclicKey(modulo(`${floorDivided('local', dayMs)} + ${weekdayShift}`, 7), dayMs),
        cell: (key) => weekdays[key]!,
        position: (value) => index(weekdays, value),
      };
    case 'DATE':
      return calendarKey(dayOfMonth, Number, number);
    case 'WEEK_OF_MONTH':
      return calendarKey((b) => weekWithin(b, dayOfMonth(b)), Number, number);
    case 'WEEK_OF_YEAR':
      return calendarKey((b) => weekWithin(b, dayOfYear(b)), Number, number);
    case 'MONTH':
      return calendarKey(
        (b) => modulo(monthIndex(b), 12),
        (key) => months[key]!,
        (value) => index(months, value),
      );
    case 'QUARTER':
      return calendarKey((b) => `${divided(modulo(monthIndex(b), 12), 3)} + 1`, Number, number);
  }
}

/** Groups by the start of buckets. Cells are these starts as strings. Without `groupBy` each moment is a bucket. */
function rawKey(groupBy: GroupBy | null, zone: Zone): DateKey {
  if (!groupBy) return { base: 'ts', unitMs: 1, key: (b) => b, cell: String, position: number };
  const { unit, amount } = groupBy;
  const cell = (start: (key: number) => number) => (key: number) => String(zone.instant(start(key)));
  /** Buckets increase with time, so the bucket of a moment gives its position in the order. */
  const keyOf = (start: (key: number) => number, guess: (local: number) => number) => (value: string) => {
    const ts = number(value);
    if (ts === undefined) return undefined;
    const key = guess(zone.local(ts));
    return zone.instant(start(key)) === ts ? key : key + 0.5;
  };
  switch (unit) {
    case 'MINUTE':
    case 'HOUR':
    case 'DAY': {
      const length = amount * { MINUTE: minuteMs, HOUR: hourMs, DAY: dayMs }[unit];
      if (length <= hourMs) {
        // A clock hour that occurs twice makes two buckets.
        const base = `${floorDivided('local', length)} * ${length} - shift`;
        return { base, unitMs: length, key: (b) => b, cell: String, position: number };
      }
      const start = (key: number) => key * length;
      const position = keyOf(start, (local) => Math.floor(local / length));
      return { base: floorDivided('local', length), unitMs: length, key: (b) => b, cell: cell(start), position };
    }
    case 'WEEK': {
      const start = (key: number) => (7 * amount * key - weekdayShift) * dayMs;
      const position = keyOf(start, (local) => Math.floor((Math.floor(local / dayMs) + weekdayShift) / 7 / amount));
      return {
        base: floorDivided('local', dayMs),
        unitMs: dayMs,
        key: (b) => floorDivided(weekIndex(b), amount),
        cell: cell(start),
        position,
      };
    }
    case 'MONTH':
    case 'YEAR': {
      const length = unit === 'MONTH' ? amount : 12 * amount;
      const start = (key: number) => firstOfMonth(key * length);
      const position = keyOf(start, (local) => Math.floor(monthIndexOf(local) / length));
      return {
        base: floorDivided('local', dayMs),
        unitMs: dayMs,
        key: (b) => floorDivided(monthIndex(b), length),
        cell: cell(start),
        position,
      };
    }
  }
}

/** Groups by steps of wall-clock time: two hours with the same clock time are one group. */
function localKey(length: number, cell: (localMs: number) => string): DateKey {
  return {
    base: floorDivided('local', length),
    unitMs: length,
    key: (b) => b,
    cell: (key) => cell(key * length),
    position: (value) => whole(Date.parse(`${completed(value)}Z`) / length),
  };
}

function cyclicKey(base: string, unitMs: number): DateKey {
  return { base, unitMs, key: (b) => b, cell: Number, position: number };
}

function calendarKey(
  key: (b: string) => string,
  cell: (key: number) => DateCell,
  position: (value: string) => number | undefined,
): DateKey {
  return { base: floorDivided('local', dayMs), unitMs: dayMs, key, cell, position };
}

// SQL on integers. Times before 1970 are negative, and SQL rounds toward zero.

function modulo(a: string, b: number): string {
  return `positiveModulo(${a}, ${b})`;
}

function divided(a: string, b: number): string {
  return `intDiv(${a}, ${b})`;
}

export function floorDivided(a: string, b: number): string {
  return b === 1 ? `(${a})` : `intDiv((${a}) - ${modulo(a, b)}, ${b})`;
}

function weekIndex(day: string): string {
  return floorDivided(`${day} + ${weekdayShift}`, 7);
}

/** Days since 0000-03-01, so that a leap day is the last day of its year; then eras of 400 years. */
const era = (day: string) => floorDivided(`${day} + 719468`, 146_097);
const dayOfEra = (day: string) => modulo(`${day} + 719468`, 146_097);
const yearOfEra = (day: string) => {
  const d = dayOfEra(day);
  return divided(`${d} - ${divided(d, 1460)} + ${divided(d, 36_524)} - ${divided(d, 146_096)}`, 365);
};
const dayOfMarchYear = (day: string) => {
  const y = yearOfEra(day);
  return `(${dayOfEra(day)} - (365 * ${y} + ${divided(y, 4)} - ${divided(y, 100)}))`;
};
const marchMonth = (day: string) => divided(`5 * ${dayOfMarchYear(day)} + 2`, 153);

/** SQL of the months since the year 0. */
function monthIndex(day: string): string {
  return `(12 * (${yearOfEra(day)} + 400 * ${era(day)}) + ${marchMonth(day)} + 2)`;
}

function yearOf(day: string): string {
  return floorDivided(monthIndex(day), 12);
}

function dayOfMonth(day: string): string {
  return `(${dayOfMarchYear(day)} - ${divided(`153 * ${marchMonth(day)} + 2`, 5)} + 1)`;
}

function dayOfYear(day: string): string {
  // March 1 is day 60 or 61 of the year. January and February are at the end of a March-based year.
  const leap = `(${modulo(yearOf(day), 4)} = 0 AND (${modulo(yearOf(day), 100)} != 0 OR ${modulo(yearOf(day), 400)} = 0))`;
  const d = dayOfMarchYear(day);
  return `if(${d} >= 306, ${d} - 305, ${d} + 60 + ${leap})`;
}

function weekWithin(day: string, number: string): string {
  return `${divided(`${number} - 1 + ${modulo(`${day} - (${number} - 1) + ${weekdayShift}`, 7)}`, 7)} + 1`;
}

// The computations above in JavaScript.

function isoMinute(localMs: number): string {
  return new Date(localMs).toISOString().replace(/:\d\d\.\d+Z$/, '');
}

function isoDate(localMs: number): string {
  return isoMinute(localMs).replace(/T.*$/, '');
}

function yearMonth(key: number): string {
  return `${Math.floor(key / 12)}-${months[key - 12 * Math.floor(key / 12)]!.slice(0, 3)}`;
}

function firstOfMonth(monthIndex: number): number {
  return new Date(0).setUTCFullYear(Math.floor(monthIndex / 12), monthIndex - 12 * Math.floor(monthIndex / 12), 1);
}

function monthIndexOf(localMs: number): number {
  const date = new Date(localMs);
  return date.getUTCFullYear() * 12 + date.getUTCMonth();
}

/** Completes `2026-03-01`, `2026-03-01 23` and `2026-03-01 23:30` to ISO 8601. */
function completed(value: string): string {
  const date = value.replace(' ', 'T');
  if (/T\d\d$/.test(date)) return `${date}:00:00`;
  return /T\d\d:\d\d$/.test(date) ? `${date}:00` : `${date}T00:00:00`;
}

function dayNumber(value: string): number {
  return Date.parse(`${completed(value)}Z`) / dayMs;
}

function number(value: string): number | undefined {
  return /^-?\d{1,16}$/.test(value) ? Number(value) : undefined;
}

/** NaN is not a position; a place between two keys is one. */
function whole(position: number): number | undefined {
  return Number.isFinite(position) ? position : undefined;
}

function index(names: string[], value: string): number | undefined {
  const at = names.findIndex((name) => name.toLowerCase() === value.toLowerCase());
  return at < 0 ? undefined : at;
}

/** Returns the start of the unit that contains `ts`, moved by `steps` units. */
export function unitStart(unit: GroupBy['unit'], ts: number, steps: number, zone: Zone): number {
  const local = zone.local(ts);
  const date = new Date(local);
  switch (unit) {
    case 'MINUTE':
    case 'HOUR': {
      // Hours and minutes are real time: an hour ago does not depend on the clock change.
      const length = unit === 'MINUTE' ? minuteMs : hourMs;
      return ts - (local - Math.floor(local / length) * length) + steps * length;
    }
    case 'DAY':
      return zone.instant((Math.floor(local / dayMs) + steps) * dayMs);
    case 'WEEK':
      return zone.instant((Math.floor(local / dayMs) - date.getUTCDay() + 7 * steps) * dayMs);
    case 'MONTH':
      return zone.instant(firstOfMonth(monthIndexOf(local) + steps));
    case 'YEAR':
      return zone.instant(firstOfMonth((date.getUTCFullYear() + steps) * 12));
  }
}
