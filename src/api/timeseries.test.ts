/** Reading time series over the REST API, from a real ClickHouse. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { error, startApi, unique } from '../../test/harness/api-handlers.ts';
import { shareTestClickHouse } from '../../test/harness/clickhouse-server.ts';
import { nullUuid } from '../base/uuid.ts';

const starting = shareTestClickHouse();
const api = await startApi(starting.then(({ clickhouse }) => clickhouse));
const store = await starting;
const { call, tokenOf, create, postgres } = api;

afterAll(async () => {
  await api.stop();
  await store.stop();
}, 60_000);

describe('time series', () => {
  let jwt: string;
  let path: string;
  let number: number;

  interface Row {
    key: string;
    ts: number;
    kind: number;
    num?: number;
    int?: string;
    text?: string;
  }
  const writes = { count: 0n };
  /** Writes rows as the channel does: each call is a later write than the one before. */
  async function write(rows: Row[]): Promise<void> {
    writes.count += 1n;
    const order = (BigInt(Date.now()) << 20n) + writes.count;
    const lines = rows.map(({ key, ts, kind, num = 0, int = '0', text = '' }) => {
      const version = order - (BigInt(ts) << 20n) + (1n << 63n);
      return JSON.stringify({ device: number, key, ts, kind, num, int, text, version: String(version) });
    });
    const body = Buffer.from(lines.join('\n'));
    for (const table of ['telemetry', 'latest']) {
      await store.clickhouse.insertBlocks(`INSERT INTO ${table} FORMAT JSONEachRow`, body);
    }
  }
  const long = (key: string, ts: number, value: number | string): Row => ({ key, ts, kind: 2, int: String(value) });
  const double = (key: string, ts: number, num: number): Row => ({ key, ts, kind: 3, num });
  const text = (key: string, ts: number, value: string): Row => ({ key, ts, kind: 4, text: value });
  const read = (query: string) => call('GET', `${path}/values/timeseries?${query}`, { jwt });

  beforeAll(async () => {
    jwt = await tokenOf();
    const device = await create(jwt, {}, `?accessToken=${unique('TS')}`);
    path = `/api/plugins/telemetry/DEVICE/${device.id.id}`;
    const [row] = await postgres.query<{ number: number }>('select number from device where id = $1', [device.id.id]);
    number = row!.number;
  });

  it('answer the latest values, by greatest ts', async () => {
    await write([long('late', 200, 2), double('d', 5, 42), { key: 'b', ts: 6, kind: 1, int: '1' }]);
    await write([long('late', 100, 1), text('s', 7, 'a"b'), { key: 'j', ts: 8, kind: 5, text: '{"a":[1.0]}' }]);
    const before = Date.now();
    const latest = await read('keys=late,never');
    expect(latest.body.late).toEqual([{ ts: 200, value: '2' }]);
    expect(latest.body.never).toEqual([{ ts: expect.any(Number), value: null }]);
    expect(latest.body.never[0].ts).toBeGreaterThanOrEqual(before);
    expect((await read('')).text).toBe(
      '{"b":[{"ts":6,"value":"true"}],"d":[{"ts":5,"value":"42.0"}],"j":[{"ts":8,"value":"{\\"a\\":[1.0]}"}],' +
        '"late":[{"ts":200,"value":"2"}],"s":[{"ts":7,"value":"a\\"b"}]}',
    );
    expect((await read('useStrictDataTypes=true')).text).toBe(
      '{"b":[{"ts":6,"value":true}],"d":[{"ts":5,"value":42.0}],"j":[{"ts":8,"value":{"a":[1.0]}}],' +
        '"late":[{"ts":200,"value":2}],"s":[{"ts":7,"value":"a\\"b"}]}',
    );
    expect((await call('GET', `${path}/keys/timeseries`, { jwt })).body).toEqual(['b', 'd', 'j', 'late', 's']);
  });

  it('answer history in the half-open range, newest first, the later write of one ts', async () => {
    await write([100, 150, 200].map((ts) => long('h', ts, ts)));
    await write([long('h', 150, 151)]);
    const history = async (query: string) => (await read(`keys=h,none&startTs=100&endTs=200&${query}`)).text;
    expect(await history('')).toBe('{"h":[{"ts":150,"value":"151"},{"ts":100,"value":"100"}]}');
    expect(await history('orderBy=ASC&useStrictDataTypes=true')).toBe(
      '{"h":[{"ts":100,"value":100},{"ts":150,"value":151}]}',
    );
    expect(await history('limit=1')).toBe('{"h":[{"ts":150,"value":"151"}]}');
    expect((await read('keys=none&startTs=0&endTs=9')).text).toBe('{}');
    expect((await read('keys=h&startTs=9&endTs=0')).text).toBe('{}');
    expect((await call('GET', `${path}/values/timeseries/history?keys=h&startTs=200&endTs=201`, { jwt })).text).toBe(
      '{"h":[{"ts":200,"value":"200"}]}',
    );
  });

  it('keep every digit of a long, and times far from now', async () => {
    const future = Date.UTC(2200, 0, 1);
    await write([-5, 0, 1, future].map((ts) => long('far', ts, '-9223372036854775808')));
    const { text } = await read(`keys=far&startTs=-6&endTs=${future + 1}&orderBy=ASC&useStrictDataTypes=true`);
    const point = (ts: number) => `{"ts":${ts},"value":-9223372036854775808}`;
    expect(text).toBe(`{"far":[${[-5, 0, 1, future].map(point).join(',')}]}`);
  });

  it('aggregate in buckets from the start of the range', async () => {
    await write([long('a', 100, 1), long('a', 110, 2), long('a', 120, 3), long('a', 125, 99)]);
    const { body } = await read('keys=a&startTs=100&endTs=125&interval=10&agg=SUM');
    expect(body).toEqual({ a: [105, 115, 122].map((ts, i) => ({ ts, value: String(i + 1) })) });
    expect((await read('keys=a&startTs=100&endTs=125&agg=SUM')).body.a).toHaveLength(3);
  });

  /** Two points of each kind of value, for the cases below. */
  async function writeKinds(): Promise<void> {
    const big = '9223372036854775807';
    await write([
      ...[long('longs', 1000, 1), long('longs', 1001, 2), long('mixed', 1000, 1), double('mixed', 1001, 2)],
      ...[double('doubles', 1000, -0.5), double('doubles', 1001, 0.25), text('strings', 1000, '9')],
      ...[text('strings', 1001, '10'), long('huge', 1000, big), long('huge', 1001, big)],
      ...[0, 1].map((n): Row => ({ key: 'booleans', ts: 1000 + n, kind: 1, int: String(n) })),
    ]);
  }
  let kinds: Promise<void> | undefined;

  it.each([
    ['AVG', 'longs', '1.5'],
    ['SUM', 'longs', '3'],
    ['MIN', 'longs', '1'],
    ['MAX', 'longs', '2'],
    ['COUNT', 'longs', '2'],
    ['SUM', 'mixed', '3.0'],
    ['AVG', 'mixed', '1.5'],
    ['MAX', 'mixed', '2.0'],
    ['MIN', 'mixed', '1.0'],
    ['MAX', 'doubles', '0.25'],
    ['COUNT', 'strings', '2'],
    ['MIN', 'strings', '"10"'],
    ['MAX', 'strings', '"9"'],
    ['SUM', 'strings', undefined],
    ['AVG', 'strings', undefined],
    ['MIN', 'booleans', 'false'],
    ['MAX', 'booleans', 'true'],
    ['SUM', 'huge', '18446744073709552000.0'],
    ['AVG', 'huge', '9223372036854776000.0'],
    ['MAX', 'huge', '9223372036854775807'],
  ])('%s of %s is %s', async (agg, key, expected) => {
    await (kinds ??= writeKinds());
    const answer = await read(`keys=${key}&startTs=1000&endTs=1002&interval=100&agg=${agg}&useStrictDataTypes=true`);
    expect(answer.text).toBe(expected === undefined ? '{}' : `{"${key}":[{"ts":1001,"value":${expected}}]}`);
  });

  it('aggregate by calendar', async () => {
    const day = (date: string) => Date.parse(`${date}T12:00:00Z`);
    await write([
      long('cal', day('2026-01-10'), 1),
      long('cal', day('2026-01-31'), 2),
      long('cal', day('2026-02-01'), 4),
    ]);
    const range = `startTs=${Date.parse('2026-01-01T00:00Z')}&endTs=${Date.parse('2026-03-01T00:00Z')}`;
    const { body } = await read(`keys=cal&${range}&intervalType=MONTH&timeZone=UTC&agg=SUM`);
    expect(body.cal.map((point: { value: string }) => point.value)).toEqual(['3', '4']);
  });

  it('refuse in plain text, or in JSON before they begin', async () => {
    const tooMany = await read('keys=a&startTs=0&endTs=7001&interval=10&agg=SUM');
    expect(tooMany).toMatchObject({ status: 400, body: undefined });
    expect(tooMany.text).toMatch(/^Incorrect TsKvQuery\. Number of intervals is to high - /);
    expect(await read('keys=a&startTs=x&endTs=1')).toMatchObject({ status: 400, body: { errorCode: 31 } });
    expect(await read('keys=a&startTs=0&endTs=1&agg=MEDIAN')).toMatchObject({ status: 400, body: { errorCode: 31 } });
    const get = (type: string, id: string, token = jwt) =>
      call('GET', `/api/plugins/telemetry/${type}/${id}/values/timeseries`, { jwt: token });
    expect(await get('DEVICE', '5')).toMatchObject(error(400, 31, 'Invalid UUID string: 5'));
    expect(await get('PUMP', nullUuid)).toMatchObject({ status: 400, body: { errorCode: 31 } });
    const missing = { status: 404, text: "Device with requested id wasn't found!", body: undefined };
    expect(await get('DEVICE', nullUuid)).toMatchObject(missing);
    const sysadmin = await tokenOf('sysadmin@thingsboard.org', 'sysadmin');
    expect(await get('DEVICE', nullUuid, sysadmin)).toMatchObject({
      status: 403,
      text: 'System administrator is not allowed to perform this operation!',
    });
    const foreign = await tokenOf('customer@thingsboard.org', 'customer');
    expect(await call('GET', `${path}/values/timeseries`, { jwt: foreign })).toMatchObject(missing);
  });
});
