/**
 * The statements that a start sends to a ClickHouse when a server of its cluster does not answer or its schema is
 * newer.
 */
import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { Log } from '../base/log.ts';
import { type ClickHouse, openClickHouse } from './client.ts';
import { migrateClickHouse, schemaVersions } from './migrate.ts';

/** A statement that has arrived, and the settings in its URL. */
let statements: { sql: string; settings: URLSearchParams }[] = [];
let applied: { version: number; compatible_from?: number }[] | undefined;
/** The migrations of the server that answers; undefined: the same as those of all servers. */
let appliedHere: typeof applied;
let events: string[] = [];
/** The answer of ClickHouse about the table of telemetry. */
let tableQuery = '';
/** Called for each statement that all servers of the cluster must confirm. */
let onCluster = () => {};
let server: Server;
let clickhouse: ClickHouse;

const say = (event: string) => events.push(event);
const log: Log = { debug: () => {}, info: say, warn: say, error: say };
const options = { database: 'millrace', cluster: 'fleet', log };
const all = schemaVersions().map((version) => ({ version }));
const newest = all.at(-1)!.version;

beforeEach(async () => {
  statements = [];
  events = [];
  applied = all;
  appliedHere = undefined;
  tableQuery = '';
  onCluster = () => {};
  // A statement for all servers of the cluster is never answered, because one of them is down.
  server = createServer((request, response) => {
    let sql = '';
    request.on('data', (chunk: Buffer) => {
      sql += chunk.toString();
    });
    request.on('end', () => {
      const settings = new URL(request.url!, 'http://stand-in').searchParams;
      statements.push({ sql, settings });
      if (/ON CLUSTER/.test(sql) && settings.get('distributed_ddl_output_mode') !== 'null_status_on_timeout') return;
      if (/ON CLUSTER/.test(sql)) onCluster();
      if (sql.includes('system.tables')) return void response.end(JSON.stringify({ sql: tableQuery }));
      if (!sql.includes('schema_migrations') || !sql.startsWith('SELECT')) return void response.end('');
      const rows = sql.includes('clusterAllReplicas') ? applied : (appliedHere ?? applied);
      if (rows) return void response.end(rows.map((row) => JSON.stringify(row)).join('\n'));
      response.statusCode = 404;
      response.end('Code: 60. DB::Exception: Table millrace.schema_migrations does not exist. (UNKNOWN_TABLE)');
    });
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address() as { port: number };
  clickhouse = openClickHouse({
    url: `http://127.0.0.1:${port}`,
    user: 'default',
    password: '',
    database: 'millrace',
    insertQuorum: undefined,
    log,
  });
});

afterEach(async () => {
  await clickhouse.close();
  server.closeAllConnections();
  server.close();
});

test('with nothing to do a start reads and changes nothing, so it waits for no server of the cluster', async () => {
  await migrateClickHouse(clickhouse, options);
  expect(statements.filter(({ sql }) => !sql.startsWith('SELECT'))).toEqual([]);
});

test('what one server of a cluster has applied is applied: others are asked before anything is made', async () => {
  applied = undefined;
  const asked = migrateClickHouse(clickhouse, { ...options, apply: false });
  await expect(asked).rejects.toThrow(/telemetry is not applied yet, and MIGRATE is false: run npm run migrate/);
  expect(statements.map(({ sql }) => sql)).toEqual([
    'SELECT * FROM millrace.schema_migrations',
    "SELECT * FROM clusterAllReplicas('fleet', millrace.schema_migrations)",
  ]);
});

test('a migration whose row another shard has is applied, though this server has rows of older ones', async () => {
  appliedHere = all.slice(0, -2);
  await migrateClickHouse(clickhouse, options);
  expect(events).toEqual([]);
});

test('a server that has all rows is enough: no other server is asked', async () => {
  await migrateClickHouse(clickhouse, options);
  expect(statements.filter(({ sql }) => sql.includes('clusterAllReplicas'))).toEqual([]);
});

test('what is missing is made without waiting for a server that does not answer', async () => {
  applied = all.slice(0, -1);
  await migrateClickHouse(clickhouse, options);
  const changes = statements.filter(({ sql }) => sql.includes('ON CLUSTER'));
  expect(changes.length).toBeGreaterThan(2);
  for (const { settings } of changes) expect(settings.get('distributed_ddl_task_timeout')).toBe('10');
  expect(statements.some(({ sql }) => sql.includes(`VALUES (${newest}, `))).toBe(true);
  expect(events).toEqual(['clickhouse_migrated']);
});

test('statements wait ten seconds in all for a server that does not answer, then a second each', async () => {
  applied = undefined;
  const { now } = performance;
  let waitedMs = 0;
  vi.spyOn(performance, 'now').mockImplementation(() => now.call(performance) + waitedMs);
  onCluster = () => {
    waitedMs += 4_000;
  };
  try {
    await migrateClickHouse(clickhouse, options);
  } finally {
    vi.restoreAllMocks();
  }
  const changes = statements.filter(({ sql }) => sql.includes('ON CLUSTER'));
  const seconds = changes.map(({ settings }) => Number(settings.get('distributed_ddl_task_timeout')));
  expect(seconds.slice(0, 4)).toEqual([10, 6, 2, 1]);
  expect(new Set(seconds.slice(4))).toEqual(new Set([1]));
});

test('the removal of a rule of an earlier version waits for no server that does not answer', async () => {
  tableQuery = 'CREATE TABLE millrace.telemetry_local … TTL toDateTime(intDiv(ts, 1000)) + toIntervalDay(30)';
  await migrateClickHouse(clickhouse, options);
  const [change, ...more] = statements.filter(({ sql }) => sql.includes('ON CLUSTER'));
  expect(change!.sql).toMatch(/REMOVE TTL$/);
  expect(more).toEqual([]);
  expect(events).toEqual(['clickhouse_ttl_removed']);
});

test('the lock is taken only when a migration is missing, which is looked up again inside it', async () => {
  const applies: string[] = [];
  const onApplied = (name: string) => applies.push(name);
  let locks = 0;
  const lock = async (work: () => Promise<void>) => {
    locks += 1;
    await work();
  };
  await migrateClickHouse(clickhouse, { ...options, lock, onApplied });
  expect(locks).toBe(0);
  applied = all.slice(0, -1);
  await migrateClickHouse(clickhouse, { ...options, lock, onApplied });
  expect({ locks, applies }).toEqual({ locks: 1, applies: [expect.any(String)] });
  const late = async (work: () => Promise<void>) => {
    // Another host has applied the migration meanwhile.
    applied = all;
    await work();
  };
  applied = all.slice(0, -1);
  statements = [];
  await migrateClickHouse(clickhouse, { ...options, lock: late, onApplied });
  expect(applies).toHaveLength(1);
  expect(statements.filter(({ sql }) => !sql.startsWith('SELECT'))).toEqual([]);
});

test('a newer schema is a warning while this version works with it, and refused when it does not', async () => {
  applied = [...all, { version: newest + 1, compatible_from: newest }];
  await migrateClickHouse(clickhouse, options);
  expect(events).toEqual(['clickhouse_schema_is_newer']);
  applied = [...all, { version: newest + 1, compatible_from: newest + 1 }];
  await expect(migrateClickHouse(clickhouse, options)).rejects.toThrow(/newer Millrace/);
  applied = [...all, { version: newest + 1 }];
  await expect(migrateClickHouse(clickhouse, options)).rejects.toThrow(/newer Millrace/);
});
