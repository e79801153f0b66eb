/** Decodes bodies of the report API into checked views and requests. Every fault is a 400 that names the member. */
import { scopes } from '../attributes/scope.ts';
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import { isObject } from '../base/schema.ts';
import { isUuid } from '../base/uuid.ts';
import { dateGroupings, groupUnits } from './dates.ts';
import * as views from './view.ts';
import { Zone } from './zone.ts';

type Members = Record<string, unknown>;

/** The members of a view that a client may set; others are ignored. */
export interface ViewInput {
  id: string | null;
  customerId: string | null;
  name: string;
  version: number | null;
  definition: views.ViewDefinition;
}

const nameCharsMax = 255;
const decimalsMax = 15;
const amountMax = 100_000;

export function decodeView(body: unknown): ViewInput {
  const view = object(body, 'The body');
  const fields = list(view['fields'], 'fields', limits.viewFieldsMax).map(decodeField);
  const filters = list(view['filters'] ?? [], 'filters', limits.viewFiltersMax).map(decodeFilter);
  checkFields(fields, filters);
  const scope = object(view['scope'] ?? {}, 'scope');
  const definition: views.ViewDefinition = {
    type: oneOf(view['type'] ?? 'TABLE', 'type', ['TABLE']),
    scope: {
      deviceProfiles: texts(scope['deviceProfiles'] ?? [], 'scope.deviceProfiles'),
      deviceIds: texts(scope['deviceIds'] ?? [], 'scope.deviceIds').map((id) => uuid(id, 'scope.deviceIds')),
    },
    fields,
    timeRange: decodeRange(view['timeRange']),
    groupBy: decodeGroupBy(view['groupBy']),
    timeZone: new Zone(optionalText(view['timeZone'], 'timeZone') || 'UTC').name,
    filters,
    sort: list(view['sort'] ?? [], 'sort', limits.viewFieldsMax).map((entry, n) => decodeSort(entry, n, fields)),
    limit: view['limit'] == null ? null : integer(view['limit'], 'limit', 1, 1_000_000_000),
  };
  return {
    id: optionalUuid(view['id'], 'id'),
    customerId: optionalUuid(view['customerId'], 'customerId'),
    name: optionalText(view['name'], 'name'),
    version: view['version'] == null ? null : integer(view['version'], 'version', 0, Number.MAX_SAFE_INTEGER),
    definition,
  };
}

/** The name is needed to save a view, not to run one. */
export function checkViewName(name: string): void {
  if (name.trim() === '' || name.length > nameCharsMax) {
    throw bad('name', `must be a string of 1 to ${nameCharsMax} characters`);
  }
}

export function decodeReportRequest(body: unknown): views.ReportRequest & { viewConfigId: string } {
  const request = object(body, 'The body');
  const { viewConfigId } = request;
  if (isBlank(viewConfigId)) throw bad('viewConfigId', 'is missing');
  return { viewConfigId: uuid(viewConfigId, 'viewConfigId'), ...decodeRangeAndFilters(request) };
}

/** Absent, null, 0 and "" mean empty. */
export function decodeRangeAndFilters(request: Members): views.ReportRequest {
  const bound = (name: string) => (isBlank(request[name]) ? undefined : timestamp(request[name], name));
  const filters = object(request['filters'] ?? {}, 'filters');
  const names = Object.keys(filters);
  if (names.length > limits.viewFieldsMax + limits.viewFiltersMax) throw bad('filters', 'names too many filters');
  return {
    rangeStartTs: bound('rangeStartTs'),
    rangeEndTs: bound('rangeEndTs'),
    filters: names.map((name) => ({ name, values: values(filters[name], `filters.${name.slice(0, 64)}`) })),
  };
}

function decodeField(entry: unknown, n: number): views.Field {
  const at = `fields[${n}]`;
  const field = object(entry, at);
  const label = field['label'];
  if (typeof label !== 'string' || label.trim() === '' || [...label].length > limits.viewLabelCharsMax) {
    throw bad(`${at}.label`, `must be a string of 1 to ${limits.viewLabelCharsMax} characters`);
  }
  const role = oneOf(field['role'], `${at}.role`, ['ROW', 'COLUMN', 'VALUE']);
  const source = decodeSource(field, at, views.sources);
  if (role !== 'VALUE') {
    if (source.source === 'TELEMETRY') throw bad(at, 'is telemetry, which can only have the role VALUE');
    if (isMeasure(source)) throw bad(at, `is ${source.source}, which can only have the role VALUE`);
    return { label, role, ...source };
  }
  if (source.source === 'DATE') throw bad(at, 'is a date, which cannot have the role VALUE');
  const decimals = field['decimals'] == null ? undefined : integer(field['decimals'], `${at}.decimals`, 0, decimalsMax);
  const digits = decimals === undefined ? {} : { decimals };
  if (source.source === 'COMPLETENESS') {
    if (field['aggregation'] == null) return { label, role, ...source, ...digits };
    throw bad(`${at}.aggregation`, 'must be absent: COMPLETENESS is a share already');
  }
  const known = source.source === 'LATENESS' ? views.latenessAggregations : views.reportAggregations;
  const aggregation = oneOf(field['aggregation'], `${at}.aggregation`, known);
  if (aggregation === 'DELTA' && source.source !== 'TELEMETRY') {
    throw bad(`${at}.aggregation`, 'must not be DELTA: only telemetry has steps');
  }
  return { label, role, ...source, aggregation, ...digits };
}

function decodeSource<S extends views.Source['source']>(
  of: Members,
  at: string,
  allowed: readonly S[],
): Extract<views.Source, { source: S }> {
  return sourceOf(oneOf(of['source'], `${at}.source`, allowed), of, at) as Extract<views.Source, { source: S }>;
}

function sourceOf(source: views.Source['source'], of: Members, at: string): views.Source {
  switch (source) {
    case 'ENTITY_FIELD':
      return { source, key: oneOf(of['key'], `${at}.key`, views.entityFields) };
    case 'ATTRIBUTE': {
      const attributeScope = oneOf(of['attributeScope'] ?? 'SERVER_SCOPE', `${at}.attributeScope`, scopes);
      return { source, attributeScope, key: key(of['key'], `${at}.key`) };
    }
    case 'TELEMETRY':
    case 'LATENESS':
    case 'COMPLETENESS':
      return { source, key: key(of['key'], `${at}.key`) };
    case 'DATE':
      return { source, dateGrouping: oneOf(of['dateGrouping'] ?? 'RAW', `${at}.dateGrouping`, dateGroupings) };
  }
}

function isMeasure({ source }: views.Source): boolean {
  return source === 'LATENESS' || source === 'COMPLETENESS';
}

function decodeFilter(entry: unknown, n: number): views.Filter {
  const at = `filters[${n}]`;
  const filter = object(entry, at);
  const name = filter['name'];
  if (typeof name !== 'string' || name === '' || name.length > nameCharsMax) {
    throw bad(`${at}.name`, `must be a string of 1 to ${nameCharsMax} characters`);
  }
  const operation = oneOf(filter['operation'] ?? 'IN', `${at}.operation`, views.operations);
  const source = decodeSource(filter, at, views.filterSources);
  if (source.source === 'DATE' && operation === 'CONTAINS')
    throw bad(`${at}.operation`, 'must not be CONTAINS for dates');
  return { name, operation, ...source, values: values(filter['values'] ?? [], `${at}.values`) };
}

function checkFields(fields: views.Field[], filters: views.Filter[]): void {
  if (fields.length === 0) throw bad('fields', 'must not be empty');
  checkUnique(
    fields.map(({ label }) => label),
    'Labels of fields',
  );
  checkUnique(
    filters.map(({ name }) => name),
    'Names of filters',
  );
  const has = (role: views.FieldRole) => fields.some((field) => field.role === role);
  if (has('COLUMN') && !has('VALUE')) throw bad('fields', 'with the role COLUMN need one with the role VALUE');
  const isOfPoints = ({ source }: views.Field) => source === 'TELEMETRY' || source === 'LATENESS';
  const shown = new Set(fields.filter(isOfPoints).map((field) => 'key' in field && field.key));
  for (const filter of filters) {
    if (filter.source !== 'TELEMETRY' || shown.has(filter.key)) continue;
    throw bad('filters', `by telemetry need a field of the same key, which "${filter.key.slice(0, 64)}" is not`);
  }
}

function checkUnique(names: string[], what: string): void {
  const seen = new Set<string>();
  for (const name of names) {
    const lower = name.toLowerCase();
    if (seen.has(lower)) throw badRequest('view', `${what} must be unique: "${name.slice(0, 64)}" occurs twice.`);
    seen.add(lower);
  }
}

function decodeRange(entry: unknown): views.ReportRange {
  if (entry == null) return { type: 'LAST', unit: 'DAY', amount: 7, includeCurrent: true };
  const range = object(entry, 'timeRange');
  const type = oneOf(range['type'], 'timeRange.type', ['LAST', 'FIXED']);
  if (type === 'FIXED') {
    const startTs = timestamp(range['startTs'], 'timeRange.startTs');
    const endTs = timestamp(range['endTs'], 'timeRange.endTs');
    if (startTs >= endTs) throw bad('timeRange', 'must begin before it ends');
    return { type, startTs, endTs };
  }
  return {
    type,
    unit: oneOf(range['unit'], 'timeRange.unit', groupUnits),
    amount: integer(range['amount'], 'timeRange.amount', 1, amountMax),
    includeCurrent: boolean(range['includeCurrent'] ?? true, 'timeRange.includeCurrent'),
  };
}

function decodeGroupBy(entry: unknown): views.ViewDefinition['groupBy'] {
  if (entry == null) return null;
  const groupBy = object(entry, 'groupBy');
  const amount = integer(groupBy['amount'] ?? 1, 'groupBy.amount', 1, amountMax);
  return { unit: oneOf(groupBy['unit'], 'groupBy.unit', groupUnits), amount };
}

function decodeSort(entry: unknown, n: number, fields: views.Field[]): views.ViewDefinition['sort'][number] {
  const at = `sort[${n}]`;
  const sort = object(entry, at);
  const label = optionalText(sort['label'], `${at}.label`);
  const field = fields.find((known) => known.label.toLowerCase() === label.toLowerCase());
  if (!field || field.role === 'COLUMN') throw bad(`${at}.label`, 'must be the label of a ROW or VALUE field');
  if (field.role === 'VALUE' && fields.some(({ role }) => role === 'COLUMN')) {
    throw bad(`${at}.label`, 'must be the label of a ROW field: each VALUE has many columns');
  }
  return { label: field.label, order: oneOf(sort['order'] ?? 'ASC', `${at}.order`, ['ASC', 'DESC']) };
}

/** Decodes filter values, which are compared as strings. */
function values(entry: unknown, at: string): string[] {
  return list(entry, at, limits.viewValuesMax).map((value) => {
    if (typeof value !== 'string' && typeof value !== 'number' && typeof value !== 'boolean') {
      throw bad(at, 'must be strings, numbers or booleans');
    }
    return String(value);
  });
}

function texts(entry: unknown, at: string): string[] {
  return list(entry, at, limits.viewValuesMax).map((text) => {
    if (typeof text !== 'string') throw bad(at, 'must be strings');
    return text;
  });
}

function key(entry: unknown, at: string): string {
  if (typeof entry === 'string' && entry !== '' && entry.length <= limits.keyCharsMax && !entry.includes('\0'))
    return entry;
  throw bad(at, `must be a string of 1 to ${limits.keyCharsMax} characters`);
}

/** The largest time of a Date, less the offset of any zone. */
const timestampMax = 8.64e15 - 1e9;

function timestamp(entry: unknown, at: string): number {
  return integer(entry, at, -timestampMax, timestampMax);
}

function integer(entry: unknown, at: string, min: number, max: number): number {
  if (typeof entry === 'number' && Number.isInteger(entry) && entry >= min && entry <= max) return entry;
  throw bad(at, `must be a whole number from ${min} to ${max}`);
}

function boolean(entry: unknown, at: string): boolean {
  if (typeof entry === 'boolean') return entry;
  throw bad(at, 'must be true or false');
}

function optionalText(entry: unknown, at: string): string {
  if (entry == null) return '';
  if (typeof entry === 'string') return entry;
  throw bad(at, 'must be a string');
}

function optionalUuid(entry: unknown, at: string): string | null {
  return isBlank(entry) ? null : uuid(entry, at);
}

function uuid(entry: unknown, at: string): string {
  if (typeof entry === 'string' && isUuid(entry)) return entry.toLowerCase();
  throw bad(at, 'must be a UUID');
}

function oneOf<T extends string>(entry: unknown, at: string, known: readonly T[]): T {
  const found = known.find((each) => each === entry);
  if (found !== undefined) return found;
  throw bad(at, `must be one of ${known.join(', ')}`);
}

function list(entry: unknown, at: string, countMax: number): unknown[] {
  if (!Array.isArray(entry)) throw bad(at, 'must be a list');
  if (entry.length > countMax) throw bad(at, `must not have more than ${countMax} members`);
  return entry;
}

function object(entry: unknown, at: string): Members {
  if (isObject(entry)) return entry;
  throw bad(at, 'must be an object');
}

function isBlank(entry: unknown): boolean {
  return entry == null || entry === 0 || entry === '';
}

function bad(at: string, must: string): Error {
  return badRequest('report_body', `${at} ${must}.`);
}
