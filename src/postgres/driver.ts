/**
 * Loads node-postgres. The driver detects Cloudflare by the name of the navigator, which Node has from 21 on. In Node
 * 20 the driver would make a `Response`, and so load all of `fetch` into every process.
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
