/**
 * The pages of this origin: the console at `/` and the interactive API document at `/swagger-ui/`. They are files
 * beside this one (`page/`, sent as they are written) and the two of swagger-ui that are needed; what they show comes
 * over the REST API. Nothing runs or is loaded that does not come from here, and no other page may frame them.
 */
import { type AssetSource, Assets } from '../uws/assets.ts';
import type { HttpServer } from '../uws/server.ts';

export interface ConsoleDoorOptions {
  /** Without the API document there is no page of it, and the console shows no link to it. */
  docs: boolean;
}

const contentSecurityPolicy = [
  "default-src 'self'",
  // The icons in the style sheet of swagger-ui.
  "img-src 'self' data:",
  "object-src 'none'",
  "base-uri 'none'",
  // Forms are sent by script, as JSON: without it, a password does not become part of an address.
  "form-action 'none'",
  "frame-ancestors 'none'",
].join('; ');
/** What comes from the server is shown as text. (swagger-ui writes markup, and cleans it before.) */
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
    'icon.svg': page('icon.svg'),
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
