/**
 * Answers requests that no handler reads: pre-flights of browsers, other methods of known paths (405 with `Allow`), and
 * unknown paths (404).
 */
import type { TemplatedApp, HttpRequest as UwsRequest, HttpResponse as UwsResponse } from 'uWebSockets.js';
import { Fault } from '../base/errors.ts';
import type { Counter } from '../base/metrics/metrics.ts';
import { type Answer, type Exchange, faultAnswer } from './exchange.ts';
import { hasBody, type RequestHead, readHead } from './head.ts';
import type { SkippedBodies } from './skipped-bodies.ts';

/** The names under which the library registers a handler of a method. */
export const registrars = { GET: 'get', POST: 'post', PUT: 'put', DELETE: 'del', HEAD: 'head' } as const;

/** A token of RFC 9110 section 5.6.2. */
const methodToken = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/;

interface OtherRequestsDeps {
  app: TemplatedApp;
  exchange: (res: UwsResponse, head: Readonly<RequestHead>, method: string) => Exchange;
  skipped: SkippedBodies;
  /** Counts connections that are cut because the length of a body is ambiguous. */
  ambiguous: Counter;
}

export class OtherRequests {
  readonly #deps: OtherRequestsDeps;

  constructor(deps: OtherRequestsDeps) {
    this.#deps = deps;
  }

  /** Called after the last route. `allowed`: the methods of each pattern that have a route. */
  seal(allowed: ReadonlyMap<string, ReadonlySet<string>>): void {
    for (const [pattern, methods] of allowed) {
      const allow = [...methods, 'OPTIONS'].join(', ');
      this.#answerOthers(pattern, methods, (res, req) => {
        this.#refuse(res, req, (_url, method) => {
          const fault = new Fault('method', `Request method '${method}' is not supported`);
          return { ...faultAnswer(fault), headers: { Allow: allow } };
        });
      });
    }
    this.#deps.app.any('/*', this.#unknownPath);
  }

  /** Answers each method of a path as an unknown path. */
  refusePath(path: string): void {
    this.#answerOthers(path, new Set(), this.#unknownPath);
  }

  /**
   * Answers every method of a pattern except `methods`. The library prefers a route of the same method over a better
   * pattern: `GET /api/device/credentials` would match a device with the id `credentials`.
   */
  #answerOthers(
    pattern: string,
    methods: ReadonlySet<string>,
    handler: (res: UwsResponse, req: UwsRequest) => void,
  ): void {
    const { app } = this.#deps;
    const isExact = !/[:*]/.test(pattern);
    for (const path of withSlash(pattern)) {
      for (const [method, registrar] of Object.entries(registrars))
        if (isExact && !methods.has(method)) app[registrar](path, handler);
      app.any(path, handler);
    }
  }

  readonly #unknownPath = (res: UwsResponse, req: UwsRequest): void => {
    this.#refuse(res, req, (url) => faultAnswer(new Fault('unknown_path', `No such path: ${url.slice(0, 200)}`)));
  };

  /** Answers a pre-flight, or any other request with the result of `answerOf`. */
  #refuse(res: UwsResponse, req: UwsRequest, answerOf: (url: string, method: string) => Answer): void {
    // `getMethod` would change the method to lower case.
    const method = req.getCaseSensitiveMethod();
    const head = readHead(req);
    const exchange = this.#deps.exchange(res, head, method);
    // The library accepts any string as method, even the rest of a body with a wrong length.
    if (!head.sound || !methodToken.test(method)) {
      exchange.cut();
      this.#deps.ambiguous.add(1);
      return;
    }
    const forged = exchange.proxyFault();
    const allowed = () => (method === 'OPTIONS' ? preflight(req) : answerOf(req.getUrl(), method));
    const answer = forged ? faultAnswer(forged) : allowed();
    if (hasBody(head)) this.#deps.skipped.answer(exchange, head.contentLength, answer);
    else exchange.answer(answer);
  }
}

/** Returns the paths of a pattern, which also accepts a trailing slash. */
export function withSlash(pattern: string): string[] {
  return pattern.endsWith('/') || pattern.endsWith('*') ? [pattern] : [pattern, `${pattern}/`];
}

function preflight(req: UwsRequest): Answer {
  return {
    status: 200,
    headers: {
      // Every answer repeats the origin that a browser sent.
      ...(req.getHeader('origin') === '' && { 'Access-Control-Allow-Origin': '*' }),
      'Access-Control-Allow-Methods': req.getHeader('access-control-request-method') || 'GET, POST, PUT, DELETE',
      'Access-Control-Allow-Headers': req.getHeader('access-control-request-headers') || '*',
      'Access-Control-Max-Age': '1800',
    },
  };
}
