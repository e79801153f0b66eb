/**
 * The figures of each second of a load, put together from its generator processes and from what is watched beside it.
 * Each second goes to the live view, and all of them to the result, whose page draws them.
 */
import type { ProcessSecond } from './counting.ts';
import { addedUp, type Counts, totalOf } from './counts.ts';
import { Histogram, type LatencyBar, type LatencySummary, summaryOf } from './histogram.ts';
import { LiveView } from './live-view.ts';
import { readWatched, type Watched } from './watch.ts';

export interface Second extends Watched {
  /** The number of the second in the run, from 1 on. */
  second: number;
  /** Messages acknowledged in this second. */
  rate: number;
  refused: Counts;
  /** Connections that broke. */
  broken: number;
  /** Messages that were due and not sent. */
  waiting: number;
  /** Seconds in a row, with this one, in which nothing was acknowledged although messages were due. */
  silentSeconds: number;
  p50Ms: number;
  p99Ms: number;
  maxMs: number;
}

/** The whole seconds of a load that has not ended, warm-up included. */
interface UnfinishedLoad {
  requestsPerSecond: number;
  latency: LatencySummary;
  bars: LatencyBar[];
  seconds: Second[];
  startedAtMs: number;
}

const unwatched: Watched = { cpu: {}, memoryMiB: {}, gauges: {} };

interface Gathering {
  histogram: Histogram;
  acknowledged: number;
  refused: Counts[];
  broken: number;
  waiting: number;
  inFlight: number;
  processes: number;
}

interface TimelineOrder {
  /** Generator processes. */
  processes: number;
  /** 0: the end is not known. */
  lastsSeconds: number;
  /** True: each acknowledgement sends the next message, so messages are always due. */
  isClosedLoop: boolean;
  isBeside: boolean;
}

export class Timeline {
  readonly #order: TimelineOrder;
  readonly #view: LiveView | undefined;
  readonly #gathering = new Map<number, Gathering>();
  readonly #seconds: Second[] = [];
  readonly #all = new Histogram();
  #startedAtMs = 0;
  #silentSeconds = 0;

  constructor(order: TimelineOrder) {
    this.#order = order;
    this.#view = order.isBeside ? undefined : new LiveView(order.lastsSeconds);
  }

  /** Seconds in a row, until now, in which nothing was acknowledged although messages were due. */
  get silentSeconds(): number {
    return this.#silentSeconds;
  }

  begin(): void {
    this.#startedAtMs = Date.now();
    // The figures of what is watched count from here on.
    if (this.#view) readWatched();
  }

  add({ n, acknowledged, refused, broken, waiting, inFlight, counts, maxMicroseconds }: ProcessSecond): void {
    const second = this.#gathering.get(n) ?? emptySecond();
    this.#gathering.set(n, second);
    for (let i = 0; i < counts.length; i += 2) second.histogram.addAt(counts[i]!, counts[i + 1]!);
    second.histogram.max = Math.max(second.histogram.max, maxMicroseconds);
    second.acknowledged += acknowledged;
    second.refused.push(refused);
    second.broken += broken;
    second.waiting += waiting;
    second.inFlight += inFlight;
    second.processes += 1;
    if (second.processes === this.#order.processes) this.#ended(n, second);
  }

  /** Returns undefined before the first second has ended. */
  soFar(): UnfinishedLoad | undefined {
    const seconds = this.#seconds;
    if (seconds.length === 0) return undefined;
    const requestsPerSecond = seconds.reduce((sum, { rate }) => sum + rate, 0) / seconds.length;
    const [latency, bars] = [summaryOf(this.#all), this.#all.bars()];
    return { requestsPerSecond, latency, bars, seconds, startedAtMs: this.#startedAtMs };
  }

  /** Removes the live view and returns all seconds. */
  end(): Second[] {
    this.#view?.end();
    return this.#seconds;
  }

  #ended(n: number, { histogram, acknowledged, broken, waiting, inFlight, ...gathered }: Gathering): void {
    this.#gathering.delete(n);
    this.#all.add(histogram);
    const refused = addedUp(gathered.refused);
    const isDue = this.#order.isClosedLoop || waiting + inFlight + broken + totalOf(refused) > 0;
    this.#silentSeconds = acknowledged === 0 && isDue ? this.#silentSeconds + 1 : 0;
    const second: Second = {
      second: n + 1,
      rate: acknowledged,
      refused,
      broken,
      waiting,
      silentSeconds: this.#silentSeconds,
      p50Ms: histogram.percentileMs(50),
      p99Ms: histogram.percentileMs(99),
      maxMs: histogram.total === 0 ? Number.NaN : histogram.max / 1000,
      ...(this.#view ? readWatched() : unwatched),
    };
    this.#seconds.push(second);
    this.#view?.show(second);
  }
}

function emptySecond(): Gathering {
  return { histogram: new Histogram(), acknowledged: 0, refused: [], broken: 0, waiting: 0, inFlight: 0, processes: 0 };
}
