/**
 * The JSON of views and reports, for the API document. `report/decode-view.ts` checks requests, because the members of
 * a field depend on its source; answers have exactly the members of their shape.
 */
import { scopes } from '../attributes/scope.ts';
import * as Type from '../base/schema.ts';
import { dateGroupings, groupUnits } from '../report/dates.ts';
import {
  filterSources,
  latenessAggregations,
  operations,
  reportAggregations,
  sources,
  type View,
} from '../report/view.ts';
import { flag, optional, text, version } from '../rest/body.ts';
import { closed, milliseconds, nullable } from '../rest/shapes.ts';

const orders = ['ASC', 'DESC'] as const;
const fieldAggregations = [...new Set([...reportAggregations, ...latenessAggregations])];
const roles = ['ROW', 'COLUMN', 'VALUE'] as const;
const uuid = Type.String({ format: 'uuid' });
const count = Type.Integer({ minimum: 1 });
const bound = optional(Type.Integer({ description: 'Epoch milliseconds; 0 = that of the saved range' }));
const filterValues = Type.Array(Type.Union([Type.String(), Type.Number(), Type.Boolean()]));

const sourceBody = {
  key: Type.Optional(Type.String({ description: 'Of all sources but DATE' })),
  attributeScope: optional(Type.Enum(scopes)),
  dateGrouping: optional(Type.Enum(dateGroupings)),
};
const fieldBody = Type.Object({
  label: Type.String({ minLength: 1 }),
  role: Type.Enum(roles),
  source: Type.Enum(sources),
  ...sourceBody,
  aggregation: optional(Type.Enum(fieldAggregations)),
  decimals: optional(Type.Integer({ minimum: 0 })),
});
const filterBody = Type.Object({
  name: Type.String({ minLength: 1 }),
  source: Type.Enum(filterSources),
  ...sourceBody,
  operation: optional(Type.Enum(operations)),
  values: optional(filterValues),
});
const rangeBody = Type.Object({
  type: Type.Enum(['LAST', 'FIXED']),
  unit: Type.Optional(Type.Enum(groupUnits)),
  amount: Type.Optional(count),
  includeCurrent: flag,
  startTs: Type.Optional(milliseconds),
  endTs: Type.Optional(milliseconds),
});

const definition = {
  type: optional(Type.Enum(['TABLE'])),
  scope: optional(
    Type.Object({ deviceProfiles: optional(Type.Array(Type.String())), deviceIds: optional(Type.Array(uuid)) }),
  ),
  fields: Type.Array(fieldBody),
  timeRange: optional(rangeBody),
  groupBy: optional(Type.Object({ unit: Type.Enum(groupUnits), amount: optional(count) })),
  timeZone: text,
  filters: optional(Type.Array(filterBody)),
  sort: optional(Type.Array(Type.Object({ label: Type.String(), order: optional(Type.Enum(orders)) }))),
  limit: optional(count),
};
export const viewBody = Type.Object({
  id: optional(uuid),
  customerId: optional(uuid),
  name: text,
  version,
  ...definition,
});
export const previewBody = Type.Object({ ...definition, rangeStartTs: bound, rangeEndTs: bound });

export const reportBody = Type.Object({
  viewConfigId: uuid,
  rangeStartTs: bound,
  rangeEndTs: bound,
  filters: optional(Type.Record(filterValues)),
});

const sourceShape = {
  key: Type.Optional(Type.String()),
  attributeScope: Type.Optional(Type.Enum(scopes)),
  dateGrouping: Type.Optional(Type.Enum(dateGroupings)),
};

export const viewShape = closed(
  {
    id: uuid,
    tenantId: uuid,
    customerId: nullable(uuid),
    name: Type.String(),
    type: Type.Enum(['TABLE']),
    version: Type.Integer(),
    createdTime: milliseconds,
    scope: closed({ deviceProfiles: Type.Array(Type.String()), deviceIds: Type.Array(uuid) }),
    fields: Type.Array(
      closed({
        label: Type.String(),
        role: Type.Enum(roles),
        source: Type.Enum(sources),
        ...sourceShape,
        aggregation: Type.Optional(Type.Enum(fieldAggregations)),
        decimals: Type.Optional(Type.Integer()),
      }),
    ),
    timeRange: Type.Union([
      closed({
        type: Type.Literal('LAST'),
        unit: Type.Enum(groupUnits),
        amount: Type.Integer(),
        includeCurrent: Type.Boolean(),
      }),
      closed({ type: Type.Literal('FIXED'), startTs: milliseconds, endTs: milliseconds }),
    ]),
    groupBy: nullable(closed({ unit: Type.Enum(groupUnits), amount: Type.Integer() })),
    timeZone: Type.String(),
    filters: Type.Array(
      closed({
        name: Type.String(),
        operation: Type.Enum(operations),
        source: Type.Enum(filterSources),
        ...sourceShape,
        values: Type.Array(Type.String()),
      }),
    ),
    sort: Type.Array(closed({ label: Type.String(), order: Type.Enum(orders) })),
    limit: nullable(Type.Integer()),
  },
  'View',
);

export const reportShape = closed(
  {
    columnLabels: Type.Array(Type.String()),
    dataTable: Type.Array(Type.Record(Type.Union([Type.String(), Type.Number()]))),
  },
  'Report',
);

export function viewJson(view: View): Type.Static<typeof viewShape> {
  const { id, tenantId, customerId, name, type, version, createdTime } = view;
  const { scope, fields, timeRange, groupBy, timeZone, filters, sort, limit } = view;
  return {
    ...{ id, tenantId, customerId, name, type, version, createdTime },
    ...{ scope, fields, timeRange, groupBy, timeZone, filters, sort, limit },
  };
}
