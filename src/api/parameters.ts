/** Query and path parameters: text → checked values; whatever is wrong is a 400 that names the parameter. */
import Type from 'typebox';
import { badRequest } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { PageLink } from '../device/page.ts';
import { isUuid, nullUuid } from '../device/uuid.ts';

export function required(query: URLSearchParams, name: string): string {
  const value = query.get(name);
  if (value === null || value === '') {
    throw badRequest('parameter_missing', `Required request parameter '${name}' is not present`);
  }
  return value;
}

export function integer(name: string, text: string): number {
  const value = Number(text);
  if (!/^-?\d{1,16}$/.test(text) || !Number.isSafeInteger(value)) {
    throw badRequest('parameter_integer', `Parameter '${name}' must be a whole number, not '${shortened(text)}'`);
  }
  return value;
}

export function optionalInteger(query: URLSearchParams, name: string, fallback: number): number {
  const text = query.get(name);
  return text === null || text === '' ? fallback : integer(name, text);
}

export function optionalBoolean(query: URLSearchParams, name: string, fallback: boolean): boolean {
  const text = query.get(name);
  if (text === null || text === '') return fallback;
  if (text !== 'true' && text !== 'false') {
    throw badRequest('parameter_boolean', `Parameter '${name}' must be true or false, not '${shortened(text)}'`);
  }
  return text === 'true';
}

export function oneOf<T extends string>(name: string, text: string | null, values: readonly T[], fallback: T): T {
  if (text === null || text === '') return fallback;
  const value = values.find((each) => each === text);
  if (value === undefined) {
    throw badRequest(
      'parameter_enum',
      `Parameter '${name}' must be one of ${values.join(', ')}, not '${shortened(text)}'`,
    );
  }
  return value;
}

export function uuid(text: string): string {
  if (!isUuid(text)) throw badRequest('uuid', `Invalid UUID string: ${shortened(text)}`);
  return text.toLowerCase();
}

/** Entities that the family knows; of them only devices have telemetry here. */
const entityTypes = [
  ...['DEVICE', 'TENANT', 'CUSTOMER', 'USER', 'DASHBOARD', 'ASSET', 'ALARM', 'RULE_CHAIN', 'RULE_NODE', 'ENTITY_VIEW'],
  ...['WIDGETS_BUNDLE', 'WIDGET_TYPE', 'TENANT_PROFILE', 'DEVICE_PROFILE', 'ASSET_PROFILE', 'API_USAGE_STATE', 'EDGE'],
  ...['OTA_PACKAGE', 'RPC', 'QUEUE'],
];

export interface EntityTarget {
  type: string;
  id: string;
}

/** The first two parameters of a path: kind and id of an entity. */
export function entityTarget(params: string[]): EntityTarget {
  return { type: oneOf('entityType', params[0]!, entityTypes, ''), id: uuid(params[1]!) };
}

/** `keys=a,b` or repeated `key=` (a key that holds a comma needs that). Each once, in order. */
export function keyList(query: URLSearchParams): string[] {
  const listed = query.getAll('keys').flatMap((text) => text.split(','));
  const keys = new Set([...listed, ...query.getAll('key')].filter((key) => key !== ''));
  if (keys.size > limits.listedKeysMax) {
    throw badRequest('keys', `At most ${limits.listedKeysMax} keys can be asked for at once.`);
  }
  return [...keys];
}

export function pageLink(query: URLSearchParams): PageLink {
  const pageSize = integer('pageSize', required(query, 'pageSize'));
  const page = integer('page', required(query, 'page'));
  if (pageSize <= 0) {
    throw badRequest('page_size', `Incorrect page link page size '${pageSize}'. Page size must be greater than zero.`);
  }
  if (page < 0) throw badRequest('page', `Incorrect page link page '${page}'. Page must be positive integer.`);
  if (pageSize > limits.pageSizeMax || !Number.isSafeInteger(page * pageSize)) {
    throw badRequest('page_size', `A page holds at most ${limits.pageSizeMax} entities.`);
  }
  const sortOrder = query.get('sortOrder') || 'ASC';
  if (sortOrder !== 'ASC' && sortOrder !== 'DESC') {
    throw badRequest(
      'sort_order',
      `Unsupported sort order '${shortened(sortOrder)}'! Only 'ASC' or 'DESC' types are allowed.`,
    );
  }
  const textSearch = (query.get('textSearch') ?? '').replaceAll('\0', '').slice(0, 255);
  return { pageSize, page, textSearch, sortProperty: query.get('sortProperty') ?? '', sortOrder };
}

export const pageQuery = Type.Object({
  pageSize: Type.Integer({ minimum: 1 }),
  page: Type.Integer({ minimum: 0 }),
  textSearch: Type.Optional(Type.String()),
  sortProperty: Type.Optional(Type.String()),
  sortOrder: Type.Optional(Type.Enum(['ASC', 'DESC'])),
});

/** The id of an entity in a body: absent, null and the null uuid all mean none. */
export function entityUuid(reference: { id?: string | null } | null | undefined): string | null {
  if (!reference) return null;
  if (!reference.id) throw badRequest('entity_id', 'Invalid entity id');
  const id = uuid(reference.id);
  return id === nullUuid ? null : id;
}

function shortened(text: string): string {
  return text.slice(0, 100);
}
