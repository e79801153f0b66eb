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

/**
 * Copies members of the library's request, which is invalid after the route handler returns. Methods must be called on
 * the request. Is no object literal with a getter, because V8 makes a hidden class in old memory for each of those, and
 * keeps what the getter reaches until it collects old memory.
 */
export class CopiedRequest implements HttpRequest {
  readonly method: string;
  readonly path: string;
  readonly query: string;
  readonly params: string[] = [];
  body = emptyBody;
  readonly remoteAddress: string;
  readonly secure: boolean;
  readonly fromProxy: boolean;
  readonly #headers: [string, string][] = [];
  readonly #exchange: Exchange;
  readonly #work: Work;
  #aborted: AbortSignal | undefined = undefined;

  constructor(
    req: UwsRequest,
    parameterCount: number,
    exchange: Exchange,
    remoteAddress: string,
    secure: boolean,
    work: Work,
  ) {
    req.forEach((name, value) => {
      this.#headers.push([name, value]);
    });
    for (let i = 0; i < parameterCount; i += 1) this.params.push(decodeParameter(req.getParameter(i) ?? ''));
    this.method = req.getCaseSensitiveMethod();
    this.path = req.getUrl();
    this.query = req.getQuery();
    this.remoteAddress = remoteAddress;
    this.secure = secure;
    this.fromProxy = exchange.isFromProxy();
    this.#exchange = exchange;
    this.#work = work;
  }

  header(name: string): string {
    return this.#headers.find(([known]) => known === name)?.[1] ?? '';
  }

  headers(name: string): string[] {
    return this.#headers.filter(([known]) => known === name).map(([, value]) => value);
  }

  /** Few handlers ask for the signal, so it is made only for them. */
  get aborted(): AbortSignal {
    this.#aborted ??= signalOf(this.#exchange);
    return this.#aborted;
  }

  identify(caller: string): void {
    this.#work.caller = caller;
    refuseBlocked(this.#work);
  }
}

function signalOf(exchange: Exchange): AbortSignal {
  const controller = new AbortController();
  const abort = (): void => controller.abort();
  if (exchange.aborted) abort();
  exchange.onAbort = abort;
  return controller.signal;
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
