/** Shows the journals below DATA_DIR as a table: what waits in each. Changes nothing, so Millrace may run meanwhile. */
import { existsSync, readdirSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { basename, join, resolve } from 'node:path';
import { systemClock as clock } from '../base/clock.ts';
import { columns } from '../base/columns.ts';
import { counted } from '../base/counted.ts';
import { messageOf, StartError } from '../base/errors.ts';
import { createLog } from '../base/log.ts';
import type { Config } from '../base/settings/config.ts';
import { sizeText } from '../base/size-text.ts';
import { countWaiting } from '../erase/tombstone-store.ts';
import { journalDirectory } from '../instance/host/data-files.ts';
import { openPostgresOf } from '../instance/stores/engines.ts';
import { inspectJournal, type JournalInspection } from '../journal/inspect.ts';
import { listQuarantine } from '../journal/quarantine.ts';
import { lanes } from '../journal/segment.ts';
import { listShardFiles } from '../journal/shard-backlog.ts';
import { listSuspects } from '../journal/suspects.ts';
import { isAway } from '../postgres/postgres-error.ts';
import { findInstance } from './running-instance.ts';

/** Returns the directories of journals below DATA_DIR, sorted by the number of their worker. */
export function journalsOf(config: Config): string[] {
  const parent = join(resolve(config.data.dir), journalDirectory);
  const names = existsSync(parent) ? readdirSync(parent).filter((name) => /^worker-\d+$/.test(name)) : [];
  return names.sort((a, b) => slotOf(a) - slotOf(b)).map((name) => join(parent, name));
}

/**
 * Like `journalsOf`. Throws a StartError when DATA_DIR is no data directory, so that a wrong one does not look empty.
 */
export function requireJournals(config: Config): string[] {
  const dir = resolve(config.data.dir);
  if (existsSync(join(dir, journalDirectory))) return journalsOf(config);
  throw new StartError(`There is no journal in ${dir}: set DATA_DIR to the data directory of the instance.`);
}

function slotOf(name: string): number {
  return Number(basename(name).slice('worker-'.length));
}

/** Returns the lines of `npm run journal -- list`. */
export async function journalTable(config: Config): Promise<string[]> {
  const workers = await workersOf(config);
  const table = [
    [
      ...['journal', 'owner', 'segments', 'on disk', 'live rows', 'late rows', 'oldest'],
      ...['for shards', 'suspects', 'quarantine'],
    ],
  ];
  const unread: string[] = [];
  for (const dir of journalsOf(config)) {
    const owner = slotOf(dir) < workers ? 'worker' : 'orphan';
    try {
      table.push([basename(dir), owner, ...(await lineOf(dir))]);
    } catch (error) {
      // A file that is damaged, or of a later version, does not hide the other journals.
      unread.push(`${basename(dir)} (${owner}) cannot be read: ${messageOf(error)}`);
    }
  }
  return [...columns(table), ...unread, `deletes: ${await describeDeletes(config)}`];
}

/**
 * Returns the workers of the running instance, whose WORKERS may differ from that of this command, or those of a start.
 */
async function workersOf(config: Config): Promise<number> {
  const running = await findInstance(config);
  return (running?.config ?? config).workers || availableParallelism();
}

/** Returns what waits in one journal: the columns of the table after its name and its owner. */
async function lineOf(dir: string): Promise<string[]> {
  const report = await inspectJournal(dir);
  const set = await listQuarantine(dir);
  const suspects = await listSuspects(dir);
  const forShards = await listShardFiles(dir);
  const [live, late] = waitingOf(report);
  return [
    String(report.segments.length + report.lost.length),
    sizeText(report.fileBytes),
    String(live.rows),
    String(late.rows),
    ageText(Math.min(live.oldestMs, late.oldestMs)),
    forShards.length === 0 ? '-' : counted(rowsOf(forShards), 'row'),
    suspects.length === 0 ? '-' : counted(rowsOf(suspects), 'row'),
    set.length === 0 ? '-' : counted(set.length, 'entry', 'entries'),
  ];
}

/** PostgreSQL keeps deletes, because they concern all hosts. */
async function describeDeletes(config: Config): Promise<string> {
  try {
    const postgres = openPostgresOf(config, createLog('error', 'journal'));
    const { waiting, oldestMs, again } = await countWaiting(postgres).finally(() => postgres.close());
    const oldest = waiting > 0 ? `, the oldest for ${Math.round(oldestMs / 1000)} s` : '';
    return `${waiting} wait${waiting === 1 ? 's' : ''}${oldest}; ${again} will be repeated for journals that are not stored`;
  } catch (error) {
    return `unknown, because PostgreSQL keeps them: ${isAway(error) ? awayReason(config) : messageOf(error)}`;
  }
}

function awayReason({ postgres }: Config): string {
  if (postgres.url === '') return 'the embedded one is not running. Start Millrace to see them.';
  return 'the one of DATABASE_URL does not answer.';
}

function rowsOf(sets: readonly { rows: number }[]): number {
  return sets.reduce((sum, { rows }) => sum + rows, 0);
}

interface Waiting {
  rows: number;
  oldestMs: number;
}

function waitingOf({ segments }: JournalInspection): [Waiting, Waiting] {
  const waiting = lanes.map((lane) => {
    const shares = segments.map((segment) => segment.waiting[lane]).filter(({ frames }) => frames > 0);
    return {
      rows: shares.reduce((sum, { rows }) => sum + rows, 0),
      oldestMs: Math.min(...shares.map(({ writtenMsMin }) => writtenMsMin), Number.POSITIVE_INFINITY),
    };
  });
  return waiting as [Waiting, Waiting];
}

function ageText(oldestMs: number): string {
  return Number.isFinite(oldestMs) ? `${Math.max(0, Math.round((clock.now() - oldestMs) / 1000))} s` : '-';
}
