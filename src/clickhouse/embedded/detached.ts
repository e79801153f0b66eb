/**
 * Attaches parts of tables that the engine set aside when it opened. A part that cannot be loaded for lack of memory or
 * file handles counts as broken although it is intact, and its rows would be missing without an error. A row that
 * another part has as well does no harm: both tables keep one row of each key. Called before the server listens, so no
 * delete is carried out while such a part is missing.
 */
import { rename } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import { messageOf } from '../../base/errors.ts';
import type { Log } from '../../base/log.ts';
import { type Engine, identifier, literal } from './engine.ts';

interface Detached {
  database: string;
  table: string;
  path: string;
}

const detachedQuery = `SELECT database, table, path FROM system.detached_parts WHERE reason = 'broken-on-start'`;
const nameForm = /^broken-on-start_(.+?)(?:_try\d+)?$/;

/**
 * Throws when memory or file handles are missing still: the process ends, and its next start tries again. A part that
 * is damaged gets another name, so that no later start brings back rows that were deleted meanwhile, and the log names
 * it.
 */
export async function attachDetached(engine: Engine, log: Log): Promise<void> {
  for (const { database, table, path } of await detachedParts(engine)) {
    const part = nameForm.exec(basename(path))?.[1];
    if (part === undefined) continue;
    const whole = join(dirname(path), part);
    await rename(path, whole);
    try {
      await run(engine, `ALTER TABLE ${identifier(database)}.${identifier(table)} ATTACH PART ${literal(part)}`);
      log.warn('part_attached', { database, table, part });
    } catch (error) {
      if (isShortOf(error)) {
        await rename(whole, path);
        throw error;
      }
      const kept = join(dirname(path), `unreadable_${part}`);
      await rename(whole, kept);
      log.error('part_unreadable', { database, table, path: kept, reason: messageOf(error) });
    }
  }
}

/** True for a lack of memory or of file handles. */
function isShortOf(error: unknown): boolean {
  return /MEMORY|bad_alloc|Cannot allocate|Too many open files|CANNOT_SCHEDULE_TASK/i.test(messageOf(error));
}

async function detachedParts(engine: Engine): Promise<Detached[]> {
  const text = await run(engine, detachedQuery);
  return text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Detached);
}

async function run(engine: Engine, sql: string): Promise<string> {
  const options = { defaultFormat: 'JSONEachRow', database: '', settings: new Map(), parameters: new Map(), tag: '' };
  return new TextDecoder().decode((await engine.run({ sql, ...options })).body);
}
