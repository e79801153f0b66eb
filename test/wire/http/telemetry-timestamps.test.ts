/** How `ts` is read (docs/http.md#telemetry): stored as given, or refused by name. */
import { expect, test } from 'vitest';
import { withMqtt } from '../../harness/mqtt-client.ts';
import { childName, childNamed, gatewayTopic, type Json, newGateway } from '../../harness/mqtt-gateway.ts';
import { ok } from '../../harness/people.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';
import { at, withPoster } from '../../harness/stored.ts';

for (const [text, ts] of [
  ['"1700000000000"', 1_700_000_000_000],
  ['1.9', 1],
  ['1e12', 1_000_000_000_000],
  ['0', 0],
  ['-5', -5],
  ['7258118400000', 7_258_118_400_000],
] as const) {
  test(`ts ${text} is stored as ${ts}`, () =>
    withPoster(async (poster) => {
      await poster.accept(`{"ts":${text},"values":{"a":1}}`);
      expect(await poster.points('a', at(ts))).toEqual([{ ts, value: '1' }]);
    }));
}

test('refused timestamps are named and store nothing', () =>
  withPoster(async (poster) => {
    for (const text of [
      '"abc"',
      '"1.9"',
      '"1e12"',
      '""',
      '" 1 "',
      'null',
      'true',
      '{}',
      '[1]',
      '99999999999999999999',
      '9000000000000000000',
      '1e300',
    ]) {
      const message = await poster.refuse(`{"ts":${text},"values":{"a":1}}`);
      expect(message, text).toMatch(/\bts\b/);
    }
    expect(await poster.keys()).toEqual([]);
  }));

test('a point far ahead is history and not the latest value; it, seconds and microseconds are named', () =>
  withPoster(async (poster) => {
    const now = Date.now();
    const ahead = now + 10 * 365 * 86_400_000;
    const { id } = poster.device;
    await poster.accept(`[{"ts":${ahead},"values":{"a":1}},{"ts":${ahead},"values":{"only":1}}]`);
    await poster.accept(`{"ts":${now},"values":{"a":2}}`);
    await poster.accept(`{"ts":${Math.floor(now / 1000)},"values":{"a":3}}`);
    expect(await poster.refuse(`{"ts":${now * 1000},"values":{"a":4}}`)).toMatch(/looks like microseconds/);
    const hub = await newGateway();
    const name = childName();
    await withMqtt({ token: hub.token }, (client) =>
      client.publish(gatewayTopic.telemetry, JSON.stringify({ [name]: [{ ts: ahead, values: { a: 1 } }] })),
    );

    const whole = { startTs: 0, endTs: ahead + 1 };
    expect((await poster.points('a', whole, 3)).map(({ value }) => value)).toEqual(['3', '2', '1']);
    expect(await poster.keys()).toEqual(['a']);
    expect(await poster.value('a')).toBe('2');
    const timesOf = async (device: string) => (await ok('GET', `/api/device/${device}/diagnostics`)).times;
    const times = await timesOf(id);
    expect(Object.fromEntries(times.map(({ kind, count, example }: Json) => [kind, [count, example]]))).toEqual({
      microseconds: [1, now * 1000],
      seconds: [1, Math.floor(now / 1000)],
      ahead: [2, ahead],
    });
    expect(times.find(({ kind }: Json) => kind === 'ahead').aheadSeconds).toBeGreaterThan(9 * 365 * 86_400);
    expect(await timesOf((await childNamed(name)).id)).toMatchObject([{ kind: 'ahead', count: 1, example: ahead }]);
    const metrics = await sharedEngine().metrics();
    for (const kind of ['seconds', 'microseconds', 'ahead']) {
      expect(Number(new RegExp(`odd_times_total\\{kind="${kind}"\\} (\\d+)`).exec(metrics)?.[1])).toBeGreaterThan(0);
    }
  }));

test('500 different months in one message are all stored', () =>
  withPoster(async (poster) => {
    const times = Array.from({ length: 500 }, (_, month) => Date.UTC(1980, month, 3));
    await poster.accept(JSON.stringify(times.map((ts, n) => ({ ts, values: { a: n } }))));
    const range = { startTs: times[0]!, endTs: times.at(-1)! + 1 };
    const points = await poster.points('a', range, 500);
    expect(points).toEqual(times.map((ts, n) => ({ ts, value: String(n) })));
  }));

test('two messages of one device in one millisecond do not replace each other', () =>
  withPoster(async (poster) => {
    for (let n = 0; n < 50; n += 1) await poster.accept(`{"n":${n}}`);
    const points = await poster.points('n', undefined, 50);
    expect(points.map(({ value }) => Number(value))).toEqual(Array.from({ length: 50 }, (_, n) => n));
  }));
