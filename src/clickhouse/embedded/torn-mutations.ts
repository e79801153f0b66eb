/**
 * Sets aside entries of mutations that are not whole. The engine keeps each mutation in a file of its table, and
 * refuses to start when it cannot read one of them: a full disk and a kill together left an empty file. The caller of
 * such a mutation got no answer, and `erase/` repeats its deletes until they are answered. Called before the engine
 * opens.
 */
import { readFileSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import type { Log } from '../../base/log.ts';
import { namesIn, tableDirectories } from './table-files.ts';

const entryForm = /^mutation_\d+\.txt$/;
const wholeForm = /^format version: 1\n[\s\S]*\ncommands: [\s\S]*\n$/;

/** `dir`: the data directory of the engine. */
export function setTornMutationsAside(dir: string, log: Log): void {
  for (const table of tableDirectories(dir)) {
    for (const name of namesIn(table).filter((each) => entryForm.test(each))) {
      const entry = join(table, name);
      if (wholeForm.test(readFileSync(entry, 'utf8'))) continue;
      // The engine ignores files with other names. The number of the entry may be used again.
      const kept = join(table, `unreadable_${name}`);
      renameSync(entry, kept);
      log.warn('mutation_unreadable', { path: kept });
    }
  }
}
