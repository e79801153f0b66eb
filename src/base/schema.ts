/**
 * Schemas as data: the part of JSON Schema that the settings, the REST API and its document need. A schema has the type
 * of its valid values (`Type.Static`) and uses the words of TypeBox. `faultOf` checks a value. `title`, `description`
 * and `format` only describe.
 */
declare const fitting: unique symbol;
const optional = Symbol('optional');
const anyName = '^.*$';

interface Keywords {
  type?: 'object' | 'array' | 'string' | 'integer' | 'number' | 'boolean' | 'null';
  required?: string[];
  properties?: Properties;
  patternProperties?: { [anyName]: Schema };
  additionalProperties?: boolean;
  items?: Schema;
  maxItems?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  minimum?: number;
  maximum?: number;
  const?: string;
  enum?: readonly string[];
  anyOf?: Schema[];
  title?: string;
  description?: string;
  format?: string;
}

/** Exists for the compiler only: T is the type of the values that fit. */
export interface Schema<T = unknown> extends Keywords {
  readonly [fitting]: T;
}

export interface ObjectSchema<P extends Properties = Properties> extends Schema<Members<P>> {
  properties: P;
}

/** A member that may be missing. */
export interface Optional {
  readonly [optional]: true;
}

export type Properties = Record<string, Schema>;
export type Static<S extends Schema> = S[typeof fitting];

type Members<P extends Properties> = Flat<
  { [K in keyof P as P[K] extends Optional ? never : K]: Static<P[K]> } & {
    [K in keyof P as P[K] extends Optional ? K : never]?: Static<P[K]>;
  }
>;
type Flat<T> = { [K in keyof T]: T[K] };

/** Keywords of a kind of value. A reader of schemas may add marks under its own symbols. */
type Options<Name extends keyof Keywords = never> = Pick<Keywords, Name | 'title' | 'description'> & {
  [mark: symbol]: unknown;
};

function schema<T>(keywords: Keywords): Schema<T> {
  return keywords as Schema<T>;
}

const string = (options: Options<'minLength' | 'maxLength' | 'pattern' | 'format'> = {}) =>
  schema<string>({ type: 'string', ...options });

const integer = (options: Options<'minimum' | 'maximum'> = {}) => schema<number>({ type: 'integer', ...options });

const number = (options: Options = {}) => schema<number>({ type: 'number', ...options });

const boolean = (options: Options = {}) => schema<boolean>({ type: 'boolean', ...options });

const nothing = () => schema<null>({ type: 'null' });

const unknown = (options: Options = {}) => schema<unknown>({ ...options });

const literal = <const T extends string>(value: T) => schema<T>({ type: 'string', const: value });

const oneOf = <const T extends string>(words: readonly T[], options: Options = {}) =>
  schema<T>({ enum: words, ...options });

const union = <S extends Schema[]>(schemas: [...S]) => schema<Static<S[number]>>({ anyOf: schemas });

const array = <S extends Schema>(items: S, options: Options<'maxItems'> = {}) =>
  schema<Static<S>[]>({ type: 'array', items, ...options });

/** Members of any name, all of one kind. */
const record = <S extends Schema>(values: S) =>
  schema<Record<string, Static<S>>>({ type: 'object', patternProperties: { [anyName]: values } });

function object<P extends Properties>(properties: P, options: Options<'additionalProperties'> = {}): ObjectSchema<P> {
  const required = Object.keys(properties).filter((name) => !isOptional(properties[name]!));
  const keywords: Keywords = { type: 'object', ...(required.length > 0 && { required }), properties, ...options };
  return keywords as ObjectSchema<P>;
}

const mayBeMissing = <S extends Schema>(of: S): S & Optional => ({ ...of, [optional]: true });

function partial<P extends Properties>({ properties }: ObjectSchema<P>) {
  const members = Object.entries(properties).map(([name, each]) => [name, mayBeMissing(each)]);
  return object(Object.fromEntries(members) as { [K in keyof P]: P[K] & Optional });
}

function isOptional(of: Schema): boolean {
  return optional in of;
}

export {
  array as Array,
  boolean as Boolean,
  integer as Integer,
  literal as Literal,
  mayBeMissing as Optional,
  nothing as Null,
  number as Number,
  object as Object,
  oneOf as Enum,
  partial as Partial,
  record as Record,
  string as String,
  union as Union,
  unknown as Unknown,
};

/** A fault of a value, and the path to that value. */
interface SchemaFault {
  path: string[];
  message: string;
}

/** Parses a boolean of a query, a path or a form, in any letter case; undefined when the string is not one. */
export function booleanOf(text: string): boolean | undefined {
  return booleans.get(text.toLowerCase());
}

const booleans = new Map([
  ...['true', 'on', 'yes', '1'].map((word) => [word, true] as const),
  ...['false', 'off', 'no', '0'].map((word) => [word, false] as const),
]);

/** Returns the first fault of `value`; undefined when the value fits. */
export function faultOf(of: Schema, value: unknown): SchemaFault | undefined {
  if (of.type && !isOfType(of.type, value)) return wrong(`must be ${of.type}`);
  if (of.const !== undefined && value !== of.const) return wrong('must be equal to constant');
  if (of.enum && !of.enum.includes(value as string)) return wrong('must be equal to one of the allowed values');
  if (of.anyOf) return faultOfAny(of.anyOf, value);
  switch (of.type) {
    case 'object':
      return faultOfObject(of, value as Record<string, unknown>);
    case 'array':
      return faultOfArray(of, value as unknown[]);
    case 'string':
      return faultOfString(of, value as string);
    case 'integer':
      return faultOfInteger(of, value as number);
    default:
      return undefined;
  }
}

/** True for an object of JSON, which is neither null nor an array. */
export function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function isOfType(type: NonNullable<Keywords['type']>, value: unknown): boolean {
  switch (type) {
    case 'object':
      return isObject(value);
    case 'array':
      return Array.isArray(value);
    case 'integer':
      return Number.isInteger(value);
    case 'null':
      return value === null;
    default:
      return typeof value === type;
  }
}

/** Returns the fault of the first schema when the value fits none of them. */
function faultOfAny(schemas: Schema[], value: unknown): SchemaFault | undefined {
  let first: SchemaFault | undefined;
  for (const each of schemas) {
    const fault = faultOf(each, value);
    if (!fault) return undefined;
    first ??= fault;
  }
  return first;
}

function faultOfObject(of: Schema, value: Record<string, unknown>): SchemaFault | undefined {
  const { required = [], properties = {}, additionalProperties } = of;
  const missing = required.filter((name) => !Object.hasOwn(value, name));
  if (missing.length > 0) return wrong(`must have required properties ${missing.join(', ')}`);
  if (additionalProperties === false && Object.keys(value).some((name) => !Object.hasOwn(properties, name))) {
    return wrong('must not have additional properties');
  }
  const all = of.patternProperties?.[anyName];
  for (const name of Object.keys(all ? value : properties)) {
    const fault = Object.hasOwn(value, name) ? faultOf(all ?? properties[name]!, value[name]) : undefined;
    if (fault) return below(name, fault);
  }
  return undefined;
}

function faultOfArray({ items, maxItems }: Schema, value: unknown[]): SchemaFault | undefined {
  if (maxItems !== undefined && value.length > maxItems) return wrong(`must not have more than ${maxItems} items`);
  for (let i = 0; items && i < value.length; i += 1) {
    const fault = faultOf(items, value[i]);
    if (fault) return below(String(i), fault);
  }
  return undefined;
}

function faultOfString({ minLength = 0, maxLength, pattern }: Schema, value: string): SchemaFault | undefined {
  if (characters(value, minLength) < minLength) return wrong(`must not have fewer than ${minLength} characters`);
  if (maxLength !== undefined && characters(value, maxLength + 1) > maxLength) {
    return wrong(`must not have more than ${maxLength} characters`);
  }
  if (pattern !== undefined && !new RegExp(pattern, 'u').test(value)) return wrong(`must match pattern "${pattern}"`);
  return undefined;
}

/** Returns the number of characters, counted up to `enough`. */
function characters(text: string, enough: number): number {
  let count = 0;
  for (const _ of text) {
    if (count >= enough) break;
    count += 1;
  }
  return count;
}

/** Refuses integers that a double cannot hold exactly: such a number lost digits when it was read. */
function faultOfInteger({ minimum, maximum }: Schema, value: number): SchemaFault | undefined {
  if (!Number.isSafeInteger(value)) return wrong(`must not be beyond ${Number.MAX_SAFE_INTEGER}`);
  if (minimum !== undefined && value < minimum) return wrong(`must be >= ${minimum}`);
  if (maximum !== undefined && value > maximum) return wrong(`must be <= ${maximum}`);
  return undefined;
}

function wrong(message: string): SchemaFault {
  return { path: [], message };
}

function below(name: string, { path, message }: SchemaFault): SchemaFault {
  return { path: [name, ...path], message };
}
