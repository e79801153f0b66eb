/** The gaps in series of a device: each cause that docs/rest.md#completeness names. */
import { expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { connectMqtt } from '../../harness/mqtt-client.ts';
import type { Json } from '../../harness/mqtt-gateway.ts';
import { ok } from '../../harness/people.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

const api = sharedEngine();
const minuteMs = 60_000;
const noon = Date.UTC(2025, 5, 2, 12);

async function send(token: string, times: number[]): Promise<void> {
  const body = JSON.stringify(times.map((ts) => ({ ts, values: { flow: 1 } })));
  expect(await api.postTelemetry(token, body)).toBe(200);
}

async function read(id: string, startTs: number, endTs: number, more = ''): Promise<Json> {
  const query = `keys=flow${more}&startTs=${startTs}&endTs=${endTs}`;
  return await ok('GET', `/api/device/${id}/completeness?${query}`);
}

const steps = (from: number, stepMs: number, count: number) =>
  Array.from({ length: count }, (_, n) => from + n * stepMs);

/**
 * Makes a device with a point for each of the last sixty seconds but the last ten; returns its gaps once they have this
 * cause.
 */
async function causeOfGapTillNow(id: string, token: string, cause: string): Promise<Json> {
  const start = Date.now() - 60_000;
  await send(token, steps(start, 1000, 51));
  return await eventually(async () => {
    const { series } = await read(id, start, start + 3_600_000, '&lateMs=3600000');
    return series[0].gaps[0]?.cause === cause && series[0];
  });
}

test('points that are missing, points that arrived late, and a key without points', async () => {
  const { id, token } = await api.newDevice();
  const sentAt = Date.now();
  await send(token, [...steps(noon, minuteMs, 20), ...steps(noon + 30 * minuteMs, minuteMs, 30)]);
  const found = await eventually(async () => {
    const answer = await read(id, noon, noon + 60 * minuteMs, ',never');
    return answer.series[0].present === 50 && answer;
  });
  const [flow, never] = found.series;
  expect(flow).toMatchObject({ intervalMs: minuteMs, completeness: 50 / 60, expected: 60, present: 50, gapCount: 2 });
  const [late, gap] = flow.gaps;
  expect(late).toMatchObject({ cause: 'late', startTs: noon, endTs: noon + 59 * minuteMs, points: 50 });
  expect(Math.abs(late.arrivedTs - sentAt)).toBeLessThan(60_000);
  const [startTs, endTs] = [noon + 20 * minuteMs, noon + 29 * minuteMs];
  expect(gap).toEqual({ cause: 'unknown', reason: null, message: null, startTs, endTs, points: 10, arrivedTs: null });
  const nothing = { intervalMs: null, completeness: null, expected: null, present: 0, lateMs: null, gapCount: 0 };
  expect(never).toEqual({ key: 'never', ...nothing, gaps: [] });

  // With the limit of the caller no point is late, and a series without an interval has no gaps.
  const [calm] = (await read(id, noon, noon + 60 * minuteMs, '&lateMs=3000000000000')).series;
  expect(calm.gaps.map(({ cause }: Json) => cause)).toEqual(['unknown']);
  const { series } = await read(id, noon - 86_400_000, noon - 86_300_000);
  expect(series[0]).toMatchObject(nothing);
});

test('refused: a message was refused while points were due', async () => {
  const { id, token } = await api.newDevice();
  expect(await api.postTelemetry(token, '{"flow":')).toBe(400);
  const { gaps } = await causeOfGapTillNow(id, token, 'refused');
  expect(gaps).toMatchObject([{ cause: 'refused', reason: 'malformed_json' }]);
  expect(gaps[0].message).toContain('not valid JSON');
});

test('offline: the connection of the device has ended', async () => {
  const { id, token } = await api.newDevice();
  const client = await connectMqtt({ token });
  client.cut();
  const { gaps, intervalMs } = await causeOfGapTillNow(id, token, 'offline');
  expect(intervalMs).toBe(1000);
  expect(gaps).toMatchObject([{ cause: 'offline', reason: 'connection_lost', arrivedTs: null }]);
});

test('a wrong question is refused with a sentence', async () => {
  const { id } = await api.newDevice();
  const ask = async (query: string) => {
    const answer = await api.send('GET', `/api/device/${id}/completeness?${query}`);
    return `${answer.status} ${((await answer.json()) as Json).message}`;
  };
  expect(await ask('keys=flow&startTs=2&endTs=2')).toBe('400 The range must begin before it ends: startTs < endTs.');
  expect(await ask('startTs=1&endTs=2')).toBe("400 Required request parameter 'keys' is not present");
  const keys = Array.from({ length: 101 }, (_, n) => `k${n}`).join();
  expect(await ask(`keys=${keys}&startTs=1&endTs=2`)).toBe('400 Name at most 100 keys.');
});
