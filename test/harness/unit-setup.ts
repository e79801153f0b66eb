/**
 * One PostgreSQL for all unit tests of a run: the first test that asks for it at the socket starts it. A test file gets
 * a database of its own, copied from one with the schema (`postgres-server.ts`).
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestProject } from 'vitest/node';

declare module 'vitest' {
  interface ProvidedContext {
    /** A path of a socket: each client receives the URL of a PostgreSQL whose database has the schema. */
    postgresSocket: string;
  }
}

interface Running {
  url: string;
  stop(): Promise<void>;
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const home = mkdtempSync(join(tmpdir(), 'millrace-unit-'));
  const path = join(home, 'postgres.sock');
  let running: Promise<Running> | undefined;
  const server = createServer((socket) => {
    running ??= start(home);
    running.then(
      ({ url }) => socket.end(url),
      () => socket.destroy(),
    );
    socket.on('error', () => {});
  });
  await new Promise<void>((resolve) => server.listen(path, resolve));
  project.provide('postgresSocket', path);
  return async () => {
    server.close();
    await (await running?.catch(() => undefined))?.stop();
    rmSync(home, { recursive: true, force: true });
  };
}

/** Loaded only when a test needs it. */
async function start(home: string): Promise<Running> {
  const { startPostgres } = await import('./postgres-server.ts');
  return await startPostgres(home);
}
