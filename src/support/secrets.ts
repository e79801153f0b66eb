/**
 * Keeps secrets out of a text that leaves the installation: every secret that the settings and DATA_DIR have, and what
 * looks like a token, a login or an e-mail address. Used by `npm run bundle` for each file.
 */
import { readFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import type { Config } from '../base/settings/config.ts';
import { type Setting, urlsOfSetting } from '../base/settings/settings.ts';
import { runDirectory, secretsFile } from '../instance/host/data-files.ts';
import { at } from './running-instance.ts';

/** Shorter secrets are not replaced: they occur in every text by chance, and protect nothing. */
const charsMin = 4;
const mask = '***';

const patterns: [pattern: RegExp, replacement: string][] = [
  // A login in a URL.
  [/\b([a-z][a-z0-9+.-]*:\/\/)[^\s/"'@]*@/gi, `$1${mask}@`],
  // An access token in a path of the device API.
  [/(\/api\/v1\/)[^/\s"'?]+/g, `$1${mask}`],
  [/\b(Bearer|ApiKey|Basic) +[\w.~+/=-]+/gi, `$1 ${mask}`],
  // A JWT.
  [/\beyJ[\w-]+\.[\w-]+(\.[\w-]*)?/g, mask],
  // An e-mail address.
  [/[\w.%+-]+@[\w-]+(\.[\w-]+)+/g, mask],
];

/** Returns every secret that the settings of this command, the running instance and the files of DATA_DIR have. */
export function secretsOf(config: Config, running: Config | undefined, settings: Setting[]): string[] {
  const found: string[] = [];
  for (const { path, isSecret } of settings) {
    for (const value of [at(config, path), running && at(running, path)]) {
      if (typeof value !== 'string') continue;
      if (isSecret) found.push(value);
      else found.push(...urlsOfSetting(path, value).flatMap(secretsOfUrl));
    }
  }
  const dir = resolve(config.data.dir);
  for (const name of [secretsFile, join(runDirectory, 'clickhouse.json'), join(runDirectory, 'postgres.json')]) {
    for (const [key, value] of Object.entries(readJson(join(dir, name)))) {
      if (/password/i.test(key)) found.push(String(value));
      if (key === 'url') found.push(...secretsOfUrl(String(value)));
    }
  }
  return [...new Set(found)].filter((secret) => secret.length >= charsMin).sort((a, b) => b.length - a.length);
}

/** Returns the secret parts of a URL, as written and percent-decoded: its password and the values of parameters. */
function secretsOfUrl(url: string): string[] {
  const [, login = ''] = /^[a-z][a-z0-9+.-]*:\/\/(.*)@/i.exec(url) ?? [];
  const password = login.slice(login.indexOf(':') + 1);
  const parameters = [...url.matchAll(/(?:pass\w*|secret|key|token)=([^&#]*)/gi)].map(([, value]) => value!);
  return [password, ...parameters].flatMap((text) => [text, unescaped(text)]);
}

function unescaped(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function readJson(path: string): Record<string, unknown> {
  try {
    return JSON.parse(readFileSync(path, 'utf8')) as Record<string, unknown>;
  } catch {
    return {};
  }
}

/** Returns the text without the secrets, also where JSON writes one with escapes. */
export function withoutSecrets(text: string, secrets: readonly string[]): string {
  let clean = text;
  for (const secret of secrets) {
    clean = clean.replaceAll(secret, mask).replaceAll(JSON.stringify(secret).slice(1, -1), mask);
  }
  for (const [pattern, replacement] of patterns) clean = clean.replace(pattern, replacement);
  return clean;
}

/** Fields of log lines that may hold what a device sent. */
const contentFields = new Set([
  'body',
  'bytes',
  'content',
  'first',
  'firstBytes',
  'payload',
  'row',
  'rows',
  'text',
  'value',
  'values',
]);

/**
 * Returns the lines that Millrace wrote as a log, and the places of errors. Other lines of such a file may be the
 * message of the start, with its password and token.
 */
export function logLines(text: string, linesMax: number): string[] {
  return text
    .split('\n')
    .flatMap((line) => {
      if (/^ {4}at /.test(line) || /^millrace: /.test(line)) return [line];
      if (!line.startsWith('{')) return [];
      try {
        const fields = JSON.parse(line) as Record<string, unknown>;
        if (typeof fields['event'] !== 'string') return [];
        return [JSON.stringify(fields, (key, value) => (contentFields.has(key) ? mask : value))];
      } catch {
        return [];
      }
    })
    .slice(-linesMax);
}
