/** The settings that must be equal: each is a setting, and a difference is one line with both values and the host. */
import { readFileSync } from 'node:fs';
import { expect, test } from 'vitest';
import { loadConfig } from '../../base/settings/config.ts';
import { equalSettingsOf, mismatchOf } from './equal-settings.ts';

const other = (settings: Record<string, string>) => ({ name: 'b', address: '10.0.0.2:8080', settings });

test('each name is one of a setting, and every limit that is counted together is there', () => {
  const names = Object.keys(equalSettingsOf(loadConfig()));
  const file = readFileSync('config/default.yaml', 'utf8');
  for (const name of names) expect(file).toContain(`\${${name}:`);
  const limits = [...file.matchAll(/\$\{((?:RATE_LIMITS|LIMITS)_[A-Z_]+):/g)].map(([, name]) => name);
  expect(limits.length).toBeGreaterThan(10);
  expect(names).toEqual(expect.arrayContaining(limits));
});

test('a difference is one line, and what one version alone knows is not compared', () => {
  expect(mismatchOf({ A: '1', B: '' }, other({ A: '1', B: '', C: '3' }))).toBeUndefined();
  expect(mismatchOf({ A: '1', C: '3' }, other({ A: '1' }))).toBeUndefined();
  expect(mismatchOf({ A: '1', B: '' }, other({ A: '1', B: '5:1' }))).toBe(
    'B is empty here and 5:1 on the host b (10.0.0.2:8080), which runs: ' +
      'give all hosts the same value, or stop that host first.',
  );
  expect(mismatchOf({ A: '1', B: '2', C: '3', D: '4' }, other({ A: '1', B: '5', C: '6', D: '7' }))).toBe(
    'B is 2 here and 5 on the host b (10.0.0.2:8080), which runs: ' +
      'give all hosts the same value, or stop that host first. These differ as well: C, D.',
  );
});

test('the key that signs tokens is compared by its digest, and never shown', () => {
  const [own, theirs] = ['a', 'b'].map((letter) => Buffer.alloc(64, letter).toString('base64')) as [string, string];
  const settingsOf = (key: string) => equalSettingsOf(loadConfig({ JWT_TOKEN_SIGNING_KEY: key }));
  expect(mismatchOf(settingsOf(own), other(settingsOf(own)))).toBeUndefined();
  const line = mismatchOf(settingsOf(own), other(settingsOf('')))!;
  expect(line).toMatch(/^JWT_TOKEN_SIGNING_KEY is set \(SHA-256 [\da-f]{16}…\) here and empty on the host b/);
  expect(mismatchOf(settingsOf(own), other(settingsOf(theirs)))).toMatch(/^JWT_TOKEN_SIGNING_KEY is set .* and set /);
  for (const secret of [own, theirs]) expect(JSON.stringify(settingsOf(secret))).not.toContain(secret);
});

test('settings of a stream that one host changes for all of them differ, and count only where there is a stream', () => {
  const stream = { INGEST_ACK: 'stream', STREAM_URL: 'nats://a', STREAM_JSON: 'true' };
  const differs = (changes: Record<string, string>, both: Record<string, string> = stream) =>
    mismatchOf(equalSettingsOf(loadConfig(both)), other(equalSettingsOf(loadConfig({ ...both, ...changes }))));
  expect(differs({})).toBeUndefined();
  const names = { STREAM_REDELIVER_SECONDS: '7', STREAM_SUBJECTS: '8', STREAM_JSON_KEPT_SECONDS: '1h' };
  for (const [name, value] of Object.entries(names)) {
    expect(differs({ [name]: value })).toMatch(new RegExp(`^${name} is \\d+ here and \\d+ on the host b`));
    expect(differs({ [name]: value }, {})).toBeUndefined();
  }
});
