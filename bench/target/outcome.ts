/** Prints the measurements of a target: figures, refusals by their reason, pauses, and why a load ended early. */
import { addedUp, type Counts, mostFirst, refusedText, totalOf } from '../load/counts.ts';
import { failuresOf } from '../load/processes.ts';
import type { EarlyEnd, Pause } from '../load/silence.ts';
import { type Cell, figure, say, table } from '../report.ts';
import { Targets } from '../targets.ts';
import type { TargetOrder } from './order.ts';
import { holds, type Measurement, missedText, spoiledText, spreadOf } from './search.ts';

const pausesShown = 5;

/** `isGood`: none was refused, cut short or too slow; of a search, that it found a rate. */
export function sayMeasurements(
  order: TargetOrder,
  measurements: Measurement[],
): { isGood: boolean; missed: string[] } {
  const { p99MsMax, isSearch, repeat, connections } = order;
  say('');
  const latencies = ['p50 ms', 'p90 ms', 'p99 ms', 'p99.9 ms', 'max ms', 'sent late p99 ms'];
  const shares = ['generator CPU', 'idle before %', 'idle %'];
  table(['asked/s', 'acknowledged/s', ...latencies, 'failed', ...shares], measurements.map(cellsOf));
  say('');
  sayRefusals(measurements);
  const [broken, unanswered] = [sumOf(measurements, 'broken'), sumOf(measurements, 'unanswered')];
  const lost = sumOf(measurements, 'unsure') - unanswered;
  if (broken > 0) say(`connections that broke: ${figure(broken)}, with ${figure(lost)} messages that may be stored`);
  if (unanswered > 0) say(`never answered: ${figure(unanswered)} messages, which may be stored and are in no latency`);
  for (const [n, { load }] of measurements.entries()) {
    const which = measurements.length > 1 ? `measurement ${n + 1}: ` : '';
    if (load.connections < connections)
      say(`${which}only ${figure(load.connections)} of ${figure(connections)} connections were open when it began`);
    for (const text of pausesTexts(load.pauses)) say(`${which}${text}`);
    if (load.earlyEnd !== undefined) say(`ENDED EARLY: ${which}${earlyEndText(load.earlyEnd, load.refused)}`);
  }
  const best = Math.max(0, ...measurements.filter((each) => holds(each, p99MsMax)).map(({ rate }) => rate));
  if (isSearch) {
    say(`highest rate with p99 at most ${figure(p99MsMax)} ms: ${figure(best)} messages/s`);
    const missed = missedText(measurements, best, p99MsMax);
    if (missed !== '') say(missed);
  } else {
    if (repeat > 1) for (const line of spreadOf(measurements)) say(line);
    // A search also tries rates that the server cannot answer.
    for (const { load } of measurements)
      if (load.invalid !== '' && load.earlyEnd === undefined) say(`INVALID: ${load.invalid}`);
  }
  const spoiled = spoiledText(measurements);
  if (spoiled !== '') say(`WARNING: ${spoiled}${isSearch ? ' The rate that was found may be too low.' : ''}`);
  const targets = new Targets();
  if (isSearch || p99MsMax === 0) return { isGood: isSearch ? best > 0 : measurements.every(isWhole), missed: [] };
  for (const [n, { load }] of measurements.entries())
    targets.atMost(measurements.length > 1 ? `measurement ${n + 1}: p99` : 'p99', load.latency.p99Ms, p99MsMax, ' ms');
  targets.tell();
  return { isGood: measurements.every((each) => holds(each, p99MsMax)), missed: targets.missed };
}

function isWhole(measurement: Measurement): boolean {
  return holds(measurement, 0);
}

function cellsOf({ rate, load, idleBefore }: Measurement): Cell[] {
  const { p50Ms, p90Ms, p99Ms, p999Ms, maxMs } = load.latency;
  const { requestsPerSecond, sentLateP99Ms, generatorCpuShare, machineIdleShare } = load;
  const idle = [idleBefore, machineIdleShare].map((share) => Math.round(share * 100));
  const latencies = [p50Ms, p90Ms, p99Ms, p999Ms, maxMs, sentLateP99Ms];
  const asked = rate === 0 ? 'max' : rate;
  return [asked, requestsPerSecond, ...latencies, failuresOf(load), generatorCpuShare, ...idle];
}

/** A row for each reason; several measurements have a column each. */
function sayRefusals(measurements: Measurement[]): void {
  const all = mostFirst(addedUp(measurements.map(({ load }) => load.refused)));
  if (all.length === 0) return;
  const each = measurements.length > 1 ? measurements : [];
  const columns = each.map(({ rate }, n) => `${n + 1}: ${rate === 0 ? 'max' : `${figure(rate)}/s`}`);
  table(
    ['refused with, warm-up included', 'count', ...columns],
    all.map(([reason, count]) => [reason, count, ...each.map(({ load }) => load.refused[reason] ?? 0)]),
  );
  say('');
}

/** The longest pauses, in the order of their times. */
function pausesTexts(pauses: Pause[]): string[] {
  const sorted = [...pauses].sort((a, b) => b.seconds - a.seconds);
  const shown = sorted.slice(0, pausesShown).sort((a, b) => a.fromSecond - b.fromSecond);
  const texts = shown.map(({ fromSecond, seconds }) => {
    return `nothing was acknowledged for ${seconds.toFixed(1)} s, from second ${fromSecond.toFixed(1)} on`;
  });
  const rest = sorted.slice(pausesShown);
  if (rest.length > 0) texts.push(`and in ${rest.length} shorter pauses of a second and more`);
  return texts;
}

/** Since when nothing was acknowledged, and what the server said. */
export function earlyEndText({ sinceSecond, sinceMs, seconds, wasConnected }: EarlyEnd, refused: Counts): string {
  const reasons = totalOf(refused) > 0 ? ` Refused: ${refusedText(refused)}.` : '';
  if (!wasConnected) return `no connection was accepted, and nothing was sent.${reasons}`;
  if (sinceSecond === 0) return `nothing was acknowledged at all, for ${figure(seconds)} s.${reasons}`;
  const since = `second ${sinceSecond.toFixed(1)} on (${new Date(sinceMs).toISOString().slice(11, 19)} UTC)`;
  const waited = figure(Math.max(0, seconds - sinceSecond));
  return `nothing was acknowledged from ${since}, for ${waited} s. The figures are those until then.${reasons}`;
}

function sumOf(measurements: Measurement[], count: 'broken' | 'unsure' | 'unanswered'): number {
  return measurements.reduce((sum, { load }) => sum + load[count], 0);
}
