/**
 * Reads over the REST API with an API key, each judged by its content: of devices, of latest values among a million
 * series, of a day aggregated; first idle, then while telemetry pours in at half of peak. Then sign-ins beside that
 * telemetry, whose acknowledgements they must not delay.
 */
import { availableParallelism } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Engine, startEngine } from '../../test/harness/engine.ts';
import { machineSettled } from '../cpu.ts';
import { createDevices, EngineUnderLoad, httpGenerator } from '../engine-under-load.ts';
import { totalOf } from '../load/counts.ts';
import { buckets, dayOfSeconds } from '../load/day-of-seconds.ts';
import type { LoadResult } from '../load/processes.ts';
import { type Call, type CallOrder, type CallsResult, judged, makeCalls } from '../load/rest/calls.ts';
import { deviceCall, latestCall, readFleet } from '../load/rest/latest-values.ts';
import { createUsers, isKnownOutcome, signInCall } from '../load/rest/sign-ins.ts';
import { type Cell, figure, say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
import { Targets } from '../targets.ts';

type ApiSettings = BenchSettings['api'];

const latestP99MsMax = { idle: 10, beside: 40 };
const dayP50MsMax = 30;
const dayP99MsMax = 100;
/** p99 of telemetry alone, measured before and after; a smaller difference does not count. */
const ackP99RatioMax = 1.2;
const warmupSeconds = 1;
/** Until the processes of the telemetry are connected. */
const leadMs = 500;
/** Reads at a fixed rate are one at a time as long as they are fast; more connections reach every worker. */
const pacedConnections = 8;
/** More than all workers queue, so that some sign-ins are refused. */
const signInConnections = 512;
const clientShareMax = 0.97;

interface Target {
  percentile: 'p50Ms' | 'p99Ms';
  msMax: number;
}

interface Read {
  name: string;
  connections: number;
  /** 0 = closed loop. */
  rate: number;
  call: () => Call;
  idle?: Target;
  beside?: Target;
}

interface Measured {
  name: string;
  calls: CallsResult;
  target: Target | undefined;
  /** The telemetry that was sent beside the calls. */
  telemetry: LoadResult | undefined;
}

export async function runApi(settings: BenchSettings): Promise<boolean> {
  const { api, http } = settings;
  const workers = http.workers || availableParallelism();
  const engine = await startEngine({ workers, env: { LOG_LEVEL: 'warn' } });
  try {
    const reads = await prepareReads(engine, api);
    const emails = await createUsers(engine.api, api.users);
    await machineSettled();
    const idle: Measured[] = [];
    for (const read of reads) {
      idle.push({ name: read.name, calls: await measure(engine, read, api), target: read.idle, telemetry: undefined });
    }

    const load = new EngineUnderLoad(engine, await createDevices(engine.api, http.devices), httpGenerator(http));
    await load.setApart();
    const peak = await load.load(0, http.seconds, http.warmupSeconds);
    await machineSettled();
    const rate = Math.floor(peak.storedRequestsPerSecond / 2);
    const beside: Measured[] = [];
    for (const read of reads) {
      const { calls, telemetry } = await besideTelemetry(load, rate, api, () => measure(engine, read, api));
      beside.push({ name: read.name, calls, target: read.beside, telemetry });
    }

    const before = await telemetryAlone(load, rate, api);
    const signIns = await besideTelemetry(load, rate, api, () => measureSignIns(engine, emails, api));
    const after = await telemetryAlone(load, rate, api);
    const verified = peak.verified && (await load.verify());

    const ackP99MsMax = ackP99RatioMax * Math.max(before.latency.p99Ms, after.latency.p99Ms);
    const targets = new Targets();
    const idleRows = idle.map((measured) => readRow(targets, 'idle', measured));
    const besideRows = beside.map((measured) => readRow(targets, 'beside half of peak', measured));
    const { latency, invalid } = signIns.telemetry;
    const isFast = targets.atMost('ack beside sign-ins: p99', latency.p99Ms, ackP99MsMax, ' ms');
    const isUndisturbed = targets.faultless(invalid && `telemetry beside sign-ins: ${invalid}`) && isFast;
    table(
      [
        `${figure(api.devices)} devices`,
        'calls/s',
        'p50 ms',
        'p99 ms',
        'failed',
        'ack p50 ms',
        'ack p99 ms',
        'target',
        '',
      ],
      [
        ...idleRows,
        ...besideRows,
        telemetryRow('half of peak alone, before', before),
        [
          `half of peak beside ${api.signInRate} sign-ins/s`,
          ...telemetryRow('', signIns.telemetry).slice(1, -2),
          `ack p99 ${figure(ackP99MsMax)} ms`,
          isUndisturbed ? 'reached' : 'missed',
        ],
        telemetryRow('half of peak alone, after', after),
      ],
    );
    saySignIns(signIns.calls, api);
    targets.none('sign-ins that were answered wrongly or not at all:', wrongSignIns(signIns.calls));
    say(`\npeak: ${figure(peak.storedRequestsPerSecond)} requests/s stored, half of it is ${figure(rate)}`);
    say(`stored and verified in ClickHouse: ${verified ? 'every acknowledged record, once' : 'NO'}`);
    const measured = [...idle, ...beside, { name: 'sign-ins', ...signIns, target: undefined }];
    for (const [name, invalid] of faults(measured, { peak, before, after })) say(`INVALID ${name}: ${invalid}`);
    const holds = targets.tell();
    const { missed } = targets;
    writeResult('api', settings, { workers, peak, rate, idle, beside, before, signIns, after, verified, missed });
    return verified && holds;
  } finally {
    await engine.destroy();
  }
}

async function prepareReads(engine: Engine, api: ApiSettings): Promise<Read[]> {
  const apiKey = await engine.api.createKey();
  const fleet = await readFleet(engine, api.devices, api.keys);
  say(`${figure(api.devices)} devices of ${api.keys} keys are readable`);
  const day = await dayOfSeconds(engine, apiKey);
  const { connections, latestRate, historyRate } = api;
  const p99 = (msMax: number): Target => ({ percentile: 'p99Ms', msMax });
  return [
    { name: 'a device', connections, rate: 0, call: () => deviceCall(fleet, apiKey) },
    {
      name: `latest values, ${latestRate}/s`,
      connections: pacedConnections,
      rate: latestRate,
      call: () => latestCall(fleet, apiKey),
      idle: p99(latestP99MsMax.idle),
      beside: p99(latestP99MsMax.beside),
    },
    { name: 'latest values', connections, rate: 0, call: () => latestCall(fleet, apiKey) },
    {
      name: `a day in ${buckets} averages, ${historyRate}/s`,
      connections: pacedConnections,
      rate: historyRate,
      call: day,
      idle: { percentile: 'p50Ms', msMax: dayP50MsMax },
      beside: p99(dayP99MsMax),
    },
  ];
}

function measure({ port }: Engine, { connections, rate, call }: Read, { seconds }: ApiSettings): Promise<CallsResult> {
  return makeCalls({ port, connections, rate, warmupSeconds, seconds, callOf: call });
}

function measureSignIns({ port }: Engine, emails: string[], api: ApiSettings): Promise<CallsResult> {
  const callOf: CallOrder['callOf'] = (n) => signInCall(emails, api.wrongPercent, n);
  const { signInRate: rate, seconds } = api;
  return makeCalls({ port, connections: signInConnections, rate, warmupSeconds, seconds, callOf });
}

async function telemetryAlone(load: EngineUnderLoad, rate: number, { seconds }: ApiSettings): Promise<LoadResult> {
  const telemetry = await load.offer(rate, seconds, warmupSeconds);
  await load.stored();
  await machineSettled();
  return telemetry;
}

/**
 * Measures calls and telemetry in the same seconds. Waits until all rows are stored, so that the next phase is not
 * slowed down.
 */
async function besideTelemetry(
  load: EngineUnderLoad,
  rate: number,
  { seconds }: ApiSettings,
  task: () => Promise<CallsResult>,
): Promise<{ calls: CallsResult; telemetry: LoadResult }> {
  const offered = load.offer(rate, seconds, leadMs / 1000 + warmupSeconds);
  const [calls, telemetry] = await Promise.all([sleep(leadMs).then(task), offered]);
  await load.stored();
  await machineSettled();
  return { calls, telemetry };
}

/** Judges the read by its targets: the row says whether its percentile is reached. */
function readRow(targets: Targets, when: string, { name, calls, target, telemetry }: Measured): Cell[] {
  const { answered, failed } = judged(calls);
  const verdictOf = ({ percentile, msMax }: Target): [target: string, verdict: string] => {
    const short = percentile.slice(0, 3);
    const isHeld = targets.atMost(`${name}, ${when}: ${short}`, answered[percentile], msMax, ' ms');
    return [`${short} ${msMax} ms`, isHeld ? 'reached' : 'missed'];
  };
  const verdict = target ? verdictOf(target) : ['', ''];
  targets.none(`${name}, ${when}: reads that failed:`, failed);
  const ack = telemetry?.latency ?? { p50Ms: Number.NaN, p99Ms: Number.NaN };
  const { perSecond, p50Ms, p99Ms } = answered;
  return [`${name}, ${when}`, perSecond, p50Ms, p99Ms, failed, ack.p50Ms, ack.p99Ms, ...verdict];
}

function telemetryRow(name: string, { requestsPerSecond, latency, refused, broken }: LoadResult): Cell[] {
  const failed = totalOf(refused) + broken;
  return [name, requestsPerSecond, Number.NaN, Number.NaN, failed, latency.p50Ms, latency.p99Ms, '', ''];
}

function saySignIns({ outcomes, unanswered }: CallsResult, { signInRate, wrongPercent }: ApiSettings): void {
  say('');
  const rows = Object.entries(outcomes).sort(([a], [b]) => a.localeCompare(b));
  table(
    [`${signInRate} sign-ins/s, ${wrongPercent} % wrong`, 'answers/s', 'answers', 'p50 ms', 'p99 ms', 'max ms'],
    rows.map(([name, { perSecond, count, p50Ms, p99Ms, maxMs }]) => [name, perSecond, count, p50Ms, p99Ms, maxMs]),
  );
  if (unanswered > 0) say(`sign-ins without an answer: ${unanswered}`);
}

/** Counts the answers that a sign-in may not get, and those that did not come. */
function wrongSignIns({ outcomes, unanswered }: CallsResult): number {
  const wrong = Object.entries(outcomes).filter(([name]) => !isKnownOutcome(name));
  return wrong.reduce((sum, [, { count }]) => sum + count, unanswered);
}

function faults(measured: Measured[], loads: Record<string, LoadResult>): [name: string, invalid: string][] {
  const all: [string, string][] = Object.entries(loads).map(([name, { invalid }]) => [name, invalid]);
  for (const { name, calls, telemetry } of measured) {
    if (telemetry) all.push([`telemetry beside ${name}`, telemetry.invalid]);
    if (calls.clientCpuShare > clientShareMax) all.push([name, 'the client had no time left']);
  }
  return all.filter(([, invalid]) => invalid !== '');
}
