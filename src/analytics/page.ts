/** The page of a view link, with its own script and style: nothing of it runs that does not come from here. */
import { readFileSync } from 'node:fs';
import { notFound } from '../base/errors.ts';
import type { HttpServer } from '../uws/server.ts';

const directory = new URL('./page/', import.meta.url);

const contentTypes = {
  'view.html': 'text/html; charset=utf-8',
  'view.css': 'text/css; charset=utf-8',
  'view.js': 'text/javascript; charset=utf-8',
};
type FileName = keyof typeof contentTypes;

const headers = {
  'Content-Security-Policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
  'X-Content-Type-Options': 'nosniff',
  'Referrer-Policy': 'no-referrer',
  'Cache-Control': 'no-cache',
};

/** The id is the last part of the path; the script reads it there. */
export function pageRoutes(server: HttpServer): void {
  const files = new Map<FileName, Buffer>();
  const answer = (name: FileName) => {
    let body = files.get(name);
    if (!body) {
      body = readFileSync(new URL(name, directory));
      files.set(name, body);
    }
    return { status: 200, contentType: contentTypes[name], headers, body };
  };
  server.route('GET', '/trendz/view/:id', async () => answer('view.html'));
  server.route('GET', '/trendz/assets/:file', async ({ params }) => {
    const name = params[0] as FileName;
    if (!Object.hasOwn(contentTypes, name) || name === 'view.html') throw notFound('No such file.');
    return answer(name);
  });
}
