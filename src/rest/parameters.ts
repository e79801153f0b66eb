/**
 * Parses path and query parameters into checked values, by the same schemas that the API document shows. Every fault is
 * a 400 that names the parameter.
 */

import { scopes } from '../attributes/scope.ts';
import { badRequest, type Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import * as Type from '../base/schema.ts';
import { isUuid, nullUuid } from '../base/uuid.ts';
import { packageTypes } from '../ota/package.ts';
import type { PageLink } from '../postgres/page.ts';

/** Mark of a schema: the sentence for a number below its minimum. */
const belowMinimum = Symbol('below minimum');
/** Mark of a schema: its words count in any letter case. */
const anyCase = Symbol('any case');

const uuidText = Type.String({ format: 'uuid' });
const plainText = Type.String({ minLength: 1 });

/**
 * The types of entities that ThingsBoard has; those of `admin/entity-store.ts` have telemetry, attributes and relations
 * here.
 */
const entityTypes = [
  ...['DEVICE', 'TENANT', 'CUSTOMER', 'USER', 'DASHBOARD', 'ASSET', 'ALARM', 'RULE_CHAIN', 'RULE_NODE', 'ENTITY_VIEW'],
  ...['WIDGETS_BUNDLE', 'WIDGET_TYPE', 'TENANT_PROFILE', 'DEVICE_PROFILE', 'ASSET_PROFILE', 'API_USAGE_STATE', 'EDGE'],
  ...['OTA_PACKAGE', 'RPC', 'QUEUE'],
];

/** Every name that a path of the API may have between slashes. */
export const pathParameters = {
  apiKeyId: uuidText,
  customerId: uuidText,
  deviceId: uuidText,
  deviceName: plainText,
  deviceToken: plainText,
  enabled: Type.Boolean(),
  entityId: uuidText,
  entityType: Type.Enum(entityTypes),
  otaPackageId: uuidText,
  otaPackageType: Type.Enum(packageTypes),
  profileId: uuidText,
  receipt: plainText,
  relationType: plainText,
  requestId: Type.Integer({ minimum: 0 }),
  rpcId: uuidText,
  scope: Type.Enum(scopes),
  /** Time series have no scope, so any word is accepted. */
  seriesScope: plainText,
  tenantId: uuidText,
  tenantProfileId: uuidText,
  ttlSeconds: Type.Integer({ minimum: 0 }),
  userId: uuidText,
  viewId: uuidText,
};

type KnownName = keyof typeof pathParameters;
type NameIn<Pattern extends string> = Pattern extends `${string}:${infer Name}/${infer Rest}`
  ? Name | NameIn<Rest>
  : Pattern extends `${string}:${infer Name}`
    ? Name
    : never;

/** The values of the names in a pattern. */
export type PathValues<Pattern extends string> = {
  [Name in NameIn<Pattern>]: Name extends KnownName ? Type.Static<(typeof pathParameters)[Name]> : never;
};

export function namesOf(pattern: string): string[] {
  return [...pattern.matchAll(/:(\w+)/g)].map((match) => match[1]!);
}

/** `a,b` in one parameter, or the parameter repeated. */
export const commaList = <T extends Type.Schema>(items: T) => Type.Array(items, { maxItems: limits.listedKeysMax });

export const sortDirection = Type.Enum(['ASC', 'DESC'], { description: 'In any letter case', [anyCase]: true });

export const pageQuery = Type.Object({
  pageSize: Type.Integer({
    minimum: 1,
    maximum: limits.pageSizeMax,
    [belowMinimum]: (given: number) => `Incorrect page link page size '${given}'. Page size must be greater than zero.`,
  }),
  page: Type.Integer({
    minimum: 0,
    [belowMinimum]: (given: number) => `Incorrect page link page '${given}'. Page must be positive integer.`,
  }),
  textSearch: Type.Optional(Type.String({ description: 'Part of a name or label, in any letter case' })),
  sortProperty: Type.Optional(
    Type.String({
      description: 'A member of the answer, as createdTime; the refusal of another one names those of the list',
    }),
  ),
  sortOrder: Type.Optional(sortDirection),
});

export type PageQuery = Type.Static<typeof pageQuery>;

/** An offset past the end of every list need not be exact. */
const offsetMax = 2 ** 52;

/** Returns the page. A page whose offset would be no exact number becomes one past the end of every list. */
export function reachablePage(page: number, pageSize: number): number {
  return Math.min(page, Math.floor(offsetMax / pageSize));
}

export function pageLink(query: PageQuery): PageLink {
  const { pageSize, textSearch = '', sortProperty = '', sortOrder = 'ASC' } = query;
  const page = reachablePage(query.page, pageSize);
  return { pageSize, page, textSearch: textSearch.slice(0, 255), sortProperty, sortOrder };
}

/** Returns the id of an entity in a body: absent, null and the null uuid all mean none. */
export function entityUuid(reference: { id?: string | null } | null | undefined): string | null {
  if (!reference) return null;
  if (!reference.id) throw badRequest('entity_id', 'Invalid entity id');
  const id = uuid(reference.id);
  return id === nullUuid ? null : id;
}

export function uuid(text: string): string {
  if (!isUuid(text)) throw badRequest('uuid', `Invalid UUID string: ${shortened(text)}`);
  return text.toLowerCase();
}

/** Returns a word of a body, which must be one of `values`. */
export function oneOf<T extends string>(
  name: string,
  text: string | null | undefined,
  values: readonly T[],
  fallback: T,
): T {
  if (text === null || text === undefined || text === '') return fallback;
  const value = values.find((each) => each === text);
  if (value === undefined) throw unknownWord(name, text, values);
  return value;
}

/** The schema of a parameter. */
interface Node extends Type.Schema {
  [belowMinimum]?: (given: number) => string;
  [anyCase]?: boolean;
}

/** Values of the path, by name. */
export function pathReader<Pattern extends string>(pattern: Pattern): (texts: string[]) => PathValues<Pattern> {
  const names = namesOf(pattern);
  const nodes = names.map((name) => {
    const node = (pathParameters as Type.Properties)[name];
    if (!node) throw new Error(`BUG: the path parameter ${name} of ${pattern} has no schema`);
    return node;
  });
  return (texts) =>
    Object.fromEntries(names.map((name, i) => [name, value(name, texts[i]!, nodes[i]!)])) as PathValues<Pattern>;
}

/** Returns the values of the query by name. An absent or empty parameter has no member; unknown ones are ignored. */
export function queryReader<Query extends Type.ObjectSchema>(schema: Query): (text: string) => Type.Static<Query> {
  const required = new Set(schema.required);
  const nodes = Object.entries(schema.properties);
  return (text) => {
    const given = new URLSearchParams(text);
    const values: Record<string, unknown> = {};
    for (const [name, node] of nodes) {
      const texts = given.getAll(name).filter((each) => each !== '');
      if (texts.length > 0) values[name] = node.items ? list(name, texts, node) : value(name, texts[0]!, node);
      else if (required.has(name)) throw missing(name);
    }
    return values as Type.Static<Query>;
  };
}

export function missing(name: string): Fault {
  return badRequest('parameter_missing', `Required request parameter '${name}' is not present`);
}

/** Only in the list `key` may members contain commas. */
function list(name: string, texts: string[], { items }: Node): unknown[] {
  const parts = name === 'key' ? texts : texts.flatMap((text) => text.split(','));
  if (parts.length > limits.listedKeysMax) {
    throw badRequest('list', `Parameter '${name}' may hold at most ${limits.listedKeysMax} values.`);
  }
  return parts.map((part) => value(name, part, items!));
}

function value(name: string, text: string, node: Node): unknown {
  if (text.includes('\0')) throw badRequest('parameter_nul', `Parameter '${name}' holds the character NUL.`);
  if (node.enum) {
    const word = node[anyCase] ? text.toUpperCase() : text;
    if (node.enum.includes(word)) return word;
    throw name === 'sortOrder' ? unknownOrder(text) : unknownWord(name, text, node.enum);
  }
  switch (node.type) {
    case 'integer':
      return integer(name, text, node);
    case 'boolean': {
      const given = Type.booleanOf(text);
      if (given !== undefined) return given;
      throw badRequest('parameter_boolean', `Parameter '${name}' must be true or false, not '${shortened(text)}'`);
    }
    default:
      return node.format === 'uuid' ? uuid(text) : text;
  }
}

function integer(name: string, text: string, node: Node): number {
  const { minimum = Number.MIN_SAFE_INTEGER, maximum = Number.MAX_SAFE_INTEGER } = node;
  const number = Number(text);
  const isWhole = /^-?\d{1,16}$/.test(text) && Number.isSafeInteger(number);
  if (isWhole && number >= minimum && number <= maximum) return number;
  if (isWhole && number < minimum && node[belowMinimum]) {
    throw badRequest('parameter_integer', node[belowMinimum](number));
  }
  const range = node.minimum === undefined ? '' : ` from ${minimum} to ${maximum}`;
  const message = `Parameter '${name}' must be a whole number${range}, not '${shortened(text)}'`;
  throw badRequest('parameter_integer', message);
}

function unknownOrder(text: string): Fault {
  const message = `Unsupported sort order '${shortened(text)}'! Only 'ASC' or 'DESC' types are allowed.`;
  return badRequest('sort_order', message);
}

function unknownWord(name: string, text: string, words: readonly string[]): Fault {
  const message = `Parameter '${name}' must be one of ${words.join(', ')}, not '${shortened(text)}'`;
  return badRequest('parameter_enum', message);
}

function shortened(text: string): string {
  return text.slice(0, 100);
}
