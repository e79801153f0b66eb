/**
 * Plans one report as one parameterised query of ClickHouse. From the inside out: points by date base, and by device
 * where the report needs devices (the only step that reads points), groups of the report, cells. A pivot adds a step
 * that collects the cells of each row. Over several shards the innermost step is a query of its own, which runs on each
 * shard (`spread-points.ts`). Values from users are bound, never part of the SQL.
 */
import { shown } from '../clickhouse/erase-statements.ts';
import { windowAround } from '../telemetry/series-query.ts';
import { type Aggregate, aggregates, completenessAggregate, latenessAggregates, ofDevices } from './aggregates.ts';
import { type CompletenessInput, completenessSql } from './completeness.ts';
import { dateCondition, pointCondition } from './conditions.ts';
import { type DateKey, dateKey } from './dates.ts';
import { stepsSql } from './deltas.ts';
import { type DeviceScope, type DeviceSource, devicesSql } from './devices.ts';
import { type Expired, unexpired } from './expired-store.ts';
import { type Bound, QueryParameters } from './parameters.ts';
import type { SpreadTables } from './spread-statements.ts';
import { type Aggregation, type Field, type LatenessAggregation, sourceKey, type ViewDefinition } from './view.ts';
import { Zone } from './zone.ts';

interface PlanInput extends Omit<DeviceScope, 'scope'> {
  /** The definition of the view with the filters of this request. */
  definition: ViewDefinition;
  startTs: number;
  endTs: number;
  /** The present time: later points are not expected. */
  now: number;
  expired: Expired;
  /** Rows of the answer. The query asks for one more, which shows whether rows are left out. */
  rowsMax: number;
  /** Undefined: one server has all telemetry. */
  tables?: SpreadTables | undefined;
}

/**
 * Maps the columns of the query to those of the report. Each row or pivot field takes two columns, each value three.
 */
export interface Plan {
  sql: string;
  parameters: Record<string, Bound>;
  rows: Dimension[];
  columns: Dimension[];
  values: Field[];
  /** Present when `sql` reads the table of points: the queries that fill both tables. */
  spread?: SpreadPlan | undefined;
}

/** Queries with the parameters of the plan. */
export interface SpreadPlan {
  tables: SpreadTables;
  /** SQL of the devices of the report with their profiles, on the first server. */
  devices: string;
  /** SQL of the points by device and date base, on a shard that has the table of devices. */
  points: string;
}

export interface Dimension {
  field: Field;
  /** Undefined: a string, or the string of a number. */
  dates: DateKey | undefined;
}

/**
 * A row or pivot field in SQL: the grouping expression, and whether it is a number (0 for dates, which have an order of
 * their own).
 */
interface PlannedDimension extends Dimension {
  group: string;
  isNumber: string;
}

export function planReport(input: PlanInput): Plan {
  return new Planner(input).plan();
}

class Planner {
  readonly #input: PlanInput;
  readonly #parameters = new QueryParameters();
  readonly #zone: Zone;
  /** Milliseconds of local time within which no date base changes. */
  #unitMs = 0;
  /** Date base → name of its column. */
  readonly #bases = new Map<string, string>();
  readonly #deviceSources: DeviceSource[] = [];
  #spread: SpreadPlan | undefined;

  constructor(input: PlanInput) {
    this.#input = input;
    this.#zone = new Zone(input.definition.timeZone);
  }

  plan(): Plan {
    const { fields } = this.#input.definition;
    const dimensions = (role: 'ROW' | 'COLUMN') =>
      fields.filter((field) => field.role === role).map((field) => this.#dimension(field));
    const rows = dimensions('ROW');
    const columns = dimensions('COLUMN');
    const values = fields.filter(({ role }) => role === 'VALUE');
    const groups = this.#groupsSql([...rows, ...columns], values);
    const sql =
      columns.length === 0 ? this.#flatSql(groups, rows, values) : this.#pivotSql(groups, rows, columns, values);
    this.#parameters.checkSize();
    const bare = ({ field, dates }: PlannedDimension): Dimension => ({ field, dates });
    const plan = { sql, parameters: this.#parameters.values, rows: rows.map(bare), columns: columns.map(bare), values };
    return { ...plan, spread: this.#spread };
  }

  #dimension(field: Field): PlannedDimension {
    if (field.source === 'DATE') {
      const dates = dateKey(field.dateGrouping, this.#input.definition.groupBy, this.#zone);
      return { field, dates, group: dates.key(this.#base(dates)), isNumber: 'toUInt8(0)' };
    }
    const n = this.#deviceSource(field as DeviceSource);
    return { field, dates: undefined, group: `text${n}`, isNumber: `toUInt8(kind${n} IN (2, 3))` };
  }

  #base({ base, unitMs }: DateKey): string {
    this.#unitMs = commonDivisor(this.#unitMs, unitMs);
    const known = this.#bases.get(base);
    if (known) return known;
    const name = `base${this.#bases.size}`;
    this.#bases.set(base, name);
    return name;
  }

  #deviceSource(source: DeviceSource): number {
    const known = this.#deviceSources.findIndex((each) => sourceKey(each) === sourceKey(source));
    return known >= 0 ? known : this.#deviceSources.push(source) - 1;
  }

  /** SQL of the cells of each group: `g<n>`, `n<n>` of the fields, `kind`, `text` and `double` of the values. */
  #groupsSql(dimensions: PlannedDimension[], values: Field[]): string {
    const { filters } = this.#input.definition;
    const conditions: string[] = [];
    for (const filter of filters) {
      if (filter.source !== 'DATE' || filter.values.length === 0) continue;
      const dates = dateKey(filter.dateGrouping, this.#input.definition.groupBy, this.#zone);
      conditions.push(dateCondition(filter, dates.key(this.#base(dates)), dates, this.#parameters));
    }
    const merged: string[] = [];
    const cells: string[] = [];
    values.forEach((field, v) => {
      const name = (column: string) => `v${v}_${column}`;
      const aggregate = aggregateOfPoints(field);
      if (aggregate === undefined) {
        const n = this.#deviceSource(field as DeviceSource);
        const { kind, text, double } = ofDevices(field.aggregation as Aggregation, `kind${n}`, `text${n}`);
        merged.push(`${kind} AS m${v}_kind`, `${text} AS m${v}_text`, `toFloat64(${double}) AS m${v}_double`);
        cells.push(`m${v}_kind AS kind_${v}, m${v}_text AS text_${v}, m${v}_double AS double_${v}`);
        return;
      }
      const { columns, result } = aggregate;
      for (const [column, { merge }] of Object.entries(columns)) merged.push(`${merge(name)} AS m${v}_${column}`);
      const { kind, text, double } = result((column) => `m${v}_${column}`);
      cells.push(`${kind} AS kind_${v}, ${text} AS text_${v}, ${double} AS double_${v}`);
    });
    const grouped = dimensions.flatMap(({ group, isNumber }, n) => [`${group} AS g${n}`, `${isNumber} AS n${n}`]);
    const names = dimensions.flatMap((_, n) => [`g${n}`, `n${n}`]);
    const from = this.#fromSql(values);
    const where = conditions.length > 0 ? `WHERE ${conditions.join(' AND ')}` : '';
    const groupBy = names.length > 0 ? `GROUP BY ${names.join(', ')}` : 'HAVING count() > 0';
    const inner = `SELECT ${[...grouped, ...merged].join(', ')} FROM ${from} ${where} ${groupBy}`;
    return `SELECT ${[...names, ...cells].join(', ')} FROM (${inner})`;
  }

  /** SQL of the points by device and date base, joined with the properties of the devices. */
  #fromSql(values: Field[]): string {
    const ofPoints = values.filter((field) => aggregateOfPoints(field) !== undefined);
    const devices = () => devicesSql(this.#scope, this.#deviceSources, [], this.#parameters);
    if (ofPoints.length === 0 && this.#bases.size === 0) {
      return `(${devicesSql(this.#scope, this.#deviceSources, this.#input.definition.filters, this.#parameters)})`;
    }
    const points = this.#pointsRelation(values);
    if (this.#deviceSources.length === 0) return points;
    const columns = this.#deviceSources.map((_, n) => `d.kind${n} AS kind${n}, d.text${n} AS text${n}`);
    return `(SELECT p.*, ${columns.join(', ')} FROM ${points} AS p INNER JOIN (${devices()}) AS d ON d.device = p.device)`;
  }

  /** The points that the query reads: themselves, or the table that gets them from the shards. */
  #pointsRelation(values: Field[]): string {
    const { tables, definition } = this.#input;
    const points = this.#pointsSql(values);
    if (tables === undefined) return `(${points})`;
    const profile: DeviceSource = { source: 'ENTITY_FIELD', key: 'profile' };
    const devices = devicesSql(this.#scope, [profile], definition.filters, this.#parameters);
    this.#spread = { tables, devices: `SELECT device, text0 AS profile FROM (${devices})`, points };
    return tables.points;
  }

  /** SQL of the devices of profiles, which `names` binds. */
  #devicesOfProfiles(names: string): string {
    const { tenantId, tables } = this.#input;
    if (tables) return `SELECT device FROM ${tables.devices} WHERE profile IN ${names}`;
    return `SELECT device FROM device_metadata FINAL
      WHERE tenant = ${this.#parameters.one('UUID', tenantId)} AND deleted = 0 AND profile IN ${names}`;
  }

  get #scope(): DeviceScope {
    const { tenantId, ownDevices, definition } = this.#input;
    return { tenantId, ownDevices, scope: definition.scope };
  }

  /** Makes a branch for all values that need the points themselves, and a branch for each key that needs steps. */
  #pointsSql(values: Field[]): string {
    const { definition, startTs, endTs, expired, tables } = this.#input;
    const parameters = this.#parameters;
    const ofProfiles = (names: string) => this.#devicesOfProfiles(names);
    const deviceRelation = tables
      ? `SELECT device FROM ${tables.devices}`
      : devicesSql(this.#scope, [], definition.filters, parameters);
    const devices = `device GLOBAL IN (SELECT device FROM (${deviceRelation}))`;
    const [start, end] = [parameters.one('Int64', startTs), parameters.one('Int64', endTs)];
    const conditionOf = (key: string) => this.#pointConditions(key);
    const keysOf = (wanted: (field: Field) => boolean) => [
      ...new Set(values.flatMap((field) => (wanted(field) && 'key' in field ? [field.key as string] : []))),
    ];
    const branches: string[] = [];

    const pointKeys = keysOf(isOfEachPoint);
    const stepKeys = keysOf(isOfSteps);
    const expectedKeys = keysOf(isOfExpectedPoints);
    if (pointKeys.length > 0 || (stepKeys.length === 0 && expectedKeys.length === 0)) {
      const keys = pointKeys.length > 0 ? `AND key IN ${parameters.many('String', pointKeys)}` : '';
      const ofKeys = new Map(pointKeys.map((key) => [key, parameters.one('String', key)]));
      const where = pointKeys.flatMap((key) => {
        const condition = conditionOf(key);
        return condition === '1' ? [] : [`(key != ${ofKeys.get(key)} OR ${condition})`];
      });
      const only = pointKeys.length === 1;
      const from = `telemetry FINAL PREWHERE ${devices} ${keys} AND ts >= ${start} AND ts < ${end}
        WHERE ${[shown, ...unexpired(expired, startTs, ofProfiles, parameters), ...where].join(' AND ')}`;
      branches.push(
        this.#branch(values, from, (field) => {
          if (!isOfEachPoint(field)) return undefined;
          return only ? '1' : `key = ${ofKeys.get(field.key)}`;
        }),
      );
    }
    for (const key of stepKeys) {
      const steps = { devices, deviceRelation, key: parameters.one('String', key), startTs: start, endTs: end };
      // A step may begin at a point before the range.
      const young = unexpired(expired, Number.NEGATIVE_INFINITY, ofProfiles, parameters);
      const from = `(${stepsSql({ ...steps, where: [...young, conditionOf(key)].join(' AND ') })})`;
      branches.push(this.#branch(values, from, (field) => (isOfSteps(field) && field.key === key ? '1' : undefined)));
    }
    for (const key of expectedKeys) {
      const range = { devices, deviceRelation, startTs: start, endTs: end };
      const from = `(${this.#expectedSql({ ...range, key: parameters.one('String', key) })})`;
      branches.push(
        this.#branch(values, from, (field) => (isOfExpectedPoints(field) && field.key === key ? '1' : undefined)),
      );
    }
    return branches.join(' UNION ALL ');
  }

  #expectedSql(of: Pick<CompletenessInput, 'devices' | 'deviceRelation' | 'key' | 'startTs' | 'endTs'>): string {
    const { startTs, endTs, now } = this.#input;
    const window = windowAround(startTs, endTs, now);
    const changes = this.#zone.changes(startTs, endTs);
    const bounds = [...changes.map(({ offset }) => offset), ...changes.slice(1).map(({ ts }) => ts)];
    return completenessSql({
      ...of,
      windowStartTs: this.#parameters.one('Int64', window.startTs),
      horizon: this.#parameters.one('Int64', window.endTs),
      cellMs: this.#bases.size === 0 ? undefined : bounds.reduce(commonDivisor, this.#unitMs),
    });
  }

  #pointConditions(key: string): string {
    const filters = this.#input.definition.filters.filter(
      (filter) => filter.source === 'TELEMETRY' && filter.key === key && filter.values.length > 0,
    );
    return filters.length === 0 ? '1' : filters.map((filter) => pointCondition(filter, this.#parameters)).join(' AND ');
  }

  /** `conditionOf` returns the condition of the points that make up a value; undefined = no point of the branch. */
  #branch(values: Field[], from: string, conditionOf: (field: Field) => string | undefined): string {
    const bases = [...this.#bases].map(([base, name]) => `toInt64(${base}) AS ${name}`);
    const columns = values.flatMap((field, v) => {
      const aggregate = aggregateOfPoints(field);
      if (aggregate === undefined) return [];
      const condition = conditionOf(field);
      return Object.entries(aggregate.columns).map(
        ([column, { point, neutral }]) => `${condition === undefined ? neutral : point(condition)} AS v${v}_${column}`,
      );
    });
    const shift = this.#bases.size > 0 ? `WITH ${this.#shiftSql()} AS shift, ts + shift AS local` : '';
    // A million devices by hour are 24 million groups a day, and 24 without the devices.
    const device = this.#needsDevices(values) ? ['device'] : [];
    const keys = [...device, ...this.#bases.values()];
    const groupBy = keys.length > 0 ? `GROUP BY ${keys.join(', ')}` : 'HAVING count() > 0';
    return `${shift} SELECT ${[...device, ...bases, ...columns].join(', ')} FROM ${from} ${groupBy}`;
  }

  #needsDevices(values: Field[]): boolean {
    return this.#deviceSources.length > 0 || values.some((field) => aggregateOfPoints(field)?.ofDevice);
  }

  /** SQL of the milliseconds by which wall-clock time is ahead of UTC. */
  #shiftSql(): string {
    const { startTs, endTs } = this.#input;
    const changes = this.#zone.changes(startTs, endTs);
    if (changes.length === 1) return this.#parameters.one('Int64', changes[0]!.offset);
    const starts = this.#parameters.many(
      'Int64',
      changes.map(({ ts }) => ts),
    );
    const offsets = this.#parameters.many(
      'Int64',
      changes.map(({ offset }) => offset),
    );
    return `transform(roundDown(ts, ${starts}), ${starts}, ${offsets}, toInt64(0))`;
  }

  #flatSql(groups: string, rows: PlannedDimension[], values: Field[]): string {
    const columns = [...fieldColumns(rows, 0), ...values.map((_, v) => `kind_${v}, text_${v}, double_${v}`)];
    return `SELECT ${columns.join(', ')} FROM (${groups}) ${this.#orderSql(rows, values)}`;
  }

  #pivotSql(groups: string, rows: PlannedDimension[], columns: PlannedDimension[], values: Field[]): string {
    const cell = [...fieldColumns(columns, rows.length), ...values.map((_, v) => `kind_${v}, text_${v}, double_${v}`)];
    const names = fieldColumns(rows, 0);
    const selected = [...names, `groupArray(tuple(${cell.join(', ')}))`].join(', ');
    const groupBy = names.length > 0 ? `GROUP BY ${names.join(', ')}` : 'HAVING count() > 0';
    return `SELECT ${selected} FROM (${groups}) ${groupBy} ${this.#orderSql(rows, [])}`;
  }

  #orderSql(rows: PlannedDimension[], values: Field[]): string {
    const order: string[] = [];
    const ofRow = (n: number, direction: 'ASC' | 'DESC') => {
      if (rows[n]!.dates) order.push(`g${n} ${direction}`);
      // Numbers come before strings and are ordered by value.
      else
        order.push(
          `n${n} ${direction === 'ASC' ? 'DESC' : 'ASC'}`,
          `if(n${n} = 1, toFloat64OrZero(g${n}), 0.) ${direction}`,
          `g${n} ${direction}`,
        );
    };
    for (const { label, order: direction } of this.#input.definition.sort) {
      const row = rows.findIndex(({ field }) => field.label === label);
      const value = values.findIndex((field) => field.label === label);
      if (row >= 0) ofRow(row, direction);
      if (value < 0) continue;
      const number = `if(kind_${value} = 1, toFloat64OrZero(text_${value}), double_${value})`;
      order.push(
        `kind_${value} = 0 ASC`,
        `kind_${value} = 3 ${direction}`,
        `if(kind_${value} = 3, 0., ${number}) ${direction}`,
      );
      order.push(`if(kind_${value} = 3, text_${value}, '') ${direction}`);
    }
    for (let n = 0; n < rows.length; n += 1) ofRow(n, 'ASC');
    const orderBy = order.length > 0 ? `ORDER BY ${order.join(', ')}` : '';
    return `${orderBy} LIMIT ${this.#parameters.one('UInt64', this.#input.rowsMax + 1)} FORMAT JSONCompactEachRow`;
  }
}

/** Undefined for a property of devices. */
function aggregateOfPoints(field: Field): Aggregate | undefined {
  if (field.source === 'TELEMETRY') return aggregates[field.aggregation as Aggregation];
  if (field.source === 'COMPLETENESS') return completenessAggregate;
  return field.source === 'LATENESS' ? latenessAggregates[field.aggregation as LatenessAggregation] : undefined;
}

type KeyedField = Extract<Field, { source: 'TELEMETRY' | 'LATENESS' | 'COMPLETENESS' }>;

function isOfExpectedPoints(field: Field): field is KeyedField {
  return field.source === 'COMPLETENESS';
}

function isOfSteps(field: Field): field is KeyedField {
  return field.source === 'TELEMETRY' && field.aggregation === 'DELTA';
}

function isOfEachPoint(field: Field): field is KeyedField {
  return field.source === 'LATENESS' || (field.source === 'TELEMETRY' && field.aggregation !== 'DELTA');
}

/** The greatest number that divides both; 0 is divided by every number. */
function commonDivisor(a: number, b: number): number {
  return b === 0 ? Math.abs(a) : commonDivisor(b, a % b);
}

function fieldColumns(dimensions: PlannedDimension[], first: number): string[] {
  return dimensions.flatMap((_, n) => [`g${first + n}`, `n${first + n}`]);
}
