/**
 * Acknowledgements with INGEST_ACK=store at a steady rate: alone, beside late rows, and beside one message of many
 * days. A latency counts from the moment at which the message was due. What was acknowledged is then looked up in
 * ClickHouse.
 */

import { availableParallelism, loadavg } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import { dayMs } from '../../src/base/durations.ts';
import { live } from '../../src/journal/journal.ts';
import { waitedForMs } from '../../src/ship/lane.ts';
import type { Device } from '../../test/harness/api.ts';
import type { Engine } from '../../test/harness/engine.ts';
import { EngineUnderLoad, httpGenerator } from '../engine-under-load.ts';
import { type Counts, refusedText, totalOf } from '../load/counts.ts';
import { type LatencySummary, summaryOf } from '../load/histogram.ts';
import { sendLateRows } from '../load/late-rows.ts';
import type { LoadResult } from '../load/processes.ts';
import { type Cell, say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
import { Targets } from '../targets.ts';

/** The longest time between two inserts of the live lane while senders wait. */
const intervalMs = waitedForMs[live];
const aboveIntervalMsMax = 100;
/** Points of this message are acknowledged late, or not within the deadline; all of them must be stored in the end. */
const wideStoredMsMax = 300_000;

/** What the senders of one kind saw. `load`: of live messages, with their seconds. */
interface Phase {
  name: string;
  latency: LatencySummary;
  loadAverage: number;
  load?: LoadResult;
}

export async function runStoreAcks(settings: BenchSettings): Promise<boolean> {
  const { rate, seconds, warmupSeconds, lateRate, lateDays, wideDays } = settings.storeAcks;
  const env = { INGEST_ACK: 'store', LOG_LEVEL: 'warn' };
  const load = await EngineUnderLoad.start(
    availableParallelism(),
    settings.http.devices,
    httpGenerator(settings.http),
    {
      env,
    },
  );
  const rows: Cell[][] = [];
  const results: Phase[] = [];
  const targets = new Targets();
  const add = (name: string, latency: LatencySummary, refused: Counts) => {
    const { p50Ms, p99Ms, maxMs } = latency;
    rows.push([name, p50Ms, p99Ms, maxMs, totalOf(refused), loadavg()[0]!]);
    results.push({ name, latency, loadAverage: loadavg()[0]! });
  };
  const addLoad = (name: string, offered: LoadResult) => {
    add(name, offered.latency, offered.refused);
    results.at(-1)!.load = offered;
  };
  const addPromised = (name: string, offered: LoadResult) => {
    addLoad(name, offered);
    targets.atMost(`${name}: p99`, offered.latency.p99Ms, intervalMs + aboveIntervalMsMax, ' ms');
    targets.none(`${name}: refused messages:`, totalOf(offered.refused));
  };
  try {
    const { engine } = load;
    const [lateDevice, wideDevice] = [await engine.api.createDevice('late'), await engine.api.createDevice('wide')];
    const live = await load.offer(rate, seconds, warmupSeconds);
    addPromised('live alone', live);

    const late = sendLateRows(engine, lateDevice, {
      rate: lateRate,
      days: lateDays,
      forMs: (warmupSeconds + seconds) * 1000,
    });
    const beside = await load.offer(rate, seconds, warmupSeconds);
    const seen = await late;
    addPromised('live beside late rows', beside);
    add(`late: ${lateRate} messages/s of ${lateDays} days`, summaryOf(seen.histogram), seen.refused);

    const wide = sendWide(engine, wideDevice, wideDays);
    const besideWide = await load.offer(rate, seconds, 0);
    addLoad(`live beside one message of ${wideDays} days`, besideWide);
    const wideSeconds = await wide;

    const isStored = await verify(load, seen.acknowledgedRows);
    table([`${rate} messages/s, INGEST_ACK=store`, 'p50 ms', 'p99 ms', 'max ms', 'refused', 'load average'], rows);
    say(`the message of ${wideDays} days was stored after ${wideSeconds.toFixed(1)} s`);
    if (totalOf(seen.refused) > 0) say(`late rows: refused with ${refusedText(seen.refused)}`);
    for (const { name, load: offered } of results) if (offered?.invalid) say(`INVALID ${name}: ${offered.invalid}`);
    say(`stored and verified in ClickHouse: ${isStored ? 'every acknowledged record, once' : 'NO'}`);
    say(`target: p99 ${intervalMs} ms (interval) + ${aboveIntervalMsMax} ms, none refused`);
    const holds = targets.tell();
    writeResult('storeacks', settings, { rate, intervalMs, results, wideSeconds, isStored, missed: targets.missed });
    return isStored && holds;
  } finally {
    await load.close();
  }
}

/** Seconds until a message with a point on each of many days is readable as a whole. */
async function sendWide(engine: Engine, device: Device, days: number): Promise<number> {
  const first = Date.UTC(2020, 0, 1);
  const message = Array.from({ length: days }, (_, i) => ({ ts: first + i * dayMs, values: { wide: i } }));
  const began = performance.now();
  await engine.api.postTelemetry(device.token, JSON.stringify(message));
  while (performance.now() - began < wideStoredMsMax) {
    if ((await countOf(engine, 'wide')) === days) return (performance.now() - began) / 1000;
    await sleep(250);
  }
  throw new Error(`the message of ${days} days is not stored after ${wideStoredMsMax / 1000} s`);
}

/** Late messages that were refused are in the journal and stored as well, so there may be more of their rows. */
async function verify(load: EngineUnderLoad, lateRows: number): Promise<boolean> {
  const live = await countOf(load.engine, 'temperature');
  const isLive = live >= load.accepted && live <= load.accepted + load.unsure;
  return isLive && (await countOf(load.engine, 'late')) >= lateRows;
}

async function countOf(engine: Engine, key: string): Promise<number> {
  const [[count] = []] = await engine.clickhouse(`SELECT count() FROM telemetry FINAL WHERE key = '${key}'`);
  return Number(count);
}
