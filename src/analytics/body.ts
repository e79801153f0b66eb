/** What a request of the analytics component says: JSON body, page of a list, the format of its answer. */
import { badRequest, Fault } from '../base/errors.ts';
import { limits } from '../base/limits.ts';
import type { PageLink } from '../postgres/page.ts';
import type { ReportFormat } from '../report/encode.ts';
import type { HttpRequest } from '../uws/server.ts';
import { readPlainJson } from '../value/plain-json.ts';

export function requireJson(request: HttpRequest): void {
  const type = request.header('content-type');
  if (/^\s*application\/json\s*(;|$)/i.test(type)) return;
  throw new Fault('media_type', `Content type '${type.slice(0, 100)}' not supported: it must be application/json.`);
}

export function jsonBody({ body }: HttpRequest): unknown {
  if (body.length === 0) throw badRequest('missing_body', 'Required request body is missing');
  return readPlainJson(body);
}

export function formatOf(request: HttpRequest): ReportFormat {
  return /\btext\/csv\b/i.test(request.header('accept')) ? 'csv' : 'json';
}

export function pageLinkOf(request: HttpRequest): PageLink {
  const query = new URLSearchParams(request.query);
  const number = (name: string, min: number, max: number) => {
    const text = query.get(name) ?? '';
    const value = Number(text);
    if (/^\d{1,9}$/.test(text) && value >= min && value <= max) return value;
    throw badRequest('parameter_integer', `Parameter '${name}' must be a whole number from ${min} to ${max}.`);
  };
  const order = query.get('sortOrder') || 'ASC';
  if (order !== 'ASC' && order !== 'DESC') throw badRequest('sort_order', `Parameter 'sortOrder' must be ASC or DESC.`);
  return {
    pageSize: number('pageSize', 1, limits.pageSizeMax),
    page: number('page', 0, 1_000_000),
    textSearch: (query.get('textSearch') ?? '').replaceAll('\0', '').slice(0, 255),
    sortProperty: query.get('sortProperty') ?? '',
    sortOrder: order,
  };
}
