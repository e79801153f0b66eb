/**
 * The client's own account of a crash run: which record of which device was acknowledged, refused, or left without an
 * answer. A record's content follows from its numbers, so what comes back can be checked without keeping it.
 */
import { dayMs } from '../../src/base/durations.ts';

export const Fate = { unsent: 0, unanswered: 1, acknowledged: 2, refused: 3 } as const;
export type Fate = (typeof Fate)[keyof typeof Fate];

/** `device` numbers the run's devices, `n` the records of one device. */
export interface RecordId {
  device: number;
  n: number;
}

export const keysOfRecord = ['count', 'name', 'level'] as const;

/** Returns JSON values: a long beyond 2^53, a string, a double. */
export function valuesOf(device: number, n: number): { count: string; name: string; level: string } {
  return {
    count: `9007199254${String(device).padStart(3, '0')}${String(n).padStart(6, '0')}`,
    name: `d${device}-${n}`,
    level: `${n}.5`,
  };
}

export interface Verdict {
  acknowledged: number;
  unanswered: number;
  refused: number;
  /** Records that were acknowledged and are not, or not wholly, in the store. */
  missing: number;
  /** The times at which the missing ones were acknowledged, by device. */
  missingTimes: string[];
  /** Records that are stored with another content. */
  altered: number;
  /** Records that are stored more than once. */
  twice: number;
  refusedButStored: number;
  /** Rows that are stored although no record was sent. */
  unknown: number;
}

export interface StoredRow {
  ts: number;
  key: string;
  /** The value as a string, as in `valuesOf`. */
  value: string;
}

export class Ledger {
  readonly #firstTs: number;
  readonly #days: number;
  readonly #fates: Uint8Array[];
  /** Unix time at which each record was acknowledged. */
  readonly #settledAt: Float64Array[];
  readonly #next: Uint32Array;
  acknowledged = 0;

  /** Records of one device follow each other by a millisecond; with `days`, by a day and a millisecond, in turns. */
  constructor(devices: number, recordsMax: number, firstTs: number, days = 1) {
    this.#firstTs = firstTs;
    this.#days = days;
    this.#fates = Array.from({ length: devices }, () => new Uint8Array(recordsMax));
    this.#settledAt = Array.from({ length: devices }, () => new Float64Array(recordsMax));
    this.#next = new Uint32Array(devices);
  }

  get devices(): number {
    return this.#fates.length;
  }

  tsOf(n: number): number {
    return this.#firstTs + n + (n % this.#days) * dayMs;
  }

  /** Returns the next records of a device, which are without an answer from now on; none when the account is full. */
  take(device: number, count = 1): RecordId[] {
    const fates = this.#fates[device]!;
    const first = this.#next[device]!;
    const next = Math.min(first + count, fates.length);
    this.#next[device] = next;
    fates.fill(Fate.unanswered, first, next);
    return Array.from({ length: next - first }, (_, n) => ({ device, n: first + n }));
  }

  /** Returns the message of these records. */
  bodyOf(records: RecordId[]): string {
    const elements = records.map(({ device, n }) => {
      const { count, name, level } = valuesOf(device, n);
      return `{"ts":${this.tsOf(n)},"values":{"count":${count},"name":"${name}","level":${level}}}`;
    });
    return elements.length === 1 ? elements[0]! : `[${elements.join(',')}]`;
  }

  settle(records: RecordId[], fate: Fate): void {
    for (const { device, n } of records) {
      this.#fates[device]![n] = fate;
      this.#settledAt[device]![n] = Date.now();
    }
    if (fate === Fate.acknowledged) this.acknowledged += records.length;
  }

  emptyVerdict(): Verdict {
    const count = (fate: Fate) =>
      this.#fates.reduce((sum, fates) => sum + fates.filter((one) => one === fate).length, 0);
    return {
      acknowledged: count(Fate.acknowledged),
      unanswered: count(Fate.unanswered),
      refused: count(Fate.refused),
      missing: 0,
      missingTimes: [],
      altered: 0,
      twice: 0,
      refusedButStored: 0,
      unknown: 0,
    };
  }

  /** Compares all rows of one device with the account and adds to the verdict. */
  check(device: number, rows: StoredRow[], verdict: Verdict): void {
    const fates = this.#fates[device]!;
    const seen = new Uint8Array(fates.length);
    for (const { ts, key, value } of rows) {
      const n = (ts - this.#firstTs) % dayMs;
      const bit = 1 << keysOfRecord.indexOf(key as (typeof keysOfRecord)[number]);
      const fate = fates[n];
      if (fate === undefined || fate === Fate.unsent || this.tsOf(n) !== ts) {
        verdict.unknown += 1;
        continue;
      }
      if (seen[n]! & bit) verdict.twice += 1;
      seen[n]! |= bit;
      if (value !== valuesOf(device, n)[key as 'count']) verdict.altered += 1;
      if (fate === Fate.refused) verdict.refusedButStored += 1;
    }
    const missing = this.#settledAt[device]!.filter((_, n) => fates[n] === Fate.acknowledged && seen[n] !== 0b111);
    verdict.missing += missing.length;
    verdict.missingTimes.push(...stretches(missing, `device ${device}`));
  }
}

/** A longer time between two moments begins another stretch. */
const stretchMs = 2_000;

/** Returns the stretches of some moments (Unix time) as strings, with the number of each. */
export function stretches(moments: Float64Array, name: string): string[] {
  const sorted = moments.toSorted();
  const texts: string[] = [];
  let first = 0;
  for (let n = 1; n <= sorted.length; n += 1) {
    if (n < sorted.length && sorted[n]! - sorted[n - 1]! <= stretchMs) continue;
    const [from, until] = [sorted[first]!, sorted[n - 1]!].map((at) => new Date(at).toISOString());
    texts.push(`${name}: ${n - first} acknowledged from ${from} to ${until}`);
    first = n;
  }
  return texts;
}

export function isGood(verdict: Verdict): boolean {
  const { missing, altered, twice, refusedButStored, unknown } = verdict;
  return missing + altered + twice + refusedButStored + unknown === 0 && verdict.acknowledged > 0;
}
