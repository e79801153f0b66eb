/**
 * Serves the pages of this origin: the console at `/` and the interactive API document at `/swagger-ui/`. Their files
 * are in `page/` and in the package swagger-ui; their data comes over the REST API. The pages load nothing from other
 * origins, and no other page may frame them.
 */
import { basePage } from '../rest/base-page.ts';
import { type AssetSource, Assets } from '../uws/assets.ts';
import type { HttpServer } from '../uws/server.ts';

interface ConsoleDoorOptions {
  /** False: no page of the API document is served, and the console shows no link to it. */
  docs: boolean;
}

const contentSecurityPolicy = [
  "default-src 'self'",
  // Allows the icons in the style sheet of swagger-ui.
  "img-src 'self' data:",
  "object-src 'none'",
  "base-uri 'none'",
  // Scripts send the forms as JSON. Without a script a form is not sent, so no password becomes part of an address.
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ');
/** Values from the server are shown as text, never as markup. (swagger-ui writes markup, which it sanitizes.) */
const textOnly = "; require-trusted-types-for 'script'; trusted-types 'none'";

function headers(policy: string): Record<string, string> {
  return { 'Content-Security-Policy': policy, 'Referrer-Policy': 'no-referrer', 'X-Frame-Options': 'DENY' };
}

const page = (name: string) => new URL(`./page/${name}`, import.meta.url);
const pages = (...names: string[]) => Object.fromEntries(names.map((name) => [name, page(name)]));

/** The pages are made once and served by each server of the worker. */
export function createConsole({ docs }: ConsoleDoorOptions): (server: HttpServer) => void {
  const consoleAssets = assets(contentSecurityPolicy + textOnly, {
    ...pages('console.html', 'console.css', 'console.js', 'call.js', 'session.js', 'api-keys.js', 'key-dialogs.js'),
    ...basePage,
    'settings.js': `export const docs = ${docs};\n`,
  });
  const docsAssets = assets(contentSecurityPolicy, {
    'index.html': page('docs.html'),
    ...pages('docs.css', 'docs.js', 'authorize.js'),
    'swagger-ui.css': new URL(import.meta.resolve('swagger-ui-dist/swagger-ui.css')),
    'swagger-ui-bundle.js': new URL(import.meta.resolve('swagger-ui-dist/swagger-ui-bundle.js')),
  });
  return (server) => {
    server.route('GET', '/', (request) => consoleAssets.answer('console.html', request));
    server.route('GET', '/console/:file', (request) => consoleAssets.answer(request.params[0]!, request));
    if (!docs) return;
    server.route('GET', '/swagger-ui.html', async () => redirect('/swagger-ui/'));
    server.route('GET', '/swagger-ui', async () => redirect('/swagger-ui/index.html'));
    server.route('GET', '/swagger-ui/:file', (request) => docsAssets.answer(request.params[0]!, request));
  };
}

function assets(policy: string, sources: Record<string, AssetSource>): Assets {
  return new Assets(sources, headers(policy));
}

function redirect(to: string) {
  return { status: 302, headers: { Location: to } };
}
