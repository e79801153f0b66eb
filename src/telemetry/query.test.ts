/** The statement of a read of telemetry, and its answer when the store refuses. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, test } from 'vitest';
import { shareTestClickHouse } from '../../test/harness/clickhouse-server.ts';
import { silentLog } from '../../test/harness/silent-log.ts';
import { limits } from '../base/limits.ts';
import { openClickHouse } from '../clickhouse/client.ts';
import { readLatest } from './latest.ts';
import { readAggregate, readHistory } from './query.ts';

test('a read asks for a result that is bounded, of an external server too', async () => {
  let query = new URLSearchParams();
  const server = createServer((request, response) => {
    query = new URL(request.url!, 'http://x').searchParams;
    response.writeHead(500).end('Code: 396. DB::Exception: Limit for result exceeded. (TOO_MANY_ROWS_OR_BYTES)');
  }).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const clickhouse = openClickHouse({ url, user: 'u', password: 'p', database: 'd', log: silentLog });
  try {
    const read = readHistory(clickhouse, 1, { startTs: 0, endTs: 1 }, 10, 'ASC', () => {});
    await expect(read).rejects.toMatchObject({ status: 400, reason: 'answer_bytes' });
    expect(Object.fromEntries(query)).toMatchObject({
      max_result_bytes: String(limits.historyReadBytesMax),
      max_result_rows: String(limits.historyRowsMax + 1),
      result_overflow_mode: 'throw',
      output_format_json_escape_forward_slashes: '0',
    });
    await expect(readLatest(clickhouse, 1)).rejects.toMatchObject({ status: 400, reason: 'answer_bytes' });
  } finally {
    await clickhouse.close();
    server.close();
  }
});

test('a key with signs of SQL is that key, in histories and in aggregates', async () => {
  const keys = ["it's", '\\', "\\'", 'a\tb\0c', '/* x */', '-- x', '{starts:Array(Int64)}', "'); SELECT ('", 'ü😀'];
  const { clickhouse, stop } = await shareTestClickHouse();
  try {
    await clickhouse.exec(
      `INSERT INTO telemetry (device, key, ts, kind, num, int, text, version)
       SELECT 7, arrayJoin({keys:Array(String)}), 1000, 2, 0, 5, '', 1`,
      { keys },
    );
    for (const read of [...keys.map((key) => [key]), keys]) {
      const range = { startTs: 0, endTs: 2_000, keys: read };
      const found: string[] = [];
      await readHistory(clickhouse, 7, range, 10, 'ASC', ({ key, value }) => found.push(`${key} ${value.int}`));
      expect(found.sort()).toEqual(read.map((key) => `${key} 5`).sort());
      const sums: string[] = [];
      await readAggregate(clickhouse, 7, range, [0], 'SUM', ({ key, value }) => sums.push(`${key} ${value.int}`));
      expect(sums.sort()).toEqual(found);
    }
  } finally {
    await stop();
  }
});
