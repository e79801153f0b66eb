/** Messages of old days at a fixed rate, beside a load whose latencies are measured. */

import { setTimeout as sleep } from 'node:timers/promises';
import { dayMs } from '../../src/base/durations.ts';
import type { Device } from '../../test/harness/api.ts';
import type { Engine } from '../../test/harness/engine.ts';
import { Histogram } from './histogram.ts';

interface LateOrder {
  /** Messages/s. */
  rate: number;
  /** Old days in each message. */
  days: number;
  forMs: number;
}

interface LateRows {
  /** Latencies of acknowledged messages. */
  histogram: Histogram;
  acknowledgedRows: number;
  refused: Record<string, number>;
}

/** Sends without waiting for the answers. A second call with the same device repeats its points. */
export async function sendLateRows(engine: Engine, device: Device, order: LateOrder): Promise<LateRows> {
  const { rate, days, forMs } = order;
  const late: LateRows = { histogram: new Histogram(), acknowledgedRows: 0, refused: {} };
  const began = performance.now();
  const open: Promise<void>[] = [];
  for (let n = 0; (n * 1000) / rate < forMs; n += 1) {
    const due = began + (n * 1000) / rate;
    await sleep(Math.max(0, due - performance.now()));
    open.push(sendOne(engine, device, n, days, due, late));
  }
  await Promise.all(open);
  return late;
}

async function sendOne(engine: Engine, device: Device, n: number, days: number, due: number, late: LateRows) {
  const today = Math.floor(Date.now() / dayMs) * dayMs;
  // Each message has its own milliseconds, in the same days.
  const message = Array.from({ length: days }, (_, i) => ({ ts: today - (3 + i) * dayMs + n, values: { late: n } }));
  const status = await engine.api.postTelemetry(device.token, JSON.stringify(message));
  if (status === 200) {
    late.acknowledgedRows += days;
    late.histogram.record((performance.now() - due) * 1000);
  } else {
    late.refused[status] = (late.refused[status] ?? 0) + 1;
  }
}
