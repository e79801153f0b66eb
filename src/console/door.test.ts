/** The files of the pages: their headers, the cost of a reload, and that no other file is served. */
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createLog } from '../base/log.ts';
import { Metrics } from '../base/metrics/metrics.ts';
import { HttpServer } from '../uws/server.ts';
import { createConsole } from './door.ts';

const consoleFiles = [
  'console.css',
  'console.js',
  'call.js',
  'session.js',
  'api-keys.js',
  'key-dialogs.js',
  'icon.svg',
];
const docsFiles = ['docs.css', 'docs.js', 'authorize.js', 'swagger-ui.css', 'swagger-ui-bundle.js'];
const paths = [
  '/',
  ...consoleFiles.map((name) => `/console/${name}`),
  '/swagger-ui/index.html',
  ...docsFiles.map((name) => `/swagger-ui/${name}`),
];

const servers: HttpServer[] = [];
let base: string;
let withoutDocs: string;

async function serve(docs: boolean): Promise<string> {
  const sizes = { bodyBytesMax: 1024, bodyBytesInFlightMax: 4096, connectionsMax: 100 };
  const server = new HttpServer({ log: createLog('error', 'test'), metrics: new Metrics(), ...sizes, worker: '' });
  createConsole({ docs })(server);
  server.seal();
  servers.push(server);
  return `http://127.0.0.1:${await server.listen('127.0.0.1', 0)}`;
}

beforeAll(async () => {
  base = await serve(true);
  withoutDocs = await serve(false);
});

afterAll(() => {
  for (const server of servers) server.close();
});

describe.each(paths)('%s', (path) => {
  test('comes with its type and a policy that lets nothing in', async () => {
    const { status, headers } = await fetch(base + path);
    expect(status).toBe(200);
    expect(headers.get('content-type')).toMatch(/^(text\/(html|css|javascript); charset=utf-8|image\/svg\+xml)$/);
    expect(headers.get('x-content-type-options')).toBe('nosniff');
    const policy = headers.get('content-security-policy')!;
    for (const part of ["default-src 'self'", "object-src 'none'", "base-uri 'none'", "frame-ancestors 'none'"]) {
      expect(policy.split('; ')).toContain(part);
    }
    expect(policy).not.toContain('unsafe');
  });

  test('is not sent again to a browser that has it', async () => {
    const etag = (await fetch(base + path)).headers.get('etag')!;
    expect(etag).toMatch(/^"[^"]+"$/);
    for (const known of [etag, `W/${etag}`, `"other", ${etag}`, '*']) {
      const again = await fetch(base + path, { headers: { 'if-none-match': known } });
      expect([again.status, again.headers.get('etag'), await again.text()]).toEqual([304, etag, '']);
    }
    expect((await fetch(base + path, { headers: { 'if-none-match': '"other"' } })).status).toBe(200);
  });

  test('is the same compressed and plain, and HEAD returns its length', async () => {
    const plain = await fetch(base + path, { headers: { 'accept-encoding': 'identity, gzip;q=0' } });
    expect(plain.headers.get('content-encoding')).toBeNull();
    const compressed = await fetch(base + path, { headers: { 'accept-encoding': 'br, gzip' } });
    expect(compressed.headers.get('content-encoding')).toBe('gzip');
    expect(compressed.headers.get('etag')).not.toBe(plain.headers.get('etag'));
    const text = await plain.text();
    // `fetch` has decompressed the body.
    expect((await compressed.text()) === text).toBe(true);
    const head = await fetch(base + path, { method: 'HEAD', headers: { 'accept-encoding': 'identity' } });
    expect(head.headers.get('content-length')).toBe(String(Buffer.byteLength(text)));
    expect(await head.text()).toBe('');
  });
});

test('the pages name no file that is not served, and no script or style inside', async () => {
  for (const path of ['/', '/swagger-ui/index.html']) {
    const html = await (await fetch(base + path)).text();
    expect(html).not.toMatch(/<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)/);
    const named = [...html.matchAll(/(?:src|href)="(\/[^"#]+)"/g)].map((match) => match[1]!);
    expect(named.length).toBeGreaterThan(2);
    for (const file of named) expect((await fetch(base + file)).status, file).toBe(200);
  }
});

test('the old address of the document leads to its page', async () => {
  const step = async (path: string) => (await fetch(base + path, { redirect: 'manual' })).headers.get('location');
  expect(await step('/swagger-ui.html')).toBe('/swagger-ui/');
  expect(await step('/swagger-ui/')).toBe('/swagger-ui/index.html');
  expect((await fetch(`${base}/swagger-ui.html`)).url).toBe(`${base}/swagger-ui/index.html`);
});

test('another path is the 404 of the API', async () => {
  const names = ['nothing.js', '..%2Fdoor.ts', 'package.json', 'swagger-ui-bundle.js.map', '__proto__', 'constructor'];
  for (const name of names) {
    for (const folder of ['console', 'swagger-ui']) {
      const answer = await fetch(`${base}/${folder}/${name}`);
      expect(await answer.json()).toMatchObject({ status: 404, errorCode: 32 });
    }
  }
  expect((await fetch(base, { method: 'POST' })).status).toBe(405);
});

test('without the document there is no page of it, and the console has no link', async () => {
  const gone = ['/swagger-ui.html', '/swagger-ui', '/swagger-ui/', '/swagger-ui/index.html', '/swagger-ui/docs.js'];
  for (const path of gone) expect((await fetch(withoutDocs + path)).status, path).toBe(404);
  expect((await fetch(withoutDocs)).status).toBe(200);
  expect(await (await fetch(`${withoutDocs}/console/settings.js`)).text()).toBe('export const docs = false;\n');
  expect(await (await fetch(`${base}/console/settings.js`)).text()).toBe('export const docs = true;\n');
});
