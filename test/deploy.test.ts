/** docker-compose.yml cannot be run here. The test checks that it names only known settings, and paths that answer. */
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { parse } from 'yaml';
import { environmentNames } from '../src/base/settings/config.ts';
import { sharedEngine } from './harness/shared-engine.ts';

interface Service {
  image?: string;
  build?: unknown;
  environment?: Record<string, unknown> | string[];
  healthcheck?: { test: string | string[] };
  volumes?: string[];
}

interface Compose {
  services: Record<string, Service>;
  volumes: Record<string, unknown>;
}

const compose = parse(readFileSync('docker-compose.yml', 'utf8')) as Compose;
const dockerfile = readFileSync('Dockerfile', 'utf8');
const millrace = compose.services['millrace']!;

function pathsIn(text: string): string[] {
  return [...text.matchAll(/https?:\/\/(?:127\.0\.0\.1|localhost):\d+(\/[\w/-]*)/g)].map((match) => match[1]!);
}

test('every environment name of the Millrace service is a known setting', () => {
  const { environment = {} } = millrace;
  const names = Array.isArray(environment) ? environment.map((line) => line.split('=')[0]!) : Object.keys(environment);
  const known = environmentNames();
  expect(names.length).toBeGreaterThan(3);
  expect(names.filter((name) => !known.has(name))).toEqual([]);
});

test('every environment name of the Dockerfile is a known setting', () => {
  const names = [...dockerfile.matchAll(/^ENV\s+([A-Z0-9_]+)=/gm)].map((match) => match[1]!);
  const known = environmentNames();
  expect(names.filter((name) => name !== 'NODE_ENV' && !known.has(name))).toEqual([]);
});

test('every health check path answers 200', async () => {
  const paths = [...pathsIn([millrace.healthcheck?.test ?? ''].flat().join(' ')), ...pathsIn(dockerfile)];
  expect(paths.length).toBeGreaterThan(0);
  for (const path of paths) {
    const response = await fetch(`${sharedEngine().http}${path}`);
    expect(response.status, path).toBe(200);
  }
});

test('settings files that the deployment names are in the repository and known', () => {
  const settings = (millrace.environment as Record<string, string>)['MILLRACE_CONFIG'];
  expect(settings).toBe('/app/config/cluster.yaml');
  expect(readFileSync('config/cluster.yaml', 'utf8')).toContain('${CLICKHOUSE_URL:');
});

test('Redis wants a password, and Millrace has it', () => {
  const redis = compose.services['redis'] as Service & { command: string[] };
  const password = '${REDIS_PASSWORD:?set REDIS_PASSWORD}';
  expect(redis.command.slice(redis.command.indexOf('--requirepass'))).toEqual(['--requirepass', password]);
  expect((redis.environment as Record<string, string>)['REDISCLI_AUTH']).toBe(password);
  expect((millrace.environment as Record<string, string>)['REDIS_URL']).toBe(`redis://:${password}@redis:6379`);
});

test('named volumes are declared', () => {
  const used = Object.values(compose.services)
    .flatMap(({ volumes = [] }) => volumes.map((volume) => volume.split(':')[0]!))
    .filter((name) => !name.startsWith('.') && !name.startsWith('/'));
  expect(used.filter((name) => !(name in compose.volumes))).toEqual([]);
});

test('the image does not run as root and keeps its data in a volume', () => {
  expect(dockerfile).toMatch(/^USER 1000/m);
  expect(dockerfile).toMatch(/^VOLUME \["?\/data"?\]/m);
  expect(dockerfile).toMatch(/^HEALTHCHECK /m);
});
