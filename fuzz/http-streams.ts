/** Requests as devices and users send them, and the ways in which they break. All from a seed. */
import type { Random } from '../test/harness/random.ts';
import { byteMutations, changed, type Mutation, mutate } from './bytes.ts';

const lineEnd = '\r\n';

/** Makes one request; its body is framed by Content-Length or in chunks. */
export function requestOf(random: Random, method: string, path: string, headers: string[], body: string): Buffer {
  const isChunked = body !== '' && random.next() < 0.3;
  const framing = isChunked
    ? ['Transfer-Encoding: chunked']
    : body === ''
      ? []
      : [`Content-Length: ${byteLength(body)}`];
  const host = 'Host: localhost';
  const all = random.next() < 0.5 ? [host, ...headers, ...framing] : [...framing, host, ...headers];
  const head = [`${method} ${path} HTTP/1.1`, ...all, '', ''].join(lineEnd);
  return Buffer.from(head + (isChunked ? chunks(random, body) : body));
}

function chunks(random: Random, body: string): string {
  const pieces: string[] = [];
  for (let at = 0; at < body.length; ) {
    const piece = body.slice(at, at + 1 + random.below(body.length));
    pieces.push(`${byteLength(piece).toString(16)}${lineEnd}${piece}${lineEnd}`);
    at += piece.length;
  }
  return `${pieces.join('')}0${lineEnd}${lineEnd}`;
}

function byteLength(text: string): number {
  return Buffer.byteLength(text);
}

const paths = (token: string) => [
  `/api/v1/${token}/attributes?clientKeys=a,b&sharedKeys=c`,
  `/api/v1/${token}/attributes`,
  `/api/v1/${token}/attributes/updates?timeout=20`,
  `/api/v1/${token}/rpc?timeout=20`,
  `/api/v1/${token}/rpc/1`,
  `/api/v1/${token}/claim`,
  `/api/v1/${token}/firmware?title=a&version=1&size=0&chunk=0`,
  '/api/v1/provision',
  '/api/auth/login',
  '/api/noauth/activate',
  '/api/device?pageSize=1&page=0',
  '/api/devices?deviceIds=1',
  '/livez',
  '/api/%zz/%00/..%2f?a=%ff&&=&%',
  '*',
  '/mqtt',
];
const methods = ['GET', 'POST', 'PUT', 'DELETE', 'HEAD', 'OPTIONS', 'PATCH', 'TRACE', 'BREW'];
const extraHeaders = [
  'X-Authorization: Bearer a.b.c',
  'X-Authorization: ApiKey tb_nobody',
  'Content-Type: application/json',
  'Content-Type: multipart/form-data; boundary=x',
  'Accept-Encoding: gzip, br',
  'Connection: close',
  'Connection: Upgrade',
  'Upgrade: websocket',
  'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==',
  'Sec-WebSocket-Version: 13',
  'Sec-WebSocket-Protocol: mqtt',
  'Expect: 100-continue',
  'Range: bytes=0-1',
  `Cookie: ${'a=b; '.repeat(50)}`,
];
const bodies = [
  '{"a":1}',
  '[]',
  '{"method":"getX","params":{}}',
  '{"username":"a@b.c","password":"x"}',
  '--x\r\n\r\n--x--',
  '',
];

/** Makes some requests to any path. */
export function anyRequests(random: Random, token: string): Buffer[] {
  return Array.from({ length: 1 + random.below(3) }, () => {
    const headers = Array.from({ length: random.below(4) }, () => random.pick(extraHeaders));
    return requestOf(random, random.pick(methods), random.pick(paths(token)), headers, random.pick(bodies));
  });
}

const framingHeaders = [
  'Content-Length: 0',
  'Content-Length: 7',
  'Content-Length: -1',
  'Content-Length: +7',
  'Content-Length: 0x7',
  'Content-Length: 7, 7',
  'Content-Length: 99999999999999999999',
  'Content-Length : 7',
  'Content-Length:\t7',
  'Transfer-Encoding: chunked',
  'Transfer-Encoding: chunked, chunked',
  'Transfer-Encoding: identity',
  'Transfer-Encoding:\tchunked',
  'Transfer-Encoding: gzip, chunked',
  ' Transfer-Encoding: chunked',
  'Transfer-Encoding\t: chunked',
  'X: a\r\n folded',
  'X: a\nContent-Length: 1',
  'X: \0',
  ': x',
  'no colon',
];

const httpMutations: Mutation[] = [
  ...byteMutations,
  // Adds another line to the head, mostly about the length of the body.
  (random, requests) =>
    changed(random, requests, (request) => {
      const text = request.toString('latin1');
      const at = text.indexOf(lineEnd);
      if (at < 0) return request;
      return Buffer.from(`${text.slice(0, at)}${lineEnd}${random.pick(framingHeaders)}${text.slice(at)}`, 'latin1');
    }),
  // Uses other line ends.
  (random, requests) =>
    changed(random, requests, (request) => {
      const other = random.pick(['\n', '\r', '\r\r\n', '\n\r']);
      const lines = request.toString('latin1').split(lineEnd);
      const at = random.below(lines.length);
      return Buffer.from(
        lines.map((line, n) => (n === 0 ? line : (n === at ? other : lineEnd) + line)).join(''),
        'latin1',
      );
    }),
  // Wrong digits: lengths, sizes of chunks, versions.
  (random, requests) =>
    changed(random, requests, (request) => {
      const digits = [...request.entries()].filter(([, byte]) => byte >= 0x30 && byte <= 0x39);
      if (digits.length > 0) request[random.pick(digits)[0]] = random.pick([0x30, 0x31, 0x39, 0x2d, 0x61, 0x20]);
      return request;
    }),
  // A long head or path.
  (random, requests) =>
    changed(random, requests, (request) => {
      const at = random.below(request.length);
      return Buffer.concat([
        request.subarray(0, at),
        Buffer.alloc(1 + random.below(20_000), 'a'),
        request.subarray(at),
      ]);
    }),
];

export function brokenRequests(random: Random, requests: Buffer[]): Buffer {
  return mutate(random, requests, httpMutations);
}
