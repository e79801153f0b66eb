/**
 * Compressed bodies: which are decompressed, which are refused, and that no body uses more memory than the cap allows.
 */
import { randomBytes } from 'node:crypto';
import * as zlib from 'node:zlib';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { encodings } from '../base/content-encoding.ts';
import { Fault } from '../base/errors.ts';
import { createLog } from '../base/log.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { HttpServer } from './server.ts';

const bodyBytesMax = 1024 * 1024;
const unknown = new Fault('unknown_token', 'No device has this access token.');
const metrics = new Metrics();
let server: HttpServer;
let base: string;
/** Reasons of `onRefused`. */
const refused: string[] = [];

beforeAll(async () => {
  const sizes = { bodyBytesMax, bodyBytesInFlightMax: 16 * bodyBytesMax, connectionsMax: 100 };
  server = new HttpServer({ log: createLog('error', 'test'), metrics, ...sizes, worker: '' });
  server.route('POST', '/echo', async ({ body }) => ({ status: 200, body }));
  server.rawPost(
    '/raw/:token',
    {
      admit: (token) => {
        if (token === 'wrong') throw unknown;
        return `device ${token}`;
      },
      onRefused: ({ reason }) => refused.push(reason),
    },
    (exchange, _token, body) => exchange.answer({ status: 200, body: String(body.length) }),
  );
  server.seal();
  base = `http://127.0.0.1:${await server.listen('127.0.0.1', 0)}`;
});

afterAll(() => server.close());

const heldBytes = () => metrics.snapshot().find(({ name }) => name === 'http_body_bytes')!.value;

async function post(path: string, encoding: string, body: NonNullable<RequestInit['body']>, init: object = {}) {
  const headers = { 'Content-Encoding': encoding };
  const answer = await fetch(`${base}${path}`, { method: 'POST', headers, body, ...init });
  const bytes = Buffer.from(await answer.arrayBuffer());
  const message = answer.status === 200 ? '' : (JSON.parse(bytes.toString()) as { message: string }).message;
  return { status: answer.status, bytes, message, accepts: answer.headers.get('accept-encoding') };
}

const { zstdCompressSync } = zlib as { zstdCompressSync?: (bytes: Buffer) => Buffer };
const packers: [string, (bytes: Buffer) => Buffer][] = [
  ['gzip', zlib.gzipSync],
  ['X-GZIP', zlib.gzipSync],
  ['deflate', zlib.deflateSync],
  ['deflate', zlib.deflateRawSync],
  ['br', (bytes) => zlib.brotliCompressSync(bytes, { params: { [zlib.constants.BROTLI_PARAM_QUALITY]: 2 } })],
  ['identity', (bytes) => bytes],
  ...(zstdCompressSync ? ([['zstd', zstdCompressSync]] as [string, (bytes: Buffer) => Buffer][]) : []),
];

/** Half of it cannot be compressed. */
const bodyOf = (bytes: number) => Buffer.concat([randomBytes(bytes / 2), Buffer.alloc(bytes / 2, 'a')]);

test.each(packers)('%s is unpacked, small or large, declared or chunked', async (encoding, pack) => {
  for (const bytes of [2, 1_000, 100_000, bodyBytesMax]) {
    const body = bodyOf(bytes);
    const packed = pack(body);
    expect((await post('/echo', encoding, packed as Uint8Array<ArrayBuffer>)).bytes.equals(body)).toBe(true);
    const pieces = async function* () {
      for (let at = 0; at < packed.length; at += 40_000) yield packed.subarray(at, at + 40_000);
    };
    const chunked = await post('/echo', encoding, pieces() as unknown as ReadableStream, { duplex: 'half' });
    expect(chunked.bytes.equals(body)).toBe(true);
  }
  expect(heldBytes()).toBe(0);
});

test.each(packers.filter(([name]) => name !== 'identity'))(
  'a bomb of %s stops at the cap',
  async (encoding, pack) => {
    for (const bytes of [bodyBytesMax + 1, 40 * 1024 * 1024]) {
      const bomb = pack(Buffer.alloc(bytes));
      for (const path of ['/echo', '/raw/a']) {
        const { status, message } = await post(path, encoding, bomb as Uint8Array<ArrayBuffer>);
        expect([status, message]).toEqual([413, expect.stringContaining('1048576 bytes')]);
      }
    }
    expect(heldBytes()).toBe(0);
  },
  30_000,
);

test.each(packers.filter(([name]) => name !== 'identity'))(
  'a damaged body of %s is refused',
  async (encoding, pack) => {
    for (const bytes of [1_000, 400_000]) {
      const packed = pack(bodyOf(bytes));
      for (const damaged of [packed.subarray(0, -9), packed.subarray(0, packed.length / 2), Buffer.from('{"a":1}')]) {
        const { status, message } = await post('/echo', encoding, damaged as Uint8Array<ArrayBuffer>);
        // Raw deflate has no check, and these bytes may be valid.
        if (pack === zlib.deflateRawSync) continue;
        expect([status, message]).toEqual([400, expect.stringContaining('body is no')]);
      }
    }
    expect(heldBytes()).toBe(0);
  },
);

test('another encoding, and a list of encodings, is 415 with those that are accepted', async () => {
  const twice = zlib.gzipSync(zlib.gzipSync('{}'));
  for (const encoding of ['compress', 'gzip, gzip', 'gzip,br', 'json', 'gzip;q=1']) {
    const { status, message, accepts } = await post('/raw/a', encoding, twice as Uint8Array<ArrayBuffer>);
    expect([status, accepts]).toEqual([415, encodings]);
    expect(message).toContain(JSON.stringify(encoding));
  }
  expect(refused).toContain('content_encoding');
});

test('a large body is unpacked only for a known sender', async () => {
  const packed = zlib.gzipSync(Buffer.alloc(500_000)) as Uint8Array<ArrayBuffer>;
  expect((await post('/raw/right', 'gzip', packed)).bytes.toString()).toBe('500000');
  expect((await post('/raw/wrong', 'gzip', packed)).status).toBe(401);
  expect(refused).toContain('unknown_token');
});
