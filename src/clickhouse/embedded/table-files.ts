/** Finds the files of the engine's tables on the disk, for the repairs before the engine opens. */
import { readdirSync } from 'node:fs';
import { join } from 'node:path';

/** Returns the directories of all tables below `dir`. Databases keep their tables in `store`, two levels deep. */
export function tableDirectories(dir: string): string[] {
  const store = join(dir, 'store');
  return namesIn(store).flatMap((first) => namesIn(join(store, first)).map((table) => join(store, first, table)));
}

/** Returns the names in a directory; none when there is no such directory. */
export function namesIn(dir: string): string[] {
  try {
    return readdirSync(dir);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === 'ENOENT' || code === 'ENOTDIR') return [];
    throw error;
  }
}
