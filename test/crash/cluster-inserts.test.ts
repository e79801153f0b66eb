/** The wire format of every insert into tables of a ClickHouse cluster: a stand-in records the settings. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { Metrics } from '../../src/base/metrics/metrics.ts';
import { loadConfig } from '../../src/base/settings/config.ts';
import type { ClickHouse } from '../../src/clickhouse/client.ts';
import { migrateClickHouse } from '../../src/clickhouse/migrate.ts';
import { insertLatest, insertTelemetry } from '../../src/clickhouse/statements.ts';
import { eraseSeries } from '../../src/erase/erase-in-clickhouse.ts';
import { openStores } from '../../src/instance/stores/engines.ts';
import { silentLog } from '../harness/silent-log.ts';
import { noStoredDeletes } from '../harness/stored-deletes.ts';

const inserts: URLSearchParams[] = [];
const statements: string[] = [];
const server = createServer(async (request, response) => {
  const query = new URL(request.url!, 'http://stand-in').searchParams;
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  const sql = query.get('query') ?? Buffer.concat(chunks).toString();
  statements.push(sql.trim());
  if (/^\s*INSERT/.test(sql)) inserts.push(query);
  const answers: [RegExp, string][] = [
    [/system.mutations/, '{"count":"0"}'],
    [/AS day/, '{"day":"0","first":"1","last":"2","count":"1"}'],
  ];
  response.end(`${answers.find(([pattern]) => pattern.test(sql))?.[1] ?? ''}\n`);
});

let config: ReturnType<typeof loadConfig>;
let clickhouse: ClickHouse;

beforeAll(async () => {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  clickhouse = open({ CLICKHOUSE_CLUSTER: 'fleet' });
});

afterAll(() => server.close());

beforeEach(() => {
  inserts.length = 0;
  statements.length = 0;
});

function open(environment: Record<string, string>): ClickHouse {
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  config = loadConfig({ ...environment, CLICKHOUSE_URL: url });
  const engines = { clickhouse: { url, user: 'u', password: 'p' }, postgresUrl: 'postgres://127.0.0.1:9/none' };
  return openStores({ engines, config, log: silentLog, metrics: new Metrics(), parts: () => ({}) }).shards.first;
}

const quorum = {
  distributed_foreground_insert: '1',
  insert_quorum: 'auto',
  insert_quorum_parallel: '1',
  // A latest value that was deleted, and is written again unchanged, must not count as a repetition.
  insert_deduplicate: '0',
};

test('shipped blocks, with a time for the quorum below their own deadline', async () => {
  for (const sql of [insertTelemetry, insertLatest]) {
    await clickhouse.insertBlocks(sql, Buffer.alloc(10), { timeoutMs: 60_000 });
  }
  expect(inserts).toHaveLength(2);
  for (const query of inserts) {
    expect(Object.fromEntries(query)).toMatchObject({ ...quorum, insert_quorum_timeout: '48000' });
  }
});

test('what a delete writes, and the rows of the schema', async () => {
  const order = '9000000000000000';
  await eraseSeries(
    { clickhouse, cluster: 'fleet', msLeft: () => 10_000, deletes: noStoredDeletes, mayHaveBegun: false },
    [
      {
        id: 1,
        device: 1,
        keys: ['a'],
        startTs: 0,
        endTs: 9,
        orderNumber: order,
        aheadWriters: [],
        aheadOrders: [],
        latest: 'rewrite',
      },
    ],
  );
  await migrateClickHouse(clickhouse, { database: 'millrace', cluster: 'fleet', log: silentLog });
  // Markers, latest values, and rows of the schema.
  expect(inserts.length).toBeGreaterThan(2);
  for (const query of inserts) expect(Object.fromEntries(query)).toMatchObject(quorum);
  expect(statements.filter((sql) => /^INSERT/i.test(sql))).toHaveLength(inserts.length);
});

test('the number of replicas is a setting, and one server gets none of it', async () => {
  await open({ CLICKHOUSE_CLUSTER: 'fleet', CLICKHOUSE_INSERT_QUORUM: '3' }).insertBlocks(
    insertLatest,
    Buffer.alloc(1),
  );
  expect(inserts.at(-1)!.get('insert_quorum')).toBe('3');
  await open({}).insertBlocks(insertLatest, Buffer.alloc(1));
  expect(
    Object.keys(Object.fromEntries(inserts.at(-1)!)).filter((name) => /quorum|distributed|deduplicate/.test(name)),
  ).toEqual([]);
});
