/**
 * Attaches parts of tables that the engine set aside when it opened. A part that cannot be loaded for lack of memory or
 * file handles counts as broken although it is intact, and its rows would be missing without an error. A row that
 * another part has as well does no harm: both tables keep one row of each key. Called before the server listens, so no
 * delete is carried out while such a part is missing. A kill at any moment leaves a part under a name that the next
 * start attaches.
 */
import { rename } from 'node:fs/promises';
import { basename, dirname, join } from 'node:path';
import type { Log } from '../../base/log.ts';
import { type Engine, identifier, literal } from './engine.ts';
import { exceptionFrom } from './exception.ts';

interface Detached {
  database: string;
  table: string;
  path: string;
}

/** The engine's own names, and the name between `rename` and the end of `ATTACH PART`, which is that of the part. */
const detachedQuery = `SELECT database, table, path FROM system.detached_parts
  WHERE reason IN ('broken-on-start', 'attaching', '') ORDER BY length(reason)`;
const nameForm = /^(?:broken-on-start_|attaching_)?(\d.*?)(?:_try\d+)?$/;

/**
 * Codes with which the engine refuses a part whose files are damaged: cut, overwritten or missing. A merge on a full
 * disk leaves empty files (see write-check.ts); its sources are loaded instead of it.
 */
const damageCodes = new Set([
  6, 26, 27, 32, 33, 38, 40, 41, 50, 72, 79, 107, 117, 128, 131, 226, 227, 228, 233, 246, 271, 432,
]);

/**
 * Throws unless each part is attached or known to be damaged, for instance while memory, file handles or disk space are
 * missing: the process ends, and its next start tries again. A part that is damaged gets another name, so that no later
 * start brings back rows that were deleted meanwhile, and the log names it.
 */
export async function attachDetached(engine: Pick<Engine, 'run'>, log: Log): Promise<void> {
  for (const { database, table, path } of await detachedParts(engine)) {
    const part = nameForm.exec(basename(path))?.[1];
    if (part === undefined) continue;
    const whole = join(dirname(path), part);
    if (whole !== path) await rename(path, whole);
    try {
      await run(engine, `ALTER TABLE ${identifier(database)}.${identifier(table)} ATTACH PART ${literal(part)}`);
      log.warn('part_attached', { database, table, part });
    } catch (error) {
      const { code, message } = exceptionFrom(error);
      if (!damageCodes.has(code)) {
        log.error('part_not_attached', { database, table, path: whole, reason: message });
        throw error;
      }
      const kept = join(dirname(path), `unreadable_${part}`);
      await rename(whole, kept);
      log.error('part_unreadable', { database, table, path: kept, reason: message });
    }
  }
}

async function detachedParts(engine: Pick<Engine, 'run'>): Promise<Detached[]> {
  const text = await run(engine, detachedQuery);
  return text
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Detached);
}

async function run(engine: Pick<Engine, 'run'>, sql: string): Promise<string> {
  const options = { defaultFormat: 'JSONEachRow', database: '', settings: new Map(), parameters: new Map(), tag: '' };
  return new TextDecoder().decode((await engine.run({ sql, ...options })).body);
}
