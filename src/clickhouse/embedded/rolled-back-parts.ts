/**
 * Sets aside parts of merges that failed after their part had its final name, for instance for lack of file handles
 * when the directory was synced. The engine continues with the sources of such a part and merges or mutates these into
 * newer parts. A kill before the engine has removed the failed part leaves old and new parts on the disk. Old and new
 * parts overlap, neither contains the other, and the engine refuses to open. Of overlapping parts the one that was
 * written first has failed: after a success its blocks would not have been used again. The other parts have all rows of
 * the failed part. Called before the engine opens.
 */
import { mkdirSync, renameSync, statSync } from 'node:fs';
import { join } from 'node:path';
import type { Log } from '../../base/log.ts';
import { namesIn, tableDirectories } from './table-files.ts';

export interface PartName {
  name: string;
  partition: string;
  /** The number of the part's first block; `last` is that of the last one. */
  first: number;
  last: number;
  /** The number of merges. */
  level: number;
  /** The number of the last mutation. */
  mutation: number;
}

const nameForm = /^([^_]+)_(\d+)_(\d+)_(\d+)(?:_(\d+))?$/;

/** `dir`: the data directory of the engine. */
export function setRolledBackPartsAside(dir: string, log: Log): void {
  for (const table of tableDirectories(dir)) {
    for (const parts of partitionsOf(table)) {
      if (!parts.some((part, n) => parts.slice(n + 1).some((other) => overlap(part, other)))) continue;
      const kept: PartName[] = [];
      for (const part of newestFirst(table, parts)) {
        if (!kept.some((newer) => overlap(part, newer))) {
          kept.push(part);
          continue;
        }
        const path = join(table, 'detached', `rolled-back_${part.name}`);
        mkdirSync(join(table, 'detached'), { recursive: true, mode: 0o700 });
        renameSync(join(table, part.name), path);
        log.warn('part_rolled_back', { path });
      }
    }
  }
}

function partitionsOf(table: string): Iterable<PartName[]> {
  const partitions = new Map<string, PartName[]>();
  for (const part of partsIn(table)) {
    const parts = partitions.get(part.partition);
    if (parts) parts.push(part);
    else partitions.set(part.partition, [part]);
  }
  return partitions.values();
}

/** Returns the parts in the directory of a table. */
export function partsIn(table: string): PartName[] {
  return namesIn(table).flatMap((name) => readPartName(name) ?? []);
}

/** Returns undefined for what is no name of a part. */
export function readPartName(name: string): PartName | undefined {
  const [, partition, first, last, level, mutation = 0] = nameForm.exec(name) ?? [];
  if (partition === undefined) return undefined;
  const numbers = { first: Number(first), last: Number(last), level: Number(level), mutation: Number(mutation) };
  return { name, partition, ...numbers };
}

/** True when the parts have common blocks and neither replaces the other. */
function overlap(a: PartName, b: PartName): boolean {
  return a.first <= b.last && b.first <= a.last && !replaces(a, b) && !replaces(b, a);
}

/** True when part `a` makes part `b` outdated, by the rule of the engine. */
export function replaces(a: PartName, b: PartName): boolean {
  const isSameRange = a.first === b.first && a.last === b.last;
  return (
    a.first <= b.first &&
    a.last >= b.last &&
    a.mutation >= b.mutation &&
    (a.level > b.level || (a.level === b.level && isSameRange))
  );
}

function newestFirst(table: string, parts: readonly PartName[]): PartName[] {
  const writtenAt = new Map(parts.map((part) => [part, writtenMs(join(table, part.name))]));
  return [...parts].sort((a, b) => writtenAt.get(b)! - writtenAt.get(a)!);
}

/**
 * Returns the time of the newest file, because a mutation links files that it does not change. Directories have the
 * time of a rename.
 */
function writtenMs(part: string): number {
  return Math.max(0, ...namesIn(part).map((name) => statSync(join(part, name)).mtimeMs));
}
