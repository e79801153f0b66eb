/**
 * The data directories of engines. A copy of a prepared one, whose engine was started once and stopped, saves each
 * engine the making of its stores.
 */
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

/** Names the data directory that `prepareData` (engine.ts) made. */
export const preparedData = 'MILLRACE_TEST_DATA';

/** Settings that count only at a first start, or that name other stores. */
const firstStartNames = ['ADMIN_EMAIL', 'ADMIN_PASSWORD', 'DEMO_DATA', 'DATABASE_URL', 'CLICKHOUSE_URL'];

interface Content {
  env?: Record<string, string>;
  firstStart?: boolean;
  copyOf?: string | undefined;
}

/** Makes a directory with the content that an engine with these settings may begin with. */
export function makeDataDirectory({ env = {}, firstStart = false, copyOf }: Content): string {
  const directory = newDirectory();
  const mayBePrepared = !firstStart && !firstStartNames.some((name) => name in env);
  const content = copyOf ?? (mayBePrepared ? process.env[preparedData] : undefined);
  if (content !== undefined) copyDirectory(content, directory);
  return directory;
}

export function newDirectory(): string {
  return mkdtempSync(join(tmpdir(), 'millrace-test-'));
}

/** Copies all in it with its modes, which PostgreSQL checks: `cpSync` of Node 22 gives every folder the mode 0755. */
export function copyDirectory(from: string, to: string): void {
  mkdirSync(to, { recursive: true });
  execFileSync('cp', ['-a', '--', `${from}/.`, to]);
}
