/** Finds the packages of the embedded ClickHouse without loading them: the library would take half a gigabyte. */
import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { StartError } from '../../base/errors.ts';

/** Returns the version; throws StartError when a package is missing or incomplete. */
export function installedClickHouse(): string {
  const name = `@chdb/lib-linux-${process.arch}-gnu`;
  try {
    const wrapper = createRequire(import.meta.url).resolve('chdb');
    const root = dirname(createRequire(wrapper).resolve(name));
    if (!existsSync(join(root, 'libchdb.so'))) throw new Error('incomplete');
    return (JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string }).version;
  } catch {
    throw new StartError(
      `The embedded ClickHouse (npm packages chdb and ${name}) is not installed: set CLICKHOUSE_URL to a server, or run npm ci without --omit=optional or the image with embedded stores.`,
    );
  }
}
