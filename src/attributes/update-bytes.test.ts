/** Reads of large updates for many devices, against a real server. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { insertDevices } from '../../test/harness/inserted-devices.ts';
import { startTestPostgres, type TestPostgres } from '../../test/harness/postgres-server.ts';
import { limits } from '../base/limits.ts';
import { createLog } from '../base/log.ts';
import type { Queries } from '../postgres/client.ts';
import { UpdateReads } from './update-reads.ts';

let server: TestPostgres;
let numbers: number[];
const valueBytes = 1_000_000;
const deviceCount = 30;

beforeAll(async () => {
  server = await startTestPostgres();
  const { postgres } = server;
  numbers = await insertDevices(postgres, deviceCount);
  await postgres.query(
    'insert into attribute_head (device, version, changes_seen, deletions_seen) select number, 2, 0, 0 from device',
  );
  await postgres.query(
    `insert into attribute (device, scope, key, kind, value, last_update_ts, version)
     select number, 2, 'manual', 4, repeat('x', ${valueBytes}), 1, 1 from device
      union all select number, 2, 'n', 2, number::text, 1, 2 from device`,
  );
}, 60_000);
afterAll(() => server.stop(), 60_000);

it('devices that ask at once each get their update, and no statement returns the values of all', async () => {
  let bytesMax = 0;
  const postgres: Queries = {
    async query<Row>(text: string, values?: unknown[]): Promise<Row[]> {
      const rows = await server.postgres.query<Row>(text, values);
      const bytes = rows.reduce((sum, row) => sum + String((row as { value?: string }).value ?? '').length, 0);
      bytesMax = Math.max(bytesMax, bytes);
      return rows;
    },
  };
  const reads = new UpdateReads(postgres, createLog('fatal', 'test'));
  const ask = (number: number) => reads.ask({ number, tenantId: 'orchard', customerId: null }, 0);
  const first = numbers.map(ask);
  const again = numbers.map(async (number) => {
    // The reads of the first callers run: these callers wait beside those that have to wait again.
    await first[0];
    return await ask(number);
  });
  const expected = numbers.map((number) => ({
    version: 2,
    update: { kind: 'changes', version: 2, json: `{"manual":"${'x'.repeat(valueBytes)}","n":${number}}` },
  }));
  const answers = await Promise.all([...first, ...again]);
  // A string of megabytes in a failure says nothing.
  expect(answers.map((answer, n) => JSON.stringify(answer) === JSON.stringify(expected[n % deviceCount]))).toEqual(
    answers.map(() => true),
  );
  expect(bytesMax).toBeLessThan(limits.updateReadBytesMax + 2 * valueBytes);
});
