/**
 * Computes how long telemetry would be accepted if ClickHouse stored nothing from now on: from the room of each journal
 * and of the disk that the journals of a host share, and from the bytes per second of the last five minutes. The
 * primary combines the reports of its workers and exports the result.
 */

/** A worker's journal, in bytes. */
export interface JournalRoom {
  worker: number;
  /** Journaled since the start of the worker. */
  written: number;
  /** Left below the cap of what waits for ClickHouse. */
  left: number;
  /** Left on the disk above what must stay free. */
  leftOnDisk: number;
}

const sampleMs = 10_000;
const windowMs = 300_000;
/** A rate of five minutes predicts nothing beyond this time. */
const longestSeconds = 365 * 86_400;

interface Sample {
  at: number;
  written: number;
}

export class RefusalForecast {
  readonly #now: () => number;
  /** The samples of each worker, the oldest first. */
  readonly #samples = new Map<number, Sample[]>();
  #rooms: readonly JournalRoom[] = [];

  /** `now`: a monotonic clock in milliseconds. */
  constructor(now: () => number = () => performance.now()) {
    this.#now = now;
  }

  /** Called about once a second. */
  add(rooms: readonly JournalRoom[]): void {
    const at = this.#now();
    this.#rooms = rooms;
    for (const { worker, written } of rooms) {
      let samples = this.#samples.get(worker) ?? [];
      // A worker that was started again counts from zero.
      if (written < (samples.at(-1)?.written ?? 0)) samples = [];
      samples = samples.filter((sample) => at - sample.at <= windowMs);
      if (at - (samples.at(-1)?.at ?? Number.NEGATIVE_INFINITY) >= sampleMs) samples.push({ at, written });
      this.#samples.set(worker, samples);
    }
  }

  /** Seconds until telemetry is refused; Infinity while nothing is journaled. */
  get seconds(): number {
    const rates = this.#rooms.map((room) => this.#bytesPerSecond(room));
    const ofJournals = this.#rooms.map(({ left }, i) => secondsOf(left, rates[i]!));
    const ofDisk = secondsOf(
      Math.min(...this.#rooms.map(({ leftOnDisk }) => leftOnDisk)),
      rates.reduce((sum, rate) => sum + rate, 0),
    );
    return Math.min(ofDisk, ...ofJournals);
  }

  /** Returns `seconds` as a sentence; undefined while nothing is journaled, and without room. */
  get sentence(): string | undefined {
    const { seconds } = this;
    if (!Number.isFinite(seconds) || seconds <= 0) return undefined;
    if (seconds > longestSeconds) return 'At the present rate telemetry is accepted for more than a year.';
    return `At the present rate telemetry is accepted for about ${lengthOf(seconds)}.`;
  }

  #bytesPerSecond({ worker, written }: JournalRoom): number {
    const first = this.#samples.get(worker)?.[0];
    const ms = first === undefined ? 0 : this.#now() - first.at;
    return ms < 1_000 ? 0 : ((written - first!.written) * 1_000) / ms;
  }
}

function secondsOf(bytes: number, bytesPerSecond: number): number {
  if (bytes <= 0) return 0;
  return bytesPerSecond > 0 ? bytes / bytesPerSecond : Number.POSITIVE_INFINITY;
}

function lengthOf(seconds: number): string {
  if (seconds < 120) return `${Math.round(seconds)} seconds`;
  if (seconds < 7_200) return `${Math.round(seconds / 60)} minutes`;
  if (seconds < 172_800) return `${(seconds / 3_600).toFixed(1)} hours`;
  return `${Math.round(seconds / 86_400)} days`;
}
