/** Parses a request of ClickHouse's HTTP interface: statement, settings, parameters and credentials. */
import { timingSafeEqual } from 'node:crypto';
import type { IncomingMessage } from 'node:http';
import { Exception } from './exception.ts';

export interface Asked {
  /** The statement in the URL; the body may contain the rest. */
  query: string;
  /** The id by which the client finds its statements in the list of processes. */
  logComment: string;
  queryId: string;
  database: string;
  defaultFormat: string;
  compressResult: boolean;
  settings: Map<string, string>;
  parameters: Map<string, string>;
}

/** Parameters of the interface that are no settings of the engine. */
const reserved = new Set([
  'buffer_size',
  'database',
  'default_format',
  'enable_http_compression',
  'http_zlib_compression_level',
  'password',
  'query',
  'query_id',
  'quota_key',
  'role',
  'send_progress_in_http_headers',
  'http_headers_progress_interval_ms',
  'user',
  'wait_end_of_query',
]);
/** Parameters that are refused and not ignored, because the answer would differ from the requested one. */
const unsupported = new Set(['session_id', 'session_timeout', 'session_check', 'compress', 'decompress', 'stacktrace']);

export function readRequest(request: IncomingMessage, url: URL): Asked {
  const settings = new Map<string, string>();
  const parameters = new Map<string, string>();
  for (const [name, value] of url.searchParams) {
    if (name.startsWith('param_')) parameters.set(name.slice('param_'.length), value);
    else if (unsupported.has(name)) {
      if (value !== '0' && value !== '') {
        throw new Exception(48, 'NOT_IMPLEMENTED', `The embedded engine has no '${name}'.`);
      }
    } else if (name !== 'log_comment' && !reserved.has(name)) settings.set(name, value);
  }
  const header = (name: string): string => String(request.headers[name] ?? '');
  const asked = (name: string): string => url.searchParams.get(name) ?? '';
  return {
    query: asked('query'),
    logComment: asked('log_comment'),
    queryId: asked('query_id') || header('x-clickhouse-query-id') || crypto.randomUUID(),
    database: asked('database') || header('x-clickhouse-database'),
    defaultFormat: asked('default_format') || header('x-clickhouse-format') || 'TabSeparated',
    compressResult:
      asked('enable_http_compression') === '1' && /\bgzip\b/.test(String(request.headers['accept-encoding'] ?? '')),
    settings,
    parameters,
  };
}

/** The password may come in ClickHouse's headers, as HTTP Basic, or in the URL. */
export function authenticate(request: IncomingMessage, url: URL, user: string, password: string): void {
  const given = credentials(request, url);
  if (!given) {
    throw new Exception(194, 'REQUIRED_PASSWORD', `${user}: Authentication failed: a password is required.`);
  }
  const same = equal(given.user, user);
  if (equal(given.password, password) && same) return;
  const text = 'Authentication failed: password is incorrect, or there is no user with such name.';
  throw new Exception(516, 'AUTHENTICATION_FAILED', text);
}

function credentials(request: IncomingMessage, url: URL): { user: string; password: string } | undefined {
  const { authorization } = request.headers;
  const userHeader = request.headers['x-clickhouse-user'];
  const keyHeader = request.headers['x-clickhouse-key'];
  if (userHeader !== undefined || keyHeader !== undefined) {
    return { user: String(userHeader ?? 'default'), password: String(keyHeader ?? '') };
  }
  if (authorization?.startsWith('Basic ')) {
    const text = Buffer.from(authorization.slice('Basic '.length), 'base64').toString('utf8');
    const colon = text.indexOf(':');
    return { user: text.slice(0, colon), password: text.slice(colon + 1) };
  }
  const password = url.searchParams.get('password');
  return password === null ? undefined : { user: url.searchParams.get('user') ?? 'default', password };
}

function equal(given: string, expected: string): boolean {
  const a = Buffer.from(given);
  const b = Buffer.from(expected);
  return a.length === b.length && timingSafeEqual(a, b);
}
