/** Reads of what the gateways sent, each judged by its content: a device's day, its latest values, reports on all. */
import type { Engine } from '../../test/harness/engine.ts';
import { busyMs, cpuByRole } from '../cpu.ts';
import { type Call, judged, makeCalls, type Outcome } from '../load/rest/calls.ts';
import { getRequest, outcomeOf } from '../load/rest/latest-values.ts';
import { ReportClient } from '../load/rest/reports.ts';
import type { DayPlan } from './plan.ts';

/**
 * Calls for each worker before the measured ones. V8 compiles what a call runs: the first 150 latest values after a
 * start took 6.7 ms (p50), those after the 1 000th 4.8. A service has made such calls.
 */
const warmupCalls = 1_000;
/** Calls before the measured ones for each measured one, at most. */
const warmupCallsOfSample = 10;
/** Connections for each worker before the measured calls. The kernel spreads them, so nearly every worker has some. */
const warmupConnections = 4;

/** A device by its number in the plan. */
export interface KnownDevice {
  device: number;
  id: string;
}

export interface ReadResult {
  name: string;
  answered: Outcome;
  failed: number;
  /**
   * Cores that others used: other programs, threads of the kernel, and what the host of a virtual machine gave away.
   * Such work makes single calls slow.
   */
  othersShare: number;
}

export async function measureReads(
  engine: Engine,
  apiKey: string,
  plan: DayPlan,
  known: KnownDevice[],
  { samples, workers }: { samples: number; workers: number },
): Promise<ReadResult[]> {
  const drawn = () => known[Math.floor(Math.random() * known.length)]!;
  const kinds = [
    { name: `a device's day, ${plan.devicePoints} points`, call: () => dayCall(plan, drawn(), apiKey, plan.keys) },
    {
      name: `a key of a device's day, ${plan.turns} points`,
      call: () => dayCall(plan, drawn(), apiKey, plan.keys.slice(0, 1)),
    },
    { name: `latest values, ${plan.keys.length} keys`, call: () => latestCall(plan, drawn(), apiKey) },
  ];
  const results: ReadResult[] = [];
  for (const { name, call } of kinds) {
    const calls = (count: number, connections: number) => {
      const callOf = (n: number) => (n < count ? call() : undefined);
      const order = { port: engine.port, connections, rate: 0, warmupSeconds: 0, seconds: Number.POSITIVE_INFINITY };
      return makeCalls({ ...order, callOf });
    };
    await calls(Math.min(warmupCalls * workers, warmupCallsOfSample * samples), warmupConnections * workers);
    const [others, startedAt] = [othersMs(engine), performance.now()];
    const read = judged(await calls(samples, 1));
    const othersShare = (othersMs(engine) - others) / (performance.now() - startedAt);
    results.push({ name, ...read, othersShare });
  }
  return results;
}

function othersMs(engine: Engine): number {
  const ofEngine = [...cpuByRole(engine.pids()).values()].reduce((sum, ms) => sum + ms, 0);
  const { user, system } = process.cpuUsage();
  return busyMs() - ofEngine - (user + system) / 1000;
}

type Series = Record<string, { ts: number; value: unknown }[]>;

function seriesPath(id: string, query: string): string {
  return `/api/plugins/telemetry/DEVICE/${id}/values/timeseries?useStrictDataTypes=true${query}`;
}

function dayCall(plan: DayPlan, { device, id }: KnownDevice, apiKey: string, keys: string[]): Call {
  const range = `&startTs=${plan.firstTs}&endTs=${plan.endTs}&limit=${plan.turns}&orderBy=ASC`;
  const request = getRequest(seriesPath(id, `&keys=${keys.join(',')}${range}`), apiKey);
  const times = plan.timesOf(device);
  const isTheDay = (body: string) => {
    const series = JSON.parse(body) as Series;
    return keys.every((key) => {
      const points = series[key] ?? [];
      return (
        points.length === times.length && points.every(({ ts, value }, n) => ts === times[n] && isValueOf(key, value))
      );
    });
  };
  return { request, outcomeOf: (status, body) => outcomeOf(status, body, isTheDay) };
}

function latestCall(plan: DayPlan, { device, id }: KnownDevice, apiKey: string): Call {
  const last = plan.timesOf(device).at(-1);
  const isLatest = (body: string) => {
    const series = JSON.parse(body) as Series;
    const isWhole = Object.keys(series).length === plan.keys.length;
    return isWhole && plan.keys.every((key) => series[key]?.[0]?.ts === last && isValueOf(key, series[key][0].value));
  };
  return {
    request: getRequest(seriesPath(id, ''), apiKey),
    outcomeOf: (status, body) => outcomeOf(status, body, isLatest),
  };
}

/** The values of `moving-record.ts`: one digit of each wanders. */
function isValueOf(key: string, value: unknown): boolean {
  const [from, to] = { temperature: [21, 22], humidity: [48, 49], pressure: [1013, 1014], battery: [87, 87] }[key] ?? [
    61, 62,
  ];
  return typeof value === 'number' && value >= from! && value <= to!;
}

export interface ReportResult {
  name: string;
  seconds: number;
  isRight: boolean;
  /** The status and text of an answer without a report. */
  refusal?: string;
}

/** Each report once: nothing of it is cached, and a reader who waits for it waits once. */
export async function measureReports(engine: Engine, plan: DayPlan, known: KnownDevice[]): Promise<ReportResult[]> {
  const client = new ReportClient(engine);
  const range = { startTs: plan.firstTs, endTs: plan.endTs, timeZone: 'UTC' };
  const hour = { label: 'Hour', source: 'DATE', dateGrouping: 'FULL_HOUR', role: 'ROW' };
  const name = { label: 'Device', source: 'ENTITY_FIELD', key: 'name', role: 'ROW' };
  const value = (aggregation: string) => {
    return { label: aggregation, source: 'TELEMETRY', key: 'temperature', role: 'VALUE', aggregation };
  };
  const some = known.slice(0, 100).map(({ id }) => id);
  const kinds = [
    {
      name: `a hundred devices by name`,
      fields: [name, value('COUNT'), value('AVG')],
      scope: { deviceIds: some },
      devices: some.length,
    },
    { name: 'all devices by hour', fields: [hour, value('COUNT'), value('AVG')], scope: {}, devices: plan.devices },
  ];
  try {
    const results: ReportResult[] = [];
    for (const { name: kind, fields, scope, devices } of kinds) {
      const view = await client.saveView(fields, range, scope);
      const startedAt = performance.now();
      const { status, text } = await client.report(view);
      const seconds = (performance.now() - startedAt) / 1000;
      if (status !== 200) {
        results.push({ name: kind, seconds, isRight: false, refusal: `${status} ${text.slice(0, 300)}` });
        continue;
      }
      const { dataTable } = JSON.parse(text) as { dataTable: { COUNT: number; AVG: number }[] };
      const points = dataTable.reduce((sum, { COUNT }) => sum + COUNT, 0);
      const isRight = points === devices * plan.turns && dataTable.every(({ AVG }) => isValueOf('temperature', AVG));
      results.push({ name: kind, seconds, isRight });
    }
    return results;
  } finally {
    client.close();
  }
}
