/**
 * Copies the journals into a backup while the instance holds them. Every segment with waiting frames is copied up to
 * the byte that the cut names, and the position is that of the cut: the copy equals the state after a crash at that
 * moment. The writer's id and the spare files are left out, so a restored journal takes a new id.
 */

import { readdir } from 'node:fs/promises';
import { basename, join } from 'node:path';
import type { JournalCut } from '../journal/journal.ts';
import { positionFile } from '../journal/position.ts';
import { parseSegmentName } from '../journal/segment.ts';
import { shipNotesFile } from '../journal/ship-notes.ts';
import { type BackupFiles, filesBelow } from './files.ts';

export const journalsPath = 'journal';

/** Returns the names of the journals that were copied. */
export async function copyJournals(files: BackupFiles, journalDir: string, cuts: JournalCut[]): Promise<string[]> {
  const cutOf = new Map(cuts.map((cut) => [basename(cut.dir), cut]));
  const names = (await readdir(journalDir)).filter((name) => /^worker-\d+$/.test(name));
  for (const name of names) {
    const dir = join(journalDir, name);
    const cut = cutOf.get(name);
    // A journal that no worker has open (an orphan journal that cannot be opened) is not written either.
    if (cut) await copyCut(files, dir, cut);
    // Rows move from the backlogs of shards to the suspects, and from there to the quarantine, so the three are listed
    // in this order. A file that disappears between list and copy is an error, and the caller begins again.
    const moving = ['shards', 'suspects'];
    const paths: string[] = [];
    for (const each of moving) for (const path of await filesBelow(join(dir, each))) paths.push(`${each}/${path}`);
    const isMoving = (path: string) => moving.some((each) => path.startsWith(`${each}/`));
    for (const path of await filesBelow(dir)) if (!isMoving(path)) paths.push(path);
    for (const path of paths) {
      if (!isCopiedWhole(path, cut !== undefined)) continue;
      await files.copy(join(dir, path), `${journalsPath}/${name}/${path}`);
    }
  }
  return names;
}

async function copyCut(files: BackupFiles, dir: string, { segments, position }: JournalCut): Promise<void> {
  const target = `${journalsPath}/${basename(dir)}`;
  for (const { name, bytes } of segments) await files.copy(join(dir, name), `${target}/${name}`, bytes);
  const { cursors, orderHigh } = position;
  await files.writeWhole(`${target}/position`, positionFile({ cursors, orderHigh: BigInt(orderHigh) }));
}

/** True for the quarantine, the epoch, and other files of a journal beside its segments. */
function isCopiedWhole(path: string, open: boolean): boolean {
  // The notes of shipping are about the rows of this ClickHouse, a moment later than the cut.
  if (path === 'writer' || path === shipNotesFile || /^spare-\d+$/.test(path) || /\.(tmp|new)$/.test(path))
    return false;
  return !open || !(path === 'position' || parseSegmentName(path));
}
