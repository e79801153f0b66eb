/** Tests that passwords are kept. The ownership of their directory is tested in test/flow/data-directory.test.ts. */
import fs, { mkdtempSync, readFileSync, readlinkSync, rmSync, writeFileSync } from 'node:fs';
import { syncBuiltinESMExports } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { DataDirectory } from './data-directory.ts';
import { secretsIn } from './secrets.ts';

const { fsyncSync, renameSync } = fs;
let dir = '';

beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'millrace-data-'));
});

afterEach(() => {
  Object.assign(fs, { fsyncSync, renameSync });
  syncBuiltinESMExports();
  rmSync(dir, { recursive: true });
});

test('generated passwords are durable before a store is made with them', () => {
  const steps: string[] = [];
  fs.fsyncSync = (descriptor) => {
    steps.push(`sync ${readlinkSync(`/proc/self/fd/${descriptor}`)}`);
    fsyncSync(descriptor);
  };
  fs.renameSync = (from, to) => {
    steps.push(`rename ${from}`);
    renameSync(from, to);
  };
  syncBuiltinESMExports();
  const data = new DataDirectory(dir);
  const { secrets, fresh } = secretsIn(data);
  const { path } = data;
  expect(fresh).toBe(true);
  expect(steps).toEqual([
    `sync ${join(path, 'secrets.json.new')}`,
    `rename ${join(path, 'secrets.json.new')}`,
    `sync ${path}`,
  ]);
  expect(secretsIn(data)).toEqual({ secrets, fresh: false });
});

test('damaged passwords are refused with what to do, and no part of a password is in the reason', () => {
  const data = new DataDirectory(dir);
  const { adminPassword } = secretsIn(data).secrets;
  const path = join(data.path, 'secrets.json');
  const text = readFileSync(path, 'utf8');
  const begin = text.indexOf(adminPassword);
  // The byte before the password is its opening quote.
  for (const damaged of [
    `${text.slice(0, begin - 1)}?${text.slice(begin)}`,
    text.slice(0, begin + 8),
    '',
    '{}',
    'null',
  ]) {
    writeFileSync(path, damaged);
    let reason = '';
    try {
      secretsIn(data);
    } catch (error) {
      reason = (error as Error).message;
    }
    expect(reason).toMatch(/secrets\.json is damaged\. .* put the secrets\.json of a backup .* in its place\.$/);
    expect(reason).not.toContain(adminPassword.slice(0, 6));
    expect(readFileSync(path, 'utf8')).toBe(damaged);
  }
});
