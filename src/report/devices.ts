/** SQL that selects the devices of a report and their properties, over ClickHouse's copy of the device data. */
import { scopeNumber } from '../attributes/scope.ts';
import { assert } from '../base/errors.ts';
import { textCondition } from './conditions.ts';
import type { QueryParameters } from './parameters.ts';
import { type Filter, type Source, sourceKey, type ViewDefinition } from './view.ts';

export type DeviceSource = Extract<Source, { source: 'ENTITY_FIELD' | 'ATTRIBUTE' }>;

export interface DeviceScope {
  tenantId: string;
  scope: ViewDefinition['scope'];
  /** The devices of a customer, read from PostgreSQL for this report; null: all devices of the tenant. */
  ownDevices: number[] | null;
}

/** The cell of a missing value. */
export const emptyText = '-';

/** Returns a relation with `device` and, for each source, `kind<n>` (as stored, 0 = no value) and `text<n>`. */
export function devicesSql(
  of: DeviceScope,
  sources: DeviceSource[],
  filters: Filter[],
  parameters: QueryParameters,
): string {
  const wanted: DeviceSource[] = [...sources];
  const conditions: string[] = [];
  for (const filter of filters) {
    if (filter.values.length === 0 || (filter.source !== 'ENTITY_FIELD' && filter.source !== 'ATTRIBUTE')) continue;
    const n = wanted.push(filter) - 1;
    conditions.push(textCondition(`text${n}`, `kind${n} > 0`, filter, parameters));
  }
  const attributes = [...new Map(wanted.filter(isAttribute).map((source) => [sourceKey(source), source])).values()];
  const numberOf = new Map(attributes.map((source, n) => [sourceKey(source), n]));
  const columns = wanted.map((source, n) => {
    const [kind, text] =
      source.source === 'ATTRIBUTE'
        ? [`a.k${numberOf.get(sourceKey(source))}`, `a.t${numberOf.get(sourceKey(source))}`]
        : ['4', `m.${entityColumns[source.key]}`];
    return `if(${text} = '', 0, ${kind}) AS kind${n}, if(${text} = '', '${emptyText}', toString(${text})) AS text${n}`;
  });
  const joined =
    attributes.length > 0 ? `LEFT JOIN (${attributesSql(attributes, parameters)}) AS a ON a.device = m.device` : '';
  const where = conditions.length > 0 ? `WHERE ${conditions.join(' AND ')}` : '';
  return `SELECT ${['m.device AS device', ...columns].join(', ')} FROM (${scopeSql(of, parameters)}) AS m ${joined} ${where}`;
}

const entityColumns = { name: 'name', label: 'label', type: 'profile', profile: 'profile', owner: 'owner' } as const;

function isAttribute(source: DeviceSource): source is Extract<DeviceSource, { source: 'ATTRIBUTE' }> {
  return source.source === 'ATTRIBUTE';
}

function scopeSql({ tenantId, scope, ownDevices }: DeviceScope, parameters: QueryParameters): string {
  const conditions = [`tenant = ${parameters.one('UUID', tenantId)}`, 'deleted = 0'];
  if (scope.deviceProfiles.length > 0) conditions.push(`profile IN ${parameters.many('String', scope.deviceProfiles)}`);
  if (scope.deviceIds.length > 0) conditions.push(`id IN ${parameters.many('UUID', scope.deviceIds)}`);
  if (ownDevices) conditions.push(`device IN ${parameters.many('UInt64', ownDevices)}`);
  return `SELECT device, name, label, toString(profile) AS profile, toString(owner) AS owner
    FROM device_metadata FINAL WHERE ${conditions.join(' AND ')}`;
}

function attributesSql(
  attributes: Extract<DeviceSource, { source: 'ATTRIBUTE' }>[],
  parameters: QueryParameters,
): string {
  assert(attributes.length > 0, 'the report names an attribute');
  const conditions = attributes.map(
    ({ attributeScope, key }) => `(scope = ${scopeNumber[attributeScope]} AND key = ${parameters.one('String', key)})`,
  );
  const columns = conditions.map(
    (condition, n) => `anyIf(kind, ${condition}) AS k${n}, anyIf(text, ${condition}) AS t${n}`,
  );
  return `SELECT device, ${columns.join(', ')} FROM device_attribute FINAL
    WHERE (${conditions.join(' OR ')}) AND deleted = 0 GROUP BY device`;
}
