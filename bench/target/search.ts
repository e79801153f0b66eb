/**
 * Measurements of a target at several rates: whether one holds its bound, the search for the highest rate that does,
 * the spread of several at one rate.
 */
import { failuresOf, type LoadResult } from '../load/processes.ts';
import { figure, median, rangeText } from '../report.ts';
import type { TargetOrder } from './order.ts';

export interface Measurement {
  /** The rate that was requested; 0 = as fast as answers come. */
  rate: number;
  load: LoadResult;
  /** Share of the generator's processors that had nothing to do in the second before. */
  idleBefore: number;
}

/**
 * The search ends when the lowest rate that misses the bound is at most this factor above the highest that holds it.
 */
const nearRatio = 1.05;
const stepsMax = 16;
/** Below this the other load of a machine moves a p99. */
const idleBeforeMin = 0.8;

/** `p99MsMax` 0: no bound. */
export function holds({ load }: Measurement, p99MsMax: number): boolean {
  const isWhole = load.invalid === '' && load.earlyEnd === undefined;
  const isClean = isWhole && failuresOf(load) === 0 && load.accepted > 0;
  return isClean && (p99MsMax === 0 || load.latency.p99Ms <= p99MsMax);
}

/** Says what the lowest rate above `best` has missed; '' = no rate was measured above it. */
export function missedText(measurements: Measurement[], best: number, p99MsMax: number): string {
  const [next] = measurements.filter(({ rate }) => rate > best).sort((a, b) => a.rate - b.rate);
  if (next === undefined) return '';
  const { rate, load } = next;
  const failed = failuresOf(load) > 0 ? `${figure(failuresOf(load))} failed` : '';
  const slow = load.latency.p99Ms > p99MsMax ? `p99 ${figure(load.latency.p99Ms)} ms` : '';
  const silent = load.earlyEnd === undefined ? '' : 'it ended early';
  const reasons = [failed, slow, load.invalid, silent].filter((reason) => reason !== '');
  return `missed at ${figure(rate)} messages/s: ${reasons.join('; ')}`;
}

/**
 * Doubles the rate until it misses the bound, or halves it until it holds. Then tries the middle of the two rates,
 * again and again. A server that no longer answers ends the search.
 */
export async function findRate(
  { rate, p99MsMax }: Pick<TargetOrder, 'rate' | 'p99MsMax'>,
  measureAt: (rate: number) => Promise<Measurement>,
): Promise<Measurement[]> {
  const measurements: Measurement[] = [];
  let holding = 0;
  let failing = Number.POSITIVE_INFINITY;
  let next = rate;
  // At low rates the middle of two neighbours is the lower one, which holds already.
  while (measurements.length < stepsMax && next > holding && failing > holding * nearRatio) {
    const measurement = await measureAt(next);
    measurements.push(measurement);
    if (measurement.load.earlyEnd !== undefined) break;
    if (holds(measurement, p99MsMax)) holding = next;
    else failing = next;
    if (failing === Number.POSITIVE_INFINITY) next = 2 * holding;
    else if (holding === 0) next = Math.floor(failing / 2);
    else next = Math.floor((holding + failing) / 2);
  }
  return measurements;
}

/** Names the measurements before which the generator's machine had other work; '' = none. */
export function spoiledText(measurements: Measurement[]): string {
  const busy = measurements.filter(({ idleBefore }) => idleBefore < idleBeforeMin);
  if (busy.length === 0) return '';
  const shares = busy.map(({ idleBefore }) => Math.round((1 - idleBefore) * 100)).sort((a, b) => a - b);
  const share = shares[0] === shares.at(-1) ? `${shares[0]} %` : `${shares[0]} to ${shares.at(-1)} %`;
  const some = busy.length === measurements.length ? 'each load' : `${busy.length} of ${measurements.length} loads`;
  const which = measurements.length === 1 ? 'the load' : some;
  return `in the second before ${which} other work used ${share} of this machine's processors, which makes latencies longer.`;
}

/** Median, least and greatest of the measurements at one rate. */
export function spreadOf(measurements: Measurement[]): string[] {
  const line = (name: string, values: number[]) => {
    return `${name}: median ${figure(median(values))}, rounds ${rangeText(values)}`;
  };
  return [
    line(
      'acknowledged/s',
      measurements.map(({ load }) => load.requestsPerSecond),
    ),
    line(
      'p99 ms',
      measurements.map(({ load }) => load.latency.p99Ms),
    ),
  ];
}
