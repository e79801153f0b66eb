/** Latest and historical telemetry (docs/rest.md#telemetry). These paths answer their own errors as plain text. */
import { callsFull } from '../auth/request-callers.ts';
import { everyone, type Principal, users } from '../auth/roles.ts';
import type { Clock } from '../base/clock.ts';
import { badRequest, Fault } from '../base/errors.ts';
import { FifoMap } from '../base/fifo-map.ts';
import { limits } from '../base/limits.ts';
import * as Type from '../base/schema.ts';
import type { Shards } from '../clickhouse/shards.ts';
import type { DeviceRow } from '../device/model/cached-device.ts';
import { expiredBefore, findTelemetryDays } from '../device/sql/telemetry-days-store.ts';
import type { DeleteSeries } from '../erase/delete-series.ts';
import type { SaveSeries } from '../ingest/save-series.ts';
import type { Postgres } from '../postgres/client.ts';
import { sortDirection } from '../rest/parameters.ts';
import { type Call, empty, json, type Route, route } from '../rest/route.ts';
import { anyJson, closed, milliseconds } from '../rest/shapes.ts';
import { bucketStarts, intervalTypes } from '../telemetry/buckets.ts';
import { type Point, readLatestKeys } from '../telemetry/latest.ts';
import { LatestReads } from '../telemetry/latest-reads.ts';
import { aggregations, readAggregate, readHistory } from '../telemetry/query.ts';
import type { Answer } from '../uws/exchange.ts';
import { strictForm, stringForm } from '../value/typed.ts';
import type { LongAnswers, LongText } from './long-answer.ts';
import { isDevice, isOtherKind, plainText, seriesNumber, type Target, usableDevice, withNumber } from './plain-text.ts';
import { keyList, keysQuery } from './queries.ts';

export interface TimeseriesDeps {
  postgres: Postgres;
  shards: Shards;
  clock: Clock;
  longAnswers: LongAnswers;
  config: { http: { apiBodyBytesMax: number }; telemetry: { ttlDays: number } };
  saveSeries: SaveSeries;
  deleteSeries: DeleteSeries;
}

type InTurn = Call['inTurn'];

const prefix = '/api/plugins/telemetry/:entityType/:entityId';
const limitDefault = 100;

const historyQuery = Type.Object({
  ...keysQuery.properties,
  startTs: Type.Optional(Type.Integer()),
  endTs: Type.Optional(Type.Integer()),
  interval: Type.Optional(Type.Integer({ description: 'Length of a bucket in milliseconds' })),
  intervalType: Type.Optional(Type.Enum(intervalTypes)),
  timeZone: Type.Optional(Type.String({ description: 'Of calendar intervals, as Europe/Kyiv' })),
  limit: Type.Optional(Type.Integer({ description: 'Points of each key, without aggregation' })),
  agg: Type.Optional(Type.Enum(aggregations)),
  orderBy: Type.Optional(sortDirection),
  useStrictDataTypes: Type.Optional(Type.Boolean({ description: 'false: every value as a string' })),
});
const rangeQuery = Type.Object({ ...historyQuery.properties, startTs: Type.Integer(), endTs: Type.Integer() });

const deleteQuery = Type.Object({
  ...keysQuery.properties,
  deleteAllDataForKeys: Type.Optional(Type.Boolean()),
  startTs: Type.Optional(Type.Integer()),
  endTs: Type.Optional(Type.Integer({ description: 'The range ends before it' })),
  deleteLatest: Type.Optional(
    Type.Boolean({ description: 'Default true: the latest value goes when it is in the range' }),
  ),
  rewriteLatestIfDeleted: Type.Optional(
    Type.Boolean({ description: 'The newest value that remains becomes the latest one' }),
  ),
});

const point = closed({ ts: milliseconds, value: anyJson }, 'Point');
const answer = Type.Record(Type.Array(point));
const seriesBody = {
  shape: Type.Union([Type.Record(Type.Unknown()), Type.Array(Type.Record(Type.Unknown()))]),
};

type HistoryQuery = Type.Static<typeof rangeQuery>;

export function timeseriesRoutes(deps: TimeseriesDeps): Route[] {
  const { postgres, shards, clock, longAnswers, saveSeries, deleteSeries } = deps;
  /** Requested device → its number in ClickHouse, which never changes. */
  const numbers = new FifoMap<string, number>(limits.askedDevicesMax);
  const latestReads = new LatestReads({ shards, waitingMax: limits.restCallsWaitingMax, refusal: callsFull });

  async function latest(
    principal: Principal,
    target: Target,
    keys: string[],
    strict: boolean,
    inTurn: InTurn,
  ): Promise<Answer> {
    return await plainText(async () => {
      // Reads both stores at once, where possible; data that the caller may not see is dropped.
      const read = (device: number) =>
        latestReads.read(principal, device, keys.length > 0 ? keys : undefined, (query) => inTurn(query));
      const known = isDevice(target) ? numbers.get(target.entityId) : undefined;
      const early = known === undefined ? undefined : read(known);
      early?.catch(() => {});
      const device = await inTurn(() => seriesNumber(postgres, principal, target, 'read'), []);
      if (isDevice(target)) numbers.set(target.entityId, device);
      const points = await (early ?? read(device));
      return await longAnswers.json(principal, (text) => text.addAll(latestTexts(points, keys, strict, clock.now())));
    });
  }

  async function history(principal: Principal, target: Target, query: HistoryQuery): Promise<Answer> {
    const { startTs, endTs, interval = 0, intervalType = 'MILLISECONDS', limit = limitDefault, agg = 'NONE' } = query;
    const keys = keyList(query);
    const strict = query.useStrictDataTypes ?? false;
    return await plainText(async () => {
      if (interval < 0) throw badRequest('interval', "Incorrect TsKvQuery. 'interval' must not be negative.");
      if (limit <= 0) throw badRequest('limit', "Incorrect TsKvQuery. 'limit' must be greater than zero.");
      const [device, days] = await Promise.all([
        seriesNumber(postgres, principal, target, 'read'),
        isDevice(target) ? findTelemetryDays(postgres, target.entityId) : null,
      ]);
      const expired = expiredBefore(clock.now(), deps.config.telemetry.ttlDays, days);
      const read = { startTs, endTs, keys: keys.length > 0 ? keys : undefined, expiredBefore: expired };
      if (startTs >= endTs) return json({});
      const reads = shards.readsOf(principal.tenantId).of(device);
      return await longAnswers.json(principal, async (text) => {
        const series = new SeriesText(text, strict);
        const take = (point: Point) => series.add(point);
        if (agg === 'NONE' || (intervalType === 'MILLISECONDS' && interval === 0)) {
          await readHistory(reads, device, read, limit, query.orderBy ?? 'DESC', take);
        } else {
          const starts = bucketStarts(read, intervalType, interval, query.timeZone ?? '');
          await readAggregate(reads, device, read, starts, agg, take);
        }
        series.end();
      });
    });
  }

  async function write({ principal, request }: Call, target: Target, ttlSeconds = 0): Promise<Answer> {
    return await plainText(async () => {
      if (request.body.length === 0) throw badRequest('missing_body', unreadable('the body is empty'));
      const device = await ownerOf(principal, target);
      try {
        await saveSeries(device, request.body, ttlSeconds);
      } catch (error) {
        throw error instanceof Fault && unreadableReasons.has(error.reason)
          ? new Fault(error.reason, unreadable(error.message))
          : error;
      }
      return empty;
    });
  }

  /** Returns the device whose points are written. Another entity is returned in the form of a device. */
  async function ownerOf(principal: Principal, target: Target): Promise<DeviceRow> {
    const { entityId: id } = target;
    if (!isOtherKind(target)) return await usableDevice(postgres, principal, target);
    return await withNumber(postgres, principal, target, async (_queries, number, tenantId) => {
      return { number, id, tenantId, customerId: null, profileId: '', name: '', version: 0 };
    });
  }

  async function remove(
    { principal, inTurn }: Call,
    target: Target,
    query: Type.Static<typeof deleteQuery>,
  ): Promise<Answer> {
    const { deleteAllDataForKeys = false, deleteLatest = true, rewriteLatestIfDeleted = false } = query;
    return await plainText(async () => {
      const keys = keyList(query);
      if (keys.length === 0) throw badRequest('keys', 'Empty keys: []');
      const { startTs, endTs } = deleteAllDataForKeys
        ? { startTs: Number.MIN_SAFE_INTEGER, endTs: Number.MAX_SAFE_INTEGER }
        : query;
      if (startTs === undefined || endTs === undefined) {
        const message = "When deleteAllDataForKeys is false, start and end timestamp values shouldn't be empty";
        throw badRequest('range', message);
      }
      const device = await inTurn(() => seriesNumber(postgres, principal, target, 'write'));
      const latest = !deleteLatest ? 'keep' : rewriteLatestIfDeleted ? 'rewrite' : 'delete';
      if (startTs >= endTs || device === 0) return empty;
      const outcome = await deleteSeries({ device, keys, startTs, endTs, latest }, principal.tenantId ?? '');
      // 202: the delete is kept and will be carried out, but a read may still show a deleted point.
      return outcome === 'done' ? empty : { status: 202 };
    });
  }

  const writes = {
    method: 'POST',
    roles: users,
    ownBody: seriesBody,
    // Large ones are read in the decoding thread.
    bodyBytesMax: deps.config.http.apiBodyBytesMax,
    plainTextErrors: true,
  } as const;

  return [
    route({
      method: 'GET',
      pattern: `${prefix}/values/timeseries`,
      summary: 'Latest values, or with startTs and endTs historical ones',
      roles: everyone,
      readsTelemetry: true,
      // One turn is for the latest values that several callers ask for.
      waits: true,
      query: historyQuery,
      answer,
      plainTextErrors: true,
      async handle({ principal, params, query, inTurn }) {
        const { startTs, endTs } = query;
        if (startTs === undefined || endTs === undefined) {
          return await latest(principal, params, keyList(query), query.useStrictDataTypes ?? false, inTurn);
        }
        return await inTurn(() => history(principal, params, { ...query, startTs, endTs }));
      },
    }),
    route({
      method: 'GET',
      pattern: `${prefix}/values/timeseries/history`,
      summary: 'Historical values',
      roles: everyone,
      readsTelemetry: true,
      query: rangeQuery,
      answer,
      plainTextErrors: true,
      handle: ({ principal, params, query }) => history(principal, params, query),
    }),
    route({
      method: 'GET',
      pattern: `${prefix}/keys/timeseries`,
      summary: 'Keys that have telemetry',
      roles: everyone,
      readsTelemetry: true,
      answer: Type.Array(Type.String()),
      plainTextErrors: true,
      handle: async ({ principal, params }) =>
        await plainText(async () => {
          const device = await seriesNumber(postgres, principal, params, 'read');
          return json(await readLatestKeys(shards.readsOf(principal.tenantId).of(device), device));
        }),
    }),
    route({
      ...writes,
      pattern: `${prefix}/timeseries/:seriesScope`,
      summary: 'Write telemetry of a device',
      description: 'The bodies that devices send.',
      handle: (call) => write(call, call.params),
    }),
    route({
      ...writes,
      pattern: `${prefix}/timeseries/:seriesScope/:ttlSeconds`,
      summary: 'Write telemetry of a device that expires',
      description:
        'The bodies that devices send. `ttlSeconds` after the write the points are no longer shown; 0 = they do not expire by themselves. The latest value stays.',
      handle: (call) => write(call, call.params, call.params.ttlSeconds),
    }),
    route({
      method: 'DELETE',
      pattern: `${prefix}/timeseries/delete`,
      summary: 'Delete telemetry of some keys: all of it, or a range of time',
      roles: users,
      waits: true,
      query: deleteQuery,
      // The delete is kept, and not carried out everywhere yet.
      otherAnswers: { 202: 'empty' },
      plainTextErrors: true,
      handle: (call) => remove(call, call.params, call.query),
    }),
  ];
}

/** Reasons of the decoder for a body that is not telemetry at all. */
const unreadableReasons = new Set(['malformed_json', 'wrong_shape', 'invalid_utf8', 'missing_body']);

function unreadable(what: string): string {
  return `Unable to parse time series payload. Unsupported JSON body: ${what}`;
}

/** Every requested key has an answer: one without data a null of now. */
function* latestTexts(points: Point[], keys: string[], strict: boolean, now: number): Generator<string> {
  const found = new Map(points.map((point) => [point.key, point]));
  let separator = '{';
  for (const key of keys.length > 0 ? keys : found.keys()) {
    const point = found.get(key);
    yield `${separator}${JSON.stringify(key)}:[${point ? pointText(point, strict) : `{"ts":${now},"value":null}`}]`;
    separator = ',';
  }
  yield separator === '{' ? '{}' : '}';
}

/** Writes histories as a document, in which the points of one key follow each other. */
class SeriesText {
  readonly #text: LongText;
  readonly #strict: boolean;
  #key: string | undefined;

  constructor(text: LongText, strict: boolean) {
    this.#text = text;
    this.#strict = strict;
  }

  add(point: Point): void {
    const { key } = point;
    const text = pointText(point, this.#strict);
    if (key === this.#key) this.#text.add(`,${text}`);
    else this.#text.add(`${this.#key === undefined ? '{' : '],'}${JSON.stringify(key)}:[${text}`);
    this.#key = key;
  }

  end(): void {
    this.#text.add(this.#key === undefined ? '{}' : ']}');
  }
}

function pointText({ ts, value }: Point, strict: boolean): string {
  return `{"ts":${ts},"value":${strict ? strictForm(value) : stringForm(value)}}`;
}
