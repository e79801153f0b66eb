/** A page of a list: what was asked for, what comes back, and the tail of its SQL. */
import { badRequest } from '../base/errors.ts';

export interface PageLink {
  pageSize: number;
  page: number;
  textSearch: string;
  /** '' = by id, which is by creation. */
  sortProperty: string;
  sortOrder: 'ASC' | 'DESC';
}

export interface Page<T> {
  data: T[];
  totalPages: number;
  totalElements: number;
  hasNext: boolean;
}

export function pageOf<T>(data: T[], totalElements: number, link: PageLink): Page<T> {
  const totalPages = Math.ceil(totalElements / link.pageSize);
  return { data, totalPages, totalElements, hasNext: link.page + 1 < totalPages };
}

/** `order by … limit … offset …`. Only columns of the closed list `columns` (property → SQL) get into the text. */
export function pageClause(link: PageLink, columns: ReadonlyMap<string, string>, idColumn: string): string {
  const column = link.sortProperty === '' ? idColumn : columns.get(link.sortProperty);
  if (!column) throw badRequest('sort_property', 'Invalid sort property');
  const order = link.sortOrder === 'DESC' ? 'desc' : 'asc';
  const tie = column === idColumn ? '' : `, ${idColumn} ${order}`;
  return `order by ${column} ${order}${tie} limit ${link.pageSize} offset ${link.page * link.pageSize}`;
}

/** Condition of SQL: `parameter`, a `containsPattern`, is somewhere in the column, in any letter case. */
export function contains(column: string, parameter: string): string {
  return `${column} ilike ${parameter} collate any_letter_case`;
}

/** `textSearch` as `contains` wants it. */
export function containsPattern(text: string): string {
  return `%${text.replace(/[\\%_]/g, '\\$&')}%`;
}
