/** URLs of several servers. test/long/postgres-servers.test.ts tests a standby that takes over. */
import { expect, test } from 'vitest';
import { addressOf, serverUrls } from './servers.ts';

test('a URL of several hosts is one URL for each, with login, database and parameters', () => {
  const url = 'postgresql://u:p%40ss@a:5433,b,[::1]:5432/db?sslmode=require&target_session_attrs=read-write';
  expect(serverUrls(url)).toEqual([
    'postgresql://u:p%40ss@a:5433/db?sslmode=require',
    'postgresql://u:p%40ss@b/db?sslmode=require',
    'postgresql://u:p%40ss@[::1]:5432/db?sslmode=require',
  ]);
  expect(addressOf(url)).toBe('a:5433, b:5432, [::1]:5432');
});

test('any other URL stays as it is, but for the parameters that Millrace ignores', () => {
  for (const url of ['postgres://u@a/db', 'postgres://a:1/db?a=b', 'socket:/run/pg?db=x', '/run/postgresql db']) {
    expect(serverUrls(url)).toEqual([url]);
  }
  expect(serverUrls('postgres://a/db?target_session_attrs=primary&a=b')).toEqual(['postgres://a/db?a=b']);
  expect(serverUrls('postgres://a/db?target_session_attrs=any')).toEqual(['postgres://a/db']);
  expect(serverUrls('postgres://a/db?query_timeout=9&target_session_attrs=any&a=b')).toEqual(['postgres://a/db?a=b']);
  expect(addressOf('postgres://a/db')).toBe('a:5432');
});
