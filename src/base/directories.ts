/** Makes directories that an operator has named. Called at starts and by commands; blocks. */
import { existsSync, mkdirSync, statSync } from 'node:fs';
import { dirname } from 'node:path';

/**
 * Makes the directory and its missing parents. With `recursive`, Node retries without end where a file system answers
 * ENOENT, as /proc does.
 */
export function makeDirectories(path: string, mode?: number): void {
  const missing: string[] = [];
  for (let at = path; !existsSync(at); at = dirname(at)) missing.push(at);
  if (missing.length === 0 && !statSync(path).isDirectory()) throw new Error(`${path} is not a directory`);
  for (const dir of missing.reverse()) {
    try {
      mkdirSync(dir, { mode });
    } catch (error) {
      // Another process may have made the directory meanwhile.
      if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error;
    }
  }
}
