/**
 * Filters in SQL: of devices, of points, of date groups. A filter matches when any of its values matches (NOT_IN: when
 * none does).
 */
import { badRequest } from '../base/errors.ts';
import { valueText } from './aggregates.ts';
import type { DateKey } from './dates.ts';
import type { QueryParameters } from './parameters.ts';
import type { Filter, FilterOperation } from './view.ts';

const signs = { GT: '>', GTE: '>=', LT: '<', LTE: '<=' } as const;
const numberPattern = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i;

function isNumber(value: string): boolean {
  return numberPattern.test(value) && Number.isFinite(Number(value));
}

/** Compares numbers as numbers, other strings as strings. `isSet` excludes missing values from comparisons. */
export function textCondition(
  text: string,
  isSet: string,
  { operation, values }: { operation: FilterOperation; values: string[] },
  parameters: QueryParameters,
): string {
  switch (operation) {
    case 'IN':
    case 'EQ':
      return `${text} IN ${parameters.many('String', values)}`;
    case 'NOT_IN':
      return `${text} NOT IN ${parameters.many('String', values)}`;
    case 'CONTAINS':
      return `arrayExists((v) -> positionCaseInsensitiveUTF8(${text}, v) > 0, ${parameters.many('String', values)})`;
    default: {
      const sign = signs[operation];
      const fits = values.map((value) =>
        isNumber(value)
          ? `ifNull(toFloat64OrNull(${text}) ${sign} ${parameters.one('Float64', Number(value))}, 0)`
          : `${text} ${sign} ${parameters.one('String', value)}`,
      );
      return `(${isSet} AND (${fits.join(' OR ')}))`;
    }
  }
}

/** Returns the condition on points of the filter's key. */
export function pointCondition(filter: Filter, parameters: QueryParameters): string {
  const fits = textCondition(valueText, '1', filter, parameters);
  const numbers = filter.values.filter(isNumber).map(Number);
  const { operation } = filter;
  if (numbers.length === 0 || !(operation === 'IN' || operation === 'EQ' || operation === 'NOT_IN')) return fits;
  // ClickHouse and JavaScript write large and small doubles differently.
  const isNamed = `kind = 3 AND num IN ${parameters.many('Float64', numbers)}`;
  return operation === 'NOT_IN' ? `(${fits} AND NOT (${isNamed}))` : `(${fits} OR (${isNamed}))`;
}

/** Returns the condition on date groups; `key` is the SQL of the group's `dateKey`. */
export function dateCondition(
  { operation, values, name }: Filter,
  key: string,
  dates: DateKey,
  parameters: QueryParameters,
): string {
  const positions = values.map((value) => dates.position(value));
  switch (operation) {
    case 'IN':
    case 'EQ':
    case 'NOT_IN': {
      const known = positions.filter(
        (position) => position !== undefined && Number.isSafeInteger(position),
      ) as number[];
      return `${key} ${operation === 'NOT_IN' ? 'NOT IN' : 'IN'} ${parameters.many('Int64', known)}`;
    }
    case 'CONTAINS':
      return '1';
    default: {
      const fits = positions.map((position, n) => {
        if (position === undefined) {
          throw badRequest(
            'filter_date',
            `"${values[n]!.slice(0, 64)}" is not a valid date of filter "${name.slice(0, 64)}".`,
          );
        }
        // The value lies between two groups: after the earlier one and before the later one.
        const bound = operation === 'GT' || operation === 'LTE' ? Math.floor(position) : Math.ceil(position);
        return `${key} ${signs[operation]} ${parameters.one('Int64', bound)}`;
      });
      return `(${fits.join(' OR ')})`;
    }
  }
}
