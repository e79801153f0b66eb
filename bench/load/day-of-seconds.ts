/**
 * A device with a point for each second of the last day, and the call that reads the day as averages of five minutes.
 */
import { eventually } from '../../test/harness/api.ts';
import type { Engine } from '../../test/harness/engine.ts';
import type { Call } from './rest/calls.ts';
import { getRequest, outcomeOf } from './rest/latest-values.ts';

const secondsPerDay = 86_400;
const secondsPerPost = 3_600;
const secondsPerBucket = 300;
export const buckets = secondsPerDay / secondsPerBucket;
const storedMsMax = 120_000;

/** Returns calls that read it; each answer must have exactly the averages. */
export async function dayOfSeconds(engine: Engine, apiKey: string): Promise<() => Call> {
  const bucketMs = secondsPerBucket * 1000;
  const endTs = Math.floor(Date.now() / bucketMs) * bucketMs;
  const startTs = endTs - secondsPerDay * 1000;
  const device = await engine.api.createDevice('day-of-seconds');
  for (let first = 0; first < secondsPerDay; first += secondsPerPost) {
    const records = Array.from({ length: secondsPerPost }, (_, i) => {
      const second = first + i;
      // The average of a bucket is its number and a half, exactly.
      const flow = Math.floor(second / secondsPerBucket) + (second % 2 === 0 ? 0.25 : 0.75);
      return { ts: startTs + second * 1000, values: { flow } };
    });
    const status = await engine.api.postTelemetry(device.token, JSON.stringify(records));
    if (status !== 200) throw new Error(`telemetry was answered ${status}`);
  }
  const count = `SELECT count() FROM telemetry WHERE key = 'flow'`;
  await eventually(async () => Number((await engine.clickhouse(count))[0]![0]) >= secondsPerDay, storedMsMax, 200);

  const query = `keys=flow&startTs=${startTs}&endTs=${endTs}&agg=AVG&interval=${bucketMs}&useStrictDataTypes=true`;
  const request = getRequest(`/api/plugins/telemetry/DEVICE/${device.id}/values/timeseries?${query}`, apiKey);
  const averages = Array.from({ length: buckets }, (_, n) => {
    return { ts: startTs + n * bucketMs + bucketMs / 2, value: n + 0.5 };
  });
  const expected = JSON.stringify({ flow: averages });
  const isExpected = (body: string) => body === expected;
  return () => ({ request, outcomeOf: (status, body) => outcomeOf(status, body, isExpected) });
}
