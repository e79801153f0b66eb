/**
 * `docs/security.md` agrees with the code: it lists every cap and every setting that is a bound, with value and reason.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { limits } from '../src/base/limits.ts';
import { type Reason, statusOf } from '../src/base/reasons.ts';
import { readConfig } from '../src/base/settings/config.ts';

const root = join(import.meta.dirname, '..');
const page = readFileSync(join(root, 'docs/security.md'), 'utf8');
const yaml = readFileSync(join(root, 'config/default.yaml'), 'utf8');

/** Times and ports are no resource that can be used up. */
const timeOfLimit = /Ms(Max|Min)?$/;
const noCap = /PORT$|_MS(_|$)|SECONDS|DAYS|TIMEOUT|INTERVAL|TIME$|DURATION|NICE$/;

const settings = new Map(
  readConfig({}).settings.flatMap(({ name, value }) => (typeof value === 'number' ? [[name, value] as const] : [])),
);
const values = new Map<string, number>([...Object.entries(limits), ...settings]);
const caps = [
  ...Object.keys(limits).filter((name) => !timeOfLimit.test(name)),
  ...[...settings.keys()].filter((name) => !noCap.test(name)),
];

/** The named caps and their values. */
function mentions(text: string): { name: string; value: number | undefined }[] {
  return [...text.matchAll(/`([A-Za-z_]+)`(?: (\d[\d ]*))?/g)].flatMap(([, name, value]) =>
    values.has(name!) ? [{ name: name!, value: value ? Number(value.replaceAll(' ', '')) : undefined }] : [],
  );
}

const lists = page.slice(0, page.indexOf('# Who acts for which devices'));
const rows = lists
  .split('\n')
  .filter((line) => line.startsWith('| '))
  .slice(1)
  .map((line) =>
    line
      .split('|')
      .slice(1, -1)
      .map((cell) => cell.trim()),
  );

test('every cap of limits.ts and every bounding setting is on the page', () => {
  const named = new Set(mentions(lists).map(({ name }) => name));
  expect(
    caps.filter((name) => !named.has(name)),
    'put it into a table or list of docs/security.md',
  ).toEqual([]);
});

test('every name on the page exists, with the value of the code', () => {
  const words = [...lists.matchAll(/`([a-z]+[A-Z][A-Za-z]+|[A-Z]+_[A-Z_]+)`/g)].map(([, name]) => name!);
  expect(words.filter((name) => !values.has(name) && !yaml.includes(name))).toEqual([]);
  for (const { name, value } of mentions(lists))
    if (value !== undefined) expect([name, value]).toEqual([name, values.get(name)]);
});

test('every shared resource has a cap, a share and a refusal, and the code refuses with that status and reason', () => {
  expect(rows.length).toBeGreaterThan(30);
  const word = '[a-z]+(?:_[a-z]+)+|bodies|connections|streams|relations|guesses|onboarding';
  for (const cells of rows) {
    expect(cells.length, cells[0]).toBe(4);
    for (const cell of cells) expect(cell, cells[0]).not.toBe('');
    // `429 `one`, `another`` names two reasons with one status.
    const refusals = cells.join(' ').matchAll(new RegExp(`(\\d{3}) ((?:(?:, )?\`(?:${word})\`)+)`, 'g'));
    for (const [, status, reasons] of refusals) {
      for (const [, reason] of reasons!.matchAll(/`(\w+)`/g)) {
        expect(statusOf(reason as Reason), `${cells[0]}: ${reason}`).toBe(Number(status));
      }
    }
  }
});
