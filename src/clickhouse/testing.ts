/**
 * For tests: a real embedded ClickHouse in a temporary directory. The server runs in a process of its own, which needs
 * built JavaScript: it is compiled once for each test process, below node_modules so that packages are found.
 */
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Log } from '../base/log.ts';
import { type ClickHouse, openClickHouse } from './client.ts';
import { type EmbeddedClickHouse, type EmbeddedOptions, startEmbeddedClickHouse } from './embedded.ts';
import { migrate } from './migrate.ts';

export const silentLog: Log = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };

export interface TestClickHouse {
  server: EmbeddedClickHouse;
  clickhouse: ClickHouse;
  options: EmbeddedOptions;
  stop(): Promise<void>;
}

/** With the schema in database `millrace`, unless `migrated` is false. */
export async function startTestClickHouse(
  overrides: Partial<EmbeddedOptions> = {},
  migrated = true,
): Promise<TestClickHouse> {
  const home = mkdtempSync(join(tmpdir(), 'millrace-clickhouse-'));
  const options: EmbeddedOptions = {
    dir: join(home, 'clickhouse'),
    runDir: join(home, 'run'),
    port: 0,
    password: 'test-password',
    memoryBytesMax: 1024 * 1024 * 1024,
    sessions: 4,
    nice: 0,
    log: silentLog,
    logLevel: 'error',
    serverFile: builtServer(),
    ...overrides,
  };
  const server = await startEmbeddedClickHouse(options);
  const { url, user, password } = server;
  const clickhouse = openClickHouse({ url, user, password, database: 'millrace', log: silentLog });
  if (migrated) await migrate(clickhouse, { database: 'millrace', cluster: '', ttlDays: 0, log: silentLog });
  const stop = async (): Promise<void> => {
    await clickhouse.close();
    await server.stop();
    rmSync(home, { recursive: true, force: true });
  };
  return { server, clickhouse, options, stop };
}

let built: string | undefined;

export function builtServer(): string {
  if (built) return built;
  const root = fileURLToPath(new URL('../../', import.meta.url));
  const outDir = join(root, 'node_modules', '.cache', `millrace-clickhouse-${process.pid}`);
  mkdirSync(outDir, { recursive: true });
  writeFileSync(join(outDir, 'package.json'), '{"type":"module"}');
  const project = join(outDir, 'tsconfig.json');
  const settings = {
    extends: join(root, 'tsconfig.build.json'),
    compilerOptions: { outDir, rootDir: join(root, 'src') },
    include: [],
    files: [join(root, 'src/clickhouse/embedded-server.ts')],
  };
  writeFileSync(project, JSON.stringify(settings));
  execFileSync(process.execPath, [join(root, 'node_modules/typescript/bin/tsc'), '-p', project], { stdio: 'pipe' });
  process.once('exit', () => rmSync(outDir, { recursive: true, force: true }));
  built = join(outDir, 'clickhouse', 'embedded-server.js');
  return built;
}
