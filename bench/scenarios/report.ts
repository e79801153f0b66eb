/**
 * Reports over ten million points of a thousand devices: one after the other, from many clients at once, and beside
 * ingest. The analytics process must stay awake while its threads make large answers.
 */
import { availableParallelism } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { eventually } from '../../test/harness/api.ts';
import { type Engine, startEngine } from '../../test/harness/engine.ts';
import { machineSettled } from '../cpu.ts';
import { createFleet, EngineUnderLoad, httpGenerator } from '../engine-under-load.ts';
import { Histogram, summaryOf } from '../load/histogram.ts';
import { ReportClient } from '../load/rest/reports.ts';
import { figure, say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';

const dayMs = 86_400_000;
const days = 10;
const startTs = Date.UTC(2025, 5, 2);
const settleMs = 10_000;
const range = { startTs, endTs: startTs + days * dayMs, timeZone: 'Europe/Kyiv' };
const ackP99MsMax = 20;
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
/** Many rows: the threads encode, the process forwards. */
const large = [row('name'), date('FULL_HOUR'), telemetry('SUM'), { ...telemetry('MAX'), label: 'max' }];

export async function runReport(settings: BenchSettings): Promise<boolean> {
  const { devices, points, samples, clients, seconds, ackRate } = settings.report;
  const engine = await startEngine({ workers: availableParallelism(), reports: true, env: { LOG_LEVEL: 'warn' } });
  try {
    const tokens = await createDevices(engine, devices);
    await fill(engine, devices, points);
    await sleep(settleMs);
    const asker = new ReportClient(engine);
    const views = await Promise.all(measured.map(({ fields }) => asker.saveView(fields, range)));

    const single = [];
    for (const [n, { name, msMax }] of measured.entries()) {
      const histogram = new Histogram();
      for (let sample = -2; sample < samples; sample += 1) {
        const startedAt = performance.now();
        if ((await asker.report(views[n]!)).status !== 200) throw new Error(`${name} failed`);
        if (sample >= 0) histogram.record((performance.now() - startedAt) * 1000);
      }
      single.push({ name, msMax, ...summaryOf(histogram) });
    }
    table(
      [`one report at a time, ${figure(points)} points`, 'p50 ms', 'max ms', 'target'],
      single.map(({ name, p50Ms, maxMs, msMax }) => [name, p50Ms, maxMs, msMax]),
    );

    const crowd = await asker.crowd(views[1]!, clients, seconds);
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

    const beside = await besideIngest(
      engine,
      tokens,
      settings,
      () => asker.crowd(views[1]!, clients, 2 * seconds),
      ackRate,
    );
    table(
      ['ingest', 'requests/s', 'p50 ms', 'p99 ms'],
      Object.entries(beside).map(([name, { requestsPerSecond, latency }]) => [
        name,
        requestsPerSecond,
        latency.p50Ms,
        latency.p99Ms,
      ]),
    );
    say(`target: ack p99 ${ackP99MsMax} ms at ${ackRate} requests/s beside ${clients} report clients`);
    writeResult('report', settings, { single, crowd, lagMs, beside });
    asker.close();
    return (
      single.every(({ p50Ms, msMax }) => p50Ms <= msMax) &&
      lagMs <= lagMsMax &&
      beside['fixed, reports']!.latency.p99Ms <= ackP99MsMax
    );
  } finally {
    await engine.destroy();
  }
}

async function besideIngest(
  engine: Engine,
  tokens: string[],
  settings: BenchSettings,
  reports: () => Promise<unknown>,
  ackRate: number,
) {
  const load = new EngineUnderLoad(engine, tokens, httpGenerator(settings.http));
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
  return {
    'peak, alone': await alone(0),
    'peak, reports': await both(0),
    'fixed, alone': await alone(ackRate),
    'fixed, reports': await both(ackRate),
  } as Record<string, Awaited<ReturnType<EngineUnderLoad['offer']>>>;
}

/** Ten profiles. */
async function createDevices(engine: Engine, count: number): Promise<string[]> {
  const fleet = await createFleet(engine.api, 'bench', count, (n) => ({ type: `profile-${n % 10}` }));
  const known = `SELECT count() FROM device_metadata FINAL WHERE name LIKE 'bench-%'`;
  await eventually(async () => Number((await engine.clickhouse(known))[0]![0]) === count, 30_000);
  return fleet.map(({ token }) => token);
}

/** Straight into the table, a day at a time; closed days are one part, as they are after an hour. */
async function fill(engine: Engine, devices: number, points: number): Promise<void> {
  const perDay = Math.floor(points / days);
  const stepMs = Math.floor((dayMs * devices) / perDay);
  const numbers = `(SELECT groupArray(device) FROM device_metadata FINAL WHERE name LIKE 'bench-%')`;
  for (let day = 0; day < days; day += 1) {
    await engine.clickhouseCommand(
      `INSERT INTO telemetry (device, key, ts, kind, num, int, text, version) SELECT arrayElement(${numbers}, number % ${devices} + 1), 'flow',
         ${startTs + day * dayMs} + intDiv(number, ${devices}) * ${stepMs}, 3,
         round(100 + 20 * sin(number / 5000) + (cityHash64(number) % 100) / 100, 2), 0, '', 1 FROM numbers(${perDay})`,
    );
  }
  await engine.clickhouseCommand('OPTIMIZE TABLE telemetry FINAL');
}
