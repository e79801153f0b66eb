/** The statement of a read of telemetry, and its answer when the store refuses. */
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { expect, test } from 'vitest';
import { silentLog } from '../../test/harness/silent-log.ts';
import { limits } from '../base/limits.ts';
import { openClickHouse } from '../clickhouse/client.ts';
import { readLatest } from './latest.ts';
import { readHistory } from './query.ts';

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
