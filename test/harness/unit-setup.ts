/**
 * One PostgreSQL and one ClickHouse for all unit tests of a run: the first test that connects to a socket starts the
 * store. A test file gets a database of its own (`postgres-server.ts`, `clickhouse-server.ts`).
 */
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestProject } from 'vitest/node';

declare module 'vitest' {
  interface ProvidedContext {
    /** The path of a socket whose clients receive the URL of a PostgreSQL; its database has the schema. */
    postgresSocket: string;
    /** The path of a socket whose clients receive the address of a ClickHouse, as JSON. */
    clickhouseSocket: string;
  }
}

interface Running {
  /** The text that each client of the socket receives. */
  text: string;
  stop(): Promise<void>;
}

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  const home = mkdtempSync(join(tmpdir(), 'millrace-unit-'));
  const [postgresSocket, clickhouseSocket] = [join(home, 'postgres.sock'), join(home, 'clickhouse.sock')];
  const stops = [
    await onDemand(postgresSocket, () => startPostgres(home)),
    await onDemand(clickhouseSocket, () => startClickHouse(home)),
  ];
  project.provide('postgresSocket', postgresSocket);
  project.provide('clickhouseSocket', clickhouseSocket);
  return async () => {
    await Promise.all(stops.map((stop) => stop()));
    rmSync(home, { recursive: true, force: true });
  };
}

/** Starts a store for the first client of the socket at `path`. The returned function ends both. */
async function onDemand(path: string, start: () => Promise<Running>): Promise<() => Promise<void>> {
  let running: Promise<Running> | undefined;
  const server = createServer((socket) => {
    running ??= start();
    running.then(
      ({ text }) => socket.end(text),
      () => socket.destroy(),
    );
    socket.on('error', () => {});
  });
  await new Promise<void>((resolve) => server.listen(path, resolve));
  return async () => {
    server.close();
    await (await running?.catch(() => undefined))?.stop();
  };
}

/** Loads the server of PostgreSQL, as the next function that of ClickHouse, only when a test needs it. */
async function startPostgres(home: string): Promise<Running> {
  const { startPostgres: start } = await import('./postgres-server.ts');
  const { url, stop } = await start(home);
  return { text: url, stop };
}

async function startClickHouse(home: string): Promise<Running> {
  const { startServer } = await import('./clickhouse-server.ts');
  const { server } = await startServer(home, { sessions: 8 });
  const { url, user, password } = server;
  return { text: JSON.stringify({ url, user, password }), stop: () => server.stop() };
}
