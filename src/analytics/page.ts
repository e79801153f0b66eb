/** Serves the page of the reports and of a view link. The page runs only scripts of this server. */
import { basePage } from '../rest/base-page.ts';
import { Assets } from '../uws/assets.ts';
import type { HttpServer } from '../uws/server.ts';

const file = (name: string) => new URL(`./page/${name}`, import.meta.url);

const headers = {
  'Content-Security-Policy':
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
  'Referrer-Policy': 'no-referrer',
};

/** The script reads the id of a view in the path, and lists the views where there is none. */
export function pageRoutes(server: HttpServer): void {
  const page = new Assets({ 'view.html': file('view.html') }, headers);
  const own = { 'view.css': file('view.css'), 'view.js': file('view.js') };
  const assets = new Assets({ ...own, ...basePage }, headers);
  for (const path of ['/', '/apiAnalytics']) {
    server.route('GET', path, (request) => page.answer('view.html', request));
  }
  server.route('GET', '/trendz/view/:id', (request) => page.answer('view.html', request));
  server.route('GET', '/trendz/assets/:file', (request) => assets.answer(request.params[0]!, request));
}
