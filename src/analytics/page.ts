/** The page of a view link, with its own script and style: nothing of it runs that does not come from here. */
import { Assets } from '../uws/assets.ts';
import type { HttpServer } from '../uws/server.ts';

const file = (name: string) => new URL(`./page/${name}`, import.meta.url);

const headers = {
  'Content-Security-Policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
  'Referrer-Policy': 'no-referrer',
};

/** The id is the last part of the path; the script reads it there. */
export function pageRoutes(server: HttpServer): void {
  const page = new Assets({ 'view.html': file('view.html') }, headers);
  const assets = new Assets({ 'view.css': file('view.css'), 'view.js': file('view.js') }, headers);
  server.route('GET', '/trendz/view/:id', (request) => page.answer('view.html', request));
  server.route('GET', '/trendz/assets/:file', (request) => assets.answer(request.params[0]!, request));
}
