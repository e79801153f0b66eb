/** Reports over the socket: the rules of docs/rest.md#reports, and hostile input. */

import { randomUUID } from 'node:crypto';
import { beforeAll, describe, expect, test } from 'vitest';
import { hourMs } from '../../../src/base/durations.ts';
import { eventually } from '../../harness/api.ts';
import { newCustomer, newCustomerUser, newTenant, ok } from '../../harness/people.ts';
import {
  analyticsUrl,
  ask,
  buildReport,
  date,
  dayMs,
  good,
  monday,
  newPlant,
  type Plant,
  preview,
  report,
  saveView,
  send,
  site,
  siteFilter,
  value,
  viewOf,
} from '../../harness/reports.ts';
import { faultOf } from '../../harness/rest.ts';
import { sharedEngine } from '../../harness/shared-engine.ts';

let plant: Plant;
let water: string;

const sites = async (id: string, request: object = {}) =>
  (await report(id, request)).dataTable.map((row) => row['Site']);

beforeAll(async () => {
  plant = await newPlant(['North', 'East']);
  await send(plant, 0, 'flow', [
    [monday, 1.5],
    [monday + hourMs, 2],
    [monday + 20.5 * hourMs, 10],
    [monday + 21.5 * hourMs, 20],
  ]);
  await send(plant, 1, 'flow', [[monday + hourMs, 7]]);
  await send(plant, 1, 'level', [[monday + hourMs, 3]]);
  water = await saveView(viewOf(plant.profile, [site, value('flow', 'SUM')], { filters: [siteFilter] }));
});

describe('signing in', () => {
  test('the token may be a query parameter, a header `jwt` or X-Authorization; both paths', async () => {
    const token = await sharedEngine().adminToken();
    const body = { viewConfigId: water };
    const texts = await Promise.all(
      [
        ask('POST', `${buildReport}?jwt=${token}`, body, { token: '' }),
        ask('POST', buildReport, body),
        ask('POST', buildReport, body, { token: '', headers: { 'x-authorization': `Bearer ${token}` } }),
        ask('POST', buildReport.replace('Analytics', 'Trendz'), body),
      ].map(async (asked) => {
        const response = await asked;
        return `${response.status} ${await response.text()}`;
      }),
    );
    expect(new Set(texts)).toEqual(
      new Set([
        '200 {"columnLabels":["Site","flow"],"dataTable":[{"Site":"East","flow":7},{"Site":"North","flow":33.5}]}',
      ]),
    );
  });

  test('no token, a changed one, a refresh token and a guest are 403, with any body', async () => {
    const { token, refreshToken } = await sharedEngine().login();
    const at = token.length - 10;
    const tampered = `${token.slice(0, at)}${token[at] === 'A' ? 'B' : 'A'}${token.slice(at + 1)}`;
    for (const wrong of ['', 'abc', tampered, refreshToken]) {
      expect(await faultOf(await ask('POST', buildReport, 'nonsense', { token: wrong })), wrong).toMatch(/^403\//);
    }
  });

  test('another content type is 415', async () => {
    for (const type of ['text/plain', 'application/xml', 'application/jsonx']) {
      const headers = { 'content-type': type };
      expect(await faultOf(await ask('POST', buildReport, { viewConfigId: water }, { headers }))).toMatch(/^415\//);
    }
    const headers = { 'content-type': 'application/json; charset=UTF-8' };
    expect((await ask('POST', buildReport, { viewConfigId: water }, { headers })).status).toBe(200);
  });

  test('a page of another origin may ask', async () => {
    const asked = await fetch(`${analyticsUrl()}${buildReport}`, {
      method: 'OPTIONS',
      headers: {
        origin: 'https://dash.example',
        'access-control-request-method': 'POST',
        'access-control-request-headers': 'jwt,content-type',
      },
    });
    expect(asked.headers.get('access-control-allow-origin')).toBe('https://dash.example');
    expect(asked.headers.get('access-control-allow-headers')).toContain('jwt');
    const answer = await ask(
      'POST',
      buildReport,
      { viewConfigId: water },
      { headers: { origin: 'https://dash.example' } },
    );
    expect(answer.headers.get('access-control-allow-origin')).toBe('https://dash.example');
    expect(answer.headers.get('access-control-expose-headers')).toContain('X-Report-Truncated');
  });

  test('the analytics component has its own sign-in', async () => {
    const { adminEmail: username, adminPassword: password } = sharedEngine().address;
    const answer = await ask('POST', '/apiTrendz/publicApi/auth/login', { username, password }, { token: '' });
    const { token } = (await answer.json()) as { token: string };
    expect((await report(water, {}, { token })).dataTable.length).toBe(2);
  });
});

describe('requests', () => {
  test('blank bounds leave the saved range, each separately', async () => {
    const whole = await report(water);
    for (const blank of [0, null, '']) {
      expect(await report(water, { rangeStartTs: blank, rangeEndTs: blank, filters: null })).toEqual(whole);
    }
    const { dataTable } = await report(water, { rangeEndTs: monday + 2 * hourMs });
    expect(dataTable).toEqual([
      { Site: 'East', flow: 7 },
      { Site: 'North', flow: 3.5 },
    ]);
    const later = await report(water, { rangeStartTs: monday + 2 * hourMs });
    expect(later.dataTable).toEqual([{ Site: 'North', flow: 30 }]);
  });

  test('filters are named in any case; without values they restrict nothing', async () => {
    const north = await saveView(
      viewOf(plant.profile, [site, value('flow', 'SUM')], { filters: [{ ...siteFilter, values: ['North'] }] }),
    );
    expect(await sites(north)).toEqual(['North']);
    expect(await sites(north, { filters: { SITE: ['East'] } })).toEqual(['East']);
    expect(await sites(north, { filters: { site: [] } })).toEqual(['East', 'North']);
    expect(await sites(north, { filters: { foo: [] } })).toEqual(['North']);
    expect(await faultOf(await ask('POST', buildReport, { viewConfigId: north, filters: { foo: ['x'] } }))).toMatch(
      /^400\/31/,
    );
    const byLabel = await saveView(viewOf(plant.profile, [site, date('HOUR'), value('flow', 'SUM')]));
    const { dataTable } = await report(byLabel, { filters: { date: [4, '23'] } });
    expect(dataTable.map((row) => row['Date'])).toEqual([4, 4, 23]);
  });

  test.each([
    [{}, 400],
    [{ viewConfigId: '' }, 400],
    [{ viewConfigId: 'abc' }, 400],
    [{ viewConfigId: 7 }, 400],
    [[], 400],
    ['{', 400],
    [{ viewConfigId: randomUUID() }, 404],
  ])('%j is %i', async (body, status) => {
    expect((await ask('POST', buildReport, body)).status).toBe(status);
  });

  test.each([
    { rangeStartTs: 20, rangeEndTs: 20 },
    { rangeStartTs: 30, rangeEndTs: 20 },
    { rangeStartTs: '1757000000000' },
    { rangeStartTs: 1.5 },
    { rangeEndTs: 1e300 },
    { filters: [] },
    { filters: { site: 'North' } },
    { filters: { site: [{}] } },
  ])('%j is 400', async (request) => {
    expect(await faultOf(await ask('POST', buildReport, { viewConfigId: water, ...request }))).toMatch(/^400\/31/);
  });

  test('values like SQL or templates are data', async () => {
    const hostile = [
      "' OR 1=1 --",
      '}',
      '{p0:String}',
      '`',
      "url('http://127.0.0.1:9/')",
      '\\',
      '%27',
      "'; DROP TABLE telemetry",
    ];
    for (const text of hostile) {
      expect(await sites(water, { filters: { site: [text] } })).toEqual([]);
      const fields = [
        { ...site, label: `${text}1` },
        { ...value(text, 'SUM'), label: `${text}2` },
        value('flow', 'SUM'),
      ];
      const of = viewOf(plant.profile, fields, {
        filters: [{ ...siteFilter, operation: 'CONTAINS', values: ['o', text] }],
      });
      expect((await preview(of)).dataTable.length, text).toBe(1);
    }
    const label = await preview(
      viewOf(plant.profile, [
        { ...site, label: '__proto__' },
        { ...value('flow', 'SUM'), label: 'constructor' },
      ]),
    );
    expect(label.columnLabels).toEqual(['__proto__', 'constructor']);
  });

  test('a century by the minute, a million groups at most, no devices: tables, cut where the view says', async () => {
    const century = { rangeStartTs: Date.UTC(1950, 0, 1), rangeEndTs: Date.UTC(2050, 0, 1) };
    const minutes = await saveView(viewOf(plant.profile, [date('FULL_MINUTE'), value('flow', 'SUM')], { limit: 2 }));
    const response = await ask('POST', buildReport, { viewConfigId: minutes, ...century });
    expect([
      response.status,
      response.headers.get('x-report-truncated'),
      response.headers.get('x-report-rows'),
    ]).toEqual([200, 'rows', '2']);
    expect(((await response.json()) as { dataTable: object[] }).dataTable.length).toBe(2);
    expect(await preview(viewOf('no such profile', [site, value('flow', 'SUM')]))).toEqual({
      columnLabels: ['Site', 'flow'],
      dataTable: [],
    });
    expect((await preview(viewOf('none', [value('flow', 'SUM')]))).dataTable).toEqual([]);
  });
});

describe('tables', () => {
  test('RAW dates are texts of digits, values numbers, and midnight is that of the zone', async () => {
    const days = viewOf(plant.profile, [site, date('RAW'), value('flow', 'SUM')], {
      groupBy: { unit: 'DAY', amount: 1 },
    });
    const localMidnight = monday - 3 * hourMs;
    expect((await preview(days)).dataTable).toEqual([
      { Site: 'East', Date: String(localMidnight), flow: 7 },
      { Site: 'North', Date: String(localMidnight), flow: 13.5 },
      { Site: 'North', Date: String(localMidnight + dayMs), flow: 20 },
    ]);
    const dates = (await preview(viewOf(plant.profile, [date('FULL_DATE'), value('flow', 'COUNT')]))).dataTable;
    expect(dates).toEqual([
      { Date: '2025-06-02', flow: 4 },
      { Date: '2025-06-03', flow: 1 },
    ]);
  });

  test('a cell without points is "-", and every row has every label', async () => {
    const table = await preview(viewOf(plant.profile, [site, value('flow', 'SUM'), value('level', 'MAX')]));
    expect(table).toEqual({
      columnLabels: ['Site', 'flow', 'level'],
      dataTable: [
        { Site: 'East', flow: 7, level: 3 },
        { Site: 'North', flow: 33.5, level: '-' },
      ],
    });
  });

  test('a pivot makes a column of each site, and of each site and value', async () => {
    const column = { ...site, role: 'COLUMN' };
    const one = await preview(viewOf(plant.profile, [date('YEAR'), column, value('flow', 'SUM')]));
    expect(one).toEqual({ columnLabels: ['Date', 'East', 'North'], dataTable: [{ Date: 2025, East: 7, North: 33.5 }] });
    const two = await preview(viewOf(plant.profile, [column, value('flow', 'SUM'), value('level', 'SUM')]));
    expect(two.columnLabels).toEqual(['East flow', 'East level', 'North flow', 'North level']);
    expect(two.dataTable).toEqual([{ 'East flow': 7, 'East level': 3, 'North flow': 33.5, 'North level': '-' }]);
    const clash = await preview(
      viewOf(plant.profile, [{ ...date('YEAR'), label: 'East' }, column, value('flow', 'SUM')]),
    );
    expect(clash.columnLabels).toEqual(['East', 'East (2)', 'North']);
  });

  test('DELTA adds the steps of each device; a drop is a new beginning', async () => {
    const meters = await newPlant(['North', 'East']);
    const at = (n: number) => monday + n * hourMs;
    await send(
      meters,
      0,
      'count',
      [10, 15, 3, 8].map((n, i) => [at(i), n]),
    );
    await send(meters, 0, 'before', [
      [monday - 40 * dayMs, 9],
      ...[10, 15, 3, 8].map((n, i): [number, unknown] => [at(i), n]),
    ]);
    await send(meters, 0, 'two', [
      [at(0), 1],
      [at(1), 6],
    ]);
    await send(meters, 1, 'two', [
      [at(0), 0],
      [at(1), 7],
    ]);
    const fields = ['count', 'before', 'two'].map((key) => value(key, 'DELTA'));
    expect((await preview(viewOf(meters.profile, fields))).dataTable).toEqual([{ count: 13, before: 14, two: 12 }]);
  });

  test('numbers keep every digit; booleans and JSON are texts; rows follow `sort`', async () => {
    const odd = await newPlant(['=1+1', 'B"', 'C,']);
    await send(odd, 0, 'mode', [[monday, true]]);
    await send(odd, 1, 'mode', [[monday, { a: [1] }]]);
    const { token } = odd.devices[2]!;
    const body = `{"ts":${monday},"values":{"mode":"=cmd()","big":9007199254740993}}`;
    expect(await sharedEngine().postTelemetry(token, body)).toBe(200);
    const view = viewOf(odd.profile, [site, value('mode', 'LATEST'), value('big', 'SUM')], {
      sort: [{ label: 'Site', order: 'DESC' }],
    });
    const text = await eventually(async () => {
      const answer = await (await ask('POST', '/apiAnalytics/view/preview', view)).text();
      return answer.includes('=cmd') && answer;
    });
    expect(text).toBe(
      '{"columnLabels":["Site","mode","big"],"dataTable":[{"Site":"C,","mode":"=cmd()","big":9007199254740993},' +
        '{"Site":"B\\"","mode":"{\\"a\\":[1]}","big":"-"},{"Site":"=1+1","mode":"true","big":"-"}]}',
    );
    const csv = await ask('POST', '/apiAnalytics/view/preview', view, { headers: { accept: 'text/csv' } });
    expect(csv.headers.get('content-type')).toBe('text/csv; charset=utf-8');
    expect(await csv.text()).toBe(
      `Site,mode,big\r\n"C,",'=cmd(),9007199254740993\r\n"B""","{""a"":[1]}",-\r\n'=1+1,true,-\r\n`,
    );
  });
});

test('a boolean attribute is shown and filtered as true or false, and counts as 1 or 0', async () => {
  const pumps = await newPlant(['North', 'East']);
  const key = 'running';
  for (const [n, isRunning] of [true, false].entries()) {
    const path = `/api/plugins/telemetry/DEVICE/${pumps.devices[n]!.id}/SERVER_SCOPE`;
    await ok('POST', path, { [key]: isRunning });
  }
  const running = { source: 'ATTRIBUTE', attributeScope: 'SERVER_SCOPE', key };
  const of = (fields: object[], more: object = {}) => preview(viewOf(pumps.profile, fields, more));
  const row = { ...running, label: 'Running', role: 'ROW' };
  await saveView(viewOf(pumps.profile, [row]));
  await eventually(async () => {
    const { dataTable } = await of([site, row]);
    return (
      expect(dataTable).toEqual([
        { Site: 'East', Running: 'false' },
        { Site: 'North', Running: 'true' },
      ]) ?? true
    );
  });
  for (const wanted of [true, 'true']) {
    const filters = [{ ...running, name: 'running', values: [wanted] }];
    expect((await of([site], { filters })).dataTable).toEqual([{ Site: 'North' }]);
  }
  const sum = { ...running, label: 'sum', role: 'VALUE', aggregation: 'SUM' };
  const average = { ...running, label: 'average', role: 'VALUE', aggregation: 'AVG' };
  expect((await of([sum, average])).dataTable).toEqual([{ sum: 1, average: 0.5 }]);
});

test('a number is filtered by its value, however it is written', async () => {
  const pumps = await newPlant(['North']);
  const values = [1e21, 42.5, 0.0000001, 7];
  await send(
    pumps,
    0,
    'level',
    values.map((level, n) => [monday + n, level]),
  );
  const telemetry = { name: 'level', source: 'TELEMETRY', key: 'level' };
  const named = ['1e+21', '42.50', 1e-7];
  const countOf = async (operation: string) => {
    const filters = [{ ...telemetry, operation, values: named }];
    return (await preview(viewOf(pumps.profile, [value('level', 'COUNT')], { filters }))).dataTable;
  };
  expect(await countOf('IN')).toEqual([{ level: 3 }]);
  expect(await countOf('NOT_IN')).toEqual([{ level: 1 }]);
});

test('what the service says about activity is an attribute as any other', async () => {
  const pumps = await newPlant(['North', 'East']);
  const of = (key: string) => ({ source: 'ATTRIBUTE', attributeScope: 'SERVER_SCOPE', key, label: key, role: 'ROW' });
  const fields = [site, of('active'), of('lastActivityTime')];
  await saveView(viewOf(pumps.profile, fields));
  const table = async () => (await preview(viewOf(pumps.profile, fields))).dataTable;
  const isolated = { Site: 'East', active: '-', lastActivityTime: '-' };
  await eventually(async () => (await table())[0]?.['Site'] === 'East');
  await send(pumps, 0, 'flow', [[monday, 1]]);
  const path = `/api/plugins/telemetry/DEVICE/${pumps.devices[0]!.id}/values/attributes/SERVER_SCOPE`;
  await eventually(async () => {
    const rows = (await ok('GET', path)) as { key: string; value: unknown }[];
    const time = rows.find(({ key }) => key === 'lastActivityTime')?.value;
    return expect(await table()).toEqual([isolated, { Site: 'North', active: 'true', lastActivityTime: time }]) ?? true;
  });
});

describe('views', () => {
  test('are saved, read, listed, replaced and deleted', async () => {
    const view = viewOf(plant.profile, [site, { ...value('flow', 'AVG'), decimals: 2 }]);
    const name = `water-${randomUUID()}`;
    const saved = await good('POST', '/apiAnalytics/view', { ...view, name });
    expect(saved).toMatchObject({
      ...view,
      name,
      type: 'TABLE',
      version: 1,
      customerId: null,
      filters: [],
      limit: null,
    });
    const path = `/apiAnalytics/view/${saved.id}`;
    expect(await (await ask('GET', path)).json()).toEqual(saved);
    const listed = await (
      await ask('GET', `/apiAnalytics/views?pageSize=5&page=0&textSearch=${name.toUpperCase()}`)
    ).json();
    expect(listed).toEqual({ data: [saved], totalPages: 1, totalElements: 1, hasNext: false });
    const second = await good('POST', '/apiAnalytics/view', { ...saved, name: 'other' });
    expect(second).toMatchObject({ id: saved.id, name: 'other', version: 2, createdTime: saved.createdTime });
    expect(await faultOf(await ask('POST', '/apiAnalytics/view', saved))).toMatch(/^409\/35/);
    expect((await ask('DELETE', path)).status).toBe(200);
    expect(await faultOf(await ask('DELETE', path))).toMatch(/^404\/32/);
    expect(await faultOf(await ask('GET', '/apiAnalytics/view/abc'))).toMatch(/^400\/31/);
  });

  test.each([
    { fields: [] },
    { fields: [site, { ...site, label: 'SITE' }] },
    { fields: [{ ...site, role: 'COLUMN' }] },
    { fields: [{ ...site, label: 'x'.repeat(65) }] },
    { fields: [{ ...value('flow', 'MEDIAN') }] },
    { fields: [{ ...value('flow', 'SUM'), role: 'ROW' }] },
    { fields: [date('DAYS')] },
    { fields: [{ ...site, source: 'SECRET' }] },
    { fields: [site], timeZone: 'Mars/Olympus' },
    { fields: [site], timeRange: { type: 'FIXED', startTs: 5, endTs: 5 } },
    { fields: [site], sort: [{ label: 'nothing' }] },
    { fields: [site], limit: 0 },
    { fields: [site], scope: { deviceIds: ['x'] } },
    { name: '', fields: [site] },
  ])('%j is 400', async (view) => {
    expect(await faultOf(await ask('POST', '/apiAnalytics/view', { name: 'wrong', ...view }))).toMatch(/^400\/31/);
  });

  test('a customer user sees only the own devices, saves nothing, and nothing of another tenant', async () => {
    const customer = await newCustomer();
    const user = await newCustomerUser(customer);
    const token = user.token;
    expect((await report(water, {}, { token })).dataTable).toEqual([]);
    await ok('POST', `/api/customer/${customer}/device/${plant.devices[1]!.id}`);
    expect((await report(water, {}, { token })).dataTable).toEqual([{ Site: 'East', flow: 7 }]);
    expect(await faultOf(await ask('POST', '/apiAnalytics/view', { name: 'mine', fields: [site] }, { token }))).toMatch(
      /^403\/20/,
    );
    expect(await faultOf(await ask('DELETE', `/apiAnalytics/view/${water}`, undefined, { token }))).toMatch(/^403\/20/);

    const closed = await saveView({ ...viewOf(plant.profile, [site]), customerId: await newCustomer() });
    expect(await faultOf(await ask('POST', buildReport, { viewConfigId: closed }, { token }))).toMatch(/^404\/32/);
    const { admin } = await newTenant();
    expect(await faultOf(await ask('POST', buildReport, { viewConfigId: water }, { token: admin.token }))).toMatch(
      /^404\/32/,
    );
    const foreign = viewOf(plant.profile, [site]);
    const unsaved = await faultOf(await ask('POST', '/apiAnalytics/view/preview', foreign, { token: admin.token }));
    expect(unsaved).toMatch(/^400\/31 No saved view names the attribute "site"/);
    await saveView(foreign, { token: admin.token });
    expect((await preview(foreign, { token: admin.token })).dataTable).toEqual([]);
  });

  test('attributes count for each tenant, saved views alone add them, and what no view names is forgotten', async () => {
    const [{ admin }, { admin: other }] = [await newTenant(), await newTenant()];
    const named = (n: number, count = 60) =>
      Array.from({ length: count }, (_, i) => ({ ...site, label: `a${i}`, key: `${admin.id}-${n}-${i}` }));
    const asAdmin = { token: admin.token };
    const ids: string[] = [];
    for (let n = 0; n < 16; n += 1) ids.push(await saveView({ fields: named(n) }, asAdmin));
    const over = { name: 'over', fields: named(16) };
    const tooMany = async () => faultOf(await ask('POST', '/apiAnalytics/view', over, asAdmin));
    expect(await tooMany()).toMatch(/^400\/31 The saved views of a tenant name at most 1000 different attributes/);
    // Refused requests do not count, and another tenant is not affected.
    await saveView({ fields: named(16, 40) }, asAdmin);
    expect(await tooMany()).toMatch(/^400/);
    await saveView({ fields: named(0) }, { token: other.token });
    for (const id of ids.slice(0, 2)) await good('DELETE', `/apiAnalytics/view/${id}`, undefined, asAdmin);
    await saveView(over, asAdmin);
  });

  test('what changes about a device is in the next report within two seconds', async () => {
    const { profile, devices } = await newPlant(['North']);
    const fields = ['name', 'label', 'owner', 'type'].map((key) => ({
      label: key,
      source: 'ENTITY_FIELD',
      key,
      role: 'ROW',
    }));
    const row = async () => (await preview(viewOf(profile, [...fields, site]))).dataTable[0];
    const becomes = (members: object) => eventually(async () => expect(await row()).toMatchObject(members) ?? true);
    const device = await ok('GET', `/api/device/${devices[0]!.id}`);
    const customerId = await newCustomer();
    await ok('POST', '/api/device', {
      ...device,
      name: `${device.name}-2`,
      label: 'L',
      customerId: { entityType: 'CUSTOMER', id: customerId },
    });
    const { title } = await ok('GET', `/api/customer/${customerId}`);
    await becomes({ name: `${device.name}-2`, label: 'L', owner: title });
    await ok('POST', '/api/customer', { ...(await ok('GET', `/api/customer/${customerId}`)), title: `${title}-2` });
    await becomes({ owner: `${title}-2` });
    await ok('POST', `/api/plugins/telemetry/DEVICE/${devices[0]!.id}/SERVER_SCOPE`, { site: 42.0 });
    await becomes({ Site: 42 });
    await ok('DELETE', `/api/device/${devices[0]!.id}`);
    await eventually(async () => (await row()) === undefined);
  });
});

test('lateness and completeness of a key, and the fields that cannot be', async () => {
  const minuteMs = 60_000;
  const ticks = Array.from({ length: 60 }, (_, n): [number, number] => [monday + n * minuteMs, n]);
  await send(
    plant,
    0,
    'tick',
    ticks.filter((_, n) => n < 20 || n >= 30),
  );
  const lateness = (aggregation: string) => ({ ...value('tick', aggregation, aggregation), source: 'LATENESS' });
  const { aggregation: _, ...there } = { ...value('tick', '', 'there'), source: 'COMPLETENESS' };
  const range = { type: 'FIXED', startTs: monday, endTs: monday + 60 * minuteMs };
  const aggregations = ['AVG', 'MIN', 'MAX', 'LATEST', 'P50', 'P95', 'P99'];
  const fields = [date('HOUR'), ...aggregations.map(lateness), there];
  const { dataTable } = await preview(viewOf(plant.profile, fields, { timeZone: 'UTC', timeRange: range }));
  expect(dataTable).toHaveLength(1);
  const [row] = dataTable as [Record<string, number>];
  // All points are in one message and arrive at the same time, so the last point is the least late.
  const least = row['MIN']!;
  expect(Math.abs(Date.now() - (monday + 59 * minuteMs) - least)).toBeLessThan(10 * minuteMs);
  const minutes = aggregations.map((name) => (row[name]! - least) / minuteMs);
  expect(minutes).toEqual([28.5, 0, 59, 0, 24, 57, 59]);
  expect(row['there']).toBe(50 / 60);

  const refused = async (field: object) =>
    faultOf(await ask('POST', '/apiAnalytics/view/preview', { fields: [field] }));
  expect(await refused(lateness('DELTA'))).toMatch(/^400\/31 fields\[0\]\.aggregation must be one of AVG, MIN/);
  expect(await refused({ ...there, aggregation: 'AVG' })).toMatch(/^400\/31 fields\[0\]\.aggregation must be absent/);
  expect(await refused({ ...there, role: 'ROW' })).toMatch(/COMPLETENESS, which can only have the role VALUE/);
});

test('the view link is a page with scripts, styles and links of its own port only', async () => {
  const page = await fetch(`${analyticsUrl()}/trendz/view/${water}`);
  const html = await page.text();
  expect([page.status, page.headers.get('content-type')]).toEqual([200, 'text/html; charset=utf-8']);
  expect(page.headers.get('content-security-policy')).toContain("script-src 'self'");
  const paths = new Set([...html.matchAll(/(?:src|href)="([^"]+)"/g)].map(([, path]) => path!));
  const assets = ['icon.svg', 'base.css', 'view.css', 'view.js'].map((name) => `/trendz/assets/${name}`);
  expect([...paths]).toEqual([...assets, '/apiAnalytics']);
  for (const path of paths) expect((await fetch(`${analyticsUrl()}${path}`)).status, path).toBe(200);
  expect(html).not.toMatch(/<script>|style=|onclick/);
  expect((await fetch(`${analyticsUrl()}/trendz/assets/..%2Fpage.js`)).status).toBe(404);
});
