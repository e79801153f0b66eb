/**
 * Loads the uWebSockets.js build for this Node version: `uWebSockets.js` before Node 24, `uWebSockets.js-next` from
 * Node 24 on. An unsupported system, and packages of another Node version, get an error of one line.
 */

import type * as Uws from 'uWebSockets.js';
import { createRequire } from 'node:module';
import { messageOf, StartError } from '../base/errors.ts';

// A longer head gets the library's own 431, an HTML page that cannot be changed; `limits.headerCharsMax` refuses
// shorter ones with JSON. A larger value costs memory outside all budgets: each connection may hold an unfinished head
// of this size.
process.env['UWS_HTTP_MAX_HEADERS_SIZE'] ??= '16384';

function load(): typeof Uws {
  const require = createRequire(import.meta.url);
  const major = Number(process.versions.node.split('.')[0]);
  try {
    return require(major >= 24 ? 'uWebSockets.js-next' : 'uWebSockets.js') as typeof Uws;
  } catch (error) {
    throw loadFault(messageOf(error));
  }
}

/** npm installs only the build for the Node that runs it, as a package of its own: `@uwsjs/linux-x64-22`. */
export function loadFault(reason: string): StartError {
  const { version, platform, arch } = process;
  if (reason.includes("Cannot find module '@uwsjs/")) {
    return new StartError(
      `The packages were installed under another version than Node ${version}: run \`npm ci\` again.`,
    );
  }
  return new StartError(
    `uWebSockets.js has no build for Node ${version} on ${platform}-${arch}: ` +
      'use Node 20 or 22 on a glibc Linux (x64 or arm64).',
  );
}

export const uws: typeof Uws = load();
