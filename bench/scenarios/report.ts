/**
 * Reports over ten million points of a thousand devices: one after the other, from many clients at once, and beside
 * ingest. The analytics process must stay awake while its threads make large answers.
 */

import { availableParallelism } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { dayMs } from '../../src/base/durations.ts';
import { eventually } from '../../test/harness/api.ts';
import { type Engine, startEngine } from '../../test/harness/engine.ts';
import { machineSettled } from '../cpu.ts';
import { createFleet, EngineUnderLoad, httpGenerator } from '../engine-under-load.ts';
import { Histogram, summaryOf } from '../load/histogram.ts';
import type { LoadResult } from '../load/processes.ts';
import { ReportClient } from '../load/rest/reports.ts';
import { figure, say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
import { Targets } from '../targets.ts';

const days = 10;
const startTs = Date.UTC(2025, 5, 2);
const settleMs = 10_000;
const range = { startTs, endTs: startTs + days * dayMs, timeZone: 'Europe/Kyiv' };
const ackP99MsMax = 15;
const lagMsMax = 20;

const telemetry = (aggregation: string) => ({
  label: 'flow',
  source: 'TELEMETRY',
  key: 'flow',
  role: 'VALUE',
  aggregation,
});
const row = (key: string) => ({ label: key, source: 'ENTITY_FIELD', key, role: 'ROW' });
const date = (dateGrouping: string) => ({ label: 'Date', source: 'DATE', dateGrouping, role: 'ROW' });

const measured = [
  { name: 'by device and day', fields: [row('name'), date('FULL_DATE'), telemetry('SUM')], msMax: 400 },
  { name: 'by profile and hour', fields: [row('profile'), date('FULL_HOUR'), telemetry('SUM')], msMax: 400 },
  { name: 'DELTA by device', fields: [row('name'), telemetry('DELTA')], msMax: 1500 },
  {
    name: 'pivot: day by profile',
    fields: [date('FULL_DATE'), { ...row('profile'), role: 'COLUMN' }, telemetry('AVG')],
    msMax: 400,
  },
];
const completeness = { label: 'there', source: 'COMPLETENESS', key: 'flow', role: 'VALUE', decimals: 6 };
/** COMPLETENESS and AVG of the same points, in the same groups. */
const compared = [
  { name: 'by device', rows: [row('name')] },
  { name: 'by profile and hour', rows: [row('profile'), date('FULL_HOUR')] },
];
/** Of every tenth device a tenth of the points of one day is missing. */
const gap = { day: 3, everyDevice: 10, share: 10 };
/** A report of many rows: the threads encode it, and the process forwards it. */
const large = [row('name'), date('FULL_HOUR'), telemetry('SUM'), { ...telemetry('MAX'), label: 'max' }];

export async function runReport(settings: BenchSettings): Promise<boolean> {
  const { devices, points, samples, clients, seconds, ackRate } = settings.report;
  const engine = await startEngine({ workers: availableParallelism(), reports: true, env: { LOG_LEVEL: 'warn' } });
  try {
    const tokens = await fleetWithHistory(engine, devices, points);
    await sleep(settleMs);
    const asker = new ReportClient(engine);
    const views = await Promise.all(measured.map(({ fields }) => asker.saveView(fields, range)));

    const single = [];
    for (const [n, { name, msMax }] of measured.entries()) {
      const histogram = new Histogram();
      for (let sample = -2; sample < samples; sample += 1) {
        const startedAt = performance.now();
        const { status, text } = await asker.report(views[n]!);
        if (status !== 200) throw new Error(`${name}: ${status} ${text}`);
        if (sample >= 0) histogram.record((performance.now() - startedAt) * 1000);
      }
      single.push({ name, msMax, ...summaryOf(histogram) });
    }
    table(
      [`one report at a time, ${figure(points)} points`, 'p50 ms', 'max ms', 'target'],
      single.map(({ name, p50Ms, maxMs, msMax }) => [name, p50Ms, maxMs, msMax]),
    );

    const beside = await completenessBesideAvg(asker, settings);

    const hourly = await saveHourlyView(asker);
    const crowd = await asker.crowd(hourly, clients, seconds);
    say(
      `\n${clients} clients by profile and hour: ${figure(crowd.perSecond)} reports/s, p99 ${figure(crowd.p99Ms)} ms, ` +
        `${figure(100 * crowd.refusedShare)} % refused`,
    );

    await asker.lagMs();
    const largeView = await asker.saveView(large, range);
    const answers = await Promise.all(Array.from({ length: 10 }, () => asker.report(largeView)));
    const lagMs = await asker.lagMs();
    const bytes = answers.reduce((sum, answer) => sum + answer.text.length, 0);
    say(
      `10 reports of up to 100 000 rows (${figure(bytes / 1e6)} MB): loop delay p99 ${figure(lagMs)} ms (target ${lagMsMax})`,
    );

    const crowds = [crowd];
    const crowdBeside = async () => {
      crowds.push(await asker.crowd(hourly, clients, 2 * seconds));
    };
    const { ingest, verified } = await besideIngest(engine, tokens, settings, crowdBeside, ackRate);
    say('');
    table(
      ['ingest', 'requests/s', 'p50 ms', 'p99 ms'],
      Object.entries(ingest).map(([name, { requestsPerSecond, latency }]) => [
        name,
        requestsPerSecond,
        latency.p50Ms,
        latency.p99Ms,
      ]),
    );
    for (const [name, { invalid }] of Object.entries(ingest)) if (invalid !== '') say(`INVALID ${name}: ${invalid}`);
    say(`stored and verified in ClickHouse: ${verified ? 'every acknowledged record, once' : 'NO'}`);
    const failures = crowds.flatMap(({ failed }) => Object.entries(failed));
    for (const [why, count] of failures) say(`reports of the clients that failed with ${why}: ${figure(count)}`);
    const ackP99Ms = ingest['fixed, reports']!.latency.p99Ms;
    say(`target: ack p99 ${ackP99MsMax} ms at ${ackRate} requests/s beside ${clients} report clients`);
    const targets = new Targets();
    for (const { name, p50Ms, msMax } of single) targets.atMost(`${name}: p50`, p50Ms, msMax, ' ms');
    targets.atMost('loop delay: p99', lagMs, lagMsMax, ' ms');
    targets.atMost('ack: p99', ackP99Ms, ackP99MsMax, ' ms');
    const holds = targets.tell();
    const { missed } = targets;
    writeResult('report', settings, { single, completeness: beside, crowds, lagMs, beside: ingest, verified, missed });
    asker.close();
    return failures.length === 0 && verified && holds;
  } finally {
    await engine.destroy();
  }
}

/**
 * Requests both in turn, so that the other load of the machine affects both. Throws when a report is not the one that
 * the points give.
 */
async function completenessBesideAvg(asker: ReportClient, { report: { devices, points, samples } }: BenchSettings) {
  const figures = [];
  for (const { name, rows } of compared) {
    const fields = { avg: [...rows, telemetry('AVG')], completeness: [...rows, completeness] };
    const views = {
      avg: await asker.saveView(fields.avg, range),
      completeness: await asker.saveView(fields.completeness, range),
    };
    const times = { avg: new Histogram(), completeness: new Histogram() };
    for (let sample = -2; sample < samples; sample += 1) {
      for (const kind of ['avg', 'completeness'] as const) {
        const startedAt = performance.now();
        const { status, text } = await asker.report(views[kind]);
        if (status !== 200) throw new Error(`${kind} ${name}: ${status} ${text}`);
        if (sample >= 0) times[kind].record((performance.now() - startedAt) * 1000);
        if (kind === 'completeness') verifyCompleteness(text, name, stepsOf(devices, points), devices);
      }
    }
    const [avg, whole] = [summaryOf(times.avg), summaryOf(times.completeness)];
    figures.push({ name, avgP50Ms: avg.p50Ms, completenessP50Ms: whole.p50Ms, ratio: whole.p50Ms / avg.p50Ms });
  }
  say('');
  table(
    ['COMPLETENESS beside AVG', 'AVG p50 ms', 'COMPLETENESS p50 ms', 'ratio'],
    figures.map(({ name, avgP50Ms, completenessP50Ms, ratio }) => [name, avgP50Ms, completenessP50Ms, ratio]),
  );
  return figures;
}

/**
 * Compares the shares with those of the gap: of each device, or of the groups, where each has every point or lacks
 * some.
 */
function verifyCompleteness(text: string, name: string, steps: number, devices: number): void {
  const { dataTable } = JSON.parse(text) as { dataTable: { there: number }[] };
  const shares = dataTable.map(({ there }) => there);
  const lacking = shares.filter((share) => share !== 1);
  const ofDevice = Number((1 - Math.floor(steps / gap.share) / (days * steps)).toFixed(6));
  const isRight =
    name === 'by device'
      ? shares.length === devices &&
        lacking.length === Math.ceil(devices / gap.everyDevice) &&
        lacking.every((share) => share === ofDevice)
      : shares.length > 0 && lacking.length > 0 && lacking.every((share) => share >= 0 && share < 1);
  if (!isRight) throw new Error(`COMPLETENESS ${name} is wrong: ${lacking.length} of ${shares.length} lack points`);
}

async function besideIngest(
  engine: Engine,
  tokens: string[],
  settings: BenchSettings,
  reports: () => Promise<unknown>,
  ackRate: number,
) {
  const load = new EngineUnderLoad(engine, tokens, httpGenerator(settings.http));
  await load.setApart();
  const { seconds } = settings.report;
  const alone = async (rate: number) => {
    const result = await load.offer(rate, seconds, 1);
    await machineSettled();
    return result;
  };
  const both = async (rate: number) => {
    const running = reports();
    const result = await load.offer(rate, seconds, 1);
    await running;
    await machineSettled();
    return result;
  };
  const ingest: Record<string, LoadResult> = {
    'peak, alone': await alone(0),
    'peak, reports': await both(0),
    'fixed, alone': await alone(ackRate),
    'fixed, reports': await both(ackRate),
  };
  await load.stored();
  return { ingest, verified: await load.verify() };
}

/** Makes devices of ten profiles with points of ten days, and returns their tokens. */
export async function fleetWithHistory(engine: Engine, devices: number, points: number): Promise<string[]> {
  const tokens = await createDevices(engine, devices);
  await fill(engine, devices, points);
  return tokens;
}

/** Returns the id of a view of all these points, by profile and hour. */
export function saveHourlyView(asker: ReportClient): Promise<string> {
  return asker.saveView(measured[1]!.fields, range);
}

/** Creates devices of ten profiles. */
async function createDevices(engine: Engine, count: number): Promise<string[]> {
  const fleet = await createFleet(engine.api, 'bench', count, (n) => ({ type: `profile-${n % 10}` }));
  const known = `SELECT count() FROM device_metadata FINAL WHERE name LIKE 'bench-%'`;
  await eventually(async () => Number((await engine.clickhouse(known))[0]![0]) === count, 30_000);
  return fleet.map(({ token }) => token);
}

/** The points of a device in a day. */
function stepsOf(devices: number, points: number): number {
  return Math.floor(points / days / devices);
}

/**
 * Writes into the table directly, a day at a time. Merges each closed day into one part, as Millrace does within an
 * hour.
 */
async function fill(engine: Engine, devices: number, points: number): Promise<void> {
  const steps = stepsOf(devices, points);
  const stepMs = Math.floor(dayMs / steps);
  const numbers = `(SELECT groupArray(device) FROM device_metadata FINAL WHERE name LIKE 'bench-%')`;
  const gapStart = Math.floor(steps / 2);
  const isInGap =
    `number % ${devices} % ${gap.everyDevice} = 0 AND ` +
    `intDiv(number, ${devices}) BETWEEN ${gapStart} AND ${gapStart + Math.floor(steps / gap.share) - 1}`;
  for (let day = 0; day < days; day += 1) {
    await engine.clickhouseCommand(
      `INSERT INTO telemetry (device, key, ts, kind, num, int, text, version) SELECT arrayElement(${numbers}, number % ${devices} + 1), 'flow',
         ${startTs + day * dayMs} + intDiv(number, ${devices}) * ${stepMs}, 3,
         round(100 + 20 * sin(number / 5000) + (cityHash64(number) % 100) / 100, 2), 0, '', 1 FROM numbers(${devices * steps})
         WHERE NOT (${day === gap.day ? isInGap : 'false'})`,
    );
  }
  await engine.clickhouseCommand('OPTIMIZE TABLE telemetry FINAL');
}
