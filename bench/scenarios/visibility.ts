/** Measures the time until a REST reader sees an acknowledged point: idle, and beside load at half of peak. */
import { availableParallelism } from 'node:os';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Device } from '../../test/harness/api.ts';
import type { Engine } from '../../test/harness/engine.ts';
import { EngineUnderLoad, httpGenerator } from '../engine-under-load.ts';
import { Histogram, summaryOf } from '../load/histogram.ts';
import { say, table, writeResult } from '../report.ts';
import type { BenchSettings } from '../settings.ts';
import { Targets } from '../targets.ts';

const idleMsMax = 500;
const loadedP99MsMax = 2_000;
const pauseMs = 100;
const pollMs = 2;
const visibleMsMax = 30_000;
/** No sample is taken at the begin of the load, nor at its end. */
const leadMs = 2_000;
const aroundSeconds = 3;

export async function runVisibility(settings: BenchSettings): Promise<boolean> {
  const { http } = settings;
  const workers = http.workers || availableParallelism();
  const load = await EngineUnderLoad.start(workers, http.devices, httpGenerator(http));
  try {
    const device = await load.engine.api.createDevice('visibility');
    const idle = await sample(load.engine, device, settings.visibility.samples);
    await load.setApart();
    const peak = await load.load(0, http.seconds, http.warmupSeconds);
    const rate = Math.floor(peak.storedRequestsPerSecond / 2);
    const offered = load.offer(rate, settings.visibility.loadSeconds, 0);
    await sleep(leadMs);
    const deadline = performance.now() + (settings.visibility.loadSeconds - aroundSeconds) * 1000;
    const loaded = await sample(load.engine, device, settings.visibility.samples, deadline);
    const beside = await offered;
    load.setMoreApart(loaded.total);
    await load.stored();
    const verified = peak.verified && (await load.verify());
    const row = (name: string, histogram: Histogram) => {
      const { p50Ms, p99Ms, maxMs } = summaryOf(histogram);
      return [name, histogram.total, p50Ms, p99Ms, maxMs];
    };
    table(
      ['ack to readable', 'samples', 'p50 ms', 'p99 ms', 'max ms'],
      [row('idle', idle), row(`at ${rate} requests/s`, loaded)],
    );
    for (const { invalid } of [peak, beside]) if (invalid !== '') say(`INVALID: ${invalid}`);
    say(`stored and verified in ClickHouse: ${verified ? 'every acknowledged record, once' : 'NO'}`);
    say(`targets: idle ${idleMsMax} ms, at half of peak p99 ${loadedP99MsMax} ms`);
    const targets = new Targets();
    targets.atMost('idle: p99', summaryOf(idle).p99Ms, idleMsMax, ' ms');
    if (loaded.total > 0) targets.atMost('at half of peak: p99', summaryOf(loaded).p99Ms, loadedP99MsMax, ' ms');
    else targets.fail('no sample was taken beside the load: give it more seconds, as in --loadSeconds 30');
    const holds = targets.tell();
    writeResult('visibility', settings, {
      rate,
      peak,
      beside,
      idle: summaryOf(idle),
      loaded: summaryOf(loaded),
      samples: loaded.total,
      verified,
      missed: targets.missed,
    });
    return verified && holds;
  } finally {
    await load.close();
  }
}

async function sample(engine: Engine, device: Device, count: number, deadline = Infinity): Promise<Histogram> {
  const histogram = new Histogram();
  for (let n = 0; n < count && performance.now() < deadline; n += 1) {
    const ts = Date.now();
    const status = await engine.api.postTelemetry(device.token, `{"ts":${ts},"values":{"probe":${n}}}`);
    if (status !== 200) throw new Error(`the probe was answered ${status}`);
    const acknowledgedAt = performance.now();
    for (;;) {
      const { probe } = await engine.api.readSeries(device.id, ['probe'], { startTs: ts, endTs: ts + 1 });
      const waitedMs = performance.now() - acknowledgedAt;
      if (probe) {
        histogram.record(waitedMs * 1000);
        break;
      }
      if (waitedMs > visibleMsMax) throw new Error(`a point is not readable after ${visibleMsMax} ms`);
      await sleep(pollMs);
    }
    await sleep(pauseMs);
  }
  return histogram;
}
