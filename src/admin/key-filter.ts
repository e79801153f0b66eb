/** Conditions of entity queries on fields, attributes and latest telemetry, and the order of their values. */
import { limits } from '../base/limits.ts';
import { Kind, strictForm, stringForm, type TypedValue } from '../value/typed.ts';
import type { QueriedEntity } from './entity-query-store.ts';
import { containsTest } from './text-search.ts';

export const valueTypes = [
  ...['ENTITY_FIELD', 'TIME_SERIES', 'ATTRIBUTE', 'CLIENT_ATTRIBUTE', 'SHARED_ATTRIBUTE', 'SERVER_ATTRIBUTE'],
] as const;

/** A field of an entity, or the key of an attribute or a series. */
export interface ValueKey {
  type: string;
  key: string;
}

/** A field is a string or a number; other values keep their type. */
export interface QueriedValue {
  ts: number;
  value: TypedValue | string | number;
}

export function keyName({ type, key }: ValueKey): string {
  return `${type} ${key}`;
}

const comparisons = ['EQUAL', 'NOT_EQUAL', 'GREATER', 'LESS', 'GREATER_OR_EQUAL', 'LESS_OR_EQUAL'];
const stringComparisons = [
  ...['EQUAL', 'NOT_EQUAL', 'STARTS_WITH', 'ENDS_WITH', 'CONTAINS', 'NOT_CONTAINS', 'IN', 'NOT_IN'],
];
/** The operations of each type of predicate. */
export const predicateOperations: Record<'STRING' | 'NUMERIC' | 'BOOLEAN', readonly string[]> = {
  STRING: stringComparisons,
  NUMERIC: comparisons,
  BOOLEAN: ['EQUAL', 'NOT_EQUAL'],
};

export type Predicate =
  | { type: 'STRING'; operation: string; value: string; ignoreCase: boolean }
  | { type: 'NUMERIC'; operation: string; value: number }
  | { type: 'BOOLEAN'; operation: string; value: boolean }
  | { type: 'COMPLEX'; operation: 'AND' | 'OR'; predicates: Predicate[] };

/** Returns whether a value fulfils a predicate; undefined is the value that an entity lacks. */
type ValueTest = (value: QueriedValue['value'] | undefined) => boolean;

export interface Condition {
  operation: 'AND' | 'OR';
  filters: { key: ValueKey; test: ValueTest }[];
  /** The keys of all filters. */
  keys: ValueKey[];
}

export function meets(
  { operation, filters }: Condition,
  valueAt: (key: ValueKey) => QueriedValue | undefined,
): boolean {
  const isMet = ({ key, test }: Condition['filters'][number]) => test(valueAt(key)?.value);
  return operation === 'AND' ? filters.every(isMet) : filters.some(isMet);
}

/**
 * Prepares a predicate once for all entities: lists are split and letter case is folded here. A value that is missing,
 * or of another type, fulfils only the operations that begin with NOT.
 */
export function testOf(predicate: Predicate): ValueTest {
  switch (predicate.type) {
    case 'COMPLEX': {
      const tests = predicate.predicates.map(testOf);
      if (predicate.operation === 'AND') return (value) => tests.every((test) => test(value));
      return (value) => tests.some((test) => test(value));
    }
    case 'STRING': {
      const { operation, ignoreCase } = predicate;
      const isNegative = operation.startsWith('NOT_');
      const compare = textComparison(operation, ignoreCase ? predicate.value.toLowerCase() : predicate.value);
      return (value) => {
        const whole = textOf(value);
        if (whole === undefined) return isNegative;
        const text = comparedPart(whole, operation);
        return compare(ignoreCase ? text.toLowerCase() : text);
      };
    }
    case 'NUMERIC': {
      const { operation, value: wanted } = predicate;
      return (value) => {
        const number = numberOf(value);
        if (number === undefined) return operation.startsWith('NOT_');
        return compareNumbers(operation, number, wanted);
      };
    }
    case 'BOOLEAN': {
      const { operation, value: wanted } = predicate;
      return (value) => {
        if (typeof value !== 'object' || value.kind !== Kind.boolean) return operation === 'NOT_EQUAL';
        return ((value.int === '1') === wanted) === (operation === 'EQUAL');
      };
    }
  }
}

/** Returns one character more than predicates hold, so that a longer value equals none of them. */
function comparedPart(text: string, operation: string): string {
  const length = limits.queriedTextCharsMax + 1;
  if (text.length <= length) return text;
  return operation === 'ENDS_WITH' ? text.slice(-length) : text.slice(0, length);
}

function textComparison(operation: string, wanted: string): (text: string) => boolean {
  const contains = operation.endsWith('CONTAINS') ? containsTest(wanted) : () => false;
  switch (operation) {
    case 'EQUAL':
      return (text) => text === wanted;
    case 'NOT_EQUAL':
      return (text) => text !== wanted;
    case 'STARTS_WITH':
      return (text) => text.startsWith(wanted);
    case 'ENDS_WITH':
      return (text) => text.endsWith(wanted);
    case 'CONTAINS':
      return contains;
    case 'NOT_CONTAINS':
      return (text) => !contains(text);
    default: {
      // The value of IN is a list with commas: `a, b`.
      const list = new Set(wanted.split(',').map((each) => each.trim()));
      return operation === 'IN' ? (text) => list.has(text) : (text) => !list.has(text);
    }
  }
}

function compareNumbers(operation: string, number: number, wanted: number): boolean {
  switch (operation) {
    case 'EQUAL':
      return number === wanted;
    case 'NOT_EQUAL':
      return number !== wanted;
    case 'GREATER':
      return number > wanted;
    case 'LESS':
      return number < wanted;
    case 'GREATER_OR_EQUAL':
      return number >= wanted;
    default:
      return number <= wanted;
  }
}

function textOf(value: QueriedValue['value'] | undefined): string | undefined {
  if (typeof value === 'string') return value;
  return typeof value === 'object' && (value.kind === Kind.string || value.kind === Kind.json) ? value.text : undefined;
}

function numberOf(value: QueriedValue['value'] | undefined): number | undefined {
  if (typeof value === 'number') return value;
  if (typeof value !== 'object') return undefined;
  if (value.kind === Kind.double) return value.num;
  return value.kind === Kind.long ? Number(value.int) : undefined;
}

/** Returns the value as a query sorts it: numbers and booleans as numbers. */
export function valueOrder(value: QueriedValue | undefined): string | number | undefined {
  if (!value) return undefined;
  const { value: of } = value;
  if (typeof of === 'object' && of.kind === Kind.boolean) return Number(of.int);
  return numberOf(of) ?? textOf(of);
}

/** Returns the value as a string, as answers of entity queries hold it. */
export function answeredValue(value: QueriedValue['value']): string {
  if (typeof value !== 'object') return String(value);
  if (value.kind === Kind.string || value.kind === Kind.json) return value.text;
  return value.kind === Kind.double ? (JSON.parse(stringForm(value)) as string) : strictForm(value);
}

/** Returns a field of the entity; '' for one that entities of its kind lack, undefined for a key of another type. */
export function fieldValue(entity: QueriedEntity, { type, key }: ValueKey): QueriedValue | undefined {
  if (type !== 'ENTITY_FIELD') return undefined;
  if (key === 'entityType') return { ts: 0, value: entity.kind };
  const named = key === 'title' ? 'name' : key;
  return { ts: 0, value: entity.fields[named] ?? '' };
}
