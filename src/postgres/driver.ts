/**
 * node-postgres. As it loads it asks whether this is Cloudflare: by the name of the navigator, as Node has one from 21
 * on; in Node 20 it would make a `Response`, and with it load all of `fetch` into every process.
 */
import { createRequire } from 'node:module';
import type Pg from 'pg';

const require = createRequire(import.meta.url);

function load(): typeof Pg {
  const hasNavigator = 'navigator' in globalThis;
  if (!hasNavigator) Object.assign(globalThis, { navigator: { userAgent: `Node.js/${process.versions.node}` } });
  try {
    return require('pg') as typeof Pg;
  } finally {
    if (!hasNavigator) Reflect.deleteProperty(globalThis, 'navigator');
  }
}

export const { Client, Pool, types } = load();
