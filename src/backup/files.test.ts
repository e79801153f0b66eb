import { mkdtempSync, readdirSync, readlinkSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { BackupFiles, filesBelow } from './files.ts';

let dir: string;

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'millrace-backup-files-'));
});

afterEach(() => rmSync(dir, { recursive: true, force: true }));

test('after a stop no copy that runs makes, opens or lengthens a file', async () => {
  const source = join(dir, 'source');
  writeFileSync(source, Buffer.alloc(3 * 1024 * 1024));
  const target = join(dir, 'backup');
  const files = new BackupFiles(target, 1024 * 1024 * 1024);
  const reason = new Error('stopped');
  const copyOn = async (name: string) => {
    for (let n = 0; ; n += 1) await files.copy(source, `${name}/${n}`);
  };
  const copies = Array.from({ length: 4 }, (_, i) => copyOn(`part-${i}`).catch((error: unknown) => error));
  const open = await files.create('left open');
  await sleep(30);
  await files.stop(reason);
  // Removes the folder as the caller does, while the copies still run.
  rmSync(target, { recursive: true });
  expect(await Promise.all(copies)).toHaveLength(4);
  await sleep(50);
  expect(await filesBelow(target)).toEqual([]);
  await expect(open.write(Buffer.from('x'))).rejects.toThrow();
  await expect(files.create('later')).rejects.toThrow('stopped');
});

test('a file that is just being made is closed when the stop resolves', async () => {
  const files = new BackupFiles(join(dir, 'backup'), 1024 * 1024);
  const made = files.create('late').catch(() => 'ended');
  await files.stop(new Error('stopped'));
  const open = readdirSync('/proc/self/fd').map((fd) => {
    try {
      return readlinkSync(`/proc/self/fd/${fd}`);
    } catch {
      return '';
    }
  });
  expect(open.filter((path) => path.startsWith(dir))).toEqual([]);
  expect(await made).toBe('ended');
});

test('a stop does not wait for the pace of the copies', async () => {
  const source = join(dir, 'source');
  writeFileSync(source, Buffer.alloc(8 * 1024 * 1024));
  const files = new BackupFiles(join(dir, 'backup'), 1024);
  const copy = files.copy(source, 'slow').catch(() => 'ended');
  await sleep(20);
  await files.stop(new Error('stopped'));
  expect(await Promise.race([copy, sleep(5_000, 'waits', { ref: false })])).toBe('ended');
});
