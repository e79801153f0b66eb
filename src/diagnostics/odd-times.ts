/**
 * The odd times of devices (`odd-time.ts`), counted by kind, with the last example of each device and kind in the
 * memory of this worker. Called by `ingest/accept.ts` for accepted records outside the usual window, and for refused
 * ones.
 */
import type { Clock } from '../base/clock.ts';
import { limits } from '../base/limits.ts';
import type { Counter, Metrics } from '../base/metrics/metrics.ts';
import { isObject } from '../base/schema.ts';
import { isWhole } from '../bus/messages.ts';
import type { CachedDevice } from '../device/model/cached-device.ts';
import type { FirstRecords } from './first-records.ts';
import { type OddTimeKind, oddTimeKinds } from './odd-time.ts';
import { RecordTable } from './record-table.ts';

/** The odd times of one kind that one device sent. */
export interface OddTimes {
  kind: OddTimeKind;
  /** Records, or refused messages. */
  count: number;
  /** The last example, as it was sent, and the time of its arrival. */
  example: number;
  receivedAt: number;
}

export function isOddTimes(value: unknown): value is OddTimes {
  if (!isObject(value)) return false;
  const { kind, count, example, receivedAt } = value;
  return oddTimeKinds.includes(kind as OddTimeKind) && [count, receivedAt].every(isWhole) && Number.isFinite(example);
}

interface Entries {
  readonly number: number;
  readonly tenantId: string;
  readonly kinds: OddTimes[];
}

export class OddTimesOfDevices {
  readonly #clock: Clock;
  readonly #first: FirstRecords;
  readonly #devices = new RecordTable<Entries>(limits.diagnosedDevicesMax);
  readonly #counters: Record<OddTimeKind, Counter>;

  constructor({ clock, metrics, first }: { clock: Clock; metrics: Metrics; first: FirstRecords }) {
    this.#clock = clock;
    this.#first = first;
    const help = 'Records whose "ts" is probably in another unit than milliseconds, or ahead of the server.';
    const counter = (kind: OddTimeKind) => metrics.counter('ingest_odd_times_total', help, { kind });
    this.#counters = {
      seconds: counter('seconds'),
      microseconds: counter('microseconds'),
      nanoseconds: counter('nanoseconds'),
      ahead: counter('ahead'),
    };
  }

  /** `device` is undefined when this worker knows only its number: the odd time is then counted, without an example. */
  add(device: Pick<CachedDevice, 'number' | 'tenantId'> | undefined, kind: OddTimeKind, example: number, count = 1) {
    this.#counters[kind].add(count);
    if (device === undefined) return;
    const { number, tenantId } = device;
    let entries = this.#devices.get(number);
    if (entries === undefined) {
      if (!this.#first.take(tenantId)) return;
      entries = { number, tenantId, kinds: [] };
      this.#devices.add(entries);
    }
    const receivedAt = this.#clock.now();
    const known = entries.kinds.find((each) => each.kind === kind);
    if (known === undefined) entries.kinds.push({ kind, count, example, receivedAt });
    else Object.assign(known, { count: known.count + count, example, receivedAt });
  }

  of(number: number): OddTimes[] {
    return this.#devices.get(number)?.kinds ?? [];
  }

  forget(number: number): void {
    this.#devices.delete(number);
  }
}

/** The odd times of one device at several workers, by kind; the newest example of each. */
export function mergeOddTimes(lists: readonly OddTimes[][]): OddTimes[] {
  const byKind = new Map<OddTimeKind, OddTimes>();
  for (const each of lists.flat()) {
    const known = byKind.get(each.kind);
    const newer = known && known.receivedAt > each.receivedAt ? known : each;
    byKind.set(each.kind, { ...newer, count: each.count + (known?.count ?? 0) });
  }
  return [...byKind.values()].sort((a, b) => b.receivedAt - a.receivedAt);
}
