/**
 * Checks the project's references to itself: every document and heading that code or a page cites, every source file
 * that a page names, and every setting in a page.
 */
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { basename, dirname, join, normalize } from 'node:path';
import { expect, test } from 'vitest';

const root = join(import.meta.dirname, '..');
const texts = new Map<string, string>();

function read(file: string): string {
  let text = texts.get(file);
  if (text === undefined) {
    text = readFileSync(join(root, file), 'utf8');
    texts.set(file, text);
  }
  return text;
}

function filesBelow(folder: string, ending: RegExp): string[] {
  return readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' })
    .filter((file) => ending.test(file))
    .map((file) => join(folder, file));
}

const pages = ['README.md', 'src/README.md', ...filesBelow('docs', /\.md$/)];
const sources = [
  ...['src', 'test', 'bench', 'fuzz'].flatMap((top) => filesBelow(top, /\.[cm]?[jt]s$|\.sh$/)),
  'vitest.config.ts',
];
const settingsFiles = filesBelow('config', /\.yaml$/);
const self = 'test/citations.unit.test.ts';

/** The headings of a page, in the form that links use. */
function headingsOf(page: string): Set<string> {
  const text = read(page).replace(/```.*?```/gs, '');
  return new Set([...text.matchAll(/^#+ (.*)$/gm)].map(([, heading]) => slug(heading!)));
}

function slug(heading: string): string {
  return heading
    .toLowerCase()
    .replace(/[^\p{L}\p{N} _-]/gu, '')
    .replaceAll(' ', '-');
}

const headings = new Map(pages.map((page) => [page, headingsOf(page)]));

function faultOf(page: string, heading: string | undefined): string | undefined {
  const known = headings.get(page);
  if (!known) return 'is no page of this project';
  return heading === undefined || known.has(heading) ? undefined : 'has no such heading';
}

/** Fails with the list of all faults, so that one run names all of them. */
function expectNone(faults: string[]): void {
  expect(faults, `\n${faults.join('\n')}\n`).toEqual([]);
}

test('a page that code cites exists, by its path from the root, with the heading', () => {
  const faults: string[] = [];
  for (const file of [...sources, ...settingsFiles]) {
    if (file === self) continue;
    for (const [cited, page, heading] of read(file).matchAll(/([\w./-]+\.md)\b(?:#([\w-]+))?/g)) {
      const fault = faultOf(page!, heading);
      if (fault) faults.push(`${file} cites ${cited}, which ${fault}`);
    }
  }
  expectNone(faults);
});

test('code cites no section or case of a document that is not here', () => {
  const faults: string[] = [];
  for (const file of sources) {
    if (file === self) continue;
    for (const [cited] of read(file).matchAll(
      /(?:\/\*\*|^ *\*|\/\/|test(?:\.\w+)?\(['`]).*?\bcases? \d+(?!\d*:)\b.*$/gm,
    ))
      faults.push(`${file}: ${cited.trim()}`);
  }
  expectNone(faults);
});

test('a link of a page leads to a file and a heading', () => {
  const faults: string[] = [];
  for (const page of pages) {
    for (const [, target] of read(page).matchAll(/\]\(([^)\s]+)\)/g)) {
      if (/^[a-z]+:/.test(target!)) continue;
      const [path, heading] = target!.split('#') as [string, string | undefined];
      const file = path === '' ? page : normalize(join(dirname(page), path));
      const fault = file.endsWith('.md')
        ? faultOf(file, heading)
        : existsSync(join(root, file))
          ? undefined
          : 'is no file';
      if (fault) faults.push(`${page} links to ${target}, which ${fault}`);
    }
  }
  expectNone(faults);
});

test('a source file that a page, a comment or the rules of alerts name exists', () => {
  const names = new Set(sources.map((file) => basename(file)));
  const isThere = (name: string): boolean =>
    name.includes('/') ? sources.some((file) => file === name || file.endsWith(`/${name}`)) : names.has(name);
  const faults: string[] = [];
  for (const file of [...pages, ...settingsFiles, ...filesBelow('ops', /\.ya?ml$/), ...sources]) {
    if (file === self || file === 'test/floors.test.ts') continue;
    const all = read(file);
    const texts = file.endsWith('.ts') ? (all.match(/\/\*[\s\S]*?\*\/|(?:^|\s)\/\/ .*$/gm) ?? []) : [all];
    for (const text of texts) {
      for (const [name] of text.matchAll(/(?<![\w./*-])[\w-]+(?:\/[\w-]+)*(?:\.\w+)*\.ts\b/g))
        if (!isThere(name)) faults.push(`${file} names ${name}`);
    }
  }
  expectNone(faults);
});

test('a name that the tour places in a file is declared there', () => {
  const tour = read('src/README.md');
  const placed = [
    ...tour.matchAll(/`(\w+)(?:\.(\w+))?` \(`([\w./-]+\.ts)`\)/g),
    ...tour.matchAll(/^\| `(\w+)()` \| `([\w./-]+\.ts)` \|/gm),
  ];
  const faults = placed
    .filter(([, name, member, file]) => {
      const text = read(`src/${file}`);
      const isDeclared = new RegExp(`^export (?:async )?(?:class|interface|type|function|const) ${name}\\b`, 'm').test(
        text,
      );
      return !isDeclared || (member && !new RegExp(`^  (?:async |readonly )?${member}\\b`, 'm').test(text));
    })
    .map(([cited]) => `src/README.md: ${cited}`);
  expect(placed.length).toBeGreaterThan(20);
  expectNone(faults);
});

test('a setting that a page names exists', () => {
  const words = [...settingsFiles, ...sources].flatMap((file) =>
    read(file).match(/\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b/g),
  );
  const known = new Set(words);
  const faults: string[] = [];
  // Notes of a release also name settings that are gone.
  for (const page of pages.filter((each) => each !== 'docs/releases.md')) {
    for (const [, name] of read(page).matchAll(/`([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)(?:=[^`]*)?`/g))
      if (!known.has(name!) && !known.has(name!.replace(/_FILE$/, ''))) faults.push(`${page} names ${name}`);
  }
  expectNone(faults);
});
