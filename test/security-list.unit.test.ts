/** `docs/security.md` and the code say the same: every cap and bounding setting has its place there, with its value and reason. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { limits } from '../src/base/limits.ts';

const root = join(import.meta.dirname, '..');
const page = readFileSync(join(root, 'docs/security.md'), 'utf8');
const yaml = readFileSync(join(root, 'config/default.yaml'), 'utf8');

/** Times and ports are no resource that is used up. */
const timeOfLimit = /Ms(Max|Min)?$/;
const noCap = /PORT$|_MS(_|$)|SECONDS|DAYS|TIMEOUT|INTERVAL|TIME$|DURATION|NICE$/;

const settings = new Map([...yaml.matchAll(/\$\{([A-Z_]+):(\d+)\}/g)].map(([, name, value]) => [name!, Number(value)]));
const values = new Map<string, number>([...Object.entries(limits), ...settings]);
const caps = [
  ...Object.keys(limits).filter((name) => !timeOfLimit.test(name)),
  ...[...settings.keys()].filter((name) => !noCap.test(name)),
];

/** What is named and what value stands behind it. */
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

const files = readdirSync(join(root, 'src'), { recursive: true, encoding: 'utf8' })
  .filter((file) => file.endsWith('.ts') && !file.endsWith('.test.ts'))
  .map((file) => readFileSync(join(root, 'src', file), 'utf8'));

const statusOf = { unavailable: 503, badRequest: 400, tooLarge: 413 };

/**
 * The statuses with which the code refuses for a reason: it is written there, has a name (`const busyReason = 'busy'`), or
 * is a member of what a `Fault` of its file is made of.
 */
function statusesOf(reason: string): Set<number> {
  const statuses = new Set<number>();
  for (const file of files.filter((text) => text.includes(`'${reason}'`))) {
    const names = [...file.matchAll(new RegExp(`const (\\w+) = '${reason}'`, 'g'))].map(([, name]) => name!);
    if (file.includes(`reason: '${reason}'`)) names.push('reason');
    const form = [`'${reason}'`, ...names.map((name) => `${name}\\b`)].join('|');
    for (const [, status] of file.matchAll(new RegExp(`new Fault\\(\\s*(\\d{3}),\\s*[\\w.]+,\\s*(?:${form})`, 'g')))
      statuses.add(Number(status));
    for (const [, maker] of file.matchAll(new RegExp(`(unavailable|badRequest|tooLarge)\\(\\s*(?:${form})`, 'g')))
      statuses.add(statusOf[maker as keyof typeof statusOf]);
  }
  return statuses;
}

test('every shared resource has a cap, a share and a refusal, and the code refuses with that status and reason', () => {
  expect(rows.length).toBeGreaterThan(30);
  const word = '[a-z]+(?:_[a-z]+)+|bodies|connections|streams|relations|guesses';
  for (const cells of rows) {
    expect(cells.length, cells[0]).toBe(4);
    for (const cell of cells) expect(cell, cells[0]).not.toBe('');
    // `429 `one`, `another`` names two reasons with one status.
    const refusals = cells.join(' ').matchAll(new RegExp(`(\\d{3}) ((?:(?:, )?\`(?:${word})\`)+)`, 'g'));
    for (const [, status, reasons] of refusals) {
      for (const [, reason] of reasons!.matchAll(/`(\w+)`/g)) {
        expect([...statusesOf(reason!)], `${cells[0]}: ${reason}`).toContain(Number(status));
      }
    }
  }
});
