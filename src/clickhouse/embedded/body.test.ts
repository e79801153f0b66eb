/** Where rows are kept until the engine reads them. */
import { execFileSync } from 'node:child_process';
import { chownSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { BodyFiles } from './body.ts';

/** Returns false when this user may not mount. */
function mount(dir: string, bytes: number): boolean {
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', `size=${bytes}`, 'tmpfs', dir], { stdio: 'pipe' });
    return true;
  } catch {
    return false;
  }
}

test('rows that shared memory has no room for any more continue beside the data', ({ skip }) => {
  const root = mkdtempSync(join(tmpdir(), 'millrace-bodies-'));
  const [shared, data] = [join(root, 'shared'), join(root, 'data')];
  mkdirSync(shared);
  mkdirSync(data);
  skip(!mount(shared, 1024 * 1024), 'this user may not mount');
  try {
    const bytesMax = 256 * 1024;
    const files = new BodyFiles(data, bytesMax, shared);
    const others = Array.from({ length: 4 }, () => files.create());
    for (const other of others.slice(1)) other.append(Buffer.alloc(bytesMax));
    const rows = Buffer.from(Array.from({ length: bytesMax }, (_, i) => i % 251));
    const file = files.create();
    file.append(rows.subarray(0, 100_000));
    others[0]!.append(Buffer.alloc(bytesMax - 130_000));
    expect(file.path.startsWith(shared)).toBe(true);
    file.append(rows.subarray(100_000));
    file.end();
    expect(file.path.startsWith(data)).toBe(true);
    expect(readFileSync(file.path).equals(rows)).toBe(true);
    const held = readdirSync(join(shared, readdirSync(shared)[0]!));
    expect(held).toHaveLength(others.length);
    // An empty place for the next file is again in shared memory.
    others[1]!.remove();
    const next = files.create();
    next.append(rows.subarray(0, 1000));
    expect(next.path.startsWith(shared)).toBe(true);
    for (const each of [file, next, ...others]) each.end();
    files.close();
    expect(readdirSync(data)).toEqual([]);
  } finally {
    execFileSync('umount', [shared]);
    rmSync(root, { recursive: true });
  }
});

test('no rows are written into a directory of another user', ({ skip }) => {
  skip(process.geteuid!() !== 0, 'only root makes directories of other users');
  const root = mkdtempSync(join(tmpdir(), 'millrace-bodies-'));
  const files = new BodyFiles(root, 1024, root);
  files.create().remove();
  const [name] = readdirSync(root);
  rmSync(join(root, name!), { recursive: true });
  mkdirSync(join(root, name!), { mode: 0o777 });
  chownSync(join(root, name!), 65534, 65534);
  expect(() => files.create()).toThrow('belongs to another user');
  rmSync(root, { recursive: true });
});
