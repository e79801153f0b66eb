/** Paths on the command line: npm runs the benchmarks in the directory of the package, not in that of the caller. */
import { resolve } from 'node:path';

/** Returns the absolute path of a file that the caller has named. */
export function callerPath(path: string): string {
  const { npm_lifecycle_event: script, INIT_CWD: directory } = process.env;
  return resolve(script === 'bench' && directory ? directory : process.cwd(), path);
}
