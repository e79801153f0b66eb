import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { BackupTarget, isWithin } from './target.ts';

let base: string;
let dir: string;

beforeEach(() => {
  base = mkdtempSync(join(tmpdir(), 'millrace-backup-target-'));
  dir = join(base, 'deep', 'backup');
});

afterEach(() => rmSync(base, { recursive: true, force: true }));

function fill(): void {
  mkdirSync(join(dir, 'journal', 'worker-0'), { recursive: true });
  writeFileSync(join(dir, 'journal', 'worker-0', 'position'), 'x');
}

test('a directory has one backup at a time, and belongs to it until its end', async () => {
  const first = await BackupTarget.claim(dir);
  fill();
  await expect(BackupTarget.claim(dir)).rejects.toThrow(/^Another backup writes to .*: wait for its end/);
  expect(existsSync(join(dir, 'journal', 'worker-0', 'position'))).toBe(true);
  await Promise.all([first.remove(), first.remove()]);
  expect(readdirSync(dir)).toEqual([]);
  const second = await BackupTarget.claim(dir);
  fill();
  writeFileSync(join(dir, 'manifest.json'), '{}');
  second.complete();
  expect(readdirSync(dir).sort()).toEqual(['journal', 'manifest.json']);
  await expect(BackupTarget.claim(dir)).rejects.toThrow(/is not empty/);
});

test('what a killed backup left is removed by the next one, and a complete backup with the mark is not', async () => {
  mkdirSync(dir, { recursive: true });
  writeFileSync(join(dir, 'unfinished'), 'A backup of Millrace that is being written, or was killed.\n');
  fill();
  const target = await BackupTarget.claim(dir);
  expect(readdirSync(dir)).toEqual(['unfinished']);
  await target.remove();
  fill();
  await expect(BackupTarget.claim(dir)).rejects.toThrow(/is not empty/);
  writeFileSync(join(dir, 'unfinished'), '');
  writeFileSync(join(dir, 'manifest.json'), '{}');
  await expect(BackupTarget.claim(dir)).rejects.toThrow(/is not empty/);
  expect(existsSync(join(dir, 'journal', 'worker-0', 'position'))).toBe(true);
});

test('a directory with a file of a user that has the name of the mark is left alone', async () => {
  mkdirSync(dir, { recursive: true });
  writeFileSync(join(dir, 'unfinished'), 'my list');
  fill();
  await expect(BackupTarget.claim(dir)).rejects.toThrow(/is not empty/);
  expect(readdirSync(dir).sort()).toEqual(['journal', 'unfinished']);
});

test('a path is within a directory by any link, also when it does not exist yet', async () => {
  const [data, link, other] = [join(base, 'data'), join(base, 'link'), join(base, 'other')];
  mkdirSync(join(data, 'journal'), { recursive: true });
  mkdirSync(other);
  symlinkSync(join(data, 'journal'), link);
  symlinkSync(data, join(other, 'data'));
  const within = (path: string) => isWithin(path, data);
  expect(await within(data)).toBe(true);
  expect(await within(join(data, 'backup'))).toBe(true);
  expect(await within(join(link, 'new', 'backup'))).toBe(true);
  expect(await within(join(other, 'data', 'backup'))).toBe(true);
  expect(await isWithin(join(data, 'backup'), join(other, 'data'))).toBe(true);
  expect(await within(`${data}-2`)).toBe(false);
  expect(await within(join(other, 'backup'))).toBe(false);
  expect(await within(base)).toBe(false);
});
