/** The page of a result: what was printed, the charts of each load, machine and settings; one file without scripts. */
import { byShortReason, type Counts, mostFirst, shortReason, totalOf } from '../load/counts.ts';
import type { LoadResult } from '../load/processes.ts';
import type { Second } from '../load/timeline.ts';
import { machineText } from '../machine.ts';
import { serverMachineText, serverName } from '../target/server.ts';
import { barChart, chartStyle, escaped, type Line, lineChart as lineChartOf, type Mark } from './chart.ts';
import { type FoundLoad, loadsOf } from './loads.ts';
import type { ResultFile } from './result-file.ts';

const reasonsDrawn = 7;
const loadsWithoutLinks = 2;
const style = `
  :root { color-scheme: light dark; --text: #444; --grid: #ddd; --mark: #888; --missed: #a40000; --block: #f6f6f6; }
  @media (prefers-color-scheme: dark) {
    :root { --text: #bbb; --grid: #3a3a3a; --mark: #999; --missed: #ff7b72; --block: #262626; }
  }
  body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 1180px; padding: 0 1rem; }
  pre { background: var(--block); padding: 1rem; overflow-x: auto; font-size: 13px; }
  td { overflow-wrap: anywhere; }
  td, th { text-align: left; padding: 2px 14px 2px 0; vertical-align: top; } h2 { margin-top: 2rem; }
  .missed { color: var(--missed); }${chartStyle}`;

export function pageOf(file: ResultFile): string {
  const { scenario, at, machine, server, commit, settings, printed, result } = file;
  const places: [string, string][] = server
    ? [
        ['server', serverName(server)],
        ["server's machine", serverMachineText(server)],
        ["generator's machine", machineText(machine)],
        ["generator's commit", commit || 'unknown'],
      ]
    : [
        ['commit', commit || 'unknown'],
        ['machine', `${machineText(machine)}; of the generators and of the servers that this run has started`],
      ];
  const facts: [string, string][] = [['measured', timesText(file)], ...places, ['command', machine.command]];
  const events = eventsOf(result);
  const loads = loadsOf(result).filter(({ load }) => load.seconds.length > 1);
  return `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escaped(`${scenario} ${at}`)}</title><style>${style}
</style></head><body>
<h1>${escaped(scenario)}</h1>
<table>${facts.map(([name, text]) => `<tr><th>${name}</th><td>${escaped(text)}</td></tr>`).join('')}</table>
${missedOf(result)}<pre>${escaped(printed.join('\n').trim())}</pre>
${contentsOf(loads)}${loads.map(({ path, load }, n) => `<h2 id="load-${n + 1}">${escaped(path)}</h2>\n${chartsOf(load, events)}`).join('\n')}
<h2>Settings</h2><pre>${escaped(JSON.stringify(settings, undefined, 2))}</pre>
</body></html>
`;
}

/** An older result has no begin. */
function timesText({ at, startedAt, loadAverageBefore, machine: { cores } }: ResultFile): string {
  if (startedAt === undefined || loadAverageBefore === undefined) return at;
  return `${startedAt} to ${at}; load average before ${loadAverageBefore.toFixed(1)}, on ${cores} processors`;
}

/** Links to the charts of each load; '' when few loads are on the page. */
function contentsOf(loads: FoundLoad[]): string {
  if (loads.length <= loadsWithoutLinks) return '';
  const items = loads.map(({ path }, n) => `<li><a href="#load-${n + 1}">${escaped(path)}</a></li>`);
  return `<h2>Loads</h2>\n<ul>${items.join('')}</ul>\n`;
}

/** What missed its target, above all figures; '' when nothing did, or the scenario has no targets. */
function missedOf(result: object): string {
  const missed = 'missed' in result && Array.isArray(result.missed) ? (result.missed as string[]) : [];
  if (missed.length === 0) return '';
  return `<h2>Targets missed</h2>\n<ul class="missed">${missed.map((line) => `<li>${escaped(line)}</li>`).join('')}</ul>\n`;
}

/** What a scenario did beside its loads, at a moment in Unix time: each chart shows it as a line. */
interface PageEvent {
  name: string;
  atMs: number;
}

function eventsOf(result: object): PageEvent[] {
  return 'events' in result && Array.isArray(result.events) ? (result.events as PageEvent[]) : [];
}

function chartsOf(load: LoadResult, events: PageEvent[]): string {
  const { seconds, bars, startedAtMs } = load;
  const marks = [
    ...events
      .map(({ name, atMs }): Mark => ({ name, second: Math.max(0, (atMs - startedAtMs) / 1000) }))
      .filter(({ second }) => second <= seconds.length),
    ...silenceMarks(load),
  ].sort((a, b) => a.second - b.second);
  const lineChart = (title: string, lines: Line[], isLatency = false) => {
    return lineChartOf(title, lines, { marks, isLatency });
  };
  const one = (name: string, figureOf: (second: Second) => number) => [{ name, values: seconds.map(figureOf) }];
  const charts = [
    lineChart(
      'Acknowledged messages in each second',
      one('rate', ({ rate }) => rate),
    ),
    lineChart(
      'Latency, ms',
      [...one('p50', ({ p50Ms }) => p50Ms), ...one('p99', ({ p99Ms }) => p99Ms), ...one('max', ({ maxMs }) => maxMs)],
      true,
    ),
    barChart(
      'Messages by latency, up to ms',
      bars.map(({ untilMs, count }) => ({ name: `${round(untilMs)}`, value: count })),
    ),
  ];
  const cpu = named(seconds, ({ cpu: byRole }) => byRole);
  if (cpu.length > 0) charts.push(lineChart('CPU, cores', cpu));
  const memory = named(seconds, ({ memoryMiB }) => memoryMiB);
  if (memory.length > 0) charts.push(lineChart('Memory, MiB', memory));
  const backlog = one('backlog', ({ gauges }) => (gauges['backlogBytes'] ?? Number.NaN) / 1_048_576);
  if (backlog[0]!.values.some((value) => Number.isFinite(value)))
    charts.push(lineChart('Journal not yet in ClickHouse, MiB', backlog));
  const parts = one('parts', ({ gauges }) => gauges['parts'] ?? Number.NaN);
  if (parts[0]!.values.some((value) => Number.isFinite(value))) charts.push(lineChart('Parts in ClickHouse', parts));
  const reasons = byShortReason(load.refused ?? {}).map(([reason]) => reason);
  const drawn = reasons.slice(0, reasonsDrawn);
  const inSecond = (reason: string, { refused }: Second) => new Map(byShortReason(refused)).get(reason) ?? 0;
  if (seconds.some(({ refused }) => totalOf(refused) > 0))
    charts.push(
      lineChart(
        'Refused in each second',
        drawn.map((reason) => ({ name: reason, values: seconds.map((second) => inSecond(reason, second)) })),
      ),
    );
  if (seconds.some(({ waiting }) => waiting > 0))
    charts.push(
      lineChart(
        'Messages due and not sent',
        one('waiting', ({ waiting }) => waiting),
      ),
    );
  return marksList(marks) + charts.join('\n') + reasonsTable(load.refused ?? {});
}

/** What happened at each numbered line of the charts, and in which second. */
function marksList(marks: Mark[]): string {
  if (marks.length === 0) return '';
  const items = marks.map(({ name, second }) => `<li>${escaped(name)}, second ${second.toFixed(1)}</li>`);
  return `<ol>${items.join('')}</ol>\n`;
}

/** Begin and end of each time in which nothing was acknowledged; an interrupted load has no list of them. */
function silenceMarks({ pauses = [], earlyEnd }: LoadResult): Mark[] {
  const marks = pauses.flatMap(({ fromSecond, seconds }): Mark[] => [
    { name: `nothing is acknowledged for ${seconds.toFixed(1)} s`, second: fromSecond },
    { name: 'acknowledged again', second: fromSecond + seconds },
  ]);
  if (earlyEnd !== undefined) marks.push({ name: 'nothing is acknowledged any more', second: earlyEnd.sinceSecond });
  return marks;
}

/** Every reason of a refusal, with what the server says of it. */
function reasonsTable(refused: Counts): string {
  const rows = mostFirst(refused).map(([reason, count]) => {
    const short = shortReason(reason);
    return `<tr><td>${escaped(short)}</td><td>${count}</td><td>${escaped(reason.slice(short.length + 2))}</td></tr>`;
  });
  if (rows.length === 0) return '';
  return `\n<table><tr><th>refused with</th><th>count</th><th>the server says</th></tr>${rows.join('')}</table>`;
}

/** Makes a line for each name that occurs in any second. */
function named(seconds: Second[], valuesOf: (second: Second) => Record<string, number>): Line[] {
  const names = [...new Set(seconds.flatMap((second) => Object.keys(valuesOf(second))))];
  return names.map((name) => ({ name, values: seconds.map((second) => valuesOf(second)[name]) }));
}

function round(value: number): number {
  return Number(value.toPrecision(2));
}
