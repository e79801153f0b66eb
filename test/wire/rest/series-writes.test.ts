/** Telemetry written and deleted over REST (docs/rest.md#telemetry), on both workers. */
import { expect, test } from 'vitest';
import { eventually } from '../../harness/api.ts';
import { newCustomer, newCustomerUser, ok } from '../../harness/people.ts';
import { newDevice, sharedEngine } from '../../harness/shared-engine.ts';

const prefix = (id: string) => `/api/plugins/telemetry/DEVICE/${id}`;

async function answer(method: string, path: string, body?: unknown, token?: string): Promise<string> {
  const response = await sharedEngine().send(method, path, body, token);
  return `${response.status} ${await response.text()}`;
}

/** Creates a device with these points (ts → value) of key k, and waits until they are readable. */
async function deviceWith(points: Record<number, number>): Promise<string> {
  const { id } = await newDevice();
  const body = Object.entries(points).map(([ts, k]) => ({ ts: Number(ts), values: { k } }));
  expect(await answer('POST', `${prefix(id)}/timeseries/ANY`, body)).toBe('200 ');
  await eventually(async () => (await history(id)).length === body.length, 15_000);
  return id;
}

async function history(id: string): Promise<number[]> {
  const { k } = await sharedEngine().readSeries(id, ['k'], { startTs: -1, endTs: Date.now() + 1_000 });
  return (k ?? []).map(({ ts }) => ts);
}

async function latest(id: string): Promise<unknown> {
  return (await sharedEngine().readLatest(id, ['k']))['k']![0]!.value;
}

test('each form of telemetry is taken, under any scope and any time to live', async () => {
  const { id } = await newDevice();
  expect(await answer('POST', `${prefix(id)}/timeseries/ANY`, '{"a":42.0}')).toBe('200 ');
  expect(await answer('POST', `${prefix(id)}/timeseries/SERVER_SCOPE/60`, '[{"b":1},{"c":"x"}]')).toBe('200 ');
  expect(await answer('POST', `${prefix(id)}/timeseries/x`, '{"ts":5,"values":{"d":{"e":[1.0]}}}')).toBe('200 ');
  const text = await eventually(async () => {
    const text = await sharedEngine().readLatestText(id);
    return ['"a"', '"b"', '"c"', '"d"'].every((key) => text.includes(key)) ? text : undefined;
  }, 15_000);
  expect(text).toContain('"value":42.0');
  expect(text).toContain('{"e":[1.0]}');
});

test('a point with a time to live is shown until it ends, and what it replaced does not come back', async () => {
  const id = await deviceWith({ 10: 1, 20: 2 });
  const write = (ttl: number, body: unknown) => answer('POST', `${prefix(id)}/timeseries/ANY/${ttl}`, body);
  const later = [20, 30].map((ts) => ({ ts, values: { k: ts } }));
  const shown = async () => {
    const { k } = await sharedEngine().readSeries(id, ['k'], { startTs: 0, endTs: 100 });
    return (k ?? []).map(({ ts, value }) => `${ts}:${String(value)}`).join(' ');
  };
  expect(await write(3_600, { ts: 7, values: { k: 7 } })).toBe('200 ');
  expect(await write(2, later)).toBe('200 ');
  expect(await write(0, { ts: 5, values: { k: 5 } })).toBe('200 ');
  expect(await write(2 ** 33, { ts: 6, values: { k: 6 } })).toBe('200 ');
  // The latest value stays, as in ThingsBoard.
  await eventually(async () => (await latest(id)) === 30, 15_000);
  await eventually(async () => (await shown()) === '5:5 6:6 7:7 10:1', 15_000);
  expect(await write(1, '{"a":')).toMatch(/^400 Unable to parse time series payload/);
  expect(await write(1, {})).toBe('400 No time series data found in request body!');
  expect(await write(-1, { k: 1 })).toMatch(/^400 /);
  // The same point without a time to live is kept.
  expect(await answer('POST', `${prefix(id)}/timeseries/ANY`, { ts: 20, values: { k: 21 } })).toBe('200 ');
  await eventually(async () => (await shown()) === '5:5 6:6 7:7 10:1 20:21', 15_000);
});

test('bodies that are not telemetry are refused as text', async () => {
  const { id } = await newDevice();
  const post = (body: unknown) => answer('POST', `${prefix(id)}/timeseries/ANY`, body);
  expect(await post('{"a":')).toMatch(/^400 Unable to parse time series payload\. Unsupported JSON body: /);
  expect(await post('5')).toMatch(/^400 Unable to parse time series payload/);
  expect(await post('{}')).toBe('400 No time series data found in request body!');
  const large = `[${'{"a":1},'.repeat(60_000)}{"a":`;
  expect(await post(large)).toMatch(/^400 Unable to parse/);
  const user = await newCustomerUser(await newCustomer());
  expect(await answer('POST', `${prefix(id)}/timeseries/ANY`, { a: 1 }, user.token)).toMatch(/^403 /);
});

test('a large body is taken', async () => {
  const { id } = await newDevice();
  const records = Array.from({ length: 20_000 }, (_, i) => `{"ts":${i + 1},"values":{"k":${i}}}`);
  expect(await answer('POST', `${prefix(id)}/timeseries/ANY`, `[${records.join(',')}]`)).toBe('200 ');
  await eventually(async () => (await latest(id)) === 19_999, 15_000);
});

test('a range is deleted without its end, and the latest value with it', async () => {
  const id = await deviceWith({ 50: 1, 100: 2, 150: 3, 200: 4 });
  const path = `${prefix(id)}/timeseries/delete?keys=k`;
  expect(await answer('DELETE', `${path}&startTs=100&endTs=200`)).toBe('200 ');
  expect(await history(id)).toEqual([50, 200]);
  expect(await latest(id)).toBe(4);
  expect(await answer('DELETE', `${path}&startTs=200&endTs=300`)).toBe('200 ');
  expect(await history(id)).toEqual([50]);
  expect(await latest(id)).toBeNull();
});

test('the newest value that remains takes the place of a deleted one when that is asked for', async () => {
  const id = await deviceWith({ 50: 1, 100: 2, 150: 3 });
  const path = `${prefix(id)}/timeseries/delete?keys=k&startTs=100&endTs=200`;
  expect(await answer('DELETE', `${path}&rewriteLatestIfDeleted=true`)).toBe('200 ');
  expect(await latest(id)).toBe(1);
  expect(await history(id)).toEqual([50]);
});

test('the latest value stays when it is not to be deleted, and old points may come again', async () => {
  const id = await deviceWith({ 50: 1, 100: 2 });
  expect(await answer('DELETE', `${prefix(id)}/timeseries/delete?keys=k&startTs=0&endTs=200&deleteLatest=false`)).toBe(
    '200 ',
  );
  expect(await history(id)).toEqual([]);
  expect(await latest(id)).toBe(2);
  expect(await answer('POST', `${prefix(id)}/timeseries/ANY`, { ts: 100, values: { k: 7 } })).toBe('200 ');
  await eventually(async () => (await history(id)).length === 1, 15_000);
  expect(await latest(id)).toBe(7);
});

test('a latest value that was kept outlives the rewrite of another range, and not that of its own', async () => {
  const id = await deviceWith({ 50: 1, 100: 2, 150: 3 });
  const path = `${prefix(id)}/timeseries/delete?keys=k`;
  expect(await answer('DELETE', `${path}&startTs=150&endTs=200&deleteLatest=false`)).toBe('200 ');
  expect(await answer('DELETE', `${path}&startTs=100&endTs=150&rewriteLatestIfDeleted=true`)).toBe('200 ');
  expect([await history(id), await latest(id)]).toEqual([[50], 3]);
  expect(await answer('DELETE', `${path}&startTs=150&endTs=200&rewriteLatestIfDeleted=true`)).toBe('200 ');
  expect([await history(id), await latest(id)]).toEqual([[50], 1]);
});

test('whole keys are deleted, others stay, and a point of the moment before is gone with them', async () => {
  const { id } = await newDevice();
  await ok('POST', `${prefix(id)}/timeseries/ANY`, { k: 1, stays: 2 });
  expect(await answer('DELETE', `${prefix(id)}/timeseries/delete?keys=k&deleteAllDataForKeys=true`)).toBe('200 ');
  expect(await history(id)).toEqual([]);
  expect(await ok('GET', `${prefix(id)}/keys/timeseries`)).toEqual(['stays']);
});

test('a delete names its missing parameters', async () => {
  const { id } = await newDevice();
  const path = `${prefix(id)}/timeseries/delete`;
  expect(await answer('DELETE', path)).toBe('400 Empty keys: []');
  expect(await answer('DELETE', `${path}?keys=k`)).toBe(
    "400 When deleteAllDataForKeys is false, start and end timestamp values shouldn't be empty",
  );
  expect(await answer('DELETE', `${path}?keys=never&startTs=5&endTs=5`)).toBe('200 ');
});
