/** What series of a device lack, and why: gaps and points that arrived late (docs/rest.md#completeness). */
import { entityNotFound, requireCustomerOf, requireTenant, tenantUsers } from '../auth/roles.ts';
import type { Clock } from '../base/clock.ts';
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import * as Type from '../base/schema.ts';
import type { Shards } from '../clickhouse/shards.ts';
import { findDeviceRow } from '../device/sql/store.ts';
import type { Diagnostics } from '../diagnostics/diagnostics.ts';
import { causeOf, type Evidence, gapCauses } from '../diagnostics/gap-cause.ts';
import { readDeviceState } from '../diagnostics/state-store.ts';
import type { Postgres } from '../postgres/client.ts';
import { commaList } from '../rest/parameters.ts';
import { json, type Route, route } from '../rest/route.ts';
import { closed, nullable } from '../rest/shapes.ts';
import { readGaps, type SeriesGaps } from '../telemetry/gaps-query.ts';
import { workersShape } from './diagnostics.ts';
import { entityId, idJson } from './shapes.ts';

interface CompletenessDeps {
  postgres: Postgres;
  shards: Shards;
  clock: Clock;
  diagnostics: Diagnostics;
}

const completenessQuery = Type.Object({
  keys: commaList(Type.String()),
  startTs: Type.Integer(),
  endTs: Type.Integer(),
  lateMs: Type.Optional(
    Type.Integer({ minimum: 0, description: 'A later arrival is late; default: two intervals of the series' }),
  ),
});

const gapShape = closed(
  {
    cause: Type.Enum(gapCauses),
    reason: nullable(Type.String({ description: 'The stable word of docs/errors.md, where one is known' })),
    message: nullable(Type.String()),
    startTs: Type.Integer({ description: 'Epoch milliseconds: the first point that is missing or was late' }),
    endTs: Type.Integer({ description: 'The last one' }),
    points: Type.Integer({ description: 'Points that are missing, or were late' }),
    arrivedTs: nullable(Type.Integer({ description: 'Of the cause `late`: when the last of the points arrived' })),
  },
  'Gap',
);

const seriesShape = closed(
  {
    key: Type.String(),
    intervalMs: nullable(Type.Integer({ description: 'Learnt from the points; null = the series keeps no interval' })),
    completeness: nullable(Type.Number({ description: 'present / expected' })),
    expected: nullable(Type.Integer()),
    present: Type.Integer({ description: 'Points in the range, those of one millisecond once' }),
    lateMs: nullable(Type.Integer({ description: 'Points that arrived later were late' })),
    gapCount: Type.Integer({ description: 'All gaps; the longest are listed' }),
    gaps: Type.Array(gapShape),
  },
  'SeriesCompleteness',
);

const completenessShape = closed(
  {
    deviceId: entityId,
    name: Type.String(),
    workers: workersShape,
    since: Type.Integer({ description: 'Epoch milliseconds: refusals are known since then' }),
    series: Type.Array(seriesShape),
  },
  'Completeness',
);

export function completenessRoutes({ postgres, shards, clock, diagnostics }: CompletenessDeps): Route[] {
  return [
    route({
      method: 'GET',
      pattern: '/api/device/:deviceId/completeness',
      summary: 'What telemetry of a device is missing or was late, and why',
      roles: tenantUsers,
      readsTelemetry: true,
      query: completenessQuery,
      answer: completenessShape,
      async handle({ principal, params: { deviceId }, query: { startTs, endTs, lateMs, ...query } }) {
        const { tenantId } = requireTenant(principal);
        const device = await findDeviceRow(postgres, tenantId, deviceId);
        if (!device) throw entityNotFound('Device', deviceId);
        requireCustomerOf(principal, device.customerId);
        const keys = [...new Set(query.keys)].sort();
        if (keys.length > limits.gapKeysMax) throw badRequest('keys', `Name at most ${limits.gapKeysMax} keys.`);
        if (startTs >= endTs) throw badRequest('range', 'The range must begin before it ends: startTs < endTs.');
        const { number } = device;
        const [read, found, state] = await Promise.all([
          readGaps(shards.readsOf(tenantId).of(number), number, { keys, startTs, endTs, now: clock.now(), lateMs }),
          diagnostics.ofDevice(number),
          readDeviceState(postgres, number),
        ]);
        if (!state) throw entityNotFound('Device', deviceId);
        const evidence: Evidence = { ...state, refusals: found.refusals, connections: found.connections };
        const known = new Map(read.map((series) => [series.key, series]));
        return json({
          deviceId: idJson('DEVICE', device.id),
          name: device.name,
          workers: found.workers,
          since: found.since,
          series: keys.map((key) => seriesJson(known.get(key) ?? withoutPoints(key), evidence)),
        } satisfies Type.Static<typeof completenessShape>);
      },
    }),
  ];
}

function seriesJson(series: SeriesGaps, evidence: Evidence): Type.Static<typeof seriesShape> {
  const { key, intervalMs, present, missing, lateMs } = series;
  const expected = intervalMs === null ? null : present + missing;
  const late = series.late.map((run) => ({ cause: 'late' as const, reason: null, message: null, ...run }));
  const gaps = series.gaps.map((gap) => ({ ...causeOf(gap, intervalMs ?? 0, evidence), ...gap, arrivedTs: null }));
  return {
    key,
    intervalMs,
    completeness: expected === null || expected === 0 ? null : present / expected,
    expected,
    present,
    lateMs,
    gapCount: series.gapCount + series.lateCount,
    gaps: [...gaps, ...late].sort((a, b) => a.startTs - b.startTs),
  };
}

function withoutPoints(key: string): SeriesGaps {
  const none = {
    intervalMs: null,
    present: 0,
    missing: 0,
    gapCount: 0,
    gaps: [],
    lateMs: null,
    lateCount: 0,
    late: [],
  };
  return { key, ...none };
}
