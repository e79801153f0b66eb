/**
 * Brings back parts of tables that the engine set aside when it opened. A part that cannot be loaded for lack of memory or
 * of file handles counts as broken there, although it is whole, and its rows would be missing without an error. A row
 * that another part has as well does no harm: both tables keep one row of each key. Called before the server listens.
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

/** A part that cannot be read now either stays where it is, and the log names it. */
export async function attachDetached(engine: Engine, log: Log): Promise<void> {
  for (const { database, table, path } of await detachedParts(engine)) {
    const part = nameForm.exec(basename(path))?.[1];
    if (part === undefined) continue;
    const whole = join(dirname(path), part);
    try {
      await rename(path, whole);
      try {
        await run(engine, `ALTER TABLE ${identifier(database)}.${identifier(table)} ATTACH PART ${literal(part)}`);
      } catch (error) {
        await rename(whole, path);
        throw error;
      }
      log.warn('part_attached', { database, table, part });
    } catch (error) {
      log.error('part_unreadable', { database, table, part, path, reason: messageOf(error) });
    }
  }
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
