/**
 * A billion points through the gateway topics, from devices that the gateways make on the way; then, on that data,
 * history, latest values, reports, deletes and a restart. Rates count what ClickHouse has stored, and the last tenth is
 * compared with the first. Reads are measured right after the load, while ClickHouse merges. Those that are compared
 * with the targets wait until merges have ended, also after the restart. At the end every point of every device is
 * counted.
 */
import { availableParallelism } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { eventually } from '../../test/harness/api.ts';
import { type Engine, startEngine } from '../../test/harness/engine.ts';
import { type DeleteResult, measureDeletes } from '../billion/deletes.ts';
import { DayPlan, gatewayPrefix, type Turns } from '../billion/plan.ts';
import {
  type KnownDevice,
  measureReads,
  measureReports,
  type ReadResult,
  type ReportResult,
} from '../billion/reads.ts';
import { cpuBetween, cpuByRole, machineSettled, residentBytesOf } from '../cpu.ts';
import { createFleet } from '../engine-under-load.ts';
import { addedUp, refusedText } from '../load/counts.ts';
import { runMqttLoad } from '../load/mqtt/mqtt.ts';
import type { LoadResult } from '../load/processes.ts';
import { WaitView } from '../load/wait-view.ts';
import { type Cell, figure, say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
import { Targets } from '../targets.ts';

type BillionSettings = BenchSettings['billion'];

const bytesPerPointMax = 2.5;
const lastTenthRatioMin = 0.95;
const dayP99MsMax = 30;
const latestP99MsMax = 10;
const restartSecondsMax = 5;
const partsMax = 10;
const watchMs = 100;
const drainMsMax = 600_000;
/**
 * Seconds without a merge after which merges have ended. The embedded engine checks every 30 s whether it was calm: the
 * first check may see the CPU of the last merge, and the second one begins the next merge.
 */
const stillSeconds = 75;
/** Devices that are counted in one query. */
const countedDevices = 50_000;
const copiedMsMax = 600_000;

/** The time at which ClickHouse had this number of points, and the CPU time of all processes until then. */
interface Mark {
  points: number;
  atMs: number;
  cpu: Map<string, number>;
}

/** A part of the load: its rate, and what a point of it cost. */
interface Part {
  pointsPerSecond: number;
  nanoseconds: Record<string, number>;
}

export async function runBillion(settings: BenchSettings): Promise<boolean> {
  const { billion } = settings;
  const plan = new DayPlan(billion, Date.now());
  const workers = billion.workers || availableParallelism();
  const env = { LOG_LEVEL: 'warn', REPORT_TIMEOUT_MS: '600000' };
  const engine = await startEngine({ workers, reports: true, env });
  const sampled = { samples: billion.samples, workers };
  try {
    await createFleet(engine.api, gatewayPrefix, plan.gateways, () => ({ additionalInfo: { gateway: true } }));
    const rounded = plan.points === billion.points ? '' : ` (${figure(billion.points)} rounded to whole messages)`;
    say(
      `${figure(plan.points)} points${rounded}: ${figure(plan.devices)} devices of ${plan.gateways} gateways, ` +
        `${plan.keys.length} keys each, ${plan.turns} records each, over one day`,
    );
    const { made, tenths, loads } = await store(engine, plan, billion);
    await machineSettled(billion.settleSeconds * 1000);
    const sizes = await sizesOf(engine);
    const resident = residentOf(engine);
    const stored = await countAll(engine, plan);
    const isStored = stored.points === plan.points && stored.wholeDevices === plan.devices;
    tellStored(plan, made, tenths, loads, isStored);
    for (const { name, bytes, rows } of sizes)
      say(`${name}: ${figure(rows)} rows, ${(bytes / rows).toFixed(2)} bytes each`);

    const apiKey = await engine.api.createKey();
    const known = await knownDevices(engine, plan, billion);
    const doomed = known.splice(0, 2 * billion.deletes);
    const readsBefore = await measureReads(engine, apiKey, plan, known, sampled);
    tellReads(readsBefore, ', right after the load');
    const copied = `SELECT count() FROM device_metadata FINAL WHERE name LIKE 'billion-%'`;
    await eventually(async () => (await count(engine, copied)) >= plan.devices, copiedMsMax, 500);
    await mergesEnded(engine, billion.mergeSeconds * 1000);
    const reads = await measureReads(engine, apiKey, plan, known, sampled);
    tellReads(reads, '');
    const reports = await measureReports(engine, plan, known);
    tellReports(reports);
    const deletes = await measureDeletes(engine, plan, doomed);
    tellDeletes(deletes.results);

    const stoppedAt = performance.now();
    await engine.stop();
    const startedAt = performance.now();
    await engine.start();
    const restart = {
      stopSeconds: (startedAt - stoppedAt) / 1000,
      readySeconds: (performance.now() - startedAt) / 1000,
    };
    await mergesEnded(engine, billion.mergeSeconds * 1000);
    const readsAfter = await measureReads(engine, apiKey, plan, known, sampled);
    const left = await countAll(engine, plan);
    const isLeft = left.points === plan.points - deletes.points && left.wholeDevices === plan.devices - doomed.length;

    tellReads(readsAfter, ', after a restart');
    const ratio = tenths.at(-1)!.pointsPerSecond / tenths[0]!.pointsPerSecond;
    say(`\nstopped in ${restart.stopSeconds.toFixed(1)} s, ready in ${restart.readySeconds.toFixed(1)} s`);
    say(
      `resident MiB: ${Object.entries(resident)
        .map(([role, bytes]) => `${role} ${figure(bytes / 1024 / 1024)}`)
        .join(', ')}`,
    );
    say(
      `last tenth / first tenth: ${ratio.toFixed(2)}; stored after deletes and restart: ${isLeft ? 'every other point' : 'NO'}`,
    );
    say(
      `targets: ${bytesPerPointMax} bytes per point, ${lastTenthRatioMin} of the first tenth, a day p99 ${dayP99MsMax} ms, ` +
        `latest p99 ${latestP99MsMax} ms, restart ${restartSecondsMax} s`,
    );
    const targets = billionTargets({ sizes, ratio, restart, reads, readsAfter });
    const holds = targets.tell();
    for (const reason of new Set(loads.map(({ invalid }) => invalid))) if (reason) say(`INVALID: ${reason}`);
    const all = {
      points: plan.points,
      made,
      tenths,
      loads,
      sizes,
      resident,
      isStored,
      readsBefore,
      reads,
      reports,
      deletes,
      restart,
      readsAfter,
      isLeft,
      missed: targets.missed,
    };
    writeResult('billion', settings, all);
    const isRight =
      isStored &&
      isLeft &&
      loads.every(isClean) &&
      [...readsBefore, ...reads, ...readsAfter].every(({ failed }) => failed === 0) &&
      [...reports, ...deletes.results].every((one) => one.isRight);
    return isRight && (holds || billion.targets === 0);
  } finally {
    await engine.destroy();
  }
}

/** Waits until ClickHouse has merged nothing for some seconds, and tells the parts that a read is made of then. */
async function mergesEnded(engine: Engine, msMax: number): Promise<void> {
  const began = performance.now();
  const view = new WaitView('waiting until merges have ended');
  let running = 0;
  let still = 0;
  try {
    for (; still < stillSeconds && performance.now() - began < msMax; still += 1) {
      running = await count(engine, 'SELECT count() FROM system.merges');
      if (running > 0) still = -1;
      const found = running > 0 ? `${running} merges` : `none for ${still} of ${stillSeconds} s`;
      view.note(found, { leastSeconds: 0, mostSeconds: (began + msMax - performance.now()) / 1000 });
      await sleep(1_000);
    }
  } finally {
    view.end();
  }
  const parts = (name: string) =>
    count(engine, `SELECT count() FROM system.parts WHERE active AND database = 'millrace' AND table = '${name}'`);
  const [days, latest] = [await parts('telemetry'), await parts('latest')];
  const seconds = figure((performance.now() - began) / 1000);
  const unended = running > 0 ? `${running} merges still run` : 'the next merge may begin';
  const state = still >= stillSeconds ? 'merges have ended' : unended;
  say(`\n${seconds} s later ${state}: ${days} parts of telemetry, ${latest} of latest values`);
}

function isClean({ refused, broken }: LoadResult): boolean {
  return broken === 0 && Object.keys(refused).length === 0;
}

/**
 * Sends the points in parts, each when ClickHouse has all of the one before: it takes points more slowly than gateways
 * get acknowledgements, and a fleet that sends without a pause for minutes is refused when the journal has no room left
 * for its tenant. `made`: the first turn, which makes the devices.
 */
async function store(engine: Engine, plan: DayPlan, settings: BillionSettings) {
  const pids = engine.pids();
  const rows = () => count(engine, 'SELECT count() FROM telemetry');
  const mark = async (): Promise<Mark> => ({ points: await rows(), atMs: performance.now(), cpu: cpuByRole(pids) });
  const loads: LoadResult[] = [];
  const send = async (turns: Turns): Promise<Part> => {
    const from = await mark();
    loads.push(await runMqttLoad(plan.loadOf(engine.mqttPort, settings, turns)));
    const wanted = plan.pointsUntil(turns.to);
    const deadline = performance.now() + drainMsMax;
    let stored = 0;
    while ((stored = await rows()) < wanted) {
      if (performance.now() > deadline) throw new Error(notStored(stored, wanted, loads.at(-1)!));
      await sleep(watchMs);
    }
    const part = partOf(from, await mark());
    say(`${figure(wanted)} points stored, ${figure(part.pointsPerSecond)}/s`);
    return part;
  };
  const made = await send({ from: 0, to: 1 });
  const tenths: Part[] = [];
  const turns = plan.turns - 1;
  const parts = Math.min(partsMax, turns);
  for (let part = 0; part < parts; part += 1) {
    const turnOf = (n: number) => 1 + Math.round((turns * n) / parts);
    tenths.push(await send({ from: turnOf(part), to: turnOf(part + 1) }));
  }
  return { made, tenths, loads };
}

function notStored(stored: number, wanted: number, { refused }: LoadResult): string {
  return `ClickHouse holds ${figure(stored)} of ${figure(wanted)} points. Refused messages: ${refusedText(refused)}`;
}

function partOf(from: Mark, to: Mark): Part {
  const points = to.points - from.points;
  const cost = Object.entries(cpuBetween(from.cpu, to.cpu)).map(([role, ms]) => [role, (ms * 1e6) / points] as const);
  return { pointsPerSecond: (points / (to.atMs - from.atMs)) * 1000, nanoseconds: Object.fromEntries(cost) };
}

/**
 * Counts the stored points, each once, and the devices whose points are all stored. Queries ranges of devices, because
 * that needs little memory.
 */
async function countAll(engine: Engine, plan: DayPlan): Promise<{ points: number; wholeDevices: number }> {
  const [[from = '0', to = '0'] = []] = await engine.clickhouse('SELECT min(device), max(device) FROM telemetry');
  const all = { points: 0, wholeDevices: 0 };
  for (let first = Number(from); first <= Number(to); first += countedDevices) {
    const devices = `SELECT count() AS points FROM telemetry FINAL
      WHERE device >= ${first} AND device < ${first + countedDevices} AND kind != 0 GROUP BY device`;
    const sums = `SELECT sum(points), countIf(points = ${plan.devicePoints}) FROM (${devices})`;
    const [[points, wholeDevices] = []] = await engine.clickhouse(sums);
    all.points += Number(points);
    all.wholeDevices += Number(wholeDevices);
  }
  return all;
}

async function sizesOf(engine: Engine): Promise<{ name: string; bytes: number; rows: number }[]> {
  const sql = `SELECT table, sum(bytes_on_disk), sum(rows) FROM system.parts
    WHERE active AND database = currentDatabase() AND table IN ('telemetry', 'latest') GROUP BY table ORDER BY table DESC`;
  return (await engine.clickhouse(sql)).map(([name = '', bytes, rows]) => ({
    name,
    bytes: Number(bytes),
    rows: Number(rows),
  }));
}

function residentOf(engine: Engine): Record<string, number> {
  return Object.fromEntries([...engine.pids()].map(([role, pid]) => [role, residentBytesOf(pid)]));
}

/** Returns different devices, drawn at random: some to delete, and some to read. */
async function knownDevices(
  engine: Engine,
  plan: DayPlan,
  { samples, deletes }: BillionSettings,
): Promise<KnownDevice[]> {
  const wanted = Math.min(plan.devices, samples + 2 * deletes);
  const drawn = new Set<number>();
  while (drawn.size < wanted) drawn.add(Math.floor(Math.random() * plan.devices));
  const known: KnownDevice[] = [];
  for (const device of drawn) {
    const answer = await engine.api.send('GET', `/api/tenant/devices?deviceName=${plan.nameOf(device)}`);
    if (answer.status !== 200) throw new Error(`${plan.nameOf(device)} is not a device: ${answer.status}`);
    known.push({ device, id: ((await answer.json()) as { id: { id: string } }).id.id });
  }
  return known;
}

async function count(engine: Engine, sql: string): Promise<number> {
  return Number((await engine.clickhouse(sql))[0]![0]);
}

function tellStored(plan: DayPlan, made: Part, tenths: Part[], loads: LoadResult[], isStored: boolean): void {
  const roles = ['workers', 'primary', 'clickhouse', 'postgres'];
  const line = (name: string, { pointsPerSecond, nanoseconds }: Part): Cell[] => {
    return [name, pointsPerSecond, ...roles.map((role) => nanoseconds[role] ?? 0)];
  };
  say('');
  table(
    ['stored', 'points/s', ...roles.map((role) => `${role} ns/point`)],
    [
      line(`first turn, ${figure(plan.devices)} devices made`, made),
      ...tenths.map((part, n) => line(`tenth ${n + 1} of the rest`, part)),
    ],
  );
  const [first, last] = [loads[1] ?? loads[0]!, loads.at(-1)!].map(({ latency }) => latency);
  say(
    `\nack p50 ${figure(first!.p50Ms)} ms, p99 ${figure(first!.p99Ms)} ms in the first tenth, ` +
      `${figure(last!.p50Ms)} and ${figure(last!.p99Ms)} in the last; refused: ${refusedText(addedUp(loads.map(({ refused }) => refused)))}`,
  );
  say(`stored and verified in ClickHouse: ${isStored ? 'every point of every device, once' : 'NO'}\n`);
}

interface Judged {
  sizes: { name: string; bytes: number; rows: number }[];
  /** Rate of the last tenth, divided by that of the first one. */
  ratio: number;
  restart: { readySeconds: number };
  reads: { answered: { p99Ms: number } }[];
  readsAfter: { answered: { p99Ms: number } }[];
}

/** Names each figure that missed its target. */
export function billionTargets({ sizes, ratio, restart, reads, readsAfter }: Judged): Targets {
  const telemetry = sizes.find(({ name }) => name === 'telemetry');
  const bytesPerPoint = telemetry ? telemetry.bytes / telemetry.rows : 0;
  const targets = new Targets();
  targets.atMost('bytes per point:', bytesPerPoint, bytesPerPointMax, '');
  targets.atLeast('last tenth / first tenth:', ratio, lastTenthRatioMin, '');
  for (const [when, [day, , latest]] of [
    ['', reads],
    [' after a restart', readsAfter],
  ] as const) {
    targets.atMost(`a day${when}, p99:`, day!.answered.p99Ms, dayP99MsMax, ' ms');
    targets.atMost(`latest values${when}, p99:`, latest!.answered.p99Ms, latestP99MsMax, ' ms');
  }
  targets.atMost('ready after a restart:', restart.readySeconds, restartSecondsMax, ' s');
  return targets;
}

function tellReads(reads: ReadResult[], when: string): void {
  const lines = reads.map(({ name, answered: { count: calls, p50Ms, p99Ms, maxMs }, failed, othersShare }): Cell[] => {
    // A difference of clocks that count in ticks of 10 ms may be negative.
    return [`${name}${when}`, calls, failed, p50Ms, p99Ms, maxMs, Math.max(0, 100 * othersShare)];
  });
  say('');
  table(['reads', 'right', 'wrong', 'p50 ms', 'p99 ms', 'max ms', 'others % of a core'], lines);
}

function tellReports(reports: ReportResult[]): void {
  say('');
  table(
    ['reports', 's', 'right'],
    reports.map(({ name, seconds, isRight }) => [name, seconds, isRight ? 'yes' : 'NO']),
  );
  for (const { name, refusal } of reports) if (refusal) say(`${name}: ${refusal}`);
}

function tellDeletes(deletes: DeleteResult[]): void {
  say('');
  table(
    ['deletes', 'answer p50 ms', 'max ms', 'gone p50 ms', 'max ms', 'right'],
    deletes.map(({ name, answer, gone, isRight }) => {
      return [name, answer.p50Ms, answer.maxMs, gone.p50Ms, gone.maxMs, isRight ? 'yes' : 'NO'];
    }),
  );
}
