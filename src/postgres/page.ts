/** A page of a list: the request, the read, and the answer. Every list of the REST API is read here. */
import { badRequest, type Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { Queries } from './client.ts';

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

/** The source of a list. */
interface List {
  columns: string;
  /** Tables with their joins. */
  from: string;
  /** Condition on the rows, with parameters for `values`. */
  where: string;
  values: unknown[];
  /** Property of the API → SQL. */
  sortColumns: ReadonlyMap<string, string>;
  idColumn: string;
  /** Columns of any length that users filled, with the bytes that one row may hold in them. */
  documents?: { columns: string[]; rowBytesMax: number };
}

/** Throws 400 for a page whose documents together are too long: a worker holds the whole page. */
export async function readPage<T extends object>(queries: Queries, list: List, link: PageLink): Promise<Page<T>> {
  const { columns, from, where, values, sortColumns, idColumn, documents } = list;
  const clause = pageClause(link, sortColumns, idColumn);
  if (documents && link.pageSize * documents.rowBytesMax > limits.pageBytesMax) {
    await checkBytes(queries, documents.columns, `from ${from} where ${where} ${clause}`, values);
  }
  // The statements follow each other, so that a page uses one connection.
  const data = await queries.query<T>(`select ${columns} from ${from} where ${where} ${clause}`, values);
  const count = async () => {
    const [row] = await queries.query<{ count: number }>(`select count(*) from ${from} where ${where}`, values);
    return row!.count;
  };
  return pageOf(data, totalOfLast(data, link) ?? (await count()), link);
}

export function pageOf<T>(data: T[], totalElements: number, { page, pageSize }: PageLink): Page<T> {
  const totalPages = Math.ceil(totalElements / pageSize);
  return { data, totalPages, totalElements, hasNext: page + 1 < totalPages };
}

/** Returns the total of a list whose last page has these rows; undefined when the page may not be the last one. */
export function totalOfLast(data: unknown[], { page, pageSize }: PageLink): number | undefined {
  if (data.length === pageSize || (data.length === 0 && page > 0)) return undefined;
  return page * pageSize + data.length;
}

/**
 * Returns the entities of `ids`, which `list.where` names, in the order of their own ids. Throws 400 as `readPage`
 * does.
 */
export async function readByIds<T extends object>(
  queries: Queries,
  list: Omit<List, 'sortColumns'>,
  ids: readonly string[],
): Promise<T[]> {
  const { columns, from, where, values, idColumn, documents } = list;
  const rows = `from ${from} where ${where}`;
  if (documents && ids.length * documents.rowBytesMax > limits.pageBytesMax) {
    await checkBytes(queries, documents.columns, rows, values);
  }
  return await queries.query<T>(`select ${columns} ${rows} order by ${idColumn}`, values);
}

/** `rows`: the part of a select after its columns. Throws 400 as `readPage` does. */
export async function checkBytes(queries: Queries, columns: string[], rows: string, values: unknown[]): Promise<void> {
  const lengths = columns.map((column) => `coalesce(octet_length(${column}::text), 0)`).join(' + ');
  const [sum] = await queries.query<{ bytes: number }>(
    `select coalesce(sum(bytes), 0)::bigint as bytes from (select ${lengths} as bytes ${rows}) as page`,
    values,
  );
  if (sum!.bytes <= limits.pageBytesMax) return;
  const megabytes = Math.ceil(sum!.bytes / 1024 / 1024);
  const capMegabytes = limits.pageBytesMax / 1024 / 1024;
  throw badRequest(
    'page_bytes',
    `The entities asked for hold ${megabytes} MiB; at most ${capMegabytes} MiB are read at once: ask for fewer.`,
  );
}

/** Returns `order by … limit … offset …`, in which only columns of `columns` (property → SQL) occur. */
function pageClause(link: PageLink, columns: ReadonlyMap<string, string>, idColumn: string): string {
  const column = link.sortProperty === '' ? idColumn : columns.get(link.sortProperty);
  if (!column) throw wrongSort(link, columns.keys());
  const order = link.sortOrder === 'DESC' ? 'desc' : 'asc';
  const tie = column === idColumn ? '' : `, ${idColumn} ${order}`;
  return `order by ${column} ${order}${tie} limit ${link.pageSize} offset ${link.page * link.pageSize}`;
}

/** Returns the refusal of a sort property that is none of `properties`. */
export function wrongSort({ sortProperty }: PageLink, properties: Iterable<string>): Fault {
  const known = [...properties].filter((property) => property !== '').join(', ');
  return badRequest(
    'sort_property',
    `Invalid sort property '${sortProperty.slice(0, 40)}': this list can be sorted by ${known}.`,
  );
}

/**
 * Returns the condition of SQL that `parameter`, a `containsPattern`, is somewhere in the column, in any letter case.
 */
export function contains(column: string, parameter: string): string {
  return `${column} ilike ${parameter} collate any_letter_case`;
}

/** Returns the pattern of `textSearch` for `contains`. */
export function containsPattern(text: string): string {
  return `%${text.replace(/[\\%_]/g, '\\$&')}%`;
}
