/** Latest and historical telemetry (rest.md 3.5). These paths answer their own errors as plain text. */
import Type from 'typebox';
import { authorities, type Principal } from '../auth/roles.ts';
import type { Clock } from '../base/clock.ts';
import { badRequest } from '../base/errors.ts';
import type { ClickHouse } from '../clickhouse/client.ts';
import type { Queries } from '../postgres/client.ts';
import { bucketStarts, intervalTypes } from '../telemetry/buckets.ts';
import { type Point, readLatest, readLatestKeys } from '../telemetry/latest.ts';
import { aggregations, readAggregate, readHistory } from '../telemetry/query.ts';
import type { HttpResponse } from '../uws/server.ts';
import { strictForm, stringForm } from '../value/typed.ts';
import {
  type EntityTarget,
  entityTarget,
  integer,
  keyList,
  oneOf,
  optionalBoolean,
  optionalInteger,
} from './parameters.ts';
import { plainText, usableDevice } from './plain-text.ts';
import { type Call, json, jsonText, type Route, route } from './route.ts';

export interface TimeseriesParts {
  postgres: Queries;
  clickhouse: ClickHouse;
  clock: Clock;
}

const prefix = '/api/plugins/telemetry/:entityType/:entityId';
const limitDefault = 100;

const historyQuery = Type.Object({
  keys: Type.Optional(Type.String()),
  startTs: Type.Optional(Type.Integer()),
  endTs: Type.Optional(Type.Integer()),
  interval: Type.Optional(Type.Integer({ minimum: 0 })),
  intervalType: Type.Optional(Type.Enum([...intervalTypes])),
  timeZone: Type.Optional(Type.String()),
  limit: Type.Optional(Type.Integer({ minimum: 1 })),
  agg: Type.Optional(Type.Enum([...aggregations])),
  orderBy: Type.Optional(Type.Enum(['DESC', 'ASC'])),
  useStrictDataTypes: Type.Optional(Type.Boolean()),
});

const answer = Type.Record(Type.String(), Type.Array(Type.Object({ ts: Type.Integer(), value: Type.Unknown() })));

export function timeseriesRoutes(parts: TimeseriesParts): Route[] {
  const { clickhouse, clock } = parts;

  async function latest({ principal, params, query }: Call): Promise<HttpResponse> {
    const target = entityTarget(params);
    const keys = keyList(query);
    const strict = optionalBoolean(query, 'useStrictDataTypes', false);
    return await plainText(async () => {
      const device = await deviceNumber(parts.postgres, principal, target);
      const points = await readLatest(clickhouse, device, keys.length > 0 ? keys : undefined);
      return jsonText(latestText(points, keys, strict, clock.now()));
    });
  }

  async function history({ principal, params, query }: Call): Promise<HttpResponse> {
    const target = entityTarget(params);
    const keys = keyList(query);
    const range = {
      startTs: integer('startTs', query.get('startTs') ?? ''),
      endTs: integer('endTs', query.get('endTs') ?? ''),
    };
    const intervalType = oneOf('intervalType', query.get('intervalType'), intervalTypes, 'MILLISECONDS');
    const interval = optionalInteger(query, 'interval', 0);
    const limit = optionalInteger(query, 'limit', limitDefault);
    const agg = oneOf('agg', query.get('agg'), aggregations, 'NONE');
    const order = oneOf('orderBy', query.get('orderBy'), ['DESC', 'ASC'], 'DESC');
    const strict = optionalBoolean(query, 'useStrictDataTypes', false);
    return await plainText(async () => {
      if (interval < 0) throw badRequest('interval', "Incorrect TsKvQuery. 'interval' must not be negative.");
      if (limit <= 0) throw badRequest('limit', "Incorrect TsKvQuery. 'limit' must be greater than zero.");
      const device = await deviceNumber(parts.postgres, principal, target);
      const read = { ...range, keys: keys.length > 0 ? keys : undefined };
      if (range.startTs >= range.endTs) return json({});
      if (agg === 'NONE' || (intervalType === 'MILLISECONDS' && interval === 0)) {
        return jsonText(historyText(await readHistory(clickhouse, device, read, limit, order), strict));
      }
      const starts = bucketStarts(range, intervalType, interval, query.get('timeZone') ?? '');
      return jsonText(historyText(await readAggregate(clickhouse, device, read, starts, agg), strict));
    });
  }

  return [
    route({
      method: 'GET',
      pattern: `${prefix}/values/timeseries`,
      summary: 'Latest values, or with startTs and endTs historical ones',
      roles: authorities,
      query: historyQuery,
      answer,
      handle: (call) => (call.query.get('startTs') && call.query.get('endTs') ? history(call) : latest(call)),
    }),
    route({
      method: 'GET',
      pattern: `${prefix}/values/timeseries/history`,
      summary: 'Historical values',
      roles: authorities,
      query: historyQuery,
      answer,
      handle: history,
    }),
    route({
      method: 'GET',
      pattern: `${prefix}/keys/timeseries`,
      summary: 'Keys that have telemetry',
      roles: authorities,
      answer: Type.Array(Type.String()),
      handle: async ({ principal, params }) => {
        const target = entityTarget(params);
        return await plainText(async () =>
          json(await readLatestKeys(clickhouse, await deviceNumber(parts.postgres, principal, target))),
        );
      },
    }),
  ];
}

/** The device in ClickHouse, if the caller may read it. A deleted device has none, whatever rows it left. */
async function deviceNumber(queries: Queries, principal: Principal, { type, id }: EntityTarget): Promise<number> {
  return (await usableDevice(queries, principal, type === 'DEVICE' ? id : undefined)).number;
}

/** Every requested key has an answer: one without data a null of now. */
function latestText(points: Point[], keys: string[], strict: boolean, now: number): string {
  const found = new Map(points.map((point) => [point.key, point]));
  const members = (keys.length > 0 ? keys : [...found.keys()]).map((key) => {
    const point = found.get(key);
    return `${JSON.stringify(key)}:[${point ? pointText(point, strict) : `{"ts":${now},"value":null}`}]`;
  });
  return `{${members.join(',')}}`;
}

/** `points` are ordered by key. */
function historyText(points: Point[], strict: boolean): string {
  let text = '{';
  let key: string | undefined;
  for (const point of points) {
    if (point.key === key) {
      text += ',';
    } else {
      text += `${key === undefined ? '' : '],'}${JSON.stringify(point.key)}:[`;
      key = point.key;
    }
    text += pointText(point, strict);
  }
  return `${text}${key === undefined ? '' : ']'}}`;
}

function pointText({ ts, value }: Point, strict: boolean): string {
  return `{"ts":${ts},"value":${strict ? strictForm(value) : stringForm(value)}}`;
}
