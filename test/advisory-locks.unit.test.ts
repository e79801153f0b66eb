/** Advisory locks of PostgreSQL are numbers: two parts with one number would wait for each other without a reason. */
import { readdirSync, readFileSync } from 'node:fs';
import { expect, test } from 'vitest';

test('no two parts use one number as the key of an advisory lock', () => {
  const keys = readdirSync('src', { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.ts') && !path.endsWith('.test.ts'))
    .flatMap((path) => [...readFileSync(`src/${path}`, 'utf8').matchAll(/LockKey = ([\d_]+);|lockKey = ([\d_]+);/g)])
    .map(([, other, own]) => other ?? own);
  expect(keys.length).toBeGreaterThan(3);
  expect(new Set(keys).size).toBe(keys.length);
});
