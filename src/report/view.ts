/**
 * A saved view (docs/rest.md#reports): what a report shows, of which devices, over which time. Here are its types and
 * the rules that need nothing but the view; `decode-view.ts` makes one of a request's body.
 */
import { type Scope, scopeNumber } from '../attributes/scope.ts';
import { type DateGrouping, type GroupBy, unitStart } from './dates.ts';
import { Zone } from './zone.ts';

export const entityFields = ['name', 'label', 'type', 'profile', 'owner'] as const;
type EntityField = (typeof entityFields)[number];

export const reportAggregations = ['AVG', 'SUM', 'MIN', 'MAX', 'LATEST', 'COUNT', 'UNIQ', 'DELTA'] as const;
export type Aggregation = (typeof reportAggregations)[number];
/** Aggregations of the time from a point to its arrival. */
export const latenessAggregations = ['AVG', 'MIN', 'MAX', 'LATEST', 'P50', 'P95', 'P99'] as const;
export type LatenessAggregation = (typeof latenessAggregations)[number];

export const operations = ['IN', 'NOT_IN', 'EQ', 'GT', 'GTE', 'LT', 'LTE', 'CONTAINS'] as const;
export type FilterOperation = (typeof operations)[number];

export const filterSources = ['ENTITY_FIELD', 'ATTRIBUTE', 'TELEMETRY', 'DATE'] as const;
export const sources = [...filterSources, 'LATENESS', 'COMPLETENESS'] as const;

/** The source of the values of a field or filter. */
type FilterSource =
  | { source: 'ENTITY_FIELD'; key: EntityField }
  | { source: 'ATTRIBUTE'; attributeScope: Scope; key: string }
  | { source: 'TELEMETRY'; key: string }
  | { source: 'DATE'; dateGrouping: DateGrouping };
/** `LATENESS` and `COMPLETENESS` are measured on the points of a key. */
export type Source = FilterSource | { source: 'LATENESS'; key: string } | { source: 'COMPLETENESS'; key: string };

export type FieldRole = 'ROW' | 'COLUMN' | 'VALUE';

export type Field = Source & {
  label: string;
  role: FieldRole;
  /** Present for the role VALUE, except of COMPLETENESS. */
  aggregation?: Aggregation | LatenessAggregation;
  /** Digits after the decimal point; absent = all digits. */
  decimals?: number;
};

/** A request overrides the filter by `name`. An empty list of values matches everything. */
export type Filter = FilterSource & { name: string; operation: FilterOperation; values: string[] };

export type ReportRange =
  | { type: 'LAST'; unit: GroupBy['unit']; amount: number; includeCurrent: boolean }
  | { type: 'FIXED'; startTs: number; endTs: number };

export interface ViewDefinition {
  type: 'TABLE';
  /** Profiles by name and devices by id; both empty: all devices. A device must be in every list that is not empty. */
  scope: { deviceProfiles: string[]; deviceIds: string[] };
  fields: Field[];
  timeRange: ReportRange;
  groupBy: GroupBy | null;
  timeZone: string;
  filters: Filter[];
  sort: { label: string; order: 'ASC' | 'DESC' }[];
  /** The largest number of rows; null = the limit of the settings. */
  limit: number | null;
}

export interface View extends ViewDefinition {
  id: string;
  tenantId: string;
  /** Null: for users of all customers. */
  customerId: string | null;
  name: string;
  version: number;
  createdTime: number;
}

/** The changes that a request makes to the view. */
export interface ReportRequest {
  rangeStartTs: number | undefined;
  rangeEndTs: number | undefined;
  filters: { name: string; values: string[] }[];
}

/** Returns an equal string for equal sources. */
export function sourceKey(source: Source): string {
  switch (source.source) {
    case 'ATTRIBUTE':
      return `${source.source} ${source.attributeScope} ${source.key}`;
    case 'DATE':
      return `${source.source} ${source.dateGrouping}`;
    default:
      return `${source.source} ${source.key}`;
  }
}

/** Returns [start, end) of the saved range at this moment. */
export function rangeOf({ timeRange, timeZone }: ViewDefinition, now: number): { startTs: number; endTs: number } {
  if (timeRange.type === 'FIXED') return timeRange;
  const zone = new Zone(timeZone);
  const { unit, amount, includeCurrent } = timeRange;
  const last = includeCurrent ? 1 : 0;
  return { startTs: unitStart(unit, now, last - amount, zone), endTs: unitStart(unit, now, last, zone) };
}

export interface ReportAttribute {
  scope: number;
  key: string;
}

/** Attributes that the view shows or filters by, each once. */
export function attributesOfView({ fields, filters }: Pick<ViewDefinition, 'fields' | 'filters'>): ReportAttribute[] {
  const found = new Map<string, ReportAttribute>();
  for (const source of [...fields, ...filters]) {
    if (source.source !== 'ATTRIBUTE') continue;
    found.set(sourceKey(source), { scope: scopeNumber[source.attributeScope], key: source.key });
  }
  return [...found.values()];
}
