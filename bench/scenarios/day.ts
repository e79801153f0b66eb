/**
 * A mixed fleet on a day in small: devices over HTTP and MQTT, gateways, attributes, commands and reads of dashboards,
 * all at fixed rates and at the same time. Beside them reports, cut connections, a slow ClickHouse and a killed worker,
 * one after the other; tables show the effect of each on every figure. At the end every acknowledged record is there.
 */

import { availableParallelism } from 'node:os';
import { dayMs } from '../../src/base/durations.ts';
import { startEngine } from '../../test/harness/engine.ts';
import { DayFleet, type Streams } from '../day/day-fleet.ts';
import { type DayEvent, killWorker, type Phase, runPhases, slowClickhouse } from '../day/events.ts';
import { refusedText, totalOf } from '../load/counts.ts';
import { ReportClient } from '../load/rest/reports.ts';
import type { Second } from '../load/timeline.ts';
import { type Cell, figure, median, rangeText, say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
import { watchEngine } from '../watch-engine.ts';

const mebibyte = 1_048_576;
const calm = 'calm';

type Crowd = Awaited<ReturnType<ReportClient['crowd']>>;

export async function runDay(settings: BenchSettings): Promise<boolean> {
  const { phaseSeconds, slowSeconds, reportClients } = settings.day;
  const engine = await startEngine({ workers: availableParallelism(), reports: true, env: { LOG_LEVEL: 'warn' } });
  const unwatch = watchEngine(engine);
  const reports = new ReportClient(engine);
  const aborted = new AbortController();
  let fleet: DayFleet | undefined;
  try {
    fleet = await DayFleet.make(engine, settings.day);
    const view = await reports.saveView(reportFields, {
      startTs: Date.now() - dayMs,
      endTs: Date.now(),
      timeZone: 'UTC',
    });
    let crowd: Crowd | undefined;
    const askReports = async () => {
      crowd = await reports.crowd(view, reportClients, phaseSeconds);
    };
    const before: Phase[] = [
      { name: calm, seconds: phaseSeconds },
      { name: `reports of ${reportClients} clients`, seconds: phaseSeconds, act: askReports },
      { name: calm, seconds: phaseSeconds },
    ];
    const phases: Phase[] = [
      ...before,
      // The generator of these connections cuts them.
      { name: 'a tenth of the MQTT connections cut', seconds: phaseSeconds },
      { name: 'slow ClickHouse', seconds: slowSeconds, act: () => slowClickhouse(engine, slowSeconds, aborted.signal) },
      { name: 'ClickHouse catches up', seconds: phaseSeconds },
      { name: 'a worker killed', seconds: phaseSeconds, act: () => killWorker(engine) },
      { name: calm, seconds: phaseSeconds },
    ];
    let begin: (events: Promise<DayEvent[]>) => void = () => {};
    const events = new Promise<DayEvent[]>((resolve) => {
      begin = resolve;
    });
    const onBegin = () => begin(runPhases(phases, aborted.signal));
    const [streams, happened] = await Promise.all([fleet.run(secondsOf(phases), secondsOf(before), onBegin), events]);
    const stored = await fleet.stored();
    tell(happened, streams);
    const isWhole = tellOutcome(streams, crowd, stored);
    say(`connections of command devices that were lost and made again: ${fleet.commandConnectionsLost}`);
    writeResult('day', settings, { events: happened, streams, crowd, stored });
    return isWhole;
  } finally {
    aborted.abort();
    unwatch();
    reports.close();
    await fleet?.close();
    await engine.destroy();
  }
}

const reportFields = [
  { label: 'Date', source: 'DATE', dateGrouping: 'FULL_HOUR', role: 'ROW' },
  { label: 'flow', source: 'TELEMETRY', key: 'flow', role: 'VALUE', aggregation: 'SUM' },
];

function secondsOf(phases: Phase[]): number {
  return phases.reduce((sum, { seconds }) => sum + seconds, 0);
}

/** Prints, for each event and stream, the p99 of a usual and of the worst second, the rate, and what was refused. */
function tell(events: DayEvent[], streams: Streams): void {
  const names = Object.keys(streams);
  const rowsOf = (cellOf: (seconds: Second[]) => Cell) => {
    return events.map((event): Cell[] => [
      event.name,
      ...names.map((name) => cellOf(during(streams[name]!.startedAtMs, streams[name]!.seconds, event))),
    ]);
  };
  say('\np99 ms of the median second, and of the worst\n');
  table(
    ['', ...names],
    rowsOf((seconds) => {
      const p99s = seconds.map(({ p99Ms }) => p99Ms).filter((ms) => Number.isFinite(ms));
      return p99s.length === 0 ? '-' : `${figure(median(p99s))} / ${figure(Math.max(...p99s))}`;
    }),
  );
  say('\nanswers/s in the mean and in the worst second, and refused messages\n');
  table(
    ['', ...names, 'journal MiB', 'parts'],
    rowsOf((seconds) => {
      // An event that was over within a second has none of its own.
      if (seconds.length === 0) return '-';
      const rates = seconds.map(({ rate }) => rate);
      const refused = seconds.reduce((sum, second) => sum + totalOf(second.refused), 0);
      const mean = rates.reduce((sum, rate) => sum + rate, 0) / rates.length;
      return `${figure(mean)} / ${figure(Math.min(...rates))}${refused > 0 ? `, ${figure(refused)} refused` : ''}`;
    }).map((row, n) => [...row, ...gaugesOf(streams, events[n]!)]),
  );
}

/** The highest backlog of the journal and the highest number of parts during an event. */
function gaugesOf(streams: Streams, event: DayEvent): Cell[] {
  const { startedAtMs, seconds } = streams['HTTP telemetry']!;
  const highest = (name: string) => {
    const values = during(startedAtMs, seconds, event).flatMap(({ gauges }) => gauges[name] ?? []);
    return values.length === 0 ? Number.NaN : Math.max(...values);
  };
  return [highest('backlogBytes') / mebibyte, highest('parts')];
}

function during(startedAtMs: number, seconds: Second[], { atMs, untilMs }: DayEvent): Second[] {
  return seconds.filter(({ second }) => {
    const endedMs = startedAtMs + second * 1000;
    return endedMs > atMs && endedMs <= untilMs;
  });
}

function tellOutcome(
  streams: Streams,
  crowd: Crowd | undefined,
  { least, most, found }: { least: number; most: number; found: number },
): boolean {
  say('');
  for (const [name, { refused, broken, unsure, unanswered, unsent, invalid }] of Object.entries(streams)) {
    if (Object.keys(refused).length > 0) say(`${name}: refused with ${refusedText(refused)}`);
    if (broken > 0) say(`${name}: ${broken} connections broken, with ${unsure - unanswered} messages in flight`);
    if (unanswered > 0) say(`${name}: ${unanswered} messages were never answered`);
    if (unsent > 0) say(`${name}: ${unsent} messages were due and not sent`);
    if (invalid !== '') say(`INVALID ${name}: ${invalid}`);
  }
  if (crowd) {
    const refused = `${figure(100 * crowd.refusedShare)} % refused`;
    say(`reports: ${figure(crowd.perSecond)}/s, p99 ${figure(crowd.p99Ms)} ms, ${refused}`);
  }
  const isWhole = found >= least && found <= most;
  say(
    `stored: ${isWhole ? 'every acknowledged record, once' : 'NO'} (${figure(found)}, expected ${rangeText([least, most])})`,
  );
  return isWhole;
}
