/**
 * For tests: a real embedded ClickHouse in a temporary directory, shared or not. A server is a process that needs
 * built JavaScript: that of the engine tests, or one that is compiled for this test process, below node_modules so that
 * packages are found.
 */

import { execFileSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { fileURLToPath } from 'node:url';
import { startedTicksOf } from '../../src/base/process-file.ts';
import { type ClickHouse, openClickHouse } from '../../src/clickhouse/client.ts';
import {
  type EmbeddedClickHouse,
  type EmbeddedClickHouseDeps,
  startEmbeddedClickHouse,
} from '../../src/clickhouse/embedded/embedded.ts';
import { migrateClickHouse } from '../../src/clickhouse/migrate.ts';
import { silentLog } from './silent-log.ts';

export interface TestClickHouse {
  /** A test that starts another one with `options` puts it here. */
  server: EmbeddedClickHouse;
  clickhouse: ClickHouse;
  /** The options of the start, with the port that the server got. */
  options: EmbeddedClickHouseDeps;
  /** Sends a statement over HTTP; throws unless it succeeds. */
  ask(sql: string): Promise<string>;
  stop(): Promise<void>;
}

/** A database with the schema on the server that unit tests share. */
export interface SharedClickHouse {
  server: Pick<EmbeddedClickHouse, 'url' | 'user' | 'password'>;
  clickhouse: ClickHouse;
  database: string;
  /** Removes the database. */
  stop(): Promise<void>;
}

/** Makes a database on the shared server, which the test must not stop; without one it starts a server of its own. */
export async function shareTestClickHouse(): Promise<SharedClickHouse> {
  const { inject } = await import('vitest');
  const socket = inject('clickhouseSocket') as string | undefined;
  if (socket === undefined) return { ...(await startTestClickHouse()), database: 'millrace' };
  const server = JSON.parse(await text(connect(socket))) as SharedClickHouse['server'];
  const { url, user, password } = server;
  const database = `test_${randomBytes(8).toString('hex')}`;
  const clickhouse = openClickHouse({ url, user, password, database, log: silentLog });
  await migrateClickHouse(clickhouse, { database, cluster: '', log: silentLog });
  const stop = async () => {
    await clickhouse.exec(`DROP DATABASE ${database} SYNC`, {}, { withoutDatabase: true });
    await clickhouse.close();
  };
  return { server, clickhouse, database, stop };
}

/** Starts a server of its own, with the schema in database `millrace`. */
export async function startTestClickHouse(): Promise<TestClickHouse> {
  const embedded = await startEmptyClickHouse();
  await migrateClickHouse(embedded.clickhouse, { database: 'millrace', cluster: '', log: silentLog });
  return embedded;
}

/** Starts a server of its own, without the schema. */
export async function startEmptyClickHouse(overrides: Partial<EmbeddedClickHouseDeps> = {}): Promise<TestClickHouse> {
  const home = mkdtempSync(join(tmpdir(), 'millrace-clickhouse-'));
  const { server, options } = await startServer(home, overrides);
  const { url, user, password } = server;
  const clickhouse = openClickHouse({ url, user, password, database: 'millrace', log: silentLog });
  const embedded: TestClickHouse = {
    server,
    clickhouse,
    options: { ...options, port: server.port },
    ask: async (sql) => {
      const { url, password } = embedded.server;
      const answer = await fetch(`${url}/`, { method: 'POST', body: sql, headers: { 'X-ClickHouse-Key': password } });
      const text = (await answer.text()).trim();
      if (answer.status !== 200) throw new Error(text);
      return text;
    },
    stop: async () => {
      await clickhouse.close();
      await embedded.server.stop();
      rmSync(home, { recursive: true, force: true });
    },
  };
  return embedded;
}

/** Starts a server in `home`, without the schema. */
export async function startServer(
  home: string,
  overrides: Partial<EmbeddedClickHouseDeps> = {},
): Promise<{ server: EmbeddedClickHouse; options: EmbeddedClickHouseDeps }> {
  const options: EmbeddedClickHouseDeps = {
    dir: join(home, 'clickhouse'),
    runDir: join(home, 'run'),
    port: 0,
    password: 'test-password',
    memoryBytesMax: 1024 * 1024 * 1024,
    freeDiskBytesMin: 0,
    sessions: 4,
    nice: 0,
    calmCheckMs: 0,
    drainMsMax: 300,
    log: silentLog,
    logLevel: 'error',
    serverFile: builtServer(),
    ...overrides,
  };
  return { server: await startEmbeddedClickHouse(options), options };
}

let built: string | undefined;

export function builtServer(): string {
  if (built) return built;
  if (process.env['MILLRACE_TEST_BUILT']) {
    built = fileURLToPath(new URL('../../dist/clickhouse/embedded/server.js', import.meta.url));
    return built;
  }
  const root = fileURLToPath(new URL('../../', import.meta.url));
  const cache = join(root, 'node_modules', '.cache', 'clickhouse-server');
  removeStaleBuilds(cache);
  const outDir = join(cache, String(process.pid));
  mkdirSync(outDir, { recursive: true });
  writeFileSync(join(outDir, 'package.json'), '{"type":"module"}');
  const project = join(outDir, 'tsconfig.json');
  const settings = {
    extends: join(root, 'tsconfig.build.json'),
    compilerOptions: { outDir, rootDir: join(root, 'src') },
    include: [],
    files: [join(root, 'src/clickhouse/embedded/server.ts')],
  };
  writeFileSync(project, JSON.stringify(settings));
  execFileSync(process.execPath, [join(root, 'node_modules/typescript/bin/tsc'), '-p', project], { stdio: 'pipe' });
  built = join(outDir, 'clickhouse', 'embedded', 'server.js');
  return built;
}

/** A test process is ended without notice and cannot clear up itself. */
function removeStaleBuilds(cache: string): void {
  mkdirSync(cache, { recursive: true });
  for (const pid of readdirSync(cache)) {
    if (startedTicksOf(Number(pid)) === undefined) rmSync(join(cache, pid), { recursive: true, force: true });
  }
}
