/**
 * A request as the handler of a route sees it: a copy, because the request of the library is invalid after the handler
 * returned its promise.
 */
import type { HttpRequest as UwsRequest } from 'uWebSockets.js';
import type { Work } from '../base/running-work.ts';
import { refuseBlocked } from './blocked-routes.ts';
import type { Exchange } from './exchange.ts';

export const emptyBody: Buffer = Buffer.alloc(0);

export interface HttpRequest {
  method: string;
  path: string;
  /** The raw query, without the question mark. */
  query: string;
  /** Path parameters, decoded. */
  params: string[];
  /** Returns the first value of a header by its lower-case name, '' when absent. */
  header(name: string): string;
  /** Returns every value of a header, in order. */
  headers(name: string): string[];
  body: Buffer;
  /** The address of the client, also behind trusted proxies. */
  remoteAddress: string;
  /** True when the connection to this server uses TLS; the connection to a proxy in front is unknown. */
  secure: boolean;
  /** True when a trusted proxy made the request on behalf of a client. */
  fromProxy: boolean;
  /** Fires when the client disconnects. */
  aborted: AbortSignal;
  /** Names the caller once it is known. Throws the 503 fault for a caller whose calls of this route ended workers. */
  identify(caller: string): void;
}

/** Copies members of the library's request, which is invalid after the route handler returns. */
export function snapshot(
  req: UwsRequest,
  parameterCount: number,
  exchange: Exchange,
  remoteAddress: string,
  secure: boolean,
  work: Work,
): HttpRequest {
  const all: [string, string][] = [];
  req.forEach((name, value) => {
    all.push([name, value]);
  });
  const params: string[] = [];
  for (let i = 0; i < parameterCount; i += 1) params.push(decodeParameter(req.getParameter(i) ?? ''));
  const abort = new AbortController();
  exchange.onAbort = () => abort.abort();
  return {
    method: req.getCaseSensitiveMethod(),
    path: req.getUrl(),
    query: req.getQuery(),
    params,
    header: (name) => all.find(([known]) => known === name)?.[1] ?? '',
    headers: (name) => all.filter(([known]) => known === name).map(([, value]) => value),
    body: emptyBody,
    remoteAddress,
    secure,
    fromProxy: exchange.isFromProxy(),
    aborted: abort.signal,
    identify: (caller) => {
      work.caller = caller;
      refuseBlocked(work);
    },
  };
}

/** Percent-decodes a parameter. A malformed one becomes a string that matches no stored value. */
export function decodeParameter(raw: string): string {
  if (!raw.includes('%')) return raw;
  try {
    return decodeURIComponent(raw);
  } catch {
    return raw;
  }
}
