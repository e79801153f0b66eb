/**
 * A PostgreSQL of the kind that Millrace embeds, with a directory of its own, which a scenario uses without an engine.
 * Both end with this process, even while the server is being made.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type EmbeddedPostgres, startEmbeddedPostgres } from '../src/postgres/embedded/embedded.ts';
import { ownDirectory } from './own-directory.ts';

interface OwnPostgres {
  server: EmbeddedPostgres;
  /** The directory of the cluster. */
  cluster: string;
  close(): Promise<void>;
}

const log = { debug() {}, info() {}, warn: console.warn, error: console.error };

export async function startOwnPostgres(prefix: string): Promise<OwnPostgres> {
  const home = ownDirectory(prefix, endProcessesOf);
  const dir = join(home.path, 'postgres');
  const server = await startEmbeddedPostgres({ dir, runDir: join(home.path, 'run'), port: 0, password: 'bench', log });
  const close = async () => {
    await server.stop();
    home.remove();
  };
  return { server, cluster: join(dir, 'cluster'), close };
}

/** Ends the processes whose arguments name the directory: `initdb`, or a server, which ends its own processes. */
function endProcessesOf(directory: string): void {
  for (const pid of readdirSync('/proc').filter((name) => /^\d+$/.test(name))) {
    try {
      if (readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(directory)) process.kill(Number(pid), 'SIGQUIT');
    } catch {
      // The process has ended meanwhile.
    }
  }
}
