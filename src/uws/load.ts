/**
 * Loads the uWebSockets.js build for this Node version: 20.51 for Node 20, the newer one where it exists. An
 * unsupported system gets an error of one line.
 */

import type * as Uws from 'uWebSockets.js';
import { createRequire } from 'node:module';
import { StartError } from '../base/errors.ts';

// A longer head gets the library's own 431, an HTML page that cannot be changed; `limits.headerCharsMax` refuses
// shorter ones with JSON. A larger value costs memory outside all budgets: each connection may hold an unfinished head
// of this size.
process.env['UWS_HTTP_MAX_HEADERS_SIZE'] ??= '16384';

function load(): typeof Uws {
  const require = createRequire(import.meta.url);
  const major = Number(process.versions.node.split('.')[0]);
  try {
    return require(major >= 24 ? 'uWebSockets.js-next' : 'uWebSockets.js') as typeof Uws;
  } catch {
    throw new StartError(
      `uWebSockets.js has no build for Node ${process.version} on ${process.platform}-${process.arch}: ` +
        'use Node 20 or 22 on a glibc Linux (x64 or arm64).',
    );
  }
}

export const uws: typeof Uws = load();
